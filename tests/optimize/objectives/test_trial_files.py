"""Pictures of trials, which are drawn when somebody looks at them."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from optuna.artifacts.exceptions import ArtifactNotFound

from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.trial_files import StudyArtifacts, trial_files
from sweepd.optimize.study.study import StudyHandle
from tests.optimize.conftest import Sweepd
from tests.optimize.study_files import open_handle

PNG = b"\x89PNG"


@pytest.fixture
def handle(market: Path, sweepd: Sweepd) -> StudyHandle:
    """A study of one complete trial."""
    sweepd("train", "--n-trials", 1, "--pruner", "none").finish()
    return open_handle(market)


def artifacts(handle: StudyHandle, number: int = 0) -> dict[str, str]:
    """Return the ids of a trial's artifacts by file name."""
    attributes = handle.trials()[number].system_attrs
    found = [json.loads(text) for key, text in attributes.items() if key.startswith("artifacts:")]
    return {one["filename"]: one["artifact_id"] for one in found}


def test_pictures_are_drawn_when_they_are_first_asked_for(handle: StudyHandle) -> None:
    folder = handle.trial_dir(0)
    assert not (folder / "equity.png").exists()
    assert set(trial_files(handle, 0)) == {folder / "equity.png", folder / "paths.parquet"}
    assert (folder / "equity.png").read_bytes().startswith(PNG)
    (folder / "equity.png").write_bytes(b"kept")
    trial_files(handle, 0)
    assert (folder / "equity.png").read_bytes() == b"kept"


def test_optuna_dashboard_gets_a_trials_files_from_its_folder(handle: StudyHandle) -> None:
    """Two requests at the same time, as a browser makes them."""
    store, folder = StudyArtifacts(handle), handle.trial_dir(0)
    read: dict[str, bytes] = {}

    def get(name: str, artifact: str) -> None:
        with store.open_reader(artifact) as file:
            read[name] = file.read()

    threads = [threading.Thread(target=get, args=one) for one in artifacts(handle).items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read["equity.png"].startswith(PNG)
    assert read == {name: (folder / name).read_bytes() for name in ("equity.png", "paths.parquet")}
    assert list((handle.run_dir / "artifacts").iterdir()) == []  # nothing is copied
    with pytest.raises(ArtifactNotFound):
        store.open_reader("0123")


def test_an_attribute_opens_no_file_of_another_folder(handle: StudyHandle) -> None:
    (handle.run_dir / "secret").write_text("secret")
    plan = handle.ask_batch(1, "w", 2)[0]
    meta = {"artifact_id": "ab", "filename": "../secret", "mimetype": "text/plain"}
    handle.storage.set_trial_system_attr(plan.trial_id, "artifacts:ab", json.dumps(meta))
    with pytest.raises(ArtifactNotFound):
        StudyArtifacts(handle).open_reader("ab")


def test_what_cannot_be_drawn_is_a_sentence(handle: StudyHandle) -> None:
    with pytest.raises(InputError, match="study 's' has no complete trial 1"):
        trial_files(handle, 1)
    (handle.trial_dir(0) / "paths.parquet").unlink()
    with pytest.raises(InputError, match=r"files of trial 0 are not in .*: another machine"):
        trial_files(handle, 0)
