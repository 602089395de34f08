"""The tasks of `search_live.py`, and how a policy is scored on them.

This module needs sweepd and its dependencies only, so that every peer's process can import it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from scripts.bench.quality.learning import bars_of
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.crypto.data.timeframe import bars_per_year
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import Market, make_market
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.crypto.scoring.evaluate import trade_windows
from sweepd.envs.crypto.scoring.metrics import excess_growth
from sweepd.envs.external.sharded import Layout
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.scenarios import scenario
from sweepd.envs.games.play import play_episodes

Act = Callable[[Tensor], Tensor]
HOLDOUT, VALIDATION = 0.15, 0.15  # shares of the market's bars, the newest ones
TIMEFRAME = "1h"


@dataclass(frozen=True)
class LiveTask:
    """A task.

    Attributes:
        flags: of `sweepd train`, without those of the market's bars.
        steps: environment steps of one full run.
        level: score on fresh seeds that a search has to reach.
        envs: parallel environments of the peers.
        gym: id of the Gymnasium environment, if it is one.
    """

    flags: tuple[str, ...]
    steps: int
    level: float
    envs: int
    gym: str = ""


def _gym(name: str, steps: int, level: float, envs: int) -> LiveTask:
    # Measured by `search_live.py`, outside the search's time.
    unmeasured = ("--fresh-seeds", "0")
    return LiveTask(("--env", f"gym:{name}", *unmeasured), steps, level, envs, name)


# The numbers of environments are those of SB3's model zoo. docs/evidence/search_decisions.md has results.
TASKS = {
    "planted": LiveTask(("--env", "crypto", "--cv", "single"), 100_000, 0.8, 32),
    "cartpole": _gym("CartPole-v1", 50_000, 475.0, 8),
    "pendulum": _gym("Pendulum-v1", 100_000, -200.0, 4),
    "lunarlander": _gym("LunarLander-v3", 200_000, 100.0, 16),
    "rest_trap": LiveTask(
        ("--env", "bucket-brigade", "--scenario", "rest_trap"), 100_000, 5_155.0, 64
    ),
}


@functools.cache
def market() -> Market:
    """Make the planted market."""
    return make_market(bars_of("planted", 0))


def market_window(part: str) -> tuple[int, int]:
    """Return the bars for training, for validation, or of the hold-out."""
    length = market().length
    ends = [round(length * share) for share in (1.0 - HOLDOUT - VALIDATION, 1.0 - HOLDOUT)]
    return {
        "training": (market().first_bar(1), ends[0]),
        "validation": (ends[0], ends[1]),
        "holdout": (ends[1], length - 1),
    }[part]


def games_env(name: str, games: int) -> tuple[ExternalVecEnv | BucketBrigade, int]:
    """Return that many games in one batch, and the number of seats of a game."""
    task = TASKS[name]
    if task.gym:
        # In this process: the processes of a peer already use all cores.
        return ExternalVecEnv(task.gym, 1, games, layout=Layout(games)), 1
    params = scenario(name)
    return BucketBrigade([params], games * params.num_agents), params.num_agents


def score_of(
    name: str,
    act: Act,
    games: int,
    seed: int,
    *,
    env_params: EnvParams | None = None,
    max_lookback: int | None = None,
    part: str = "holdout",
) -> float:
    """Return the score of a policy.

    Args:
        name: the task.
        act: deterministic actions of observations.
        games: number of episodes.
        seed: of the episodes.
        env_params: on the market: the policy's own parameters.
        max_lookback: on the market: of the policy's study.
        part: on the market: the bars.

    Returns:
        The mean return of an episode. On the market the annual log growth in excess of equal
        weight.
    """
    if name == "planted":
        env: VecEnv = CryptoEnv.for_windows(
            market(),
            env_params or EnvParams(),
            [[market_window(part)]],
            **({} if max_lookback is None else {"max_lookback": max_lookback}),
        )
        trades = trade_windows(env, act)
        per_year = bars_per_year(TIMEFRAME)
        return float(excess_growth(trades.returns[0], trades.equal_weight[0], per_year))
    played, seats = games_env(name, games)
    played.reset([derive_seed(seed, "live", "games")])
    with torch.no_grad():
        found = play_episodes(played, act, seats).returns.mean()
    played.close()
    return float(found)
