"""Phases of games without opponents: one player, Bucket Brigade, environments of others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from optuna.trial import TrialState
from torch import Tensor
from typer.testing import CliRunner

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.games.curriculum import Curriculum
from sweepd.envs.games.phase_files import parse_curriculum
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.tensor_game import TensorGame
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.games.curriculum import check_curriculum
from sweepd.optimize.objectives.games.experiment import GameExperiment
from sweepd.optimize.objectives.games.phases import Phases, begun_phases
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.run import Interrupted, WorkerHooks
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.space.parsing import load_space
from tests.optimize.conftest import search_app
from tests.optimize.objectives.test_curriculum import Slots
from tests.optimize.objectives.test_game_study import make_spec, plan, to_the_end
from tests.optimize.study_files import open_handle
from tests.optimize.worker.test_batch import advance_to


@dataclass(frozen=True)
class GrowingParams:
    size: int = 2


class Growing(TensorGame):
    """A game whose observations depend on a parameter, which it does not check."""

    action_dim, if_discrete, max_step = 2, True, 5

    def prepare(self, params: Sequence[Any]) -> None:
        self.state_dim = params[0].size

    def start(self, uniforms: Tensor) -> dict[str, Tensor]:
        return {"seen": uniforms.repeat(1, self.state_dim)}

    def move(
        self, state: dict[str, Tensor], action: Tensor, uniforms: Tensor
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        del uniforms
        return state, action.double(), action < 0

    def see(self, state: dict[str, Tensor], *_: Any) -> Tensor:
        return state["seen"]


GROWING = Growing.game(GrowingParams)

COUNTER = "gym:tests.envs.external.registering:tests/Counter-v0"
CARTPOLE = [
    {"share": 0.6, "env": {"length": 0.3}, "until": {"games": 25}},
    {
        "share": 0.3,
        "env": {"length": 0.6, "start_range": 0.1},
        "until": {"score": 0.5, "games": 30},
    },
    {"share": 0.1},
]
BRIGADE = [
    {"share": 0.6, "env": {"scenario": "easy=0.5,hard=0.5"}, "until": {"games": 12}},
    {"share": 0.4, "env": {"scenario": "chain_reaction"}},
]
COUNTERS = [
    {"share": 0.5, "env": {"length": 3}, "until": {"games": 40}},
    {"share": 0.5, "env": {"length": 7}},
]


def curriculum_of(phases: Sequence[dict[str, Any]]) -> Curriculum:
    return parse_curriculum({"phases": list(phases)}, "test")


def experiment_with(
    environment: str, phases: Sequence[dict[str, Any]], **changes: Any
) -> GameExperiment:
    spec = make_spec(environment, curriculum=curriculum_of(phases).to_dict(), **changes)
    return GameExperiment(spec, torch.device("cpu"))


class Beginning(Slots):
    """`Slots` that note whose episodes began again."""

    def __init__(self, rollouts: list[int | None], total: int) -> None:
        super().__init__(rollouts, total)
        self.begun: list[int] = []

    def begin(self, obs: torch.Tensor, slots: Sequence[int] | None = None) -> None:
        del obs
        self.begun += slots or ()


def led(name: str, phases: Sequence[dict[str, Any]], members: int, games: int) -> GameEnv:
    game, curriculum = get_game(name), curriculum_of(phases)
    params = [game.params(**phase.env) for phase in curriculum.phases]
    env = game.make([params[0]] * members, games, together=1, device="cpu")
    Phases(env, curriculum, params)
    env.reset([*range(members)])
    return env


def test_a_phase_ends_after_so_many_of_the_members_own_games() -> None:
    """Counters' games have as many steps as their length, so their number is known."""
    phases = [
        {"share": 0.9, "env": {"length": 3}, "until": {"games": 10}},
        {"share": 0.1, "env": {"length": 7}},
    ]
    env = led(COUNTER, phases, 2, 4)
    policies = Beginning([0, None], 100)
    env.begin_rollout(policies)
    ended = []
    for rollouts in range(1, 4):
        for _ in range(3):  # one game in each of 4 environments
            env.step(torch.zeros(8, dtype=torch.int64))
        policies.rollouts = [rollouts, 0 if rollouts > 1 else None]
        env.begin_rollout(policies)
        ended.append(begun_phases(env.get_member(0)))
    assert ended == [[0], [0], [0, 3]]  # 4, 8 and 12 games
    assert policies.begun == [0]  # made with another length, its episodes are new ones
    # The second member's games before its training, in which slot 1 was empty, count for nothing.
    assert begun_phases(env.get_member(1)) == [0]
    assert isinstance(env.follower, Phases)
    assert env.follower.take_changes() == [(0, "phase 2 of 2 began after 3 rollouts with 12 games")]
    for _ in range(6):
        assert not bool(env.step(torch.zeros(8, dtype=torch.int64)).terminated[:4].any())
    assert bool(env.step(torch.zeros(8, dtype=torch.int64)).terminated[:4].all())
    env.close()


