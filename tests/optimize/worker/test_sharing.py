"""Workers on the same device share its memory."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from sweepd.envs.support.measurement_cache import MeasurementCache
from sweepd.optimize.objectives.members.chunks import Chunks
from sweepd.optimize.worker import worker
from sweepd.optimize.worker.sharing import DeviceShare, device_key
from tests.conftest import use_empty_cache
from tests.optimize.conftest import Sweepd
from tests.optimize.study_files import training_begun, wait_for


@pytest.fixture
def whole_programs() -> None:
    """Measure chunks, which other tests do not."""


def test_each_worker_limits_itself_to_its_share_until_the_other_leaves(tmp_path: Path) -> None:
    told: list[tuple[str, float]] = []
    first = DeviceShare("gpu-a", lambda share: told.append(("first", share)), tmp_path)
    second = DeviceShare("gpu-a", lambda share: told.append(("second", share)), tmp_path)
    elsewhere = DeviceShare("gpu-b", lambda share: told.append(("elsewhere", share)), tmp_path)
    with first, elsewhere:
        assert not first.look()
        with second:
            assert second.look()
            assert first.look()
            assert not first.look()
            assert first.workers == second.workers == 2
        assert not elsewhere.look()
        assert first.look()
        assert first.workers == 1
    assert told == [("second", 0.5), ("first", 0.5), ("first", 1.0)]
    assert list(tmp_path.iterdir()) == []


def _hold(folder: Path, ready: Any) -> None:
    with DeviceShare("gpu-a", lambda _: None, folder):
        ready.set()
        signal.pause()


def test_a_killed_worker_no_longer_counts(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    other = context.Process(target=_hold, args=(tmp_path, ready))
    other.start()
    assert ready.wait(30)
    with DeviceShare("gpu-a", lambda _: None, tmp_path) as share:
        share.look()
        assert share.workers == 2
        assert other.pid is not None
        os.kill(other.pid, signal.SIGKILL)
        other.join()
        share.look()
        assert share.workers == 1
        assert len(list(tmp_path.iterdir())) == 1


def test_the_memory_of_the_cpu_is_not_limited(tmp_path: Path) -> None:
    assert device_key(torch.device("cpu")) == ""
    with DeviceShare("", lambda _: pytest.fail("nothing to limit"), tmp_path) as share:
        assert not share.look()
    assert list(tmp_path.iterdir()) == []


def test_chunks_of_a_shared_device_are_measured_and_cached_separately(tmp_path: Path) -> None:
    fits = 8

    def measure(_: Any, slots: int) -> float:
        if slots > fits:
            raise torch.OutOfMemoryError("out of memory")
        return float(slots)

    chunks = Chunks(
        measure,
        {},
        8,
        torch.device("cpu"),
        lambda _: None,
        MeasurementCache(tmp_path / "chunks.json"),
    )
    assert chunks.size({"net_width": 8}) == 8
    fits = 4
    chunks.share_with(2)
    assert chunks.size({"net_width": 8}) == 4
    chunks.share_with(1)
    assert chunks.size({"net_width": 8}) == 8


def test_a_second_worker_on_the_same_device_limits_its_memory(
    market: Path, sweepd: Sweepd, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_empty_cache(market / "cache", monkeypatch)
    monkeypatch.setattr(worker, "device_key", lambda _: "a-gpu")
    monkeypatch.setattr(
        worker, "limit_memory", lambda _, share: print(f"limited to {share}", flush=True)
    )
    first = sweepd("train", "--n-trials", 1, "--trials-per-batch", 1, "--budget", 200_000)
    wait_for(lambda: training_begun(market))
    out = sweepd("train", "--n-trials", 1, "--study-name", "other").finish()
    assert "another worker uses cpu: this one limits itself to 1/2 of the memory" in out
    assert "limited to 0.5" in out
    first.signal(signal.SIGTERM)
    assert "another worker" not in first.finish()
    assert (
        "another worker" not in sweepd("train", "--n-trials", 1, "--study-name", "third").finish()
    )
