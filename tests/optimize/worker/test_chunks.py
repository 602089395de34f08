"""Chunks: measured once per machine and shape, cached, halved when memory runs out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from optuna.trial import TrialState

from sweepd.agents.algorithms.ppo import PPO
from sweepd.envs.core.sizing import Measurement, out_of_memory
from sweepd.envs.support.measurement_cache import MeasurementCache, cache_dir
from sweepd.optimize.objectives.members import chunks as chunks_module
from sweepd.optimize.objectives.members import measure
from sweepd.optimize.objectives.members.chunks import MEASURED, SHORTAGE, Chunk, Chunks, machine_key
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.study import StudyHandle
from tests.conftest import use_empty_cache
from tests.optimize.conftest import INDEPENDENT, Sweepd

SHAPE = {"net_width": 64, "net_depth": 2, "minibatch": 512, "epochs": 4}
CPU = torch.device("cpu")
Speeds = dict[int, float]


@pytest.fixture
def whole_programs() -> None:
    """Measure chunks, which other tests do not."""


class Machine:
    """A machine with given speeds by number of slots; 0 means out of memory."""

    def __init__(self, folder: Path, speeds: Speeds) -> None:
        self.speeds, self.measured, self.said = speeds, list[int](), list[str]()
        self.file = MeasurementCache(folder / "chunks.json")

    def chunks(self, slots: int = 8, **fixed: Any) -> Chunks:
        return Chunks(self._speed, {"obs": 5, **fixed}, slots, CPU, self.said.append, self.file)

    def _speed(self, _: Mapping[str, int], slots: int) -> float:
        self.measured.append(slots)
        if not self.speeds[slots]:
            raise torch.OutOfMemoryError("out of memory, says the test")
        return self.speeds[slots]


@pytest.mark.parametrize(
    ("speeds", "measured", "chosen"),
    [
        ({8: 100.0, 4: 90.0}, [8, 4], 8),
        ({8: 100.0, 4: 105.0}, [8, 4], 8),  # not worth it
        ({8: 100.0, 4: 120.0, 2: 121.0}, [8, 4, 2], 4),
        ({8: 0.0, 4: 100.0, 2: 50.0}, [8, 4, 2], 4),
        ({8: 0.0, 4: 0.0, 2: 9.0, 1: 90.0}, [8, 4, 2], 2),  # one slot alone would depend on threads
        ({8: 0.0, 4: 0.0, 2: 0.0}, [8, 4, 2], 2),
    ],
)
def test_the_fastest_size_that_fits_is_chosen(
    tmp_path: Path, speeds: Speeds, measured: list[int], chosen: int
) -> None:
    machine = Machine(tmp_path, speeds)
    assert machine.chunks().size(SHAPE) == chosen
    assert machine.measured == measured
    assert bool(machine.said) == (chosen < 8 and any(speeds.values()))


def test_measurements_are_cached_by_machine_and_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(tmp_path, {8: 100.0, 4: 120.0, 2: 100.0})
    chunks = machine.chunks()
    assert chunks.size(SHAPE) == chunks.size(SHAPE) == machine.chunks().size(SHAPE) == 4
    assert machine.measured == [8, 4, 2]
    content = json.loads(machine.file.path.read_text())
    ((key, entry),) = content["machines"][machine_key(CPU)].items()
    assert "net_width=64" in key
    assert entry["speeds"] == {"8": 100.0, "4": 120.0, "2": 100.0}
    for again in (
        lambda: machine.chunks().size({**SHAPE, "net_width": 128}),
        lambda: machine.chunks(envs=3).size(SHAPE),
        lambda: (monkeypatch.setattr(torch, "__version__", "9.9"), machine.chunks().size(SHAPE)),
    ):
        machine.measured.clear()
        again()
        assert machine.measured == [8, 4, 2]


def test_a_shortage_is_cached_for_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, {8: 100.0, 4: 90.0})
    chunks = machine.chunks()
    chunks.ran_out(SHAPE, 2)
    assert chunks.size(SHAPE) == machine.chunks().size(SHAPE) == 2
    assert machine.measured == []
    now = time.time()
    monkeypatch.setattr(chunks_module.time, "time", lambda: now + 90_000)
    assert machine.chunks().size(SHAPE) == 8


@pytest.mark.parametrize(
    "content",
    ["", "nothing", "[]", '{"format": 0, "machines": {}}', '{"format": 1, "machines": 3}'],
)
def test_a_damaged_file_counts_as_empty(tmp_path: Path, content: str) -> None:
    file = MeasurementCache(tmp_path / "chunks.json")
    file.path.write_text(content)
    assert Chunk.read(file.get("m", "s")) is None
    file.put("m", "s", vars(Chunk(3, MEASURED, 0.0, {})))
    assert Chunk.read(file.get("m", "s")) == Chunk(3, MEASURED, 0.0, {})
    file.put("m", "t", vars(Chunk(2, SHORTAGE, time.time(), {})))
    assert Chunk.read(file.get("m", "s")) is not None
    broken = json.loads(file.path.read_text())
    broken["machines"]["m"]["s"] = {"size": "many"}
    file.path.write_text(json.dumps(broken))
    assert Chunk.read(file.get("m", "s")) is None


def test_a_file_that_cannot_be_written_is_not(tmp_path: Path) -> None:
    (tmp_path / "in the way").write_text("")
    machine = Machine(tmp_path / "in the way", {8: 100.0, 4: 90.0})
    assert machine.chunks().size(SHAPE) == 8


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SWEEPD_CACHE_DIR", str(tmp_path))
    assert cache_dir() == tmp_path
    monkeypatch.delenv("SWEEPD_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/sweepd")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path.home() / ".cache" / "sweepd"


def test_out_of_memory_errors_are_recognised() -> None:
    assert out_of_memory(MemoryError())
    assert out_of_memory(torch.OutOfMemoryError("x"))
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60)
    assert out_of_memory(refused.value)
    assert not out_of_memory(RuntimeError("size mismatch"))
    assert not out_of_memory(OSError("out of memory"))


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make programs with more than the given number of slots run out of memory in training."""
    train = PPO.train

    def limit(slots: int) -> None:
        def short(self: PPO, *args: Any, **kwargs: Any) -> Any:
            if self.shape.slots > slots:
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory, says the test")
            return train(self, *args, **kwargs)

        monkeypatch.setattr(PPO, "train", short)

    return limit


