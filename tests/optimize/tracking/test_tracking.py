"""Trials in MLflow and W&B: what arrives there, and that their failures stop nothing."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from sweepd.envs.support.errors import InputError
from sweepd.optimize.tracking import sender
from sweepd.optimize.tracking.picture import RUNG_VALUE, Picture, Sent
from sweepd.optimize.tracking.sender import Sender, sent_file
from sweepd.optimize.tracking.tracker import Tracking, check_trackers
from sweepd.optimize.worker.tracked import trial_picture
from tests.optimize.conftest import INDEPENDENT, Sweepd
from tests.optimize.study_files import open_handle, wait_for
from tests.optimize.tracking.trackers import (
    Stored,
    deaf_server,
    free_port,
    mlflow_runs,
    mlflow_server,
    wandb_runs,
)

needs_mlflow = pytest.mark.skipif(
    importlib.util.find_spec("mlflow") is None, reason="needs mlflow-skinny (extra mlflow)"
)
needs_wandb = pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="needs wandb (extra wandb)"
)
pytestmark = pytest.mark.slow
STEPS = (64, 128, 192)  # of the tiny study's rungs
THREE = ("--n-trials", 3, "--trials-per-batch", 3)


@pytest.fixture(scope="module")
def libraries() -> None:
    """Import MLflow once: the senders are forks of this process."""
    for name in ("mlflow.tracking", "mlflow.store.tracking.sqlalchemy_store"):
        importlib.import_module(name)


@pytest.fixture(scope="module")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """An empty database of MLflow, which needs seconds for its migrations."""
    if importlib.util.find_spec("mlflow") is None:
        return None
    folder = tmp_path_factory.mktemp("mlflow")
    assert mlflow_runs(store(folder)) == {}
    return folder / "mlflow.db"


@pytest.fixture(autouse=True)
def _variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, empty_store: Path | None) -> None:
    if empty_store:
        for name in ("mlflow.db", "server.db"):
            shutil.copy(empty_store, tmp_path / name)
    for name in ("MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", "WANDB_DIR", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store(tmp_path))
    monkeypatch.setenv("WANDB_MODE", "offline")


def store(folder: Path) -> str:
    return f"sqlite:///{folder / 'mlflow.db'}"


def picture(**changes: Any) -> Picture:
    base = Picture(key="abc-1", name="s #1", group="s", params={"lr": 0.1 + 0.2})
    return dataclasses.replace(base, **changes)


def expected(folder: Path) -> dict[str, Picture]:
    """The pictures of all trials of the study, by key."""
    handle = open_handle(folder)
    uid = handle.run_dir.name.rpartition("-")[2]
    return {
        f"{uid}-{trial.number}": trial_picture(handle, trial, f"{uid}-{trial.number}")
        for trial in handle.trials()
    }


# -- what arrives


@needs_mlflow
@pytest.mark.usefixtures("libraries", "forked_python")
def test_mlflow_shows_every_trial_exactly(market: Path, sweepd: Sweepd) -> None:
    words = ("train", "--n-trials", 9, "--seed", 1, "--pruner", "median", "--track", "mlflow")
    sweepd(*words).finish()
    if set(mlflow_runs(store(market))) != set(expected(market)):
        sweepd(*words).finish()  # on a busy machine, the end has no time for all: they are made up
    names = (RUNG_VALUE, "fold_score_0", "fold_score_1", "fold_score_2", "objective", "sharpe")
    runs, pictures = mlflow_runs(store(market), names), expected(market)
    assert set(runs) == set(pictures)
    assert {p.state for p in pictures.values()} == {"COMPLETE", "PRUNED"}
    for key, shown in pictures.items():
        [run] = runs[key]
        assert run.params == {name: str(value) for name, value in shown.params.items()}
        trial = open_handle(market).trials()[int(shown.tags["trial"])]
        for name, value in trial.params.items():
            assert run.params[name] == str(value)
            if isinstance(value, float):
                assert float(run.params[name]) == value  # exact, not rounded
        rungs = [(STEPS[rung - 1], v) for rung, v in sorted(trial.intermediate_values.items())]
        assert run.history[RUNG_VALUE] == rungs
        for fold in range(3):
            assert [step for step, _ in run.history[f"fold_score_{fold}"]] == [s for s, _ in rungs]
        # Of these metrics the study keeps those of the last rung only: the tracker has all that it
        # was told in time, which on a busy machine may be the last ones.
        seen = [step for step, _ in run.history["sharpe"]]
        assert seen[-1] == rungs[-1][0]
        assert set(seen) <= {step for step, _ in rungs}
        complete = shown.state == "COMPLETE"
        assert run.status == ("FINISHED" if complete else "KILLED")
        assert run.history["objective"] == ([(192, trial.value)] if complete else [])
        tags = {name.removeprefix("sweepd."): text for name, text in run.tags.items()}
        assert tags["study"] == tags["experiment"] == "s"
        assert tags["state"] == shown.state
        assert tags["data_fingerprint"] == open_handle(market).spec.data.fingerprint
        assert tags["code_version"] == open_handle(market).spec.code_version
        assert ("worse than its peers" in tags.get("reason", "")) != complete
        if complete:
            members = Path(tags["file.members"].removeprefix("file://"))
            assert members.exists()
    assert not (market / "mlruns").exists()  # links, not copies


@needs_wandb
def test_wandb_shows_every_trial_exactly(market: Path, sweepd: Sweepd) -> None:
    words = ("train", "--n-trials", 6, "--pruner", "median", "--track", "wandb")
    sweepd(*words).finish()
    folder = open_handle(market).run_dir / "wandb"
    if set(wandb_runs(folder)) != set(expected(market)):
        sweepd(*words).finish()  # on a busy machine, the end has no time for all: they are made up
    runs, pictures = wandb_runs(folder), expected(market)
    assert set(runs) == set(pictures)
    for key, shown in pictures.items():
        run = runs[key]
        assert {name: run.params[name] for name in shown.params} == shown.params
        assert run.params["sweepd"]["study"] == run.tags["group"] == "s"
        assert run.tags["project"] == "sweepd"
        trial = open_handle(market).trials()[int(shown.tags["trial"])]
        rungs = [(STEPS[rung - 1], v) for rung, v in sorted(trial.intermediate_values.items())]
        assert run.history[RUNG_VALUE] == rungs
        assert [step for step, _ in run.history["fold_score_2"]] == [step for step, _ in rungs]
        assert 1 <= len(run.history["sharpe"]) <= len(rungs)
        assert run.tags["state"] == shown.state
        assert run.status == "0"
        if shown.state == "COMPLETE":
            assert run.tags["objective"] == trial.value
            assert run.tags["artifact"] == [shown.links["members"]]
        else:
            assert "worse than its peers" in run.tags["reason"]


@needs_mlflow
@needs_wandb
@pytest.mark.extra
def test_a_killed_worker_doubles_nothing(market: Path, sweepd: Sweepd) -> None:
    """Killed after the first rung was sent; the next worker resumes the same runs."""
    command = (
        *("train", "--n-trials", 2, "--trials-per-batch", 2, *INDEPENDENT),
        *("--budget", 30_000, "--track", "mlflow", "--track", "wandb"),
    )
    worker = sweepd(*command)
    folder = market / "runs"

    def sent() -> bool:
        # Stopped most of the time, so that the worker is not at its end before the sender is ready.
        worker.signal(signal.SIGSTOP)
        time.sleep(0.2)
        files = list(folder.glob("s-*/tracking/*/*-0.json"))
        done = len(files) == 2 and all(Sent.from_json(f.read_text()).steps for f in files)
        if not done:
            worker.signal(signal.SIGCONT)
        return done

    wait_for(lambda: any(folder.glob("s-*/trial-*/checkpoint-*")), 120)
    wait_for(sent, 120)
    assert not worker.ended
    worker.signal(signal.SIGKILL)
    worker.process.join()
    out = sweepd(*command).finish()
    assert "resumes from" in out
    pictures, runs = expected(market), mlflow_runs(store(market))
    offline = wandb_runs(open_handle(market).run_dir / "wandb")
    assert set(runs) == set(offline) == set(pictures)
    for key, shown in pictures.items():
        [run] = runs[key]
        points = [(step, metrics[RUNG_VALUE]) for step, metrics in shown.points.items()]
        assert len(points) == 3
        assert run.history[RUNG_VALUE] == points
        assert run.status == "FINISHED"
        assert offline[key].history[RUNG_VALUE] == points
        assert offline[key].files == 2  # W&B's offline mode writes a file per process


@needs_mlflow
@pytest.mark.extra
def test_a_run_of_a_file_is_tracked_and_resumed(market: Path, sweepd: Sweepd) -> None:
    config = """
