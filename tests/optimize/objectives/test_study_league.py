"""Leagues of studies: opponents of a generation, their records, and the report."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner

from sweepd.agents.policy.equilibrium import equilibrium
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member, load_members, save_members
from sweepd.agents.policy.roster import Champion
from sweepd.envs.games.phase_files import read_opponents
from sweepd.envs.games.tensor_game import State
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.artifacts import PREFIX, scored_file
from sweepd.optimize.objectives.games.experiment import GameExperiment
from sweepd.optimize.objectives.games.league import StudyLeague, largest_shares
from sweepd.optimize.objectives.games.phased_training import LeaguePlayer
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.record.keys import LEAGUE_KEY, REASON_KEY
from sweepd.optimize.study.record.specs import GameSpec
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.study import Plan, StudyHandle
from sweepd.optimize.worker.lifecycle import work
from sweepd.optimize.worker.stopping import StopRequest
from sweepd.optimize.worker.worker import Worker, WorkerOptions
from tests.envs.games.toys import RockPaperScissors, chooser
from tests.optimize.conftest import Running, search_app
from tests.optimize.objectives.test_game_study import (
    SHAPE,
    make_spec,
    plan,
    same_alone_in_a_batch_and_after_a_stop,
    to_the_end,
)
from tests.optimize.study_files import (
    finish,
    killed_at_checkpoint,
    make_handle,
    numbers,
    open_handle,
)
from tests.optimize.worker.test_batch import advance_to

RPS = "tests.envs.games.toys:RPS"
ROCK, PAPER, SCISSORS = (chooser([float(k == option) for k in range(3)]) for option in range(3))


def spec_with(opponents: str = "league") -> GameSpec:
    curriculum = read_opponents(opponents).to_dict()
    return make_spec(RPS, curriculum=curriculum, objective="points")


def league_of(handle: StudyHandle, said: list[str] | None = None) -> StudyLeague:
    experiment = GameExperiment(handle.spec, torch.device("cpu"))
    found = experiment.league(handle, ([] if said is None else said).append)
    assert found is not None
    return found


def complete(
    handle: StudyHandle,
    *members: Member,
    scores: tuple[float, ...],
    league: StudyLeague | None = None,
) -> int:
    """Add a complete trial with these members; return its number.

    league: sets its opponents; None: it has none.
    """
    [new] = handle.ask_batch(1, "w", 99)
    if league is not None:
        league.begin([new], lambda: None)
    path = handle.trial_dir(new.number) / "members.safetensors"
    path.parent.mkdir(parents=True)
    save_members(path, members)
    record = TrialRecord(scores=scores, members=scored_file(path))
    handle.storage.set_trial_user_attrs(new.trial_id, record.to_attributes(handle.spec))
    finish(handle, new.trial_id, 0.5)
    return new.number


def begin(handle: StudyHandle, league: StudyLeague) -> dict[str, float]:
    """Begin a trial; return the shares of its opponents as they are recorded."""
    [new] = handle.ask_batch(1, "w", 99)
    league.begin([new], lambda: None)
    recorded = handle.storage.get_trial(new.trial_id).user_attrs[LEAGUE_KEY]
    return {f"{own['trial']}.{own['member']}": own["share"] for own in recorded["opponents"]}


def test_small_shares_are_dropped() -> None:
    assert largest_shares([0.0, 0.04, 0.48, 0.48]) == {2: 0.5, 3: 0.5}
    assert largest_shares([0.06, 0.94]) == {0: 0.06, 1: 0.94}
    # Of many equal ones, some are kept.
    assert largest_shares([1 / 32] * 32) == dict.fromkeys(range(8), 0.125)


def test_the_opponents_are_the_equilibrium_of_the_complete_trials(tmp_path: Path) -> None:
    handle = make_handle(tmp_path, spec_with())
    league = league_of(handle)
    assert begin(handle, league) == {}  # self-play
    complete(handle, ROCK, ROCK, scores=(0.5, 0.4))
    assert begin(handle, league) == {"1.0": 1.0}
    complete(handle, ROCK, PAPER, scores=(0.4, 0.5))  # the second member is the better one
    assert begin(handle, league) == {"3.1": 1.0}
    complete(handle, SCISSORS, SCISSORS, scores=(0.5, 0.5))
    third = pytest.approx(1 / 3, abs=1e-9)
    assert begin(handle, league) == {"1.0": third, "3.1": third, "5.0": third}
    # A worker with other files finds the same.
    for path in (handle.run_dir / "league").glob("*.json"):
        path.unlink()
    assert begin(handle, league_of(handle)) == {"1.0": third, "3.1": third, "5.0": third}


def test_a_trials_player_is_the_best_response_to_its_opponents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = make_handle(tmp_path, spec_with("league=0.5,self=0.5"))
    league = league_of(handle)
    complete(handle, ROCK, scores=(0.5,))
    # Scores, against random play, say nothing.
    complete(handle, SCISSORS, ROCK, PAPER, PAPER, scores=(0.7, 0.6, 0.4, 0.5), league=league)
    assert begin(handle, league) == {"1.3": 1.0}  # of equal ones, that with the better score
    number = complete(handle, ROCK, SCISSORS, scores=(0.6, 0.5), league=league)
    assert number == 3
    third = pytest.approx(1 / 3, abs=1e-9)
    assert begin(handle, league) == {"0.0": third, "1.3": third, "3.1": third}

    def play(*_: object, **__: object) -> None:
        raise AssertionError("played again")

    # What was played is kept.
    monkeypatch.setattr("sweepd.optimize.objectives.games.league.play_pairs", play)
    file = handle.run_dir / "league" / "members-00001.json"
    assert json.loads(file.read_text())["points"] == [0.0, 0.5, 1.0, 1.0]
    assert begin(handle, league_of(handle)) == {"0.0": third, "1.3": third, "3.1": third}
    file.write_text(file.read_text().replace("1.0]", "1.0"))  # damaged
    with pytest.raises(AssertionError, match="played again"):
        begin(handle, league_of(handle))


def test_results_are_kept_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = make_handle(tmp_path, spec_with())
    complete(handle, ROCK, scores=(0.5,))
    complete(handle, PAPER, scores=(0.5,))
    first = begin(handle, league_of(handle))
    file = handle.run_dir / "league" / "trial-00001.json"
    assert np.mean(list(json.loads(file.read_text())["points"].values())) == 1.0

    def play(*_: object, **__: object) -> None:
        raise AssertionError("played again")

    monkeypatch.setattr("sweepd.optimize.objectives.games.league.play_pairs", play)
    assert begin(handle, league_of(handle)) == first
    file.write_text("{}")  # damaged
    with pytest.raises(AssertionError, match="played again"):
        begin(handle, league_of(handle))


def test_a_resumed_trial_meets_its_recorded_opponents(tmp_path: Path) -> None:
    handle = make_handle(tmp_path, spec_with())
    complete(handle, ROCK, scores=(0.5,))
    [begun] = handle.ask_batch(1, "w", 99)
    league_of(handle).begin([begun], lambda: None)
    complete(handle, PAPER, scores=(0.5,))
    handle.put_back(begun.trial_id)
    [again] = handle.ask_batch(3, "w", 99)  # no new trial joins the older generation
    assert again.number == begun.number
    said: list[str] = []
    league_of(handle, said).begin([again], lambda: None)
    assert said == ["trial 1 plays against trial 0 100%; the league has 1 player"]


def test_generations_are_not_mixed_in_a_batch(tmp_path: Path) -> None:
    handle = make_handle(tmp_path, spec_with())
    batches = []
    for member in (ROCK, PAPER):
        complete(handle, member, scores=(0.5,))
        batches.append(handle.ask_batch(2, "w", 99))
        league_of(handle).begin(batches[-1], lambda: None)
    for own in [*batches[1], *batches[0]]:
        handle.put_back(own.trial_id)
    assert [own.number for own in handle.ask_batch(4, "w", 99)] == [1, 2]
    assert [own.number for own in handle.ask_batch(4, "w", 99)] == [4, 5]


def test_lost_and_changed_weights(tmp_path: Path) -> None:
    handle = make_handle(tmp_path, spec_with())
    complete(handle, ROCK, scores=(0.5,))
    [begun] = handle.ask_batch(1, "w", 99)
    league_of(handle).begin([begun], lambda: None)
    handle.put_back(begun.trial_id)
    path = handle.trial_dir(0) / "members.safetensors"
    save_members(path, [PAPER])
    [again] = handle.ask_batch(1, "w", 99)
    with pytest.raises(InputError, match="is not the file that the study recorded"):
        league_of(handle).begin([again], lambda: None)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        league_of(handle).begin([again], lambda: None)
    # A new trial plays against those that are left.
    complete(handle, SCISSORS, scores=(0.5,))
    said: list[str] = []
    assert begin(handle, league_of(handle, said)) == {"2.0": 1.0}
    assert said[0].startswith("trial 0 is not in the league: ")


def test_a_worker_fails_trials_whose_opponents_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = make_handle(tmp_path, spec_with())
    complete(handle, ROCK, scores=(0.5,))
    begun = handle.ask_batch(2, "w", 3)
    league_of(handle).begin(begun, lambda: None)
    for own in begun:
        handle.put_back(own.trial_id)
    (handle.trial_dir(0) / "members.safetensors").unlink()
    monkeypatch.setattr(StudyLeague, "write_report", lambda _: "")
    monkeypatch.setattr("sweepd.optimize.worker.lifecycle.print_summary", lambda *_: None)
    experiment = GameExperiment(handle.spec, torch.device("cpu"))
    assert work(handle, Trainer(experiment), WorkerOptions(3), Console(quiet=True))
    assert [trial.state.name for trial in handle.trials()] == ["COMPLETE", "FAIL", "FAIL"]
    reason = handle.trials()[1].user_attrs[REASON_KEY]
    assert reason.startswith("its opponents from the league: ")


def test_a_stop_during_the_leagues_games_puts_the_trials_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = make_handle(tmp_path, spec_with())
    complete(handle, ROCK, scores=(0.5,))
    complete(handle, PAPER, scores=(0.5,))
    stops = []

    def ask(worker: Worker) -> bool:
        stops.append(worker)
        return True

    monkeypatch.setattr(Worker, "_stop_or_pause", ask)
    monkeypatch.setattr(StopRequest, "__call__", lambda _: bool(stops))
    experiment = GameExperiment(handle.spec, torch.device("cpu"))
    assert not work(handle, Trainer(experiment), WorkerOptions(4), Console(quiet=True))
    assert {trial.state.name for trial in handle.trials()[2:]} == {"WAITING"}
    assert all(LEAGUE_KEY not in trial.user_attrs for trial in handle.trials())


def test_studies_without_the_opponent_have_no_league(tmp_path: Path) -> None:
    handle = make_handle(tmp_path, spec_with("self=1"))
    experiment = GameExperiment(handle.spec, torch.device("cpu"))
    assert experiment.league(handle, lambda _: None) is None


@pytest.mark.parametrize("cell", ["gru", "lstm"])
def test_recurrent_members_in_turns_are_the_same_in_company_and_after_a_stop(
    cell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against a scripted player, the present and past selves and a recurrent player of the league."""
    monkeypatch.setitem(SHAPE, "recurrent", cell)
    monkeypatch.setitem(SHAPE, "bptt", 4)
    curriculum = read_opponents("grabber=0.2,self=0.3,past=0.2,league=0.3").to_dict()
    spec = make_spec("tests.envs.games.toys:NIM", curriculum=curriculum, objective="points")
    trainer = Trainer(GameExperiment(spec, torch.device("cpu")))
    first = trainer.start(plan(0))
    to_the_end(trainer, [first])
    [player, _] = trainer.actors(first)
    assert player.spec.cell == cell
    experiment = GameExperiment(spec, torch.device("cpu"))
    experiment.meet({"trial 0": LeaguePlayer(Champion(player, sampled=True), 1.0)})
    same_alone_in_a_batch_and_after_a_stop(experiment)


