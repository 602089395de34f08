"""The canonical score of a frozen policy: one env row in float64, one observation at a time, on the CPU.

Several trials are a row each, sub-accounts of one account whose orders are netted (`envs.crypto.netting`). Hold-out,
champion comparison and verification all come from here, and the paper trader must agree with it to 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.policy.frozen import FrozenPolicy
from deploy.market.bundle import Bundle
from deploy.market.gate import ChampionComparison
from deploy.promotion.bootstrap import DRAWS, mean_above_zero
from envs.crypto.bars import Bars, load_bars
from envs.crypto.env import CryptoEnv
from envs.crypto.evaluate import trade_windows
from envs.crypto.market import Market, make_market
from envs.crypto.metrics import Metrics, summarise
from envs.crypto.netting import Venue, sub_account
from envs.crypto.params import EnvParams, Instruments
from envs.crypto.splits import Window
from envs.crypto.timeframe import bars_per_day
from envs.support.errors import InputError

Array = NDArray[np.float64]
COLUMNS = ("returns", "equal_weight", "trades", "fees", "notional", "exposure")
DUEL_DAYS = 7


@dataclass(frozen=True)
class Score:
    """What a policy earned over a window. Arrays are (L,), one number per bar after the first decision.

    time: opens of those bars, seconds since the epoch. returns, equal_weight: simple per-bar returns. trades: fills.
    fees, notional: shares of the portfolio's value. exposure: 1 - cash / value. crossed: what changed hands between
    sub-accounts when that bar's orders were decided, a share of the value; 0 for a single trial.
    """

    time: NDArray[np.int64]
    returns: Array
    equal_weight: Array
    trades: Array
    fees: Array
    notional: Array
    exposure: Array
    crossed: Array
    metrics: Metrics


def score(
    policy: FrozenPolicy, market: Market, params: EnvParams, window: Window, *, max_lookback: int
) -> Score:
    """Trade `window` of `market` with the policy, flat at the start.

    max_lookback: lags that the policy's observation is padded to.
    """
    env = CryptoEnv.for_windows(market, params, [[window]], max_lookback=max_lookback)

    def act(obs: Tensor) -> Tensor:
        return torch.from_numpy(policy.act(obs[0, : policy.state_dim].numpy())).unsqueeze(0)

    return score_actions(env, act, market, window)


def score_actions(
    env: CryptoEnv, act: Callable[[Tensor], Tensor], market: Market, window: Window
) -> Score:
    """As `score`, with any way to act on an evaluation env of one row."""
    trades = trade_windows(env, act)
    length = window[1] - window[0]
    columns = {
        name: np.asarray(getattr(trades, name)[0, :length], dtype=np.float64) for name in COLUMNS
    }
    return _scored(market.bars, window, np.zeros(length), columns)


def score_trials(
    bundle: Bundle,
    bars: Bars,
    window: Window,
    act: Callable[[int, NDArray[np.float32]], Array] | None = None,
) -> Score:
    """Trade `window` of `bars` with a bundle's trials as sub-accounts of one account, each flat at the start with its
    share of the capital.

    act: what a trial (by its place) does with its observation, by default what its policy says.
    """
    trials, hole = bundle.trials, bars.hole
    market = make_market(
        bars, bundle.manifest.recipe.name, Instruments.unrestricted(len(bars.tickers))
    )
    params = [sub_account(trial.params, trial.share) for trial in trials]
    env = CryptoEnv.for_windows(
        market, params, [[window]] * len(trials), max_lookback=bundle.max_lookback
    )
    env.venue = Venue(bundle.account, bundle.instruments)
    act = act or (lambda place, obs: trials[place].policy.act(obs))
    length = window[1] - window[0]
    records = torch.empty(length, *env.record.shape, dtype=torch.float64)
    sent, crossed = np.empty((length, len(bars.tickers)), dtype=bool), np.empty(length)
    obs = env.reset()
    start = env.values().sum(1).numpy()[:, None]
    for step in range(length):
        rows = obs[:, : env.state_dim].numpy()
        actions = np.stack([act(place, row) for place, row in enumerate(rows)])
        obs = env.step(torch.from_numpy(actions)).obs
        records[step] = env.record
        assert env.netted is not None
        sent[step], crossed[step] = env.netted.sent.numpy(), float(env.netted.crossed.sum())
    env.check()
    account = env.account_of(records)
    together = account.value.sum(1)
    value, equal = (
        np.concatenate([before, after.numpy()])
        for before, after in zip(start, (together, account.equal_weight.sum(1)), strict=True)
    )
    columns = {
        "returns": value[1:] / value[:-1] - 1.0,
        "equal_weight": equal[1:] / equal[:-1] - 1.0,
        "trades": (sent & ~hole[window[0] + 1 : window[1] + 1]).sum(axis=1).astype(np.float64),
        "fees": account.fees.sum(1).numpy() / value[:-1],
        "notional": account.notional.sum(1).numpy() / value[:-1],
        "exposure": (account.exposure * (account.value / together.unsqueeze(1))).sum(1).numpy(),
    }
    return _scored(bars, window, crossed / value[:-1], columns)


def _scored(bars: Bars, window: Window, crossed: Array, columns: dict[str, Array]) -> Score:
    metrics = summarise(
        columns["returns"],
        columns["equal_weight"],
        bars.timeframe,
        trades=columns["trades"],
        fees=columns["fees"],
        notional=columns["notional"],
        exposure=columns["exposure"],
    )
    return Score(
        time=bars.time[window[0] + 1 : window[1] + 1].copy(),
        metrics=metrics,
        crossed=crossed,
        **columns,
    )


def score_bundle(bundle: Bundle, bars: Bars, window: Window) -> Score:
    """The canonical score of a bundle over `window` of `bars`, which are put in its order of tickers.

    Raises InputError where the bars lack a ticker, have another timeframe, or too few of them lie before the window.
    """
    earliest = first_decision(bundle)
    if window[0] < earliest:
        raise InputError(
            f"bundle {bundle.name} needs {earliest} bars before its first decision; there are {window[0]}"
        )
    # Features look back on a fixed number of bars, so what lies before and behind makes no difference to them.
    part = in_order(bars.slice(window[0] - earliest, window[1] + 1), bundle)
    span = (earliest, len(part.time) - 1)
    if len(bundle.trials) > 1:
        return score_trials(bundle, part, span)
    (trial,) = bundle.trials
    market = make_market(part, bundle.manifest.recipe.name, bundle.instruments)
    return score(trial.policy, market, trial.params, span, max_lookback=bundle.max_lookback)


def in_order(bars: Bars, bundle: Bundle) -> Bars:
    """The bars with the bundle's tickers in the bundle's order, found by name; other tickers are left out."""
    manifest = bundle.manifest
    if bars.timeframe != manifest.timeframe:
        raise InputError(
            f"bundle {bundle.name} trades bars of {manifest.timeframe}; the data has {bars.timeframe}"
        )
    missing = [ticker for ticker in manifest.tickers if ticker not in bars.tickers]
    if missing:
        raise InputError(
            f"bundle {bundle.name} trades {missing[0]}, which the data lacks (it has {', '.join(bars.tickers)})"
        )
    if bars.tickers == manifest.tickers:
        return bars
    order = [bars.tickers.index(ticker) for ticker in manifest.tickers]
    return Bars(
        tickers=manifest.tickers,
        timeframe=bars.timeframe,
        time=bars.time,
        open=bars.open[:, order],
        high=bars.high[:, order],
        low=bars.low[:, order],
        close=bars.close[:, order],
        volume=bars.volume[:, order],
        hole=bars.hole[:, order],
        synthetic=bars.synthetic,
    )


def bars_of(bundle: Bundle, folder: Path) -> Bars:
    """The bars in `folder` that the bundle trades, in its order of tickers."""
    return in_order(load_bars(folder, bundle.manifest.timeframe, bundle.manifest.tickers), bundle)


def first_decision(bundle: Bundle) -> int:
    """The earliest bar at which the bundle can decide: features and all its lags exist from there."""
    return bundle.manifest.recipe.memory - 1 + bundle.max_lookback - 1


def unseen_window(bars: Bars, last_seen: int, first_bar: int) -> Window | None:
    """The window whose returns belong to the bars after `last_seen` (open, seconds); None where there is none.

    Its first decision is made at the close of the last bar that was seen, or of `first_bar` where that is later.
    """
    first = max(int(np.searchsorted(bars.time, last_seen, side="right")) - 1, first_bar)
    last = len(bars.time) - 1
    return (first, last) if first < last else None


def compare_with_champion(
    candidate: Bundle,
    champion: Bundle,
    load: Callable[[tuple[str, ...]], Bars],
    *,
    draws: int = DRAWS,
) -> ChampionComparison:
    """Compare candidate and champion, each flat at the start, over the bars that neither had seen.

    load: bars by tickers, at the candidate's timeframe; both are scored on their common range. draws: of the bootstrap.
    """
    if champion.manifest.timeframe != candidate.manifest.timeframe:
        problem = (
            f"champion {champion.name} trades {champion.manifest.timeframe} bars, so they cannot be compared; "
            "promote to another --slot"
        )
        return ChampionComparison(champion.name, 0, None, None, problem=problem)
    try:
        own, other = load(candidate.manifest.tickers), load(champion.manifest.tickers)
    except InputError as error:
        problem = f"champion {champion.name} cannot be scored on this data: {error}"
        return ChampionComparison(champion.name, 0, None, None, problem=problem)
    until = int(min(own.time[-1], other.time[-1]))
    since = max(candidate.last_seen, champion.last_seen)
    sides = [(candidate, _until(own, until)), (champion, _until(other, until))]
    windows = [unseen_window(bars, since, first_decision(bundle)) for bundle, bars in sides]
    starts = [
        int(bars.time[window[0]])
        for (_, bars), window in zip(sides, windows, strict=True)
        if window is not None
    ]
    if len(starts) < 2:
        return ChampionComparison(champion.name, 0, None, None)
    spans = [
        (int(np.searchsorted(bars.time, max(starts))), len(bars.time) - 1) for _, bars in sides
    ]
    count = spans[0][1] - spans[0][0]
    if count < DUEL_DAYS * bars_per_day(own.timeframe):
        return ChampionComparison(champion.name, max(0, count), None, None)
    ours, theirs = (
        score_bundle(bundle, bars, span) for (bundle, bars), span in zip(sides, spans, strict=True)
    )
    difference = mean_above_zero(
        ours.returns - theirs.returns, seed=bootstrap_seed(candidate), draws=draws
    )
    return ChampionComparison(champion.name, count, ours.metrics, theirs.metrics, difference)


def bootstrap_seed(bundle: Bundle) -> int:
    """The seed of every bootstrap about a bundle: its weights decide it, so that asking again gives the same answer."""
    return int(bundle.members_sha256[:15], 16)


def _until(bars: Bars, last: int) -> Bars:
    return bars.slice(0, int(np.searchsorted(bars.time, last, side="right")))
