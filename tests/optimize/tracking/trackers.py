"""What trackers have stored, read back."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sweepd.optimize.tracking.mlflow_runs import KEY_TAG
from sweepd.optimize.tracking.picture import RUNG_VALUE

# MLflow's own application without its job queues, which need more packages.
SERVER = """
import os, sys
os.environ["_MLFLOW_SERVER_FILE_STORE"] = sys.argv[1]
os.environ["_MLFLOW_SERVER_ARTIFACT_ROOT"] = sys.argv[2]
from mlflow.server import app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", int(sys.argv[3]), app, threaded=True)
print("ready", flush=True)
server.serve_forever()
"""


@dataclass
class Stored:
    """One run in a tracker. history: (step, value) by metric; files: number of open and resumes."""

    status: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    tags: dict[str, Any] = field(default_factory=dict)
    history: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    files: int = 0
    ends: int = 0  # files that are complete


def mlflow_runs(uri: str, names: tuple[str, ...] = (RUNG_VALUE,)) -> dict[str, list[Stored]]:
    """All runs of a tracking store by key, with the history of these metrics."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    found: dict[str, list[Stored]] = {}
    for experiment in client.search_experiments():
        for run in client.search_runs([experiment.experiment_id], max_results=1000):
            history = {
                name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
                for name in names
            }
            tags = {**run.data.tags, "experiment": experiment.name}
            stored = Stored(run.info.status, run.data.params, tags, history)
            found.setdefault(run.data.tags[KEY_TAG], []).append(stored)
    return found


def wandb_runs(folder: Path) -> dict[str, Stored]:
    """All offline runs in a folder by id; several files of one id are one resumed run."""
    from wandb.proto import wandb_internal_pb2 as messages

    found: dict[str, Stored] = {}
    for path in sorted(folder.glob("offline-run-*/*.wandb")):
        key = path.stem.removeprefix("run-")
        stored = found.setdefault(key, Stored())
        stored.files += 1
        for blob in _records(path.read_bytes()):
            record = messages.Record()
            record.ParseFromString(blob)
            kind = record.WhichOneof("record_type")
            if kind == "run":
                stored.tags["group"], stored.tags["project"] = (
                    record.run.run_group,
                    record.run.project,
                )
                stored.params |= _items(record.run.config.update)
            elif kind == "config":
                stored.params |= _items(record.config.update)
            elif kind == "history":
                row = _items(record.history.item)
                for name, value in row.items():
                    stored.history.setdefault(name, []).append((row["env_steps"], value))
            elif kind == "summary":
                stored.tags |= _items(record.summary.update)
            elif kind == "exit":
                stored.status = str(record.exit.exit_code)
                stored.ends += 1
            elif kind == "artifact":
                stored.tags["artifact"] = [entry.ref for entry in record.artifact.manifest.contents]
    return found


def _items(items: Any) -> dict[str, Any]:
    return {
        item.key or ".".join(item.nested_key): json.loads(item.value_json)
        for item in items
        if item.value_json
    }


def _records(content: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: LevelDB's log format after a header of 7 bytes."""
    begun, at = b"", 7
    while at + 7 <= len(content):
        left = 32768 - at % 32768
        if left < 7:  # the rest of a block is too small for a header
            at += left
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        begun += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield begun
            begun = b""


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """MLflow's server on 127.0.0.1, with its database in the folder."""
    store = f"sqlite:///{folder / 'server.db'}"
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, store, str(folder / "artifacts"), str(port)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "MLFLOW_TRACKING_URI": store},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def deaf_server() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)  # the system accepts them; nobody reads
        yield int(listener.getsockname()[1])