def test_members_are_the_same_in_company_and_after_a_stop() -> None:
    experiment = GameExperiment(spec_with("league=0.8,past=0.2"), torch.device("cpu"))
    experiment.meet(
        {
            "trial 0": LeaguePlayer(Champion(ROCK, sampled=True), 0.25),
            "trial 3": LeaguePlayer(Champion(chooser((0.1, 0.3, 0.6)), sampled=True), 0.75),
        }
    )
    in_company = same_alone_in_a_batch_and_after_a_stop(experiment)
    # Other opponents are other numbers.
    experiment.meet({"trial 0": LeaguePlayer(Champion(ROCK, sampled=True), 1.0)})
    other = Trainer(experiment)
    assert to_the_end(other, [other.start(plan(1))])[1] != in_company[1]


class Pictures(RockPaperScissors):
    """Observations are images."""

    image_shape, obs_dtype, state_dim = (1, 4, 4), "uint8", 16

    def see(self, state: State) -> Tensor:
        return super().see(state).expand(-1, 2, 16).byte()


PICTURES = Pictures.game()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--env cartpole", "opponents are for games of two seats"),
        ("--env bucket-brigade", "opponents are for games of two seats"),
        ("--env gym:CartPole-v1", "opponents are for games of two seats"),
        (f"--env {__name__}:PICTURES", "policies that read images, as in "),
    ],
)
def test_studies_that_cannot_have_a_league_are_refused_before_they_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = f"train --opponents league=0.5,self=0.5 --study-name s --threads 1 --gpu cpu {flags}"
    words += " --n-envs 64 --horizon 4 --budget 1024 --rungs 1 --look-steps 2"
    with pytest.raises(InputError) as refused:
        CliRunner().invoke(search_app(), words.split(), catch_exceptions=False)
    assert refused.value.exit_code == 2
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    with pytest.raises(InputError):
        open_handle(tmp_path)


