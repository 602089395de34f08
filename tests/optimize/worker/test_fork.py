"""`sweepd fork`: a trial goes on from its exact state after a rung."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FrozenTrial, TrialState

from sweepd.envs.crypto.data.bars import Bars, write_bars
from sweepd.optimize.objectives.members.weights import FORKED
from sweepd.optimize.study.record.fresh import fresh_seeds
from sweepd.optimize.study.record.keys import CHANGES_KEY
from sweepd.optimize.study.sampling.evolution import changes_of, params_after
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker import fork, records
from sweepd.optimize.worker.retrain import needed_rungs, progress_lines
from tests.extra import with_extra
from tests.optimize.conftest import SPACE as MARKET_SPACE
from tests.optimize.conftest import TRAIN, Running
from tests.optimize.study_files import open_handle, trained_again
from tests.optimize.worker.test_duel_population import PBT, PHASES
from tests.optimize.worker.test_duel_population import SPACE as DUEL_SPACE
from tests.optimize.worker.test_evolution import FLAGS, SPACE, after

DUEL = (*PBT[:-6], "--sampler", "random", "--n-trials", 3)
STUDIES: dict[str, tuple[object, ...]] = {
    # With two seeds, phases that end early and past selves.
    "phases": (*DUEL, "--seeds", 2),
    "one player": (*FLAGS, "--sampler", "random", "--pruner", "none", "--n-trials", 2),
    "market": (*TRAIN, "--sampler", "random", "--pruner", "none", "--n-trials", 2),
    "population": PBT,
}
# Trial and rung from which the forks of the tests go on.
AT = {"phases": (1, 2), "one player": (1, 3), "market": (1, 1)}


class Studies:
    """The studies of the tests, each trained once in a folder of its own."""

    def __init__(self, folder: Path, bars: Bars) -> None:
        self.folder, self.bars = folder, bars
        self.said = 0

    def of(self, kind: str) -> Path:
        folder = self.folder / kind.replace(" ", "-")
        if not folder.exists():
            self.prepare(folder, kind)
            self.run(folder, "train", *STUDIES[kind])
        return folder

    def prepare(self, folder: Path, kind: str) -> None:
        folder.mkdir()
        spaces = {"market": MARKET_SPACE, "one player": SPACE}
        (folder / "tiny.toml").write_text(spaces.get(kind, DUEL_SPACE))
        if kind == "market":
            write_bars(self.bars, folder / "bars")

    def start(self, folder: Path, *words: object) -> Running:
        self.said += 1
        own = ("--gpu", "cpu") if words[0] in ("fork", "run") else ()
        return Running([str(w) for w in (*words, *own)], folder, self.folder / f"{self.said}.txt")

    def run(self, folder: Path, *words: object, code: int = 0) -> str:
        return self.start(folder, *words).finish(code)


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory, bars: Bars) -> Studies:
    return Studies(tmp_path_factory.mktemp("studies"), bars)


def fork_of(handle: StudyHandle, name: str) -> tuple[StudyHandle, FrozenTrial]:
    made = StudyHandle(handle.storage, name)
    [trial] = made.trials()
    return made, trial


def weights(handle: StudyHandle, number: int) -> bytes:
    return (handle.trial_dir(number) / "members.safetensors").read_bytes()


@pytest.mark.parametrize("kind", with_extra(AT, {"one player"}))
def test_without_a_change_a_fork_ends_with_the_same_bits(
    kind: str, studies: Studies, tmp_path: Path
) -> None:
    folder, (number, rung) = studies.of(kind), AT[kind]
    text = studies.run(folder, "fork", f"s#{number}@{rung}")
    assert f"the state of trial {number} after rung {rung} is not stored: training it again" in text
    assert (
        f"fork s-fork{number}-{rung}: trial {number} of s after rung {rung}, with its own" in text
    )
    handle = open_handle(folder)
    source = handle.trials()[number]
    made, trial = fork_of(handle, f"s-fork{number}-{rung}")
    assert trial.state == TrialState.COMPLETE
    assert weights(made, 0) == weights(handle, number)
    assert trial.value == source.value
    later = {at: value for at, value in source.intermediate_values.items() if at > rung}
    assert trial.intermediate_values == later
    for key in ("metrics", "seed", "seed_scores", "fold_scores", "path_scores", "phases"):
        assert trial.user_attrs.get(f"sweepd:{key}") == source.user_attrs.get(f"sweepd:{key}")
    again = trained_again(made, 0, tmp_path)
    assert again.sha256 == again.recorded


def test_a_changed_fork_differs_and_says_what_it_is(studies: Studies) -> None:
    folder = studies.of("phases")
    asked = ("fork", "s#0@1", "learning_rate=0.5", "gamma=0.5", "--study-name", "f")
    studies.run(folder, *asked)
    handle = open_handle(folder)
    made, trial = fork_of(handle, "f")
    used = trial.user_attrs["sweepd:ppo_params"]
    assert (used["learning_rate"], used["gamma"]) == (0.5, 0.5)
    before = handle.trials()[0].user_attrs["sweepd:ppo_params"]
    assert {n for n in used if used[n] != before[n]} == {"learning_rate", "gamma"}
    assert weights(made, 0) != weights(handle, 0)
    [shown] = json.loads(studies.run(folder, "status", "--study-name", "f", "--json"))
    changes = {"learning_rate": 0.5, "gamma": 0.5}
    assert shown["fork"] == {"study": "s", "trial": 0, "rung": 1, "changes": changes}
    text = " ".join(studies.run(folder, "status", "--study-name", "f").split())
    assert "trial 0 of s after rung 1, with learning_rate=0.5, gamma=0.5" in text
    # The same command joins it; another one is refused.
    assert "joining study f: 1 of 1 trials are finished" in studies.run(folder, *asked)
    other = ("fork", "s#0@1", "learning_rate=0.4", "--study-name", "f")
    assert "is not this fork" in studies.run(folder, *other, code=2)
    # Neither the study nor its statistics know of the fork, but the gate counts its trials.
    assert len(handle.trials()) == 3
    assert made.chosen_from == 3
    best = handle.best()
    assert best is not None
    assert fresh_seeds(handle, best) is None
    # A fork of a fork goes on from there.
    studies.run(folder, "fork", "f#0@2", "--study-name", "g")
    again, _ = fork_of(handle, "g")
    assert weights(again, 0) == weights(made, 0)
    assert "no rung 1: it has reached rungs 2 to 4" in studies.run(folder, "fork", "f#0@1", code=2)


def test_what_needs_a_set_of_parameters_refuses_a_fork(studies: Studies) -> None:
    folder = studies.of("phases")
    studies.run(folder, "fork", "s#0@3", "clip=0.15", "--study-name", "h")
    flags = [word if word != "s" else "t" for word in DUEL]
    narrow = ["narrow:h" if word == "tiny.toml" else word for word in flags]
    assert "(sweepd fork) changed their hyp" in studies.run(folder, "train", *narrow, code=2)
    assert "name the trial that it came from, s#0" in studies.run(
        folder, "run", "--trial", "h#0", code=2
    )


def test_a_fork_begins_with_the_checkpoint_that_is_stored(
    studies: Studies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is the same as that of the state that was trained again."""
    folder = tmp_path / "killed"
    studies.prepare(folder, "phases")
    monkeypatch.setattr(records, "write_checkpoint", after(records.write_checkpoint, 7))
    studies.start(folder, "train", *STUDIES["phases"]).finish(-signal.SIGKILL)
    monkeypatch.undo()
    handle = open_handle(folder)
    stored = [
        trial.number
        for trial in handle.trials()
        if trial.user_attrs.get("sweepd:checkpoint", {}).get("rung") == 2
    ]
    number = stored[0]
    text = studies.run(folder, "fork", f"s#{number}@2")
    assert "training it again" not in text
    whole = studies.of("phases")
    studies.run(whole, "fork", f"s#{number}@2", "--study-name", "again")
    made, trial = fork_of(handle, f"s-fork{number}-2")
    again, other = fork_of(open_handle(whole), "again")
    assert (made.run_dir / FORKED).read_bytes() == (again.run_dir / FORKED).read_bytes()
    assert weights(made, 0) == weights(again, 0)
    assert trial.value == other.value
    # A lost file is written again, if it is the same.
    (again.run_dir / FORKED).unlink()
    monkeypatch.setattr(fork, "checkpoint_bytes", lambda _: b"of another processor")
    lost = ("fork", f"s#{number}@2", "--study-name", "again")
    assert "gave other bits" in studies.run(whole, *lost, code=2)
    monkeypatch.undo()
    studies.run(whole, "fork", f"s#{number}@2", "--study-name", "again")
    assert (made.run_dir / FORKED).read_bytes() == (again.run_dir / FORKED).read_bytes()


