"""The canonical score of a frozen policy: one environment in float64 on the CPU, row by row.

Several trials are one row each: sub-accounts of one account whose orders are netted
(`sweepd.envs.crypto.netting`). Hold-out, champion comparison and verification use this score, and
the paper trader must agree with it to 1e-9.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.rules import ChampionComparison
from sweepd.deploy.promotion.bootstrap import DRAWS, mean_above_zero
from sweepd.envs.crypto.data.bars import Bars, load_bars
from sweepd.envs.crypto.data.timeframe import bars_per_day, format_time
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import Market, make_market
from sweepd.envs.crypto.netting import Venue, sub_account
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.crypto.scoring.evaluate import trade_windows
from sweepd.envs.crypto.scoring.figures import window_metrics
from sweepd.envs.crypto.scoring.metrics import TRADE_COLUMNS, BarTrades, Metrics, summarise
from sweepd.envs.crypto.splits import Window
from sweepd.envs.support.errors import InputError

Array = NDArray[np.float64]
COMPARISON_DAYS = 7  # the shortest comparison with a champion


@dataclass(frozen=True, eq=False)
class Score(BarTrades):
    """The trading result of a policy over a window of L bars after the first decision.

    All arrays are (L,).

    Attributes:
        time: opens of the bars, seconds since the epoch.
        crossed: value exchanged between sub-accounts, as a fraction of the portfolio's value at the
            previous close; 0 for a single trial.
        metrics: summary of the trading.
        metrics_before_fees: the same of these trades before fees.
    """

    time: NDArray[np.int64]
    crossed: Array
    metrics: Metrics
    metrics_before_fees: Metrics

    @classmethod
    def of(
        cls, time: NDArray[np.int64], timeframe: str, crossed: Array, columns: dict[str, Array]
    ) -> Score:
        """Compute the metrics of `columns`, the fields of `BarTrades`."""
        free = vars(BarTrades(**columns).before_fees())
        return cls(
            time=time,
            crossed=crossed,
            metrics=summarise(timeframe=timeframe, **columns),
            metrics_before_fees=summarise(timeframe=timeframe, **free),
            **columns,
        )

    def to_dict(self) -> dict[str, float | int | str]:
        """Return the metrics by name, those before fees included."""
        return window_metrics(self.metrics, self.metrics_before_fees)

    def report(self) -> dict[str, float | int | str]:
        """Return `to_dict` with the opens of the first and the last bar, as in a gate report."""
        span = {"first": format_time(int(self.time[0])), "last": format_time(int(self.time[-1]))}
        return span | self.to_dict()


def score(
    policy: FrozenPolicy, market: Market, params: EnvParams, window: Window, *, max_lookback: int
) -> Score:
    """Trade `window` of `market` with the policy, without positions at the start.

    Args:
        policy: the policy.
        market: bars and features.
        params: environment parameters.
        window: first decision and last bar.
        max_lookback: number of lags that the policy's observation is padded to.
    """
    env = CryptoEnv.for_windows(market, params, [[window]], max_lookback=max_lookback)

    def act(obs: Tensor) -> Tensor:
        return torch.from_numpy(policy.act(obs[0, : policy.state_dim].numpy())).unsqueeze(0)

    trades = trade_windows(env, act)
    length = window[1] - window[0]
    columns = {
        name: np.asarray(getattr(trades, name)[0, :length], dtype=np.float64)
        for name in TRADE_COLUMNS
    }
    return _scored(market.bars, window, np.zeros(length), columns)


def score_trials(
    bundle: Bundle,
    bars: Bars,
    window: Window,
    act: Callable[[int, NDArray[np.float32]], Array] | None = None,
) -> Score:
    """Trade `window` of `bars` with a bundle's trials as sub-accounts of one account.

    Each trial begins with its share of the capital and without positions.

    Args:
        bundle: the bundle.
        bars: in the bundle's order of tickers.
        window: first decision and last bar.
        act: returns the action of a trial (by index) for its observation; by default its policy's.
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
    start = env.values().sum(1).numpy()[:, None]  # before the first bar, for its return
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
    # The account is the sum of its sub-accounts. An order counts as a trade unless its bar is a
    # hole, in which nothing fills.
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
    time = bars.time[window[0] + 1 : window[1] + 1].copy()
    return Score.of(time, bars.timeframe, crossed, columns)


def score_bundle(bundle: Bundle, bars: Bars, window: Window) -> Score:
    """The canonical score of a bundle.

    Args:
        bundle: the bundle.
        bars: any order of tickers.
        window: first decision and last bar.

    Raises:
        InputError: the bars lack a ticker, have another timeframe, or begin too late.
    """
    earliest = first_decision(bundle)
    if window[0] < earliest:
        raise InputError(
            f"bundle {bundle.name} needs {earliest} bars before its first decision; there are "
            f"{window[0]}"
        )
    return trade_bundle(bundle, in_order(bars, bundle), window)


