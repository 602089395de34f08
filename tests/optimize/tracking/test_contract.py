"""Trackers keep the laws of their contract (`sweepd.testing`), and broken ones do not."""

from __future__ import annotations

import importlib
import importlib.util
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sweepd.optimize.tracking.mlflow_runs import MlflowRuns
from sweepd.optimize.tracking.picture import RUNG_VALUE, RUNNING, Picture, Sent
from sweepd.optimize.tracking.sender import Runs
from sweepd.optimize.tracking.wandb_runs import WandbRuns
from sweepd.testing import StoredRun, TrackerTestCase
from tests.optimize.tracking.trackers import mlflow_runs, wandb_runs

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def needs(package: str) -> Any:
    missing = importlib.util.find_spec(package) is None
    return pytest.mark.skipif(missing, reason=f"needs {package} (extra {package})")


@needs("mlflow")
@pytest.mark.slow
class TestMlflow(TrackerTestCase):
    @pytest.fixture(scope="class")
    @classmethod
    def empty(cls, tmp_path_factory: pytest.TempPathFactory) -> bytes:
        """An empty database, which needs seconds for its migrations."""
        folder = tmp_path_factory.mktemp("mlflow")
        assert mlflow_runs(f"sqlite:///{folder}/empty.db") == {}
        return (folder / "empty.db").read_bytes()

    @pytest.fixture(autouse=True)
    def _store(self, empty: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "runs.db").write_bytes(empty)
        self.uri = f"sqlite:///{tmp_path}/runs.db"
        for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", self.uri)

    def make(self) -> Runs:
        return MlflowRuns()

    def stored(self) -> Mapping[str, list[StoredRun]]:
        return {
            key: [
                StoredRun(
                    {name: float(text) for name, text in run.params.items()},
                    tuple(run.history[RUNG_VALUE]),
                    run.status != "RUNNING",
                )
                for run in runs
            ]
            for key, runs in mlflow_runs(self.uri).items()
        }


@needs("wandb")
@pytest.mark.slow
class TestWandb(TrackerTestCase):
    @pytest.fixture(autouse=True)
    def _store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = tmp_path
        for name in ("WANDB_DIR", "WANDB_PROJECT"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("WANDB_MODE", "offline")

    def make(self) -> Runs:
        return WandbRuns(self.folder)

    def stored(self) -> Mapping[str, list[StoredRun]]:
        # W&B's own process writes the files, and the end of a run last.
        deadline = time.monotonic() + 30.0
        while any(run.ends < run.files for run in wandb_runs(self.folder / "wandb").values()):
            assert time.monotonic() < deadline, "a run was not ended"
            time.sleep(0.01)
        return {
            key: [
                StoredRun(
                    {"lr": run.params["lr"]},
                    tuple(run.history.get(RUNG_VALUE, [])),
                    bool(run.status),
                )
            ]
            for key, run in wandb_runs(self.folder / "wandb").items()
        }


class TestLines(TrackerTestCase):
    """The tracker of `examples/own_tracker.py`."""

    @pytest.fixture(autouse=True)
    def _store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(EXAMPLES))
        self.kind = importlib.import_module("own_tracker").LinesRuns
        self.folder = tmp_path

    def make(self) -> Runs:
        made: Runs = self.kind(self.folder)
        return made

    def stored(self) -> Mapping[str, list[StoredRun]]:
        found: dict[str, list[StoredRun]] = {}
        for path in (self.folder / "lines").glob("*.jsonl"):
            first, *lines = [json.loads(line) for line in path.read_text().splitlines()]
            points = tuple((one["step"], one[RUNG_VALUE]) for one in lines if "step" in one)
            found[path.stem] = [StoredRun(first["params"], points, "state" in (lines or [{}])[-1])]
        return found


class Memory:
    """A tracker in the memory of a test."""

    def __init__(self, store: dict[str, list[StoredRun]]) -> None:
        self.store = store

    def send(self, picture: Picture, sent: Sent) -> None:
        (run,) = self.store.get(picture.key) or [StoredRun()]
        new = tuple(
            (step, metrics[RUNG_VALUE])
            for step, metrics in picture.points.items()
            if step not in sent.steps
        )
        sent.steps += [step for step, _ in new]
        sent.state = picture.state
        ended = picture.state != RUNNING
        self.store[picture.key] = [StoredRun(picture.params, run.points + new, ended)]

    def close(self) -> None:
        pass


class TestMemory(TrackerTestCase):
    kind: ClassVar[type[Memory]] = Memory

    def make(self) -> Runs:
        self.store = getattr(self, "store", {})
        return self.kind(self.store)

    def stored(self) -> Mapping[str, list[StoredRun]]:
        return self.store


class Doubles(Memory):
    """Does not note what it has sent."""

    def send(self, picture: Picture, sent: Sent) -> None:
        super().send(picture, Sent())
        sent.steps, sent.state = sorted(picture.points), picture.state


class Restarts(Memory):
    """A process begins a run of its own."""

    def __init__(self, store: dict[str, list[StoredRun]]) -> None:
        store.clear()
        super().__init__(store)


class LeavesOpen(Memory):
    """Does not end the runs that failed or were pruned."""

    def send(self, picture: Picture, sent: Sent) -> None:
        super().send(picture, sent)
        (run,) = self.store[picture.key]
        ended = picture.state == "COMPLETE"
        self.store[picture.key] = [StoredRun(run.params, run.points, ended)]


@pytest.mark.parametrize(
    ("broken", "law", "given"),
    [
        (Doubles, "a_run_is_shown_exactly", ()),
        (Restarts, "another_process_goes_on_where_one_ended", ()),
        (LeavesOpen, "every_end_of_a_run_is_shown", ("PRUNED",)),
    ],
)
def test_a_broken_tracker_fails(broken: type[Memory], law: str, given: tuple[str, ...]) -> None:
    class Broken(TestMemory):
        kind = broken

    with pytest.raises(AssertionError):
        getattr(Broken(), f"test_{law}")(*given)
