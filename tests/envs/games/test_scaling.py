"""Observations scaled by random play: centred, of unit deviation, and never huge."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games import scaling
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.scenarios import BucketParams
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.scaling import FARTHEST, LEAST, STEPS, random_play
from sweepd.envs.support.errors import InputError

COLUMNS: dict[str, Callable[[np.random.Generator, int], float]] = {
    "usual": lambda rng, _: rng.normal(),
    "shifted": lambda rng, _: 100.0 + 0.1 * rng.normal(),
    "tiny": lambda rng, _: 1e-6 * rng.normal(),
    "large": lambda rng, _: 1e6 * rng.normal(),
    "constant": lambda *_: 7.1,
    "zero": lambda *_: 0.0,
    "rare": lambda rng, _: float(rng.random() < 0.001),
    "rounding": lambda _, step: 0.1 * 3 * 1e3 + (step % 2) * 1e-5,  # noise of float32
}


class Columns(gymnasium.Env[Any, Any]):
    """Observations with one column of each kind."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (len(COLUMNS),), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    broken = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return self._see(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self.steps += 1
        return self._see(), 0.0, False, self.steps == 50, {}

    def _see(self) -> Any:
        seen = [column(self.np_random, self.steps) for column in COLUMNS.values()]
        return np.array(seen, np.float32) / (0.0 if self.broken and self.steps == 9 else 1.0)


class Broken(Columns):
    broken = True


def measured(env: GameEnv, seed: int) -> tuple[Tensor, Tensor]:
    scale = random_play(env, seed, steps=STEPS)
    return scale.avg, scale.std


def test_every_column_is_centred_and_scaled() -> None:
    env = ExternalVecEnv(Columns, 1, 16)
    avg, std = measured(env, 3)
    found = {name: (float(a), float(s)) for name, a, s in zip(COLUMNS, avg, std, strict=True)}
    for name, mean, deviation in (
        ("usual", 0.0, 1.0),
        ("shifted", 100.0, 0.1),
        ("tiny", 0.0, 1e-6),
        ("large", 0, 1e6),
    ):
        assert found[name][0] == pytest.approx(mean, abs=0.1 * deviation)
        assert found[name][1] == pytest.approx(deviation, rel=0.1)
    assert found["constant"] == (pytest.approx(7.1), 1.0)
    assert found["zero"] == (0.0, 1.0)
    assert found["rounding"][1] == 1.0
    assert found["rare"][1] == pytest.approx(1 / FARTHEST, rel=0.01)  # its deviation is .03
    again = measured(ExternalVecEnv(Columns, 1, 16), 3)
    assert torch.equal(avg, again[0])
    assert torch.equal(std, again[1])


def test_prescaled_observations_are_not_scaled() -> None:
    brigade = BucketBrigade([BucketParams()], 4)
    assert measured(brigade, 0)[0].count_nonzero() == 0
    assert torch.equal(measured(brigade, 0)[1], torch.ones(brigade.state_dim))
    cartpole = get_game("cartpole")
    made = cartpole.make([cartpole.params()], 16, together=1, device="cpu")
    assert float(measured(made, 0)[1][0]) < 0.5  # position of the cart


def test_numbers_that_are_not_finite_are_named() -> None:
    with np.errstate(all="ignore"), pytest.raises(InputError, match=r"not finite|inf|nan"):
        measured(ExternalVecEnv(Broken, 1, 16), 3)


class Slow(Columns):
    """An environment of at most 54 steps per second."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.002)
        return super().step(action)


def test_random_play_is_limited_reports_progress_and_is_reproducible(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scaling, "SECONDS", 0.5)
    monkeypatch.setattr(scaling, "_ANNOUNCE", 0.1)
    env = ExternalVecEnv(Slow, 1, 16)
    said: list[str] = []
    began = time.monotonic()
    look = random_play(env, 3, say=said.append)
    assert time.monotonic() - began < 5.0
    assert LEAST <= look.steps < STEPS
    assert look.rows == 16 * look.steps
    assert said[0].startswith("random play, by which observations are scaled: ")
    assert f"of {STEPS} steps of 16 environments" in said[0]
    assert said[0].endswith("for at most about 0.5 s")
    assert said[-1] == str(look)
    monkeypatch.setattr(scaling, "SECONDS", 0.0)
    assert random_play(env, 3).steps == LEAST
    again = random_play(ExternalVecEnv(Columns, 1, 16), 3, steps=look.steps)
    assert torch.equal(again.avg, look.avg)
    assert torch.equal(again.std, look.std)
    assert (again.steps, again.episodes) == (look.steps, look.episodes)
    longer = random_play(ExternalVecEnv(Columns, 1, 16), 3, steps=STEPS)
    assert (longer.steps, longer.episodes) == (STEPS, 16 * (STEPS // 50))
    assert str(longer) == (
        "scale of observations: from 4,096 steps of random play (256 per environment; 80 episodes "
        "ended)"
    )


def test_a_scale_from_few_steps_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "SECONDS", 0.0)
    said: list[str] = []
    env = ExternalVecEnv(Columns, 1, 4)
    assert random_play(env, 0, say=said.append).rows == 4 * LEAST
    assert said[0].startswith("warning: the scale of observations is from 8 steps only")
    assert "--look-steps 256" in said[0]
    said.clear()
    random_play(env, 0, steps=LEAST, say=said.append)  # as asked for
    assert not said
