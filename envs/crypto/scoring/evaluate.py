"""Evaluation of a deterministic policy on windows, all in one batch, and joining into paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.crypto.env import CryptoEnv
from envs.crypto.scoring.metrics import TRADE_COLUMNS, BarTrades, PathTrades
from envs.crypto.splits import Splits

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WindowTrades(BarTrades):
    """Trading of each row of an evaluation environment.

    All arrays but `lengths` and `actions` are (R, L) float64, with zeros after a row's end. Column
    i belongs to bar `first + 1 + i` of the row's window.

    Attributes:
        dropped: orders below the minimum.
        unfilled: orders that met a hole.
        lengths: (R,) int64, bars per row.
        actions: (R, L, N) float32 if requested, else None.
    """

    dropped: Array
    unfilled: Array
    lengths: NDArray[np.int64]
    actions: NDArray[np.float32] | None = None


def trade_windows(
    env: CryptoEnv, act: Callable[[Tensor], Tensor], *, keep_actions: bool = False
) -> WindowTrades:
    """Trade every row of an evaluation environment to the end of its window.

    Args:
        env: made by `CryptoEnv.for_windows`.
        act: maps observations (R, state_dim) float32 to actions (R, N) in [-1, 1].
        keep_actions: whether to return the actions.

    Raises:
        RunError: an action is illegal.
    """
    lengths = env.row_lengths
    steps = int(lengths.max())
    records = torch.empty(steps, *env.record.shape, dtype=torch.float64, device=env.device)
    actions = torch.empty(
        steps if keep_actions else 0, env.num_envs, env.action_dim, device=env.device
    )
    obs = env.reset()
    before = env.values().unsqueeze(0)
    # Records stay on the device and are interpreted after the loop: reading them step by step would
    # synchronise with the device in every step.
    for step in range(steps):
        action = act(obs)
        if keep_actions:
            actions[step] = action
        obs = env.step(action, out=obs).obs
        records[step] = env.record
    env.check()

    account = env.account_of(records)
    # Leading dimension: bars, starting with the close before the first one.
    value = torch.cat([before, torch.stack(account[:2], 1)])
    returns = value[1:] / value[:-1] - 1.0
    counts = torch.stack(account[2:], 1)
    counts[:, :2] /= value[:-1, :1]  # fees and notional become fractions of V at the previous close
    # Shorter windows start again after their end: these bars are not part of the result.
    ended = torch.arange(steps).unsqueeze(1) >= torch.from_numpy(lengths)
    returns.masked_fill_(ended.unsqueeze(1).to(env.device), 0.0)
    counts.masked_fill_(ended.unsqueeze(1).to(env.device), 0.0)
    own, equal = returns.permute(1, 2, 0).cpu().numpy()
    fees, notional, trades, exposure, dropped, unfilled = counts.permute(1, 2, 0).cpu().numpy()
    kept = np.ascontiguousarray(actions.transpose(0, 1).cpu().numpy()) if keep_actions else None
    return WindowTrades(
        own, equal, trades, fees, notional, exposure, dropped, unfilled, lengths.copy(), kept
    )


def path_trades(
    splits: Splits, trades: WindowTrades, order: Sequence[tuple[int, int]], first_row: int = 0
) -> PathTrades:
    """Join the rows of one trial into its back-test paths.

    Args:
        splits: the study's splits.
        trades: the rows of one or several trials.
        order: the (fold, test group) of each of the trial's rows, in order.
        first_row: the trial's first row.
    """

    def join(values: Array) -> Array:
        rows = enumerate(order, start=first_row)
        return splits.join({cell: values[row, : trades.lengths[row]] for row, cell in rows})

    return PathTrades(**{name: join(getattr(trades, name)) for name in TRADE_COLUMNS})