@pytest.mark.slow
def test_a_worker_that_runs_out_of_memory_halves_the_chunk_once_and_fails_no_trial(
    market: Path,
    sweepd: Sweepd,
    small_memory: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    use_empty_cache(tmp_path / "cache", monkeypatch)
    # As if all slots at once were the fastest.
    monkeypatch.setattr(
        measure, "measure_program", lambda _experiment, _shape, slots, *_: Measurement(slots, 0)
    )
    words = ("--budget", 96, "--trials-per-batch", 1, *INDEPENDENT, "--seed", 3)
    sweepd("train", *words, "--n-trials", 4, "--runs-dir", "whole").finish()
    small_memory(2)
    out = sweepd("train", *words, "--n-trials", 4).finish()
    shapes = {tuple(t.user_attrs["sweepd:shape"].values()) for t in _trials(market / "runs")}
    assert (
        out.count("out of memory: continuing with 2 members per program") == len(shapes) < 4
    )  # once per shape
    for one, other in zip(_trials(market / "runs"), _trials(market / "whole"), strict=True):
        assert one.state == other.state == TrialState.COMPLETE
        assert one.params == other.params
        assert one.value == pytest.approx(other.value, abs=1e-4)  # the same experiment, to rounding
    again = sweepd("train", *words, "--n-trials", 1, "--runs-dir", "later").finish()
    assert "out of memory" not in again  # the smaller chunk was cached


def _trials(folder: Path) -> list[Any]:
    return StudyHandle(open_storage(storage_url(None, folder), create=False), "s").trials()