@pytest.mark.parametrize("lost", [False, True])
def test_a_fork_that_is_killed_goes_on_to_the_same_bits(
    lost: bool, studies: Studies, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, name = studies.of("phases"), f"killed-{lost}"
    monkeypatch.setattr(records, "write_checkpoint", after(records.write_checkpoint, 1))
    asked = ("fork", "s#2@1", "--study-name", name)
    studies.start(folder, *asked).finish(-signal.SIGKILL)
    monkeypatch.undo()
    handle = open_handle(folder)
    made, _ = fork_of(handle, name)
    if lost:  # then it begins with the state of the fork again
        shutil.rmtree(made.trial_dir(0))
    assert ("trial 0 resumes from rung 2" in studies.run(folder, *asked)) == (not lost)
    assert weights(made, 0) == weights(handle, 2)


def test_a_member_of_a_population_goes_on_from_what_it_copied(studies: Studies) -> None:
    folder = studies.of("population")
    handle = open_handle(folder)
    trials = handle.trials()
    changes = {t.number: changes_of(t.user_attrs.get(CHANGES_KEY)) for t in trials}
    # One that copied, and whose state did not change at a later rung: its end is the same.
    last = {number: own[-1] for number, own in changes.items() if own and own[-1].rung < 4}
    number, change = next(iter(last.items()))
    assert len(needed_rungs(number, change.rung, changes)) > 1
    text = studies.run(folder, "fork", f"s#{number}@{change.rung}", "--study-name", "p")
    assert "from which it copied" in text
    made, trial = fork_of(handle, "p")
    assert weights(made, 0) == weights(handle, number)
    assert trial.value == trials[number].value
    params = params_after(change.rung, trials[number].params, changes[number])
    assert trial.user_attrs["sweepd:ppo_params"]["learning_rate"] == params["learning_rate"]


def test_the_trials_that_a_state_depends_on() -> None:
    def copied(*changes: tuple[int, int]) -> list[Mapping[str, Any]]:
        return [{"rung": rung, "source": source, "params": {}} for rung, source in changes]

    own = {0: copied((2, 1)), 1: copied((1, 2)), 2: copied(), 3: copied()}
    changes = {number: changes_of(found) for number, found in own.items()}
    assert needed_rungs(0, 3, changes) == {0: 3, 1: 2, 2: 1}
    assert needed_rungs(3, 2, changes) == {3: 2}


def test_training_again_says_how_far_it_is() -> None:
    said: list[str] = []
    now = iter([0.0, 10.0, 20.0, 25.0, 40.0])
    stepped = progress_lines(1000, said.append, lambda: next(now))
    for _ in range(4):
        stepped(100)
    assert said == [
        "trained again: 20%, 10 steps/s, 1:20 left",
        "trained again: 40%, 10 steps/s, 1:00 left",
    ]


REFUSED = {
    ("s#1", "learning_rate=0.1"): "write STUDY#TRIAL@RUNG",
    ("s#9@1",): "has no trial 9",
    ("s#1@0",): "has no rung 0: it has reached rungs 1 to 4",
    ("s#1@5",): "has no rung 5",
    ("s#1@4",): "is the last one",
    ("t#1@1",): "'t'",
    ("s#1@2", "net_width=16"): "net_width determines the shape",
    ("s#1@2", "initial_log_std=-1"): "initial_log_std acts at the start",
    ("s#1@2", "length=3"): "length is a parameter of the environment",
    ("s#1@2", "lerning_rate=0.1"): "did you mean learning_rate?",
    ("s#1@2", "learning_rate=-1"): "learning_rate must be",
    ("s#1@2", "learning_rate"): "write NAME=VALUE",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_be_continued_is_refused(words: tuple[str, ...], studies: Studies) -> None:
    folder = studies.of("phases")
    before = {path for path in folder.glob("runs/*") if path.is_dir()}
    text = studies.run(folder, "fork", *words, code=2)
    assert REFUSED[words] in text
    assert len(text.strip().splitlines()) == 1
    assert {path for path in folder.glob("runs/*") if path.is_dir()} == before


def test_the_phases_of_the_tests_end_at_different_times(studies: Studies) -> None:
    handle = open_handle(studies.of("phases"))
    begun = [tuple(own) for t in handle.trials() for own in t.user_attrs["sweepd:phases"]]
    assert len(set(begun)) > 1
    assert max(map(len, begun)) == len(PHASES)
