"""Phases and opponents of a study: what is refused, and how members go through them."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from optuna.trial import TrialState
from typer.testing import CliRunner

from sweepd.agents.algorithms.elegantrl_agents import ElegantAgents
from sweepd.agents.algorithms.off_policy import OffPolicy
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.games.curriculum import Curriculum
from sweepd.envs.games.opponents import Opponents, Scripted
from sweepd.envs.games.phase_files import parse_curriculum, read_opponents
from sweepd.envs.games.tensor_game import TensorGame
from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli.study_request import make_request
from sweepd.optimize.objectives.games.curriculum import FoundBundle, check_curriculum
from sweepd.optimize.objectives.games.experiment import GameExperiment
from sweepd.optimize.objectives.games.phases import Phases, begun_phases
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.run import Interrupted, WorkerHooks
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.specs import GameSpec
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.parsing import load_space, preset_text
from sweepd.optimize.study.space.search_space import Settings
from sweepd.optimize.study.space.subject import Subject
from sweepd.optimize.study.study import Plan
from sweepd.optimize.worker.freeze import open_study
from tests.optimize.conftest import search_app
from tests.optimize.objectives.duel_game import DUEL, PLAYERS, DuelParams
from tests.optimize.objectives.test_game_study import make_spec, plan, to_the_end
from tests.optimize.study_files import open_handle
from tests.optimize.worker.test_batch import advance_to

NAME = "tests.optimize.objectives.duel_game:DUEL"
TWO_PHASES = [
    {"share": 0.25, "opponents": {"idle": 1.0}, "seat": "first", "env": {"weight": 3.0}},
    {
        "share": 0.75,
        "opponents": {"coin": 0.5, "self": 0.25, "past": 0.25},
        "env": {"length": 6},
        "replay": "clear",
    },
]
UNTIL = [
    {"share": 0.9, "opponents": {"idle": 1.0}, "until": {"win_rate": 0.6, "games": 20}},
    {"share": 0.1, "opponents": {"eager": 1.0}},
]


def curriculum_of(phases: Sequence[dict[str, Any]], **others: Any) -> Curriculum:
    return parse_curriculum({"phases": list(phases), **others}, "test")


def experiment_with(phases: Sequence[dict[str, Any]], **changes: Any) -> GameExperiment:
    curriculum = curriculum_of(phases, past_interval=2, past_size=2).to_dict()
    spec = make_spec(NAME, curriculum=curriculum, **changes)
    return GameExperiment(spec, torch.device("cpu"))


class Slots:
    """The policies of a program whose members have done some rollouts."""

    def __init__(self, rollouts: list[int | None], total: int) -> None:
        self.rollouts, self.total = rollouts, total
        self.cleared: list[int] = []

    def progress(self, slot: int) -> tuple[int, int] | None:
        done = self.rollouts[slot]
        return None if done is None else (done, self.total)

    def acting_weights(self) -> dict[str, torch.Tensor]:
        return {}

    @property
    def actor_spec(self) -> None:
        return None

    def clear_replay(self, slot: int) -> None:
        self.cleared.append(slot)

    def begin(self, obs: torch.Tensor, slots: Sequence[int] | None = None) -> None:  # noqa: ARG002
        raise AssertionError(slots)


def phased(phases: Sequence[dict[str, Any]], members: int) -> tuple[TensorGame, Phases, Opponents]:
    curriculum = curriculum_of(phases)
    opponents = Scripted({name: PLAYERS[name] for name in curriculum.opponents}, members)
    assert DUEL.versus is not None
    env = DUEL.versus([DuelParams()] * members, 16, together=1, device="cpu", opponents=opponents)
    params = [DuelParams(**phase.env) for phase in curriculum.phases]
    led = Phases(env, curriculum, params, opponents=opponents)
    env.reset(list(range(members)))
    return env, led, opponents


def play(env: VecEnv, steps: int, action: int) -> None:
    for _ in range(steps):
        env.step(torch.full((env.num_envs,), action))


SCRIPTED = [
    {"share": 0.5, "opponents": {"idle": 1.0}, "seat": "second", "env": {"weight": 3.0}},
    {"share": 0.5, "opponents": {"coin": 0.5, "eager": 0.5}, "replay": "clear"},
]


def test_a_member_changes_its_phase_between_rollouts_and_by_itself() -> None:
    env, led, opponents = phased(SCRIPTED, 3)
    policies = Slots([0, 9, None], 10)
    env.begin_rollout(policies)
    assert env.numbers["weight"].tolist() == [3.0] * 48
    assert opponents.first.tolist() == [0.0] * 3
    assert opponents.shares[0].tolist() == [1.0, 0.0, 0.0]
    assert not led.take_changes()
    policies.rollouts = [5, 9, None]
    env.begin_rollout(policies)
    # Member 1 entered its first phase at rollout 9, so that the second one has nothing left of it
    # but the last rollout.
    assert env.numbers["weight"].view(3, -1)[:, 0].tolist() == [1.0, 3.0, 3.0]
    assert opponents.first.tolist() == [0.5, 0.0, 0.0]
    assert opponents.shares[0].tolist() == [0.0, 0.5, 0.5]
    assert policies.cleared == [0]
    assert led.take_changes() == [(0, "phase 2 of 2 began after 5 rollouts")]
    assert begun_phases(env.get_member(0)) == [0, 5]
    assert begun_phases(env.get_member(2)) == []


def test_a_running_episode_keeps_its_opponent_and_is_not_ended() -> None:
    env, _, _ = phased(SCRIPTED, 1)
    policies = Slots([0], 10)
    env.begin_rollout(policies)
    play(env, 2, 1)
    before = env.get_member(0)
    policies.rollouts = [5]
    env.begin_rollout(policies)
    after = env.get_member(0)
    for name in ("state_points", "age", "opponent", "seat"):
        assert torch.equal(before[name], after[name]), name
    play(env, 2, 1)  # the episodes' last steps: new ones begin
    assert set(env.get_member(0)["opponent"].tolist()) == {1, 2}
    assert set(env.get_member(0)["seat"].tolist()) == {0, 1}


def test_until_ends_a_phase_on_a_measured_share_of_won_games() -> None:
    phases = [
        {**SCRIPTED[0], "share": 0.9, "until": {"win_rate": 0.9, "games": 32}},
        {**SCRIPTED[1], "share": 0.1},
    ]
    env, led, _ = phased(phases, 1)
    policies = Slots([0], 100)
    env.begin_rollout(policies)
    for rollouts, action, phase in ((1, 0, 1), (2, 0, 1), (3, 1, 1), (4, 1, 2)):
        play(env, 4, action)  # 16 games: drawn with action 0, won with action 1
        policies.rollouts = [rollouts]
        env.begin_rollout(policies)
        # The drawn games fill the first window; the second one holds won games only.
        assert len(begun_phases(env.get_member(0))) == phase, rollouts
    [(_, text)] = led.take_changes()
    assert "began after 4 rollouts with 100% of 32 games won against idle" in text


def test_games_against_all_opponents_end_a_phase() -> None:
    mixture = {"opponents": {"idle": 0.5, "coin": 0.5}}
    phases = [{**mixture, "share": 0.9, "until": {"games": 40}}, {**mixture, "share": 0.1}]
    env, led, _ = phased(phases, 1)
    policies = Slots([0], 100)
    for rollouts, count in ((0, 1), (1, 1), (2, 1), (3, 2)):
        policies.rollouts = [rollouts]
        env.begin_rollout(policies)
        assert len(begun_phases(env.get_member(0))) == count, rollouts
        play(env, 4, 0)  # 16 games
    assert led.take_changes() == [(0, "phase 2 of 2 began after 3 rollouts with 48 games")]


def test_a_slots_next_member_begins_with_the_first_phase() -> None:
    env, led, opponents = phased(SCRIPTED, 1)
    policies = Slots([0], 10)
    env.begin_rollout(policies)
    policies.rollouts = [5]
    env.begin_rollout(policies)
    kept = env.get_member(0)
    led.seat(0, [DuelParams(weight=7.0), DuelParams(weight=8.0)])
    env.reset_member(0, 5)
    assert env.numbers["weight"][0] == 7.0
    assert begun_phases(env.get_member(0)) == []
    env.set_member(0, kept)
    assert env.numbers["weight"][0] == 8.0
    assert opponents.shares[0].tolist() == [0.0, 0.5, 0.5]
    assert begun_phases(env.get_member(0)) == [0, 5]


@pytest.mark.parametrize("algorithm", ["ppo", "d3qn"])
def test_a_trial_is_the_same_in_a_batch_and_after_a_stop_at_any_rollout(
    algorithm: str, tmp_path: Path
) -> None:
    """Stops lie before, at and after the change of phases, and between snapshots."""
    changes: dict[str, Any] = {"algorithm": algorithm, "budget": 1024}
    shape: dict[str, int] = {}
    if algorithm == "d3qn":
        shape = {"net_width": 8, "net_depth": 1, "minibatch": 8, "updates": 2, "buffer": 512}
        changes["space"] = {"name": "x", "version": 1, "shape": {}, "d3qn": {}, "env": {}}
    experiment = experiment_with(TWO_PHASES, **changes)
    assert experiment.spec.rollouts == 8

    def planned(number: int) -> Plan:
        own = plan(number)
        if not shape:
            return own
        return dataclasses.replace(own, settings=Settings(shape, {"warmup": 16}, {}))

    said: list[str] = []
    together = Trainer(experiment, WorkerHooks(say=said.append))
    trainings = [together.start(planned(n)) for n in range(3)]
    in_company = to_the_end(together, trainings)
    begun = experiment.phases_begun([member.env for member in trainings[0].members])
    assert begun == [[0, 2], [0, 2]]
    assert sum("trial 2, seed 1: phase 2 of 2 began after 2 rollouts" in s for s in said) == 1
    for stop_after in range(1, 4):
        asked = iter([False] * (stop_after - 1) + [True])
        stopping = Trainer(experiment, WorkerHooks(stop=lambda asked=asked: next(asked, False)))
        torn = stopping.start(planned(1))
        with pytest.raises(Interrupted):
            advance_to(stopping, [torn], 1)
        assert torn.members[0].rollouts == stop_after
        going_on = Trainer(experiment)
        resumed = going_on.start(planned(1))
        path = tmp_path / f"{stop_after}.safetensors"
        write_checkpoint(path, Checkpoint(torn.members))
        resumed.members = read_checkpoint(path).members
        assert to_the_end(going_on, [resumed])[1] == in_company[1]


def test_until_is_part_of_a_trials_training() -> None:
    experiment = experiment_with(UNTIL, budget=128 * 40, rungs=2)
    trainer = Trainer(experiment)
    training = trainer.start(plan(0))
    to_the_end(trainer, [training])
    begun = experiment.phases_begun([member.env for member in training.members])
    assert begun is not None
    # By its share alone the second phase would begin after 36 of 40 rollouts.
    assert all(0 < second < 36 for _, second in begun)


@pytest.mark.parametrize("algorithm", ["d3qn", "elegantrl:d3qn"])
def test_a_phase_clears_the_replay_buffer(algorithm: str) -> None:
    space = {"name": "x", "version": 1, "shape": {}, "env": {}, algorithm.partition(":")[0]: {}}
    experiment = experiment_with(TWO_PHASES, algorithm=algorithm, budget=1024, space=space)
    env = experiment.training_env(4, 8)
    shape = {"net_width": 8, "net_depth": 1, "minibatch": 8, "updates": 2, "buffer": 4096}
    settings = Settings(shape, {"warmup": 16}, {})
    program = experiment.algorithm.learner(experiment.shape(settings, env, 4), experiment.device)

    def in_buffer() -> int:
        if isinstance(program, OffPolicy):
            return program.replay.held(0)
        assert isinstance(program, ElegantAgents)
        return sum(buffer.cur_size * 8 for buffer in program.buffers[:1] if buffer is not None)

    avg, std = experiment.normaliser(0, settings)
    for slot in range(4):
        experiment.seat(env, slot, 0, settings)
        program.add_member(slot, experiment.learner_params(settings), slot, 8, avg, std)
    program.begin(env.reset(0))
    held = []
    for _ in range(4):
        program.train(env, 1)
        held.append(in_buffer())
    # The second phase begins after two rollouts of 128 transitions.
    assert held == [128, 256, 128, 256]


def test_members_that_are_opponents_share_a_program() -> None:
    mixture = {"self": 0.5, "others": 0.5}
    experiment = experiment_with([{"opponents": mixture}], seeds=2)
    assert experiment.together == 2
    assert experiment_with([{"opponents": {"self": 1.0}}], seeds=2).together == 1
    request = Request(env=NAME, curriculum=read_opponents("self=0.5,others=0.5"))
    assert objective_of(NAME).train_together(request)
    trainer = Trainer(experiment)
    assert to_the_end(trainer, [trainer.start(plan(0))])


def test_recurrent_members_play_against_themselves() -> None:
    shape = {"net_width": 8, "net_depth": 1, "minibatch": 32, "epochs": 1, "bptt": 16}
    for recurrent in ("gru", "lstm"):
        experiment = experiment_with([{"opponents": {"self": 0.5, "past": 0.5}}])
        own = Plan(0, 0, {}, Settings({**shape, "recurrent": recurrent}, {}, {}), 1)
        trainer = Trainer(experiment)
        assert to_the_end(trainer, [trainer.start(own)])


# What is refused.

FLAGS = (
    "train",
    "--env",
    NAME,
    "--n-trials",
    "1",
    "--n-envs",
    "2",
    "--threads",
    "1",
    "--gpu",
    "cpu",
)


def refused(folder: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> str:
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(search_app(), [*FLAGS, *words])
    assert isinstance(result.exception, InputError), result.output
    assert result.exception.exit_code == 2
    sentence = str(result.exception)
    assert "\n" not in sentence
    if (folder / "runs" / "sweepd.db").exists():
        storage = open_storage(storage_url(None, folder / "runs"))
        assert not storage.get_all_studies()
    return sentence


HALF = {"share": 0.5}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--opponents", "week=1"), "opponent 'week' of"),
        (("--opponents", "leage=1"), "is not known (did you mean league?)"),
        (("--opponents", "league=0.5"), "add up to 0.5, not 1"),
        (("--opponents", "league", "--env", "cartpole"), "cartpole has one seat"),
        (("--opponents", "league", "--env", "crypto"), "--opponents is for games, and --env is"),
        (("--opponents", "idle=0.5,self=0.4"), "add up to 0.9, not 1"),
        (("--opponents", "idle=1.5,self=-0.5"), "opponents.self = -0.5 should be at least 0"),
        (("--opponents", "self=1", "--phases", "[]"), "--opponents and --phases exclude each"),
        (("--opponents", "self=1", "--env", "cartpole"), "cartpole has one seat"),
        (("--opponents", "self=1", "--env", "bucket-brigade"), "bucket-brigade has 4 seats"),
        (("--opponents", "self=1", "--env", "crypto"), "--opponents is for games, and --env is"),
        (("--opponents", "others=1", "--seeds", "1"), "others needs at least --seeds 2"),
        (("--opponents", "idle=1", "--past-interval", "3"), "--past-interval is for the opponent"),
        (("--past-size", "3"), "--past-size is for the opponent past"),
        (("--opponents", "past=1", "--past-size", "0"), "--past-size 0 must be at least 1"),
        (("--opponents", "bundle:x=1"), "opponent bundle:x cannot be loaded"),
        (("--phases", json.dumps([HALF])), "the shares of the phases add up to 0.5, not 1"),
        (("--phases", "none.toml"), "--phases none.toml: cannot be read"),
        (
            ("--phases", json.dumps([HALF, {**HALF, "env": {"length": 0}}])),
            "phase 2: env: duel length 0 is not at least 1",
        ),
        (
            ("--phases", json.dumps([HALF, {**HALF, "env": {"speed": 1}}])),
            "phase 2: env: tests.optimize.objectives.duel_game:DUEL has no parameter speed; it has",
        ),
        (
            ("--phases", json.dumps([HALF, {**HALF, "env": {"wide": True}}])),
            "phase 2: env: all members' duels must have the same wide",
        ),
        (
            ("--phases", json.dumps([HALF, {**HALF, "mode": "x"}])),
            "phase 2 of 2: mode is not known",
        ),
        (
            ("--phases", json.dumps([{"share": 0.1}] * 10), "--budget", "256", "--rungs", "1"),
            "10 phases need at least as many rollouts, and the budget has 2",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_before_a_study_exists(
    words: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert message in refused(tmp_path, monkeypatch, *words)


SPACE = """
name = "phases"
version = 1
past_size = 3
[ppo]
learning_rate = { value = 1e-3 }
[[phases]]
opponents = { idle = 0.5, past = 0.5 }
"""


def test_a_space_may_hold_the_phases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "space.toml"
    path.write_text(SPACE)
    words = ("--search-space", "space.toml")
    sentence = refused(tmp_path, monkeypatch, *words, "--opponents", "self=1")
    assert "--search-space space.toml has [[phases]] that --phases or --opponents contr" in sentence
    path.write_text(SPACE.replace("[[phases]]\n", "[phases]\n"))
    assert "phases must be a list" in refused(tmp_path, monkeypatch, *words)
    path.write_text(SPACE.partition("[[phases]]")[0])
    assert "past_size is for the opponents of [[phases]]" in refused(tmp_path, monkeypatch, *words)
    path.write_text(SPACE)
    path.write_text(SPACE + "env = { weight = 2.0 }\n[env]\nweight = { low = 1.0, high = 3.0 }\n")
    assert "[env] weight would have no effect, since" in refused(tmp_path, monkeypatch, *words)
    path.write_text(SPACE)
    with pytest.raises(InputError, match="unknown key 'past_size'"):
        load_space(str(path))  # for a market
    space = load_space(str(path), Request(env=NAME).subject)
    assert space.curriculum == curriculum_of(
        [{"opponents": {"idle": 0.5, "past": 0.5}}], past_size=3
    )


def test_flags_replace_the_phases_of_an_included_space(tmp_path: Path) -> None:
    space = load_space("game", Subject("hockey"))
    assert space.curriculum is not None
    kind, asked = objective_of("hockey"), Request(env="hockey", search_space="game", seeds=2)
    assert kind.completed(asked, space).curriculum == space.curriculum
    other = dataclasses.replace(asked, curriculum=read_opponents("weak=1"))
    assert kind.completed(other, space).curriculum == other.curriculum
    nobody = dataclasses.replace(asked, given=frozenset({"opponents"}))
    assert kind.completed(nobody, space).curriculum is None
    # As a file of one's own, the same space is not contradicted silently.
    path = tmp_path / "mine.toml"
    path.write_text(preset_text("game", Subject("hockey")))
    for changed in (other, nobody):
        with pytest.raises(InputError, match="contradicts; leave one of them out"):
            kind.completed(dataclasses.replace(changed, search_space=str(path)), space)


def test_joining_without_opponents_is_compared() -> None:
    spec = make_spec(NAME, curriculum=read_opponents("idle=1").to_dict())
    asked = Request(env=NAME, given=frozenset({"opponents"}))
    assert objective_of(NAME).requested_fields(spec, asked)["curriculum"] == {}


def test_a_config_file_of_flags_may_hold_the_phases(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.toml").write_text("[[phases]]\nshare = 0.5\nopponents = { idle = 1 }\n")
    sentence = refused(tmp_path, monkeypatch, "--config", "c.toml")
    assert sentence == "--phases: the shares of the phases add up to 0.5, not 1"
    (tmp_path / "run.toml").write_text("[[phases]]\nshare = 1\n")  # of a run on a market
    result = CliRunner().invoke(search_app(), ["run", "run.toml"])
    assert "[phases] is not a table of a run" in str(result.exception)


def network(state_dim: int) -> FrozenPolicy:
    member = Member.of_tensors(
        {
            "net.0.weight": torch.zeros(4, state_dim),
            "net.0.bias": torch.zeros(4),
            "net.2.weight": torch.zeros(2, 4),
            "net.2.bias": torch.zeros(2),
            "state_avg": torch.zeros(state_dim),
            "state_std": torch.ones(state_dim),
        }
    )
    return FrozenPolicy([member])


def test_bundles_must_play_the_game_and_be_the_same_later() -> None:
    curriculum = curriculum_of([{"opponents": {"bundle:duel": 1.0}}])
    space = objective_of(NAME)
    found = FoundBundle("ab" * 32, NAME, network(2))
    request = Request(env=NAME, curriculum=curriculum, load_bundle=lambda _: found)
    game = load_space("game", request.subject)
    completed = space.completed(request, game).curriculum
    assert completed is not None
    assert completed.bundles == {"bundle:duel": "ab" * 32}
    other = dataclasses.replace(found, environment="hockey")
    request = dataclasses.replace(request, load_bundle=lambda _: other)
    with pytest.raises(InputError, match="opponent bundle:duel plays hockey, not tests"):
        space.completed(request, game)
    spec = make_spec(NAME, curriculum=completed.to_dict())
    device = torch.device("cpu")
    assert GameExperiment(spec, device, load_bundle=lambda _: found).training_env(2, 2)
    wide = dataclasses.replace(found, actor=network(3))
    with pytest.raises(InputError, match="opponent bundle:duel maps 3 observations"):
        GameExperiment(spec, device, load_bundle=lambda _: wide)
    changed = dataclasses.replace(found, hash="cd" * 32)
    with pytest.raises(InputError, match="is not the bundle that the study began with"):
        GameExperiment(spec, device, load_bundle=lambda _: changed)


def test_phases_are_part_of_a_study_and_of_the_flags_that_reproduce_it(tmp_path: Path) -> None:
    phases = curriculum_of(TWO_PHASES, past_interval=4)
    request = Request(
        env=NAME,
        objective="points",
        search_space="game",
        seeds=2,
        n_envs=4,
        horizon=16,
        budget=1024,
        threads=1,
        slots=4,
        curriculum=phases,
        given=frozenset({"n_envs", "phases"}),
    )
    said: list[str] = []
    storage, device = open_storage(storage_url(None, tmp_path)), torch.device("cpu")
    handle, _ = open_study(storage, "s", request, device, tmp_path, {}, said.append)
    spec = handle.spec
    assert isinstance(spec, GameSpec)
    assert spec.curriculum == phases.to_dict()
    assert GameSpec.from_json(spec.to_json()) == spec
    [line] = [line for line in said if "to reproduce this study: " in line]
    words = shlex.split(line.partition("study: ")[2])
    flags = {
        name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)
    }
    assert (flags["past-interval"], flags["past-size"]) == ("4", "8")
    again = make_request(
        StudySettings(env=NAME, phases=flags["phases"], past_interval=4), frozenset({"phases"})
    )
    assert again.curriculum is not None
    assert again.curriculum.phases == phases.phases
    open_study(storage, "s", request, device, tmp_path, {}, said.append)  # joined
    other = dataclasses.replace(request, curriculum=read_opponents("idle=1"))
    with pytest.raises(InputError, match="created with curriculum"):
        open_study(storage, "s", other, device, tmp_path, {}, said.append)
    later = dataclasses.replace(
        request, curriculum=None, past_interval=5, given=frozenset({"past_interval"})
    )
    with pytest.raises(InputError, match=r"curriculum\.past_interval = 4, and now it is 5"):
        open_study(storage, "s", later, device, tmp_path, {}, said.append)
    alone = make_spec(NAME, curriculum=read_opponents("idle=0.5,self=0.5").to_dict())
    named = dict(objective_of(NAME).reproducing_flags(alone))
    assert named["opponents"] == "idle=0.5,self=0.5"
    assert "phases" not in named


def test_check_names_the_game() -> None:
    with pytest.raises(InputError, match="opponent 'weak' of Duel is not known"):
        check_curriculum(DUEL, read_opponents("weak=1"), {})


def test_a_study_with_two_phases_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*FLAGS, "--study-name", "s", "--phases", json.dumps(TWO_PHASES), "--seeds", "2"]
    words += ["--budget", "256", "--rungs", "2", "--horizon", "16", "--episodes", "4"]
    words += ["--slots", "4", "--look-steps", "8", "--no-auto-deploy"]
    result = CliRunner().invoke(search_app(), words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "phase 1 of 2: 25% against idle 1, at the first seat, with weight 3" in result.output
    assert "trial 0, seed 1: phase 2 of 2 began after 2 rollouts" in result.output
    [trial] = open_handle(tmp_path).trials()
    assert trial.state == TrialState.COMPLETE
    assert TrialRecord.from_attributes(trial.user_attrs).phases == [[0, 2], [0, 2]]