def trade_bundle(bundle: Bundle, bars: Bars, window: Window) -> Score:
    """The canonical score of a bundle on bars of any timeframe.

    Args:
        bundle: the bundle.
        bars: the bundle's tickers, in its order.
        window: first decision, not before `first_decision`, and last bar.
    """
    # Features depend on a fixed number of past bars, so all other bars are cut off.
    earliest = first_decision(bundle)
    part = bars.slice(window[0] - earliest, window[1] + 1)
    span = (earliest, len(part.time) - 1)
    if len(bundle.trials) > 1:
        return score_trials(bundle, part, span)
    (trial,) = bundle.trials
    market = make_market(part, bundle.manifest.recipe.name, bundle.instruments)
    return score(trial.policy, market, trial.params, span, max_lookback=bundle.max_lookback)


def in_order(bars: Bars, bundle: Bundle) -> Bars:
    """The bars of the bundle's tickers in the bundle's order; other tickers are left out."""
    manifest = bundle.manifest
    if bars.timeframe != manifest.timeframe:
        raise InputError(
            f"bundle {bundle.name} trades bars of {manifest.timeframe}; the data has "
            f"{bars.timeframe}"
        )
    missing = [ticker for ticker in manifest.tickers if ticker not in bars.tickers]
    if missing:
        raise InputError(
            f"bundle {bundle.name} trades {missing[0]}, which the data lacks (it has "
            f"{', '.join(bars.tickers)})"
        )
    return bars if bars.tickers == manifest.tickers else bars.select(manifest.tickers)


def bars_of(bundle: Bundle, folder: Path) -> Bars:
    """The bars in `folder` that the bundle trades, in its order of tickers."""
    manifest = bundle.manifest
    return in_order(
        load_bars(folder, manifest.timeframe, manifest.tickers, accept_jumps=True), bundle
    )


def first_decision(bundle: Bundle) -> int:
    """The earliest bar at which features exist for all lags of the bundle."""
    return bundle.manifest.recipe.memory - 1 + bundle.max_lookback - 1


def unseen_window(bars: Bars, last_seen: int, first_bar: int) -> Window | None:
    """The window whose returns belong to bars after `last_seen`; None if there are none.

    Args:
        bars: the bars.
        last_seen: open of the newest bar that was seen, seconds.
        first_bar: the earliest possible decision; the first decision is made at the close of the
            last seen bar or of this one, whichever is later.
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
    """Compare candidate and champion over the bars that neither had seen.

    Args:
        candidate: the candidate's bundle.
        champion: the champion's bundle.
        load: returns the bars of some tickers at the candidate's timeframe; both bundles are scored
            on the common range.
        draws: number of bootstrap samples.
    """
    if champion.manifest.timeframe != candidate.manifest.timeframe:
        problem = (
            f"champion {champion.name} trades {champion.manifest.timeframe} bars, so they cannot "
            "be compared; promote to another --slot"
        )
        return ChampionComparison(champion.name, 0, None, None, problem=problem)
    try:
        own, other = load(candidate.manifest.tickers), load(champion.manifest.tickers)
    except InputError as error:
        problem = f"champion {champion.name} cannot be scored on this data: {error}"
        return ChampionComparison(champion.name, 0, None, None, problem=problem)
    until = int(min(own.time[-1], other.time[-1]))
    since = max(candidate.last_seen, champion.last_seen)
    sides = [(candidate, own.between(0, until)), (champion, other.between(0, until))]
    windows = [unseen_window(bars, since, first_decision(bundle)) for bundle, bars in sides]
    # Bundles with more lags or a longer feature memory can decide later.
    starts = [
        int(bars.time[window[0]])
        for (_, bars), window in zip(sides, windows, strict=True)
        if window is not None
    ]
    if len(starts) < 2:
        return ChampionComparison(champion.name, 0, None, None)
    # Both windows begin at the later first decision and end at the common last bar.
    spans = [
        (int(np.searchsorted(bars.time, max(starts))), len(bars.time) - 1) for _, bars in sides
    ]
    count = spans[0][1] - spans[0][0]
    if count < COMPARISON_DAYS * bars_per_day(own.timeframe):
        return ChampionComparison(champion.name, max(0, count), None, None)
    ours, theirs = (
        score_bundle(bundle, bars, span) for (bundle, bars), span in zip(sides, spans, strict=True)
    )
    difference = mean_above_zero(
        ours.returns - theirs.returns, seed=bootstrap_seed(candidate), draws=draws
    )
    return ChampionComparison(champion.name, count, ours.metrics, theirs.metrics, difference)


def bootstrap_seed(bundle: Bundle) -> int:
    """The seed of all bootstraps about a bundle: derived from its weights, so that it is stable."""
    return int(bundle.members_sha256[:15], 16)
