"""Evaluation of a deterministic policy on windows, all in one batch, and joining into paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.scoring.metrics import TRADE_COLUMNS, BarTrades, PathTrades
from sweepd.envs.crypto.splits import Splits
from sweepd.envs.native.threads import torch_on_one

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WindowTrades(BarTrades):
    """Trading of each row of an evaluation environment.

    All arrays but `lengths` are (R, L) float64, with zeros after a row's end. Column i belongs to
    bar `first + 1 + i` of the row's window.

    Attributes:
        lengths: (R,) int64, bars per row.
    """

    lengths: NDArray[np.int64]


def trade_windows(env: CryptoEnv, act: Callable[[Tensor], Tensor]) -> WindowTrades:
    """Trade every row of an evaluation environment to the end of its window.

    Args:
        env: made by `CryptoEnv.for_windows`.
        act: maps observations (R, state_dim) float32 to actions (R, N) in [-1, 1].

    Raises:
        RunError: an action is illegal.
    """
    lengths = env.row_lengths
    steps = int(lengths.max())
    records = torch.empty(steps, *env.record.shape, dtype=torch.float64, device=env.device)
    obs = env.reset()
    before = env.values().unsqueeze(0)
    # Records stay on the device and are interpreted after the loop: reading them step by step would
    # synchronise with the device in every step.
    with torch_on_one(env.native):
        for step in range(steps):
            obs = env.step(act(obs), out=obs).obs
            records[step] = env.record
    env.check()

    account = env.account_of(records)
    # (steps + 1, 2, R), V and E, starting with the close before the first bar.
    value = torch.cat([before, torch.stack(account[:2], 1)])
    own, equal = (value[1:] / value[:-1] - 1.0).unbind(1)
    invested = value[:-1, 0]
    fees, notional = account.fees / invested, account.notional / invested
    # In the order of `TRADE_COLUMNS`.
    columns = torch.stack([own, equal, account.trades, fees, notional, account.exposure])
    # Shorter windows start again after their end: these bars are not part of the result.
    ended = torch.arange(steps).unsqueeze(1) >= torch.from_numpy(lengths)
    columns.masked_fill_(ended.to(env.device), 0.0)
    by_row = columns.transpose(1, 2).cpu().numpy()
    return WindowTrades(**dict(zip(TRADE_COLUMNS, by_row, strict=True)), lengths=lengths.copy())


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
