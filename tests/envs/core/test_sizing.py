"""Choosing the number of environments by measurement."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sweepd.envs.core import sizing
from sweepd.envs.core.sizing import Measurement, available_memory, choose_num_envs, cpu_count
from sweepd.envs.support.errors import InputError


def saturating(per_env: float = 100.0, top: float = 10_000.0, memory: int = 0):  # type: ignore[no-untyped-def]
    """Steps per second that grow linearly and level off at `top`."""
    return lambda number: Measurement(top * number / (number + top / per_env), memory * number)


def test_it_stops_where_the_gain_flattens() -> None:
    choice = choose_num_envs(saturating(), upper=100_000)
    sizes = [number for number, _ in choice.measured]
    assert sizes == [2**k for k in range(len(sizes))]
    assert sizes[-1] <= 4096
    fastest = max(result.steps_per_second for _, result in choice.measured)
    chosen = dict(choice.measured)[choice.num_envs]
    assert chosen.steps_per_second * 1.1 >= fastest
    assert dict(choice.measured)[choice.num_envs // 2].steps_per_second * 1.1 < fastest
    assert "twice in a row" in choice.reason


def test_one_flat_size_may_be_noise() -> None:
    speeds = {1: 100.0, 2: 101.0, 4: 400.0, 8: 800.0, 16: 805.0, 32: 810.0}
    choice = choose_num_envs(lambda number: Measurement(speeds[number]), upper=1000)
    assert choice.num_envs == 8


def test_the_bound_holds_and_is_measured_itself() -> None:
    choice = choose_num_envs(saturating(), upper=39)
    assert [number for number, _ in choice.measured] == [1, 2, 4, 8, 16, 32, 39]
    assert choice.num_envs == 39
    assert choice.reason == "the bound was reached"
    text = str(choice)
    assert "39" in text
    assert "<- chosen" in text
    assert choose_num_envs(saturating(), upper=1).num_envs == 1


def test_no_bound_leaves_nothing_to_choose() -> None:
    with pytest.raises(InputError, match="raise the budget"):
        choose_num_envs(saturating(), upper=0)


def test_it_stays_within_memory() -> None:
    choice = choose_num_envs(saturating(memory=2**20), upper=1000, memory_limit=20 * 2**20)
    assert [number for number, _ in choice.measured][-1] == 16
    assert "MiB" in choice.reason


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_running_out_of_memory_ends_the_growing(error: type[Exception]) -> None:
    def measure(number: int) -> Measurement:
        if number > 8:
            raise error
        return Measurement(float(number))

    assert choose_num_envs(measure, upper=1000).num_envs == 8
    with pytest.raises(InputError, match="do not fit"):
        choose_num_envs(measure, upper=1000, start=16)


def test_processors_and_memory_are_those_of_the_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "_CGROUPS", tmp_path)
    free, cores = available_memory("cpu"), cpu_count()  # no limits in this folder
    assert free > 0
    assert cores >= 1
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert cpu_count() == 1
    assert available_memory("cpu") == 2_000_000
    (tmp_path / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert cpu_count() == cores
    assert available_memory("cpu") > 2_000_000


def test_processors_are_those_of_the_affinity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "_CGROUPS", tmp_path)
    monkeypatch.setattr(sizing.os, "sched_getaffinity", lambda _: {3, 5, 7}, raising=False)
    assert cpu_count() == 3


def test_the_older_control_groups_count_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizing, "_CGROUPS", tmp_path)
    for name, value in {
        "cpu/cpu.cfs_quota_us": 100_000,
        "cpu/cpu.cfs_period_us": 100_000,
        "memory/memory.limit_in_bytes": 5000,
        "memory/memory.usage_in_bytes": 2000,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{value}\n")
    assert cpu_count() == 1
    assert available_memory("cpu") == 3000
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    assert cpu_count() >= 1


def test_the_chosen_size_is_within_half_the_gain() -> None:
    speeds = {1: 80.0, 2: 92.0, 4: 96.0, 8: 100.0}
    choice = choose_num_envs(lambda number: Measurement(speeds[number]), upper=8)
    assert choice.num_envs == 4  # 92 is within 10%, but measurements have noise
    assert "4 envs: the fewest within 5% of the fastest" in choice.lines()[-1]
