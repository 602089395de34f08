"""Trading windows with a deterministic policy, all of them in one batch, and joining what came out to paths."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.crypto.env import CryptoEnv
from envs.crypto.metrics import PathTrades
from envs.crypto.splits import Splits

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class WindowTrades:
    """What each row of an evaluation environment traded. All but `lengths` (R, L) float64, zeros after a row's own end.

    Column i belongs to the bar after the window's first plus i. returns, equal_weight: simple per-bar returns. trades:
    orders filled in the bar. fees, notional: shares of the portfolio's value at the close before. exposure: 1 - cash/V
    at the bar's close. dropped, unfilled: orders under the minimum, and orders that met a hole.
    lengths: (R,) int64, bars per row. actions: (R, L, N) float32, or None unless they were asked for.
    """

    returns: Array
    equal_weight: Array
    trades: Array
    fees: Array
    notional: Array
    exposure: Array
    dropped: Array
    unfilled: Array
    lengths: NDArray[np.int64]
    actions: NDArray[np.float32] | None = None


def trade_windows(
    env: CryptoEnv, act: Callable[[Tensor], Tensor], *, keep_actions: bool = False
) -> WindowTrades:
    """Trade every row of an environment made by `CryptoEnv.for_windows` to the end of its window, from flat cash.

    act: observations (R, state_dim) float32 to actions (R, N) in [-1, 1]. Raises RunError for an illegal action.
    """
    lengths = env.row_lengths
    steps = int(lengths.max())
    records = torch.empty(steps, *env.record.shape, dtype=torch.float64, device=env.device)
    actions = torch.empty(
        steps if keep_actions else 0, env.num_envs, env.action_dim, device=env.device
    )
    obs = env.reset()
    before = env.values().unsqueeze(0)
    for step in range(steps):
        action = act(obs)
        if keep_actions:
            actions[step] = action
        obs = env.step(action, out=obs).obs
        records[step] = env.record
    env.check()

    account = env.account_of(records)
    value = torch.cat([before, torch.stack(account[:2], 1)])
    returns = value[1:] / value[:-1] - 1.0
    counts = torch.stack(account[2:], 1)
    counts[:, :2] /= value[:-1, :1]
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
    """Join the rows of one trial to its paths.

    order: the (fold, test group) that each of the trial's rows traded, in the rows' order. first_row: where they begin.
    """

    def join(values: Array) -> Array:
        rows = enumerate(order, start=first_row)
        return splits.join({cell: values[row, : trades.lengths[row]] for row, cell in rows})

    return PathTrades(
        returns=join(trades.returns),
        equal_weight=join(trades.equal_weight),
        trades=join(trades.trades),
        fees=join(trades.fees),
        notional=join(trades.notional),
        exposure=join(trades.exposure),
    )
