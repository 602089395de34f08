"""Environments that take most of the time: measuring them would take longer than training."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sweepd.envs.external import layouts
from sweepd.envs.external.layouts import choose_layout
from sweepd.envs.external.sharded import Layout
from sweepd.envs.external.sources import FactorySource
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games.cartpole import CartPole, CartPoleParams
from sweepd.envs.support.measurement_cache import MeasurementCache
from sweepd.optimize.objectives.members import measure
from tests.envs.external.samples import Counter


class Slow(Counter):
    """Takes 20 ms per step."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.02)
        return super().step(action)


def experiment(make: Any) -> Any:
    return SimpleNamespace(
        spec=SimpleNamespace(slots=8, num_envs=16, horizon=64),
        together=1,
        device=torch.device("cpu"),
        training_env=lambda slots, envs: make(slots, envs),
    )


def test_a_slow_environment_is_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("SWEEPD_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measure, "measure_program", lambda *_: pytest.fail("it was measured"))
    monkeypatch.setattr(measure, "_PROBE", 0.2)
    slow = experiment(lambda slots, envs: ExternalVecEnv(Slow, slots, envs))
    assert 5 < measure.environment_speed(slow) <= 50  # a busy machine delays sleeps
    bench = object.__new__(measure.Bench)
    bench.experiment = slow
    assert "are not measured: one environment makes" in bench.why_skipped(16)
    began = time.monotonic()
    # All members at once: fewer would not be faster.
    assert measure.make_chunks(slow, lambda _: None).size({"net_width": 8}) == 8
    assert time.monotonic() - began < 5.0


def test_tensor_games_are_measured() -> None:
    quick = experiment(lambda slots, envs: CartPole([CartPoleParams()] * slots, envs))
    bench = object.__new__(measure.Bench)
    bench.experiment = quick
    assert bench.why_skipped(16) == ""


def test_steps_that_take_long_use_all_cores_without_comparing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(layouts, "LONG", 0.03)
    choice = choose_layout(
        FactorySource(Slow), [{}] * 4, cores=2, file=MeasurementCache(tmp_path / "layouts.json")
    )
    assert choice.layout == Layout(2, (2,))
    assert list(choice.speeds) == ["all in this process"]
