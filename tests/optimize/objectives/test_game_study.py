"""Studies on games: seeds as members, the same engine and promises as on markets."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
from optuna.trial import TrialState

from sweepd.agents.algorithms.table import ALGORITHMS, get_algorithm
from sweepd.agents.policy.members import load_members
from sweepd.envs.games.parameters import game_params
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.games.evaluation import GameEvaluation
from sweepd.optimize.objectives.games.experiment import GameExperiment
from sweepd.optimize.objectives.games.objective import GameObjective
from sweepd.optimize.objectives.members.objective import choose_slots
from sweepd.optimize.objectives.members.trainer import MemberTraining, Trainer
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.run import Interrupted, WorkerHooks
from sweepd.optimize.objectives.table import check_request
from sweepd.optimize.objectives.trial_files import trial_files
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.specs import MEAN, GameSpec, StudySpec
from sweepd.optimize.study.space.parsing import load_space, parse_space
from sweepd.optimize.study.space.search_space import SearchSpace, Settings
from sweepd.optimize.study.space.subject import Subject
from sweepd.optimize.study.study import Plan
from sweepd.optimize.worker.freeze import open_study
from tests.agents.helpers import start
from tests.agents.toy_env import AbsentEnv
from tests.optimize.checkpointing import EveryRollout, kept_in
from tests.optimize.conftest import Running
from tests.optimize.study_files import open_handle
from tests.optimize.worker.test_batch import advance_to

SHAPE = {"net_width": 8, "net_depth": 1, "minibatch": 32, "epochs": 2}
TRADING = re.compile(
    r"\b(folds?|sharpe|drawdown|trad(e|es|ing)|market|equity|equal weight|bars?|hold-out|ticker|cash|portfolio)\b",
    re.I,
)

MODULE = "gym:tests.envs.external.registering"


def make_spec(environment: str = "cartpole", **changes: Any) -> GameSpec:
    subject = Subject(environment)
    settings: dict[str, Any] = {
        "environment": environment,
        "algorithm": "ppo",
        "env": {},
        "budget": 512,
        "rungs": 2,
        "num_envs": 8,
        "horizon": 16,
        "slots": 4,
        "trials_per_batch": 3,
        "objective": "return",
        "sampler": "tpe",
        "pruner": "none",
        "seed": 0,
        "space": SearchSpace("none", 1, {t: {} for t in subject.tables}, subject).to_dict(),
        "threads": 1,
        "seeds": 2,
        "episodes": 4,
        "processor": "",
        "kernels": "torch 4",
        "centred": True,
        "running_scale": False,
        "look_steps": 256,
        "average": MEAN,
    }
    return GameSpec(**settings | changes)


def make_experiment(environment: str = "cartpole", **changes: Any) -> GameExperiment:
    return GameExperiment(make_spec(environment, **changes), torch.device("cpu"))


def plan(number: int, **env: Any) -> Plan:
    return Plan(
        number,
        number,
        {},
        Settings(dict(SHAPE), {"learning_rate": 1e-3 * (number + 1)}, env),
        1000 + number,
    )


def to_the_end(trainer: Trainer, trainings: list[MemberTraining]) -> dict[int, Any]:
    """Train all rungs; return the numbers of each trial as bytes."""
    for rung in range(1, trainer.spec.rungs + 1):
        advance_to(trainer, trainings, rung)
    numbers = {}
    for training, evaluation in zip(trainings, trainer.evaluate(trainings), strict=True):
        assert isinstance(evaluation, GameEvaluation)
        weights = [
            {k: v.numpy().tobytes() for k, v in actor.tensors.items()}
            for actor in trainer.actors(training)
        ]
        numbers[training.plan.number] = (
            evaluation.scores,
            evaluation.episodes.returns.tobytes(),
            weights,
        )
    return numbers


def same_alone_in_a_batch_and_after_a_stop(experiment: GameExperiment) -> dict[int, Any]:
    """Check that a trial's numbers do not depend on its company and on stops; return three's."""
    together = Trainer(experiment)
    in_company = to_the_end(together, [together.start(plan(n)) for n in range(3)])
    alone = Trainer(experiment)
    assert to_the_end(alone, [alone.start(plan(1))])[1] == in_company[1]
    assert in_company[0] != in_company[1]
    asked = iter([False, True])
    stopping = Trainer(experiment, WorkerHooks(stop=lambda: next(asked, False)))
    torn = stopping.start(plan(2))
    with pytest.raises(Interrupted):
        advance_to(stopping, [torn], 1)
    assert 0 < torn.members[0].rollouts < experiment.spec.rollouts
    going_on = Trainer(experiment)
    resumed = going_on.start(plan(2))
    resumed.members = torn.members
    assert to_the_end(going_on, [resumed])[2] == in_company[2]
    return in_company


GAMES = {"cartpole": {}, "bucket-brigade": {"env": {"scenario": "v2_minimal", "max_nights": 12}}}


@pytest.mark.parametrize("game", GAMES)
def test_a_trial_is_the_same_alone_in_a_batch_and_after_a_stop(game: str) -> None:
    same_alone_in_a_batch_and_after_a_stop(make_experiment(game, **GAMES[game]))


def test_the_state_of_an_absent_agent_waits_in_evaluations() -> None:
    env = AbsentEnv(2, 4)
    act = start(env, {0: 0, 1: 1}, recurrent="gru", bptt=4).act_fn()
    waiting = ~env.present()
    assert bool(waiting.any() & ~waiting.all())
    # As if the other agents had never acted.
    make_experiment()._acting(act, cast(Any, env), 0)(torch.randn(8, env.state_dim))
    act.done(~waiting)
    fresh = start(env, {0: 0, 1: 1}, recurrent="gru", bptt=4).act_fn()
    seen = torch.randn(8, env.state_dim)
    assert torch.equal(act(seen), fresh(seen))


def test_recurrent_members_are_evaluated_on_whole_episodes(tmp_path: Path) -> None:
    experiment = make_experiment(budget=256)
    settings = Settings({**SHAPE, "recurrent": "gru", "bptt": 8}, {}, {})
    remembering = Plan(0, 0, {}, settings, 1)
    trainer = Trainer(experiment)
    first = to_the_end(trainer, [trainer.start(remembering)])
    assert (
        to_the_end(trainer, [trainer.start(remembering)]) == first
    )  # nothing of the first episodes is left
    training = trainer.start(remembering)
    advance_to(trainer, [training], 1)
    evaluation = trainer.evaluate([training])[0]
    assert isinstance(evaluation, GameEvaluation)
    trainer.write(training, tmp_path, evaluation)
    assert len(load_members(tmp_path / "members.safetensors")) == 2
    described = {"name": "x", "version": 1, "shape": {"recurrent": {"choices": ["", "gru"]}}}
    assert (
        parse_space(described, Subject("cartpole")).shape_of({"recurrent": "gru"})["recurrent"]
        == "gru"
    )
    with pytest.raises(InputError, match="recurrent is not a parameter"):
        parse_space(described)


@pytest.mark.parametrize(
    ("game", "algorithm"),
    [
        ("cartpole", "d3qn"),
        ("gym:Pendulum-v1", "sac"),
        ("cartpole", "elegantrl:a2c"),
        (f"{MODULE}:tests/Masked-v0", "ppo"),
        (f"{MODULE}:tests/Advised-v0", "d3qn"),
    ],
)
def test_other_algorithms_are_searched_in_the_same_way(
    game: str, algorithm: str, tmp_path: Path
) -> None:
    subject = Subject(game, algorithm)
    space = SearchSpace("none", 1, {table: {} for table in subject.tables}, subject)
    experiment = make_experiment(
        game, algorithm=algorithm, space=space.to_dict(), budget=384, rungs=1, episodes=2
    )
    learner = subject.learner.shape
    fewer = {name: size for name, size in (("epochs", 2), ("updates", 8)) if name in learner}
    shape = {**learner, "net_width": 8, "minibatch": 32, **fewer}
    trainer = Trainer(experiment)
    trials = [
        Plan(n, n, {}, Settings(dict(shape), {"learning_rate": 1e-3 * (n + 1)}, {}), n)
        for n in range(2)
    ]
    in_company = to_the_end(trainer, [trainer.start(one) for one in trials])
    alone = Trainer(experiment)
    assert to_the_end(alone, [alone.start(trials[1])])[1] == in_company[1]
    assert in_company[0][2] != in_company[1][2]
    kept: list[MemberTraining] = []
    keeping = Trainer(experiment, WorkerHooks(keep=kept_in(tmp_path, kept), pace=EveryRollout()))
    assert to_the_end(keeping, [keeping.start(trials[1])])[1] == in_company[1]
    resumed = Trainer(experiment)
    for torn in (kept[0], kept[-1]):
        assert to_the_end(resumed, [torn])[1] == in_company[1]
    training = trainer.start(trials[0])
    advance_to(trainer, [training], 1)
    evaluation = trainer.evaluate([training])[0]
    assert isinstance(evaluation, GameEvaluation)
    trainer.write(training, tmp_path, evaluation)
    assert len(load_members(tmp_path / "members.safetensors")) == 2


def test_unsupported_environments_are_refused_before_training() -> None:
    with pytest.raises(
        InputError,
        match=r"--algo d3qn does not support .*Masked-v0 has actions that may be illegal .*: use ppo",
    ):
        make_experiment(f"{MODULE}:tests/Masked-v0", algorithm="d3qn")


def test_parameters_of_a_game_have_types() -> None:
    given = ["a=False", "b=true", "c=None", "d=0.5", "e=3", "f=rgb", "g=[1, 2]", "h=8x8"]
    expected = {
        "a": False,
        "b": True,
        "c": None,
        "d": 0.5,
        "e": 3,
        "f": "rgb",
        "g": [1, 2],
        "h": "8x8",
    }
    assert game_params(None, given) == expected


def test_observations_that_are_not_finite_are_named() -> None:
    with pytest.raises(
        InputError,
        match=r"Spoilt-v0: spaces: .* column 1 of the observation is nan, which is not finite",
    ):
        make_experiment(f"{MODULE}:tests/Spoilt-v0")


def test_an_environment_without_a_limit_of_steps_says_so() -> None:
    assert not any("no limit" in line for line in make_experiment("gym:FrozenLake-v1").describe())
    assert any(
        "no limit of steps" in line for line in make_experiment("gym:CliffWalking-v1").describe()
    )


def test_members_of_a_game_of_several_players_learn_by_playing_with_each_other() -> None:
    experiment = make_experiment("bucket-brigade", **GAMES["bucket-brigade"])
    assert (experiment.seats, experiment.together) == (4, 2)
    for said in (experiment.spec.about, experiment.describe()[0]):
        assert "bucket-brigade (scenario v2_minimal, max_nights 12), " in said
    trainer = Trainer(experiment)
    usual = to_the_end(trainer, [trainer.start(plan(0))])[0][2]
    one = make_experiment("bucket-brigade", seeds=1, slots=2, **GAMES["bucket-brigade"])
    assert one.together == 1
    trainer = Trainer(one)
    assert to_the_end(trainer, [trainer.start(plan(0))])[0][2][0] != usual[0]
    with pytest.raises(InputError, match="--slots 3 is not a multiple of the 2 members"):
        make_experiment("bucket-brigade", slots=3, **GAMES["bucket-brigade"])
    assert choose_slots(24, torch.device("cpu"), together=True) == 24


def test_a_trials_env_parameters_are_for_training_only() -> None:
    experiment = make_experiment()
    trainer = Trainer(experiment)
    untrained = trainer.evaluate([trainer.start(plan(0)), trainer.start(plan(0, length=1.5))])
    assert isinstance(untrained[0], GameEvaluation)
    assert isinstance(untrained[1], GameEvaluation)
    assert untrained[0].scores == untrained[1].scores  # both are judged in the study's own game
    trained = to_the_end(trainer, [trainer.start(plan(0, length=1.5))])
    assert trained[0] != to_the_end(trainer, [trainer.start(plan(0))])[0]


def test_the_objective_is_the_mean_over_seeds_of_the_mean_return() -> None:
    experiment = make_experiment(rungs=1)
    trainer = Trainer(experiment)
    training = trainer.start(plan(0))
    advance_to(trainer, [training], 1)
    evaluation = trainer.evaluate([training])[0]
    assert isinstance(evaluation, GameEvaluation)
    assert evaluation.episodes.returns.shape == (2, 4)
    assert evaluation.scores == tuple(evaluation.episodes.returns.mean(1))
    assert evaluation.value == pytest.approx(np.mean(evaluation.scores))
    assert (
        evaluation.episodes.returns == evaluation.episodes.lengths
    ).all()  # CartPole pays 1 a step


@pytest.mark.parametrize("slots", [2, 3, 6])
def test_an_evaluation_that_the_search_does_not_use_plays_an_eighth(slots: int) -> None:
    """The first episodes of a full one, also next to trials at other rungs."""
    experiment = make_experiment(sampler="race", rungs=5, episodes=16, slots=slots)
    trainer = Trainer(experiment)
    trainings = [trainer.start(plan(n)) for n in range(3)]
    advance_to(trainer, trainings, 1)

    def played(*rungs: int) -> list[list[list[float]]]:
        for training, rung in zip(trainings, rungs, strict=True):
            training.rung = rung - 1
        return [e.episodes.returns.tolist() for e in trainer.evaluate(trainings) if e]

    whole = played(4, 5, 5)
    assert [len(own) for trial in whole for own in trial] == [16] * 6
    first = [[own[:2] for own in trial] for trial in whole]
    assert played(1, 2, 3) == first
    assert played(3, 4, 1) == [first[0], whole[1], first[2]]


@pytest.mark.parametrize(
    ("changes", "rungs"),
    [
        ({"sampler": "race"}, [8, 9, 10]),
        ({"sampler": "random"}, [10]),
        ({"sampler": "race", "pruner": "median"}, [*range(1, 11)]),
        ({"sampler": "random", "search": "pbt"}, [*range(1, 11)]),
    ],
)
def test_which_evaluations_the_search_uses(changes: dict[str, Any], rungs: list[int]) -> None:
    spec = make_spec(rungs=10, **changes)
    assert [rung for rung in range(1, 11) if spec.decides(rung)] == rungs


def test_a_study_on_a_game_is_searched_and_its_output_names_no_markets(tmp_path: Path) -> None:
    words = [
        "train",
        "--env",
        "cartpole",
        "--n-trials",
        "2",
        "--budget",
        "256",
        "--rungs",
        "2",
        "--n-envs",
        "8",
        "--horizon",
        "16",
        "--seeds",
        "2",
        "--episodes",
        "4",
        "--threads",
        "1",
        "--gpu",
        "cpu",
        "--study-name",
        "s",
    ]
    words += ["--pruner", "none", "--fresh-seeds", "0"]
    out = Running(words, tmp_path, tmp_path / "out.txt").finish()
    assert "return, mean over seeds" in out
    found = TRADING.search(out.replace("no trial saw", ""))
    assert found is None, found
    handle = open_handle(tmp_path)
    assert isinstance(handle.spec, GameSpec)
    assert StudySpec.from_json(handle.spec.to_json()) == handle.spec
    assert handle.spec.centred
    assert handle.spec.running_scale
    first, second = handle.trials()
    assert first.state == second.state == TrialState.COMPLETE
    assert {
        name: first.params[name] for name in handle.space.start
    } == handle.space.start  # the defaults come first
    assert first.params["learning_rate"] == 5e-4
    folder = handle.trial_dir(0)
    assert len(load_members(folder / "members.safetensors")) == 2
    frame = pd.read_parquet(folder / "episodes.parquet")
    assert list(frame.columns) == ["seed", "episode", "return", "length"]
    assert frame.groupby("seed")["return"].mean().tolist() == first.user_attrs["sweepd:seed_scores"]
    assert first.user_attrs["sweepd:metrics"]["mean"] == first.value
    assert {path.name for path in trial_files(handle, 0)} == {"returns.png", "episodes.parquet"}
    assert (folder / "returns.png").read_bytes().startswith(b"\x89PNG")
    assert len([k for k in first.system_attrs if k.startswith("artifacts:")]) == 2
    status = Running(["status", "--json"], tmp_path, tmp_path / "status.txt").finish()
    assert json.loads(status)[0]["gate"] is None
    refused = Running(
        [*words, "--algo", "ppo", "--seeds", "3"], tmp_path, tmp_path / "refused.txt"
    ).finish(2)
    assert "seeds = 2" in refused


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"env": "tetris"}, "--env 'tetris' is not known; choose one of crypto, cartpole"),
        ({"env": "gym:NoSuch-v9"}, "--env gym:NoSuch-v9"),
        ({"env": "cartpole", "given": {"fee"}}, "--fee is for --env crypto"),
        ({"given": {"seeds"}}, "--seeds is for games"),
        (
            {"env": "cartpole", "objective": "sharpe"},
            "--objective 'sharpe' is not known; choose return",
        ),
        ({"env": "cartpole", "algo": "a3c"}, "--algo 'a3c' is not known"),
        ({"env": "cartpole", "scenario": "easy"}, "--scenario 'easy' is not known"),
        (
            {"env": "bucket-brigade", "scenario": "eazy"},
            "--scenario 'eazy' is not known; there are",
        ),
        (
            {"env": "bucket-brigade", "scenario": "easy=0.5,eazy=0.5"},
            "--scenario 'eazy' is not known; there are",
        ),
        (
            {"env": "bucket-brigade", "scenario": "easy=0.5,hard=0.6"},
            "shares must be above 0 and add up to 1",
        ),
        ({"env": "cartpole", "env_param": ["wheels=3"]}, "--env-param"),
        ({"env": "cartpole", "env_param": ["length=-1.0"]}, "length is -1.0"),
        ({"env": "cartpole", "seeds": 0}, "--seeds 0 must be at least 1"),
    ],
)
def test_invalid_requests_are_refused_with_a_message(
    changes: dict[str, Any], sentence: str
) -> None:
    changes = {"objective": "return" if "env" in changes else "information-ratio", **changes}
    with pytest.raises(InputError, match=re.escape(sentence)):
        check_request(Request(**changes))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_has_a_space_that_starts_at_its_defaults(algorithm: str) -> None:
    learner = get_algorithm(algorithm)
    space = load_space(
        "game", Subject("cartpole" if learner.discrete else "gym:Pendulum-v1", algorithm)
    )
    space.validate(space.start)
    resolved = space.resolve(space.start)
    learner.params(**resolved.learner)
    own = {"activation": "tanh", "minibatch": 64} if algorithm == "ppo" else {}
    assert resolved.shape == {**learner.shape, **own}


def test_spaces_of_games_have_a_start() -> None:
    space = load_space("game", Subject("cartpole"))
    resolved = space.resolve(space.start)
    assert resolved.learner["gamma"] == pytest.approx(0.99)
    assert parse_space(space.to_dict(), Subject("cartpole")) == space
    assert load_space("demo").start == {}
    described = space.to_dict()
    described["ppo"]["clip"]["start"] = 0.9
    with pytest.raises(InputError, match=r"clip start = 0.9 lies outside 0.1 … 0.3"):
        parse_space(described, Subject("cartpole"))


def test_the_length_of_random_play_is_part_of_the_study(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = Request(
        env="cartpole",
        objective="return",
        search_space="game",
        seeds=2,
        n_envs=8,
        budget=2048,
        threads=1,
        slots=4,
        given=frozenset({"n_envs"}),
    )
    url = storage_url(None, tmp_path)
    said: list[str] = []
    handle, trainer = open_study(
        open_storage(url), "s", request, torch.device("cpu"), tmp_path, {}, said.append
    )
    assert isinstance(handle.spec, GameSpec)
    assert handle.spec.look_steps == 256
    assert any("--look-steps 256" in line for line in said)
    assert "from 4,096 steps of random play (256 per" in " ".join(trainer.describe())
    shorter = make_experiment(look_steps=9)
    assert isinstance(shorter.look.steps, int)
    assert (shorter.look.steps, shorter.look.rows) == (9, 144)
    # The recorded kernels say what the networks are.
    monkeypatch.setattr(GameObjective, "reads_images", lambda *_: pytest.fail("it was opened"))
    open_study(handle.storage, "s", request, torch.device("cpu"), tmp_path, {}, said.append)
    other = dataclasses.replace(request, look_steps=64, given=frozenset({"look_steps"}))
    with pytest.raises(InputError, match="created with look_steps = 256, and now it is 64"):
        open_study(handle.storage, "s", other, torch.device("cpu"), tmp_path, {}, said.append)


def test_bytes_that_are_numbers_keep_the_scale_of_random_play() -> None:
    experiment = make_experiment("tests.envs.games.toys:NIM", running_scale=True)
    env = experiment.training_env(2, 4)
    shape = experiment.shape(Settings({"minibatch": 16}, {}, {}), env, 2)
    assert shape.torch_dtype == torch.uint8
    assert experiment.look.rows > 0
    assert not shape.running_scale
