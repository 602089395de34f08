"""`sweepd studies thin`: what goes, what stays, what is refused afterwards, and kills within it."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sweepd.deploy.promotion.studies import GateStudy, find_study
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import folder_size
from sweepd.optimize.objectives.trial_files import trial_files
from sweepd.optimize.study import thin as thinning
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.recovery.registration import leave, register_worker
from sweepd.optimize.study.study import StudyHandle
from tests.optimize.conftest import search_app

GAME = {
    "env": "cartpole",
    "study-name": "s",
    "n-trials": 4,
    "budget": 512,
    "rungs": 1,
    "seeds": 2,
    "episodes": 4,
    "n-envs": 4,
    "horizon": 64,
    "slots": 4,
    "threads": 1,
    "gpu": "cpu",
    "look-steps": 16,
    "fresh-seeds": 0,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        say("train", *(word for flag, value in GAME.items() for word in (f"--{flag}", str(value))))
    return folder


@pytest.fixture(autouse=True)
def folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "copy"
    shutil.copytree(trained, copy)
    monkeypatch.chdir(copy)
    return copy


def say(*words: str) -> str:
    result = CliRunner().invoke(search_app(), list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def opened() -> StudyHandle:
    return StudyHandle(open_storage(storage_url(None), create=False), "s")


def contents(folder: Path) -> dict[str, str]:
    """The sha256 of every file of the study."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_rows_reports_and_the_best_weights_stay_and_nothing_else_of_the_trials() -> None:
    handle = opened()
    best = handle.best_trial()
    assert best is not None
    (handle.run_dir / "gate").mkdir()
    (handle.run_dir / "gate" / "gate.html").write_text("found")
    (handle.trial_dir((best.number + 1) % 4) / "schedule.json").write_text("{}")
    before = contents(handle.run_dir)
    rows = [(one.state, one.values, one.params, one.user_attrs) for one in handle.trials()]

    told = json.loads(say("studies", "thin", "s", "--dry-run", "--json"))
    assert contents(handle.run_dir) == before
    assert told["kept"] == [best.number]
    size = folder_size(handle.run_dir)
    assert json.loads(say("studies", "thin", "s", "--json")) == told
    after = contents(handle.run_dir)
    assert told["bytes"] == size - folder_size(handle.run_dir) > 0
    own = f"trial-{best.number:05d}"
    others = {f"trial-{number:05d}" for number in told["trials"]}
    gone = {name for name in before if name not in after}
    assert {name.removeprefix("tensorboard/").partition("/")[0] for name in gone} == others
    assert not any(own in name for name in gone)
    assert "gate/gate.html" in after
    kept = {Path(name).name for name in after if name.partition("/")[0] in others}
    assert kept <= set(thinning.RECORDS)
    assert "schedule.json" in kept
    assert all(before[name] == digest for name, digest in after.items())
    again = opened()
    assert [(one.state, one.values, one.params, one.user_attrs) for one in again.trials()] == rows
    told = json.loads(say("studies", "thin", "s", "--json"))  # again: nothing is left to do
    assert (told["kept"], told["bytes"]) == ([best.number], 0)
    assert "removed the files of 3 trials, 0.0 MB" in say("studies", "thin", "s")


def test_what_needs_removed_files_is_refused_and_says_why() -> None:
    best = opened().best_trial()
    assert best is not None
    other, kept = (best.number + 1) % 4, (best.number + 2) % 4
    say("studies", "thin", "s", "--keep", str(kept))
    said = rf"study 's' was thinned on 20.*: the files of trial {other} are gone"
    judged = GateStudy(find_study("s", storage_url(None)))
    assert {one.number for one in judged.asked(None)} == {best.number, kept}
    assert [one.number for one in judged.asked(kept)] == [kept]
    for call in (
        lambda: judged.asked(other),
        lambda: judged.complete_trial(other),
        lambda: trial_files(opened(), other),
        lambda: say("run", "--trial", f"s#{other}", "--from-weights"),
        lambda: say("studies", "thin", "s", "--keep", str(other)),
    ):
        with pytest.raises(InputError, match=said):
            call()
    with pytest.raises(InputError, match=r"thinned .*not continued; .*--study-name s-2"):
        say("train", "--study-name", "s", "--n-trials", "5")
    with pytest.raises(InputError, match="no such trial"):
        say("studies", "thin", "s", "--keep", "9")


def test_a_parameter_set_of_a_removed_trial_trains_again_to_the_same_value() -> None:
    best = opened().best_trial()
    assert best is not None
    other = (best.number + 1) % 4
    say("studies", "thin", "s")
    say("run", "--trial", f"s#{other}", "--seeds", "2", "--budget", "512", "--study-name", "again")
    assert StudyHandle(opened().storage, "again").counts()["COMPLETE"] == 1


def test_a_study_with_a_worker_is_left_alone() -> None:
    handle = opened()
    before = contents(handle.run_dir)
    worker = register_worker(handle.storage, handle.study_id, alongside=False, say=print)
    with pytest.raises(InputError, match="has a worker at"):
        say("studies", "thin", "s")
    leave(handle.storage, worker)
    found = thinning.plan_thinning(handle)
    worker = register_worker(
        handle.storage, handle.study_id, alongside=False, say=print
    )  # one that comes in between
    with pytest.raises(InputError, match="has a worker at"):
        thinning.thin(handle, found)
    assert contents(handle.run_dir) == before
    assert opened().thinned is None
    leave(handle.storage, worker)


def _thin_until(deletions: int) -> None:
    """Thin, and die at the deletion of this number."""
    left = [deletions]

    def dying(path: Path, **_: object) -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        real(path)

    real = shutil.rmtree
    shutil.rmtree = dying  # type: ignore[assignment]
    handle = opened()
    thinning.thin(handle, thinning.plan_thinning(handle))


@pytest.mark.parametrize("deletions", range(3))
def test_a_kill_leaves_a_study_that_says_what_may_be_missing(deletions: int) -> None:
    process = multiprocessing.get_context("fork").Process(target=_thin_until, args=(deletions,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    handle = opened()
    best = handle.best_trial()
    assert best is not None
    assert handle.thinned is not None
    assert set(handle.thinned.trials) == set(range(4)) - {best.number}
    say("studies", "thin", "s")
    folders = {path.name for path in handle.run_dir.glob("trial-*")}
    assert f"trial-{best.number:05d}" in folders
    assert not any(
        (handle.trial_dir(one) / "members.safetensors").exists() for one in handle.thinned.trials
    )


def test_a_file_that_cannot_be_deleted_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(shutil, "rmtree", failing)
    with pytest.raises(RunError, match=r"cannot be deleted .Permission denied.; the same command"):
        say("studies", "thin", "s")