SPACE = """
name = "rps"
version = 1
[shape]
net_width = { value = 8 }
net_depth = { value = 1 }
minibatch = { value = 128 }
epochs = { value = 2 }
[ppo]
learning_rate = { value = 0.02 }
[env]
"""


def train_words(folder: Path, trials: int, opponents: str, *, seeds: int, budget: int) -> list[str]:
    """Return the words of a study of rock, paper, scissors in the folder."""
    folder.mkdir(exist_ok=True)
    (folder / "space.toml").write_text(SPACE)
    words = f"train --env {RPS} --opponents {opponents} --study-name s --n-trials {trials}"
    words += f" --seeds {seeds} --slots 2 --trials-per-batch 1 --n-envs 64 --horizon 4"
    words += f" --budget {budget} --rungs 1 --episodes 4 --look-steps 2 --sampler random"
    words += " --pruner none --threads 1 --gpu cpu --search-space space.toml"
    return words.split()


def train(folder: Path, trials: int, opponents: str) -> list[np.ndarray]:
    """Run a study of rock, paper, scissors; return the trials' probabilities."""
    words = train_words(folder, trials, opponents, seeds=1, budget=10240)
    result = CliRunner().invoke(search_app(), words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    handle = open_handle(folder)
    found = []
    for trial in handle.trials():
        actor = FrozenPolicy(load_members(handle.trial_dir(trial.number) / "members.safetensors"))
        legal = torch.ones(1, 3, dtype=torch.bool)
        found.append(actor.probabilities(torch.zeros(1, 1), legal)[0].numpy())
    return found


@pytest.mark.slow
def test_the_leagues_mixture_approaches_the_equilibrium_of_rock_paper_scissors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = train(tmp_path, 2, "league")
    found = train(tmp_path, 5, "league")  # the study goes on
    # Self-play ends with one of the choices; so do the responses to it and to the next one.
    assert all(own.max() > 0.9 for own in found[:3])
    assert {int(own.argmax()) for own in found[:3]} == {0, 1, 2}
    handle = open_handle(tmp_path)
    for trial in handle.trials()[3:]:
        mixture = sum(
            own["share"] * found[own["trial"]] for own in trial.user_attrs[LEAGUE_KEY]["opponents"]
        )
        assert np.abs(mixture - 1 / 3).max() < 0.08
    league = json.loads((handle.run_dir / "league.json").read_text())
    assert league["players"] == [*(f"trial {n}" for n in range(5)), "random"]
    members = league["equilibrium"]["members"]
    mixture = sum(w * found[int(name.split()[1])] for name, w in members["weights"].items())
    assert np.abs(mixture - 1 / 3).max() < 0.1
    assert members["exploitability"]["low"] <= 1e-12
    for name in ("league.png", "ratings.png"):
        assert (handle.run_dir / name).read_bytes().startswith(b"\x89PNG")
    attached = handle.storage.get_study_system_attrs(handle.study_id)
    metas = [json.loads(text) for key, text in attached.items() if key.startswith(PREFIX)]
    # Once each, though the study ended twice.
    assert sorted(meta["filename"] for meta in metas) == [
        "league.json",
        "league.png",
        "ratings.png",
    ]
    for meta in metas:
        shown = handle.run_dir / "artifacts" / meta["artifact_id"]
        assert shown.read_bytes() == (handle.run_dir / meta["filename"]).read_bytes()


BUSY = 600.0  # seconds that a study may take on a busy machine
Start = Callable[[Path, list[str]], Running]


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a command in a folder, in a process of its own."""
    started: list[Running] = []
    outputs = tmp_path_factory.mktemp("output")

    def run(folder: Path, words: list[str]) -> Running:
        started.append(Running(words, folder, outputs / f"{len(started)}.txt"))
        return started[-1]

    yield run
    for running in started:
        running.process.kill()
        running.process.join()


def recorded(folder: Path) -> dict[int, Any]:
    """Return the opponents of all trials."""
    return {trial.number: trial.user_attrs[LEAGUE_KEY] for trial in open_handle(folder).trials()}


@pytest.mark.slow
def test_a_worker_killed_in_a_league_batch_changes_no_number(tmp_path: Path, start: Start) -> None:
    alone, killed = tmp_path / "alone", tmp_path / "killed"
    opponents = "league=0.8,past=0.2"
    start(alone, train_words(alone, 2, opponents, seeds=1, budget=3840)).finish(seconds=BUSY)
    words = train_words(killed, 2, opponents, seeds=1, budget=3840)
    # Its first checkpoint within the rung, between two rollouts against the first trial's player.
    with killed_at_checkpoint("runs/*/trial-00001/checkpoint-*", every_rollout=True):
        start(killed, words).finish(-signal.SIGKILL, seconds=BUSY)
    begun = recorded(killed)
    assert [entry["trial"] for entry in begun[1]["opponents"]] == [0]
    assert open_handle(killed).trials()[1].state.name == "RUNNING"
    said = start(killed, words).finish(seconds=BUSY)
    assert "trial 1 resumes from rung 0" in said
    assert "trial 1 plays against trial 0 100%" in said
    assert recorded(killed)[1] == begun[1]
    assert recorded(killed) == recorded(alone)
    assert numbers(killed) == numbers(alone)


@pytest.mark.slow
def test_two_workers_meet_each_others_players_and_record_whom_they_met(
    tmp_path: Path, start: Start
) -> None:
    def words(trials: int) -> list[str]:
        opponents = "league=0.8,past=0.2"
        return [*train_words(tmp_path, trials, opponents, seeds=2, budget=1024), "--alongside"]

    # A worker that has ended, then two side by side: each of them meets the first one's players.
    start(tmp_path, words(2)).finish(seconds=BUSY)
    workers = [start(tmp_path, words(4)) for _ in range(2)]
    trained = [
        set(map(int, re.findall(r"trial (\d+) complete", worker.finish(seconds=BUSY))))
        for worker in workers
    ]
    assert not trained[0] & trained[1]
    assert trained[0] | trained[1] == {2, 3}
    met = recorded(tmp_path)
    assert all({0, 1} <= set(met[number]["players"]) for number in (2, 3))
    handle = open_handle(tmp_path)
    report = json.loads((handle.run_dir / "league.json").read_text())
    points = np.array(report["points"]["mean"])
    for number, league in met.items():
        # The recorded shares are those of the equilibrium of the players that were there.
        rows = [report["players"].index(f"trial {trial}") for trial in league["players"]]
        payoffs = (points - points.T)[np.ix_(rows, rows)]
        shares = largest_shares(equilibrium(payoffs).weights.tolist()) if rows else {}
        found = {entry["trial"]: entry["share"] for entry in league["opponents"]}
        expected = {league["players"][index]: share for index, share in shares.items()}
        assert found == pytest.approx(expected), number
        # With them alone, the trial is trained again to the same weights.
        assert trained_again(handle, number) == members_of(handle, number)


def members_of(handle: StudyHandle, number: int) -> bytes:
    return (handle.trial_dir(number) / "members.safetensors").read_bytes()


def trained_again(handle: StudyHandle, number: int) -> bytes:
    """Train a complete trial again, against its recorded opponents; return the file of members."""
    trial = handle.trials()[number]
    settings = handle.space.resolve(trial.params)
    seed = TrialRecord.from_attributes(trial.user_attrs).seed
    assert seed is not None
    met = trial.user_attrs[LEAGUE_KEY]
    again = Plan(trial._trial_id, number, trial.params, settings, seed, league=met)
    experiment = GameExperiment(handle.spec, torch.device("cpu"))
    league = experiment.league(handle, lambda _: None)
    assert league is not None
    league.begin([again], lambda: None)
    trainer = Trainer(experiment)
    training = trainer.start(again)
    advance_to(trainer, [training], handle.spec.rungs)
    path = handle.run_dir / "again.safetensors"
    save_members(path, trainer.actors(training))
    return path.read_bytes()
