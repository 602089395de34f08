"""Searches on live training: ours and those of other projects."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

from envs.support.errors import InputError
from tests.bench.conftest import BENCH, Importer, entry, run
from tests.entry_point import run_sweepd


def test_a_live_search_is_run_and_scored(
    bench: Importer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, saved = bench("search_live"), tmp_path / "results.json"

    def call(_: Any, command: list[str], seconds: float | None = None) -> str:
        assert command[:2] == [sys.executable, str(BENCH.parents[1] / "sweepd.py")]
        assert seconds == (120.0 if command[2] == "train" else None)
        return run_sweepd(command[2:], tmp_path / "output")

    monkeypatch.setattr(script.Search, "call", call)
    small = ("--seeds", "1", "--rungs", "2", "--episodes", "4")
    monkeypatch.setitem(script.OURS, "random", ("--sampler", "random", *small))
    run(script, "--smoke", "--folder", tmp_path / "live", "--save", saved)
    content = json.loads(saved.read_text())
    found = entry(content, "tasks.cartpole.random-0")
    assert found["trials"] == 4
    assert len(found["scores"]) == 2
    assert found["selections"][-1]["scores"] == found["scores"]
    assert entry(found, "machine.processor")
    # The same command has nothing left to do.
    run(script, "--smoke", "--folder", tmp_path / "live", "--save", saved)
    again = json.loads(saved.read_text())["tasks"]
    assert again == content["tasks"]


def test_processes_of_a_search_end_in_time(
    bench: Importer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = bench("search_live")
    monkeypatch.setattr(script, "GRACE", 0.2)
    search = script.Search("cartpole", "random", 0, SimpleNamespace(folder=tmp_path, steps=1))

    def call(code: str, seconds: float | None = None) -> str:
        return search.call(["/bin/sh", "-c", code], seconds)

    assert call("echo done") == "done\n"
    with pytest.raises(InputError, match=r"failed: see .*log\.txt"):
        call("echo broken >&2; exit 3")
    assert (search.folder / "log.txt").read_text() == "broken\n"
    assert call("trap 'echo ended; exit' TERM; while :; do sleep 0.05; done", 0.3) == "ended\n"
    # A process that does not stop is killed, with what it has started.
    assert call("trap '' TERM; sleep 600 & echo $! > pid; wait", 0.3) == ""
    started = int(Path("pid").read_text())
    assert not psutil.pid_exists(started) or psutil.Process(started).status() == "zombie"


def test_when_a_live_search_reaches_a_level(bench: Importer) -> None:
    script = bench("search_live")
    worth = {"a": [1.0, 1.0], "b": [4.0, 8.0], "c": [9.0, 9.0], "d": [2.0, float("nan")]}
    trained: list[str] = []

    class Finished:
        def selections(self) -> list[Any]:
            return [script.Selected(10.0 * at, key, 0.0) for at, key in enumerate("abcad", 1)]

        def scores(self, chosen: Any) -> list[float]:
            trained.append(chosen.key)
            return worth[chosen.key]

    known: dict[str, list[float]] = {}
    reached, scores = script.first_above(Finished(), 6.0, known)
    assert reached == 20.0
    assert scores is worth["d"]
    # What comes after the level was reached is not trained, but the last selection is.
    assert trained == ["a", "b", "d"]
    assert script.mean_of(scores) == -np.inf
    trained.clear()
    assert script.first_above(Finished(), 10.0, {})[0] is None
    assert trained == ["a", "b", "c", "d"]


def test_a_live_search_refuses_wrong_arguments(
    bench: Importer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script, folder = bench("search_live"), ("--folder", tmp_path)
    saved = tmp_path / "results.json"
    saved.write_text(json.dumps({"settings": {"minutes": 1.0}}))
    ours = ("--tasks", "cartpole", "--searches", "race")
    for wrong, message in (
        (ours, "give --folder"),
        ((*folder, *ours), "run random first"),
        ((*folder, *ours, "--save", saved), "other settings"),
        ((*folder, *ours, "--peer-python", "ray=/bin/sh"), "give NAME=PATH"),
        (
            (
                *folder,
                "--tasks",
                "cartpole",
                "--searches",
                "zoo",
                "--peer-python",
                "zoo=/bin/false",
            ),
            "pip install stable-baselines3==",
        ),
    ):
        assert script.main([str(argument) for argument in wrong]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("task", ["planted", "cartpole", "pendulum", "rest_trap"])
def test_the_peers_trainer_on_live_tasks(task: str, bench: Importer) -> None:
    pytest.importorskip("stable_baselines3")
    peers = bench("live_peers")
    params = {
        "n_steps_pow": 5,
        "batch_size_pow": 8,
        "one_minus_gamma": 0.01,
        "one_minus_gae_lambda": 0.05,
        "learning_rate": 1e-3,
        "n_epochs": 1,
        "net_arch": "tiny",
        "activation_fn": "relu",
    }
    trainer = peers.Trainer(task, 4_096, 0)
    trainer.continue_to(0.5, params)
    before = trainer.model
    trainer.continue_to(1.0, params | {"learning_rate": 1e-4})
    # Other parameters continue from the same weights and steps.
    assert trainer.model is not before
    assert trainer.model.num_timesteps >= 4_096
    assert trainer.model.learning_rate == 1e-4
    assert trainer.score(4, 0) == trainer.score(4, 0)
    assert np.isfinite(trainer.value())