[data]
dir = "bars"
[cv]
scheme = "kfold"
groups = 3
[train]
budget = 192
rungs = 3
horizon = 16
num_envs = 2
recipe = "tiny-test"
holdout = 0.1
threads = 1
[shape]
net_width = 8
net_depth = 1
minibatch = 16
epochs = 2
[env]
lookback = 1
"""
    (market / "one.toml").write_text(config)
    out = ("--out", "out", "--gpu", "cpu", "--track", "mlflow")
    sweepd("run", "one.toml", *out).finish()
    sweepd("run", "one.toml", *out).finish()  # shown again
    [[run]] = mlflow_runs(store(market)).values()
    assert [step for step, _ in run.history[RUNG_VALUE]] == list(STEPS)
    assert run.status == "FINISHED"
    assert run.params["budget"] == "192"
    assert run.params["shape.net_width"] == "8"
    assert "members.safetensors" in run.tags["sweepd.file.members"]
    sweepd("run", "one.toml", *out[2:], "--out", "two").finish()  # another run
    assert len(mlflow_runs(store(market))) == 2


# -- a server


@needs_mlflow
@pytest.mark.extra
def test_a_server_that_dies_and_returns_has_everything(tmp_path: Path) -> None:
    pytest.importorskip("flask", reason="MLflow's server needs flask")
    port, said = free_port(), list[str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
        with Tracking(["mlflow"], tmp_path, said.append) as tracking:
            file = sent_file(tmp_path / "tracking" / "mlflow", "abc-1")
            with mlflow_server(tmp_path, port):
                tracking.put(picture(points={10: {RUNG_VALUE: 1.0}}))
                wait_for(lambda: Sent.from_json(file.read_text()).steps == [10], 60)
            tracking.put(picture(points={20: {RUNG_VALUE: 2.0}}))
            wait_for(lambda: len(said) == 1, 60)
            ended = picture(points={30: {RUNG_VALUE: 3.0}}, state="COMPLETE")
            tracking.put(ended)
            with mlflow_server(tmp_path, port):
                wait_for(lambda: len(said) == 2, 90)
                [[run]] = mlflow_runs(f"http://127.0.0.1:{port}").values()
    assert run.history[RUNG_VALUE] == [(10, 1.0), (20, 2.0), (30, 3.0)]
    assert run.status == "FINISHED"
    assert "tracking with MLflow fails (" in said[0]
    assert "training continues" in said[0]
    assert said[1] == "tracking with MLflow works again; nothing is missing"


@needs_mlflow
@pytest.mark.usefixtures("libraries", "forked_python")
@pytest.mark.parametrize("server", ["refuses", pytest.param("hangs", marks=pytest.mark.extra)])
def test_an_unreachable_server_stops_nothing_and_is_made_up_for(
    market: Path, sweepd: Sweepd, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    train = ("train", *THREE, *INDEPENDENT, "--track", "mlflow")
    with deaf_server() as deaf:
        port = deaf if server == "hangs" else free_port()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{port}")
        out = sweepd(*train).finish()
    assert out.count("could not be told everything") == 1
    assert "trials: 3 complete" in out
    if server == "hangs":  # what follows does not depend on the reason
        return
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store(market))
    sweepd(*train).finish()  # nothing is left to train
    runs = mlflow_runs(store(market))
    assert {run.status for [run] in runs.values()} == {"FINISHED"}
    for key, shown in expected(market).items():
        points = [(step, metrics[RUNG_VALUE]) for step, metrics in shown.points.items()]
        assert runs[key][0].history[RUNG_VALUE] == points


@needs_wandb
def test_a_wandb_server_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "2")
    said: list[str] = []
    with deaf_server() as port:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        with Tracking(["wandb"], tmp_path, said.append) as tracking:
            began = time.monotonic()
            tracking.put(picture(points={10: {RUNG_VALUE: 1.0}}))
            assert time.monotonic() - began < 0.1
            wait_for(lambda: len(said) == 1, 60)
            began = time.monotonic()
    assert time.monotonic() - began < sender.FAILING_FLUSH_SECONDS + 3
    assert "tracking with W&B fails" in said[0]
    assert "could not be told everything" in said[1]


# -- the sender


class Memory:
    """A tracker that keeps everything, and fails while `broken`."""

    def __init__(self) -> None:
        self.runs: dict[str, Stored] = {}
        self.broken: set[str] = set()

    def send(self, shown: Picture, sent: Sent) -> None:
        if shown.key in self.broken:
            raise OSError("postgresql://user:secret@host is away")
        run = self.runs.setdefault(shown.key, Stored())
        for step, metrics in sorted(shown.points.items()):
            if step not in sent.steps:
                run.history.setdefault(RUNG_VALUE, []).append((step, metrics[RUNG_VALUE]))
                sent.steps.append(step)
        run.status = sent.state = shown.state

    def close(self) -> None:
        pass


def test_one_failing_run_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory()
    memory.broken = {"bad"}
    monkeypatch.setattr(sender, "open_runs", lambda *_: memory)
    monkeypatch.setattr(sender, "FIRST_DELAY", 0.01)

    def lines() -> Iterator[str]:
        for key in ("bad", "ok"):
            yield picture(key=key, points={1: {RUNG_VALUE: 1.0}}).to_json()
        wait_for(lambda: "ok" in memory.runs)

    with (tmp_path / "out").open("w") as out:
        assert Sender("mlflow", tmp_path, out, lambda: None).run(lines()) == 1
    assert memory.runs["ok"].history[RUNG_VALUE] == [(1, 1.0)]
    [said] = map(json.loads, (tmp_path / "out").read_text().splitlines())
    assert said.startswith("fails (OSError: ")
    assert "secret" not in said


def test_a_run_that_another_sender_has_open_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory()
    monkeypatch.setattr(sender, "open_runs", lambda *_: memory)
    lock = FileLock(tmp_path / "abc-1.lock", thread_local=False)  # a timer releases it
    lock.acquire()
    release = threading.Timer(0.5, lock.release)
    release.start()
    ended = picture(points={1: {RUNG_VALUE: 1.0}}, state="COMPLETE")
    with (tmp_path / "out").open("w") as out:
        assert Sender("mlflow", tmp_path, out, lambda: None).run([ended.to_json()]) == 0
    release.join()
    assert memory.runs["abc-1"].status == "COMPLETE"
    assert not (tmp_path / "out").read_text()


def test_a_picture_keeps_what_only_an_older_one_knows() -> None:
    older = picture(points={1: {RUNG_VALUE: 1.0, "sharpe": 2.0}}, params={"a": 1})
    newer = picture(points={1: {RUNG_VALUE: 1.0}, 2: {RUNG_VALUE: 3.0}}, state="COMPLETE")
    both = newer.over(older)
    assert both.points == {1: {RUNG_VALUE: 1.0, "sharpe": 2.0}, 2: {RUNG_VALUE: 3.0}}
    assert both.params == {"a": 1, "lr": 0.1 + 0.2}
    assert both.state == "COMPLETE"
    assert Picture.from_json(both.to_json()) == both


@pytest.mark.parametrize("text", ["", "{", '{"unknown": 1}', "[]"])
def test_a_damaged_file_means_that_nothing_was_sent(text: str) -> None:
    assert Sent.from_json(text) == Sent()


# -- wrong input


def test_an_unknown_tracker_is_refused(sweepd: Sweepd) -> None:
    out = sweepd("train", "--n-trials", 1, "--track", "neptune").finish(2)
    assert "--track 'neptune' is not known; choose one of mlflow, wandb" in out


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_missing_package_names_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    command = rf"-m pip install 'sweepd\[{name}\]'"
    with pytest.raises(InputError, match=rf"--track {name} needs a package: .* {command}"):
        check_trackers([name])