def test_a_score_is_the_mean_return_of_a_window_of_games() -> None:
    # A counter's reward is its count: games of 3 steps return 6, of 2 steps 3.
    phases = [
        {"share": 0.4, "env": {"length": 2}, "until": {"score": 3.0, "games": 4}},
        {"share": 0.4, "env": {"length": 3}, "until": {"score": 6.01, "games": 4}},
        {"share": 0.2},
    ]
    env = led(COUNTER, phases, 1, 4)
    policies = Beginning([0], 20)
    env.begin_rollout(policies)
    for rollouts in range(1, 15):
        for _ in range(6):
            env.step(torch.zeros(4, dtype=torch.int64))
        policies.rollouts = [rollouts]
        env.begin_rollout(policies)
    # The second phase ends by its share only: 2/3 of the 19 rollouts that were left.
    assert begun_phases(env.get_member(0)) == [0, 1, 14]
    assert isinstance(env.follower, Phases)
    [(_, text), (_, other)] = env.follower.take_changes()
    assert text == "phase 2 of 3 began after 1 rollouts with a mean return of 3 in 12 games"
    assert other == "phase 3 of 3 began after 14 rollouts"
    env.close()


def test_members_that_share_games_change_together() -> None:
    experiment = experiment_with("bucket-brigade", BRIGADE, budget=2048, horizon=32)
    assert experiment.together == 2
    trainer = Trainer(experiment)
    training = trainer.start(plan(0))
    to_the_end(trainer, [training])
    [[first, second], [other_first, other_second]] = experiment.phases_begun(
        [member.env for member in training.members]
    ) or [[], []]
    assert (first, second) == (other_first, other_second)
    assert 0 < second < 5  # of 8 rollouts; by its share it would begin after 5


@pytest.mark.parametrize(
    ("environment", "phases", "changes"),
    [
        ("cartpole", CARTPOLE, {"budget": 2048}),
        ("bucket-brigade", BRIGADE, {"budget": 2048, "horizon": 32, "env": {"max_nights": 12}}),
        (COUNTER, COUNTERS, {"budget": 1024, "look_steps": 16}),
    ],
)
def test_a_trial_is_the_same_in_a_batch_and_after_a_stop_at_any_rollout(
    environment: str, phases: Sequence[dict[str, Any]], changes: dict[str, Any], tmp_path: Path
) -> None:
    experiment = experiment_with(environment, phases, **changes)
    together = Trainer(experiment)
    trainings = [together.start(plan(number)) for number in range(3)]
    in_company = to_the_end(together, trainings)
    begun = experiment.phases_begun([member.env for member in trainings[1].members])
    assert begun is not None
    assert len(begun[0]) == len(phases)
    assert begun[0][1] < round(phases[0]["share"] * experiment.spec.rollouts)
    for stop_after in range(1, experiment.spec.rung_end(1)):
        asked = iter([False] * (stop_after - 1) + [True])
        stopping = Trainer(experiment, WorkerHooks(stop=lambda asked=asked: next(asked, False)))
        torn = stopping.start(plan(1))
        with pytest.raises(Interrupted):
            advance_to(stopping, [torn], 1)
        going_on = Trainer(experiment)
        resumed = going_on.start(plan(1))
        path = tmp_path / f"{stop_after}.safetensors"
        write_checkpoint(path, Checkpoint(torn.members))
        resumed.members = read_checkpoint(path).members
        assert to_the_end(going_on, [resumed])[1] == in_company[1], stop_after
        for own, other in zip(resumed.members, trainings[1].members, strict=True):
            assert own.env is not None
            assert other.env is not None
            assert {"phases_began", "phases_window", "tally_games"} <= own.env.keys()
            for name in own.env:
                assert torch.equal(own.env[name], other.env[name]), (stop_after, name)


def test_phases_change_what_is_learned_and_evaluations_play_the_studys_game() -> None:
    spec = {"budget": 1024, "rungs": 1}
    plain = GameExperiment(make_spec("cartpole", **spec), torch.device("cpu"))
    led = experiment_with("cartpole", CARTPOLE, **spec)
    found = []
    for experiment in (plain, led):
        trainer = Trainer(experiment)
        found.append(to_the_end(trainer, [trainer.start(plan(0))]))
    assert found[0] != found[1]
    judging = led._judging_env(4)
    assert judging.follower is None
    assert set(judging.numbers["length"].tolist()) == {0.5}  # type: ignore[attr-defined]


