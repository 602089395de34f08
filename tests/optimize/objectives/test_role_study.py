"""Studies with roles (`--roles`): training, judging, recording, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sweepd
from sweepd.agents.policy.members import load_members
from sweepd.deploy.games.candidates import GameStudy, read_candidate
from sweepd.deploy.promotion.studies import find_study
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.games.evaluation import GameEvaluation
from sweepd.optimize.objectives.games.objective import GameObjective
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.space.search_space import Settings
from tests.envs.external.chase_module import CELLS, STEPS, Chase
from tests.optimize.conftest import Running
from tests.optimize.objectives.test_game_study import make_experiment, plan, to_the_end
from tests.optimize.study_files import open_handle

NAME = "pettingzoo:tests.envs.external.chase_module"
ROLES = "wolf=wolf_*;hare=hare_0"
SETTINGS = Settings({}, {}, {})


def experiment(**changes: Any) -> Any:
    return make_experiment(
        NAME, **{"env": {"roles": ROLES}, "seeds": 2, "slots": 4, "episodes": 400, **changes}
    )


def chasing(obs: Tensor) -> Tensor:
    """Return the options of wolves that step towards the hare (0 left, 1 stay, 2 right)."""
    return 1 - obs[:, 0].sign().long()


def evaluated(found: Any, wolf: Any, hare: Any) -> GameEvaluation:
    """Evaluate a trial whose wolves and hares act by functions of their observations."""

    def act(obs: Tensor, **_: Any) -> Tensor:
        parts = obs.view(4, len(obs) // 4, -1)
        made = [(wolf, hare)[slot % 2](own) for slot, own in enumerate(parts)]
        return torch.cat(made)

    result = found.evaluate([SETTINGS], [2], [act], 4, lambda: None)[0]
    assert isinstance(result, GameEvaluation)
    return result


def option(index: int) -> Any:
    return lambda obs: torch.full((len(obs),), index, dtype=torch.int64)


def caught_shares(games: int, stays: bool) -> float:
    """Return the share of steps in which wolves that chase a hare have it, by plain play."""
    generator, caught = np.random.default_rng(0), 0.0
    for seed in range(games):
        env = Chase()
        seen, _ = env.reset(seed=seed)
        while env.agents:
            moves = {own: -int(np.sign(seen[own][0])) for own in env.agents if own != "hare_0"}
            moves["hare_0"] = 0 if stays else int(generator.integers(2))
            seen, rewards, *_ = env.step(moves)
            caught += -rewards["hare_0"]
    return caught / (games * STEPS)


def test_the_first_role_is_judged_beside_random_play_and_all_roles_are_recorded() -> None:
    found = experiment()
    assert (found.members, found.together) == (4, 2)
    still, moving = (evaluated(found, chasing, option(own)) for own in (0, 1))
    # The value does not depend on the hare that was trained with the wolves.
    assert still.value == moving.value
    assert len(still.scores) == 2
    assert still.scores[0] == still.scores[1]  # the same games
    wanted = 2 * STEPS * (caught_shares(400, stays=False) - 0.1)
    assert still.value == pytest.approx(wanted, rel=0.1)
    metrics = still.metrics()
    caught = STEPS * caught_shares(400, stays=True)
    assert metrics["return_hare"] == pytest.approx(-caught, rel=0.1)
    assert metrics["return_wolf"] == pytest.approx(2 * caught - 0.2 * STEPS, rel=0.1)
    assert moving.metrics()["return_hare"] > metrics["return_hare"]
    assert metrics["length"] == STEPS


def test_the_order_of_roles_says_who_is_judged() -> None:
    found = experiment(env={"roles": "hare=hare_0;wolf=wolf_*"})
    one = evaluated(found, option(1), option(0))  # the first role's function is the hare's here
    other = evaluated(found, option(1), option(2))
    assert one.value == other.value
    assert one.value <= 0.0
    assert one.scores[0] == one.value


def test_a_team_is_judged_as_it_plays_together() -> None:
    found = experiment(objective="team")
    still, moving = (evaluated(found, chasing, option(own)) for own in (0, 1))
    for result in (still, moving):
        metrics = result.metrics()
        assert result.value == pytest.approx(metrics["return_wolf"] + metrics["return_hare"])
    assert still.value > moving.value
    assert "the sum of their returns" in " ".join(found.describe())


def test_one_role_is_judged_by_one_agent_among_random_ones() -> None:
    found = make_experiment(
        "pettingzoo:tests.envs.external.ring_module",
        env={"roles": "all=player_*"},
        seeds=2,
        slots=2,
        episodes=300,
    )

    def careful(obs: Tensor, **_: Any) -> Tensor:  # takes nothing: never out, never paid by the pot
        return torch.zeros(len(obs), dtype=torch.int64)

    result = found.evaluate([SETTINGS], [2], [careful], 2, lambda: None)[0]
    assert isinstance(result, GameEvaluation)
    assert result.value > 0.5  # the others pay it
    assert result.metrics()["return_all"] == 0.0  # where no one takes anything
    assert "the return of all while all others play at random" in " ".join(found.describe())


def test_a_role_that_diverged_has_no_value() -> None:
    found = experiment(env={"roles": ROLES, "numbers": True})

    def act(obs: Tensor, **_: Any) -> Tensor:
        return torch.zeros(len(obs), 2)

    assert found.evaluate([SETTINGS], [1], [act], 4, lambda: None)[0] is not None


def test_observations_are_scaled_by_role() -> None:
    found = experiment()
    (wolf, _), (hare, _) = (found.normaliser(member, SETTINGS) for member in (0, 1))
    assert torch.equal(found.normaliser(2, SETTINGS)[0], wolf)
    assert not wolf[1:].any()  # padding
    assert hare[:7].sum() == pytest.approx(1.0)  # one of so many cells
    assert 0.2 < float(hare[2 * CELLS]) < 0.6


def test_a_trial_is_the_same_alone_and_in_a_batch() -> None:
    found = experiment(episodes=4)
    together = Trainer(found)
    in_company = to_the_end(together, [together.start(plan(number)) for number in range(3)])
    alone = Trainer(found)
    assert to_the_end(alone, [alone.start(plan(1))])[1] == in_company[1]
    assert in_company[0] != in_company[1]
    assert len(in_company[0][2]) == 4  # weights of two roles by two seeds


SPACE = """
name = "tiny"
version = 1
[shape]
net_width = { value = 32 }
net_depth = { value = 1 }
minibatch = { value = 128 }
epochs = { value = 4 }
[ppo]
learning_rate = { value = 3e-3 }
"""


def words(name: str, *more: str) -> list[str]:
    """Return a small study of one trial."""
    counts = {"n-trials": 1, "seeds": 1, "n-envs": 16, "horizon": 16, "episodes": 200, "threads": 1}
    numbers = [word for name, value in counts.items() for word in (f"--{name}", str(value))]
    flags = ["--gpu", "cpu", "--study-name", "s", "--search-space", "tiny.toml"]
    return ["train", "--env", name, *numbers, *flags, *more]


def test_wolves_learn_to_chase_in_a_study(tmp_path: Path, monkeypatch: Any) -> None:
    """From the command line to the policies: the flags, the record, what is learned and refused."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(SPACE)
    asked = words(NAME, "--roles", ROLES, "--budget", "12288", "--rungs", "2")
    out = Running(asked, tmp_path, tmp_path / "out.txt").finish()
    assert "one policy for each of the roles wolf, hare" in out
    assert "return of hare, where all roles play as trained" in out
    assert "--roles" in out  # the flags that reproduce the study
    (trial,) = open_handle(tmp_path).trials()
    assert len(trial.user_attrs["sweepd:seed_scores"]) == 1
    perfect = 2 * STEPS * (caught_shares(400, stays=False) - 0.1)
    assert trial.value > 0.8 * perfect
    (file,) = tmp_path.glob("runs/*/trial-*/members.safetensors")
    assert len(load_members(file)) == 2
    other = words(NAME, "--roles", "wolf=wolf_*,hare_0", "--budget", "12288")
    assert "roles" in Running(other, tmp_path, tmp_path / "joined.txt").finish(code=2)
    opened = sweepd.create_study("s")
    study = GameStudy(find_study("s", opened.storage))
    (fault,) = read_candidate(study.complete[0], study).faults
    assert "it has one policy for each of the roles wolf, hare, and a bundle has" in fault
    policy = sweepd.load_policy(opened)
    assert policy.seats == (0, 1, 0)
    env = policy.wrap(Chase())
    seen, _ = env.reset(seed=1)
    legal = torch.ones(1, 3, dtype=torch.bool)
    own = policy.act(seen["wolf_0"]["observation"], lambda _: legal, seat=0)
    assert own.shape == (1,)


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("cartpole", ("--roles", "a=*"), "--roles is for PettingZoo's environments"),
        (
            "versus:tests.envs.external.duel_module",
            ("--roles", "a=*"),
            "for --roles, give --env tests.envs.external.duel_module:parallel_env",
        ),
        (NAME, ("--roles", "wolf=wolf_*"), "gives agent 'hare_0' no role"),
        (
            "gym:CartPole-v1",
            ("--objective", "team"),
            "--objective team is for studies with --roles",
        ),
        (
            NAME,
            ("--roles", ROLES, "--slots", "3"),
            "--slots 3 is not a multiple of the 2 members of a trial (--roles)",
        ),
        (
            NAME,
            ("--roles", ROLES, "--opponents", "self=1"),
            "opponents and phases are for one policy, not several of --roles",
        ),
        (
            "pettingzoo:tests.envs.external.duel_module",
            (),
            "--env versus:tests.envs.external.duel_module:parallel_env makes it a game of two",
        ),
        (
            "versus:tests.envs.external.duel_module",
            ("--env-param", "rewards=shared"),
            "they do not compete; --env tests.envs.external.duel_module:parallel_env trains them",
        ),
        (
            "versus:tests.envs.external.duel_module",
            ("--env-param", "rewards=mixed", "--opponents", "league"),
            "--opponents league is for zero-sum games alone",
        ),
    ],
)
def test_what_does_not_fit_is_refused(
    name: str, more: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    (tmp_path / "tiny.toml").write_text(SPACE)
    out = Running(words(name, "--budget", "2048", *more), tmp_path, tmp_path / "out.txt")
    said = " ".join(out.finish(code=2).split())
    assert reason in said, said


def test_built_in_objectives() -> None:
    assert GameObjective(NAME).objectives == ("return", "team")
    assert GameObjective("versus:tests.envs.external.duel_module").objectives == ("points",)


def test_members_in_groups_are_refused_where_slots_cut_them() -> None:
    with pytest.raises(InputError, match="is not a multiple of the 2 members"):
        experiment(slots=3)
