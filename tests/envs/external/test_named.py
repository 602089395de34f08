"""External environments by their names for `--env`, from the command line to a study."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from sweepd.deploy.games.baselines import baseline_player
from sweepd.deploy.games.panel import PanelGames
from sweepd.deploy.games.player import Act
from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.fit import fit_num_envs
from tests.envs.external.samples import Tag, TurnTag
from tests.envs.external.test_external_env import actions_for
from tests.optimize.conftest import Running
from tests.optimize.study_files import open_handle

SAMPLES = "tests.envs.external.samples"
SPACE = """
name = "tiny"
version = 1
[shape]
net_width = { value = 8 }
net_depth = { value = 1 }
minibatch = { value = 32 }
epochs = { value = 1 }
[ppo]
learning_rate = { low = 1e-4, high = 2e-3, log = true }
"""


KINDS = {
    "pettingzoo:tests.envs.external.parallel_module": 3,
    "vector:CartPole-v1": 1,
    f"{SAMPLES}:Buffered": 1,
}


@pytest.mark.parametrize("name", KINDS)
def test_a_study_on_an_external_environment(name: str, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(SPACE)
    words = [
        "train",
        "--env",
        name,
        "--n-trials",
        "2",
        "--budget",
        "64",
        "--rungs",
        "2",
        "--n-envs",
        "4",
        "--horizon",
        "8",
        "--seeds",
        "2",
        "--episodes",
        "3",
        "--threads",
        "1",
        "--gpu",
        "cpu",
        "--study-name",
        "s",
        "--slots",
        "4",
        "--search-space",
        "tiny.toml",
        "--no-auto-deploy",
        "--fresh-seeds",
        "0",
    ]
    limit = ["--env-param", "max_episode_steps=20"] if "CartPole" in name else []
    out = Running([*words, *limit], tmp_path, tmp_path / "out.txt").finish()
    assert f"game: {name}" in out
    assert ("3 players, all of them one policy" in out) == (KINDS[name] == 3)
    for trial in open_handle(tmp_path).trials():
        assert trial.state.name == "COMPLETE"
        assert len(trial.user_attrs["sweepd:seed_scores"]) == 2


def random_player(env: GameEnv) -> Act:
    return baseline_player("random", env, {}, None, seed=1)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        *KINDS.items(),
        ("pettingzoo:tests.envs.external.turn_module", 3),
        (f"vector:{SAMPLES}:sized_counters", 1),
        (f"{SAMPLES}:Counter", 1),
        (f"{SAMPLES}:Tag", 3),
    ],
)
def test_every_kind_plays_the_requested_number_of_games(name: str, rows: int) -> None:
    game = get_game(name)
    played = PanelGames(game, game.params(), 5, 1).play(random_player)
    assert played.returns.shape == (1, 5)  # whatever is made together
    assert game.make([game.params()], 4, together=1, device="cpu").num_envs == 4 * rows


def test_an_aec_environment_equals_its_parallel_version() -> None:
    turns, parallel = ExternalVecEnv(TurnTag, 1, 6), ExternalVecEnv(Tag, 1, 6)
    assert torch.equal(turns.reset(3), parallel.reset(3))
    generator = torch.Generator().manual_seed(0)
    for _ in range(12):
        action = actions_for(parallel, generator)
        for one, other in zip(turns.step(action), parallel.step(action), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(turns.present(), parallel.present())
        assert torch.equal(turns.final_obs(), parallel.final_obs())


class Late(Tag):
    """Only the first agent appears, and it leaves without being terminated."""

    def reset(
        self, seed: int | None = None, options: object = None
    ) -> tuple[dict[str, object], dict[str, object]]:
        seen, infos = super().reset(seed, options)
        self.agents = self.agents[:1]
        return {agent: seen[agent] for agent in self.agents}, infos

    def step(self, actions: dict[str, object]) -> tuple[dict[str, object], ...]:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        return seen, rewards, dict.fromkeys(terminated, False), truncated, infos


def test_rows_of_agents_that_never_appeared_end_with_the_game() -> None:
    env = ExternalVecEnv(Late, 1, 3)
    env.reset(0)
    ends = [env.step(torch.zeros(3, 1)).terminated.tolist() for _ in range(4)]
    assert ends == [[False] * 3, [True] * 3] * 2


def test_environments_made_together_stay_together() -> None:
    game = get_game(f"{SAMPLES}:counters")  # three of them
    assert (game.seats(game.params()), game.unit(game.params())) == (1, 3)

    def made(num_envs: int) -> GameEnv:
        return game.make([game.params()] * 2, num_envs, together=1, device="cpu")

    assert [made(count).envs_per_member for count in (1, 3, 4)] == [3, 3, 6]
    assert PanelGames(game, game.params(), 4, 1).play(random_player).lengths.shape == (1, 4)
    assert fit_num_envs(6, 3, "x", fixed=True) == (6, "")
    assert fit_num_envs(4, 3, "x", fixed=False)[0] == 6
    with pytest.raises(InputError, match=r"--n-envs 4 is not a multiple; use 3 or 6"):
        fit_num_envs(4, 3, "x", fixed=True)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "vector:Acrobot-v1",
            "no vector environment is registered with this id (vector_entry_point); use gym:Acr",
        ),
        ("vector:NoSuch-v1", "--env vector:NoSuch-v1: Gymnasium knows no such environment"),
        ("pettingzoo:json", "the module json has neither parallel_env nor env"),
        ("pettingzoo:nothere", "No module named 'nothere'"),
        (f"{SAMPLES}:nobody", "has nothing called 'nobody'"),
        (
            "math:pi",
            "--env math:pi is a float; it must be a function or class that makes an environment",
        ),
        (
            "decimal:Decimal",
            "it made a Decimal, which must be a gymnasium.Env, a gymnasium.vector.VectorEnv",
        ),
        (f"{SAMPLES}:misbehave", "cannot be made: TypeError: misbehave() missing 1 required"),
        (f"{SAMPLES}:OldStep", "its step returns 4 values instead of Gymnasium's 5"),
        (f"{SAMPLES}:OldReset", "its reset does not return (observation, info)"),
        (
            f"{SAMPLES}:Gym21",
            "it made a Gym21, which is no gymnasium.Env; an environment of the old package gym",
        ),
        (f"{SAMPLES}:Pool", "it made Pool, an EnvPool, which takes a seed only when it is made"),
    ],
)
def test_unsupported_names_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)) as refused:
        looked_at(name)
    assert "\n" not in str(refused.value)


def looked_at(name: str) -> int:
    game = get_game(name)
    return game.seats(game.params())


def test_aec_environments_that_are_not_parallelizable_have_a_step_per_turn() -> None:
    game = get_game(f"pettingzoo:{SAMPLES}:TurnTag")
    assert game.seats(game.params()) == game.seats(game.params(parallelizable=False)) == 3
    for parallelizable, present in ((True, 3), (False, 1)):
        params = game.params(parallelizable=parallelizable)
        env = game.make([params], 1, together=1, device="cpu")
        env.reset(0)
        assert int(env.present().sum()) == present