# What is refused.


@pytest.mark.parametrize(
    ("game", "phases", "message"),
    [
        ("cartpole", [{"opponents": {"self": 1.0}}], "cartpole has one seat; leave --opponents"),
        (
            "bucket-brigade",
            [{"share": 0.5, "env": {"scenario": "easy"}}, {"share": 0.5, "seat": "first"}],
            "phase 2: seat is for games of two seats made from TensorGame, and bucket-brigade has 4",
        ),
        (
            "cartpole",
            [{"share": 0.5, "env": {"length": 1}, "until": {"win_rate": 0.5}}, {"share": 0.5}],
            "phase 1: until: opponent and win_rate are for games of two seats",
        ),
        ("cartpole", [{"share": 0.5}, {"share": 0.5}], "no phase of cartpole changes a parameter"),
        ("cartpole", [{"env": {"lenght": 1}}], "phase 1: env: cartpole has no parameter lenght"),
        ("cartpole", [{"env": {"wrappers": []}}], "phase 1: env: all phases have the same wrapp"),
        ("bucket-brigade", [{"env": {"scenario": "ease"}}], "phase 1: env: "),
        (
            "hockey",
            [{"share": 0.5, "until": {"score": 1.0}}, {"share": 0.5}],
            "phase 1: until: score is for games without opponents, and hockey has opponents",
        ),
    ],
)
def test_what_a_game_does_not_have_is_refused(
    game: str, phases: list[dict[str, Any]], message: str
) -> None:
    curriculum = curriculum_of(phases)
    with pytest.raises(InputError) as refused:
        check_curriculum(get_game(game), curriculum, {})
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("environment", "env", "message"),
    [
        ("bucket-brigade", {"num_houses": 6}, "must have the same num_houses and num_agents"),
        (COUNTER, {"lenght": 3}, "lenght"),
        (
            "tests.optimize.objectives.test_phases:GROWING",
            {"size": 3},
            "it changes state_dim from 2 to 3",
        ),
    ],
)
def test_what_networks_depend_on_cannot_change(
    environment: str, env: dict[str, Any], message: str
) -> None:
    phases = [{"share": 0.5}, {"share": 0.5, "env": env}]
    with pytest.raises(InputError) as refused:
        experiment_with(environment, phases)
    assert str(refused.value).startswith("phase 2: env: ")
    assert message in str(refused.value)


def test_phases_are_for_policies_that_are_trained() -> None:
    request = Request(
        env="bucket-brigade",
        algo="heuristic",
        curriculum=curriculum_of(BRIGADE),
        search_space="game",
    )
    space = load_space("game", request.subject)
    with pytest.raises(InputError, match="--algo heuristic is not; leave --opponents, --phases"):
        objective_of("bucket-brigade").completed(request, space)


def test_a_study_of_bucket_brigade_with_phases_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    phases = [
        {"share": 0.7, "env": {"scenario": "trivial_cooperation"}, "until": {"games": 16}},
        {"share": 0.3, "env": {"scenario": "chain_reaction"}},
    ]
    words = ["train", "--env", "bucket-brigade", "--scenario", "chain_reaction", "--n-trials", "1"]
    words += [
        "--n-envs",
        "8",
        "--threads",
        "1",
        "--gpu",
        "cpu",
        "--study-name",
        "s",
        "--seeds",
        "2",
    ]
    words += ["--budget", "4096", "--rungs", "2", "--horizon", "32", "--episodes", "4"]
    words += ["--slots", "4", "--look-steps", "8", "--no-auto-deploy"]
    words += ["--phases", json.dumps(phases)]
    result = CliRunner().invoke(search_app(), words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert (
        "phase 1 of 2: 70% of the budget, with scenario trivial_cooperation, until 16 games have"
        in (result.output)
    )
    [trial] = open_handle(tmp_path).trials()
    assert trial.state == TrialState.COMPLETE
    begun = TrialRecord.from_attributes(trial.user_attrs).phases
    assert begun is not None
    assert begun[0] == begun[1]
    assert 0 < begun[0][1] < 11  # by its share after 11 of 16 rollouts
    said = f"trial 0, seed 1: phase 2 of 2 began after {begun[0][1]} rollouts with "
    assert said in result.output
    # Joined with the same phases, and refused with others.
    assert CliRunner().invoke(search_app(), words, catch_exceptions=False).exit_code == 0
    phases[0]["until"] = {"games": 17}
    other = CliRunner().invoke(search_app(), [*words[:-1], json.dumps(phases)])
    assert isinstance(other.exception, InputError)
    assert "curriculum.phases" in str(other.exception)
