"""The transfer matrix of `sweepd league --over` on markets: how policies trade other bars.

A row is a market, a timeframe and a period; all policies trade the same bars of it. The score is the
annualised information ratio of the canonical score: the Sharpe ratio of the returns in excess of
equal weight, which is 0. Bars that a policy's study had set aside, and all later ones, are refused:
an evaluation on them would be a look at the hold-out that the gate does not count.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from sweepd.deploy.market.bundle import Bundle, market_bundle
from sweepd.deploy.market.scoring import Score, first_decision, trade_bundle
from sweepd.deploy.promotion.comparison import (
    RESULTS,
    Compared,
    Comparison,
    split_over,
    write_transfer,
)
from sweepd.deploy.registry.bundle_files import finite
from sweepd.deploy.registry.kept_scores import KeptScores, Scores, Tick
from sweepd.envs.crypto.data.bars import Bars, load_bars
from sweepd.envs.crypto.data.timeframe import (
    bar_end,
    bar_ends,
    bar_length,
    bars_per_year,
    format_time,
    parse_moment,
    parse_time,
)
from sweepd.envs.crypto.scoring import luck
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import counted
from sweepd.envs.support.intervals import LEVEL

MARKET, TIMEFRAME, PERIOD = NAMES = ("market", "timeframe", "period")
SCORE = "information ratio per year: 0 is equal weight"
FEWEST = 2 * luck.FEWEST_BARS  # bars of a score


@dataclass(frozen=True)
class Policy:
    """A policy of a transfer matrix. name: as it was asked for."""

    name: str
    bundle: Bundle

    @property
    def seen_until(self) -> int:
        """When the newest bar ended that its training or selection used, seconds."""
        return bar_end(self.bundle.manifest.timeframe, self.bundle.last_seen)

    @property
    def identity(self) -> dict[str, Any]:
        """What its score depends on besides the bars, as JSON."""
        manifest = self.bundle.manifest
        return {
            "members": self.bundle.members_sha256,
            "tickers": list(manifest.tickers),
            "recipe": manifest.recipe.model_dump(mode="json"),
            "trials": [[part.share, finite(part.env_params)] for part in manifest.trials],
        }

    def trained_on(self, bars: Bars) -> bool:
        """Return whether its study had these bars, whose tickers are in its order."""
        data = self.bundle.manifest.data
        part = bars.between(parse_time(data.first), parse_time(data.last))
        return part.fingerprint == data.fingerprint


@dataclass(frozen=True)
class Place:
    """What the policies of a row trade.

    Attributes:
        folder: of the bars.
        timeframe: of the bars.
        since: the first bar that they may trade opens at this time or later, seconds.
        until: the last one ends at this time or earlier.
        label: the row's name.
    """

    folder: Path
    timeframe: str
    since: float
    until: float
    label: str


def compare_policies(asked: Comparison) -> Compared:
    """Compare policies that trade over markets, timeframes and periods.

    Raises:
        InputError: they cannot be compared so.
    """
    for word in asked.words:
        if word not in asked.bundles:
            raise InputError(f"{word!r} is no slot of the registry, STUDY#TRIAL or bundle:HASH")
    asked.refuse(["env", "env_param", "games", "seed"], f"games, and {asked.words[0]} trades")
    policies = [Policy(name, market_bundle(bundle)) for name, bundle in asked.bundles.items()]
    if not asked.over:
        raise InputError(
            "policies that trade do not play against each other: compare them with --over "
            "market=FOLDERS, timeframe=VALUES or period=FROM..TO"
        )
    overs = [split_over(text) for text in asked.over]
    places = read_places(policies, overs, asked.options["data_dir"])
    folder = asked.out or asked.leagues / "markets"
    kept = KeptScores(folder / RESULTS)
    report = play_places(kept, policies, places, asked.tick)
    title = counted(len(policies), "player")
    return write_transfer(report, folder / "over.json", title, len(kept.played))


def read_places(
    policies: Sequence[Policy], overs: Sequence[tuple[str, str]], data_dir: Path | None
) -> list[Place]:
    """Return the rows: all combinations of the values of `--over NAME=VALUES`.

    Args:
        policies: the policies.
        overs: name and values, separated by commas, of every `--over`.
        data_dir: folder of the bars where no market is named.

    Raises:
        InputError: a name or a value is not valid, a period reaches into a hold-out, or there is no
            folder or timeframe.
    """
    values: dict[str, list[str]] = {}
    for name, listed in overs:
        if name not in NAMES:
            raise InputError(
                f"--over {name}={listed}: policies that trade are compared over {', '.join(NAMES)}"
            )
        if name in values:
            raise InputError(f"--over {name} is there twice: name all values after one of them")
        values[name] = [value.strip() for value in listed.split(",")]
        twice = [value for index, value in enumerate(values[name]) if value in values[name][:index]]
        if twice:
            raise InputError(f"--over {name}={listed}: {twice[0]} is there twice")
    if MARKET in values and data_dir is not None:
        raise InputError(f"--over {MARKET} names the folders: leave --data-dir out")
    if MARKET not in values and data_dir is None:
        raise InputError(
            "--data-dir is needed: name the folder of the bars, or --over market=FOLDERS"
        )
    folders = [Path(text) for text in values.get(MARKET, ())] or [data_dir or Path()]
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"{folder} is no folder of bars")
    own = {policy.bundle.manifest.timeframe: policy.name for policy in policies}
    if TIMEFRAME not in values and len(own) > 1:
        (one, first), (other, second), *_ = own.items()
        raise InputError(
            f"{first} trades bars of {one}, and {second} of {other}: name --over timeframe=VALUES"
        )
    timeframes = values.get(TIMEFRAME, list(own))
    for timeframe in timeframes:
        bar_length(timeframe)  # raises InputError
    earliest = min(policies, key=lambda policy: policy.seen_until)
    periods = [_period(text, earliest) for text in values.get(PERIOD, [".."])]
    places, short = [], len({folder.name for folder in folders}) == len(folders)
    for folder, timeframe, (since, until, text) in itertools.product(folders, timeframes, periods):
        market = folder.name if short else str(folder)
        named = {MARKET: market, TIMEFRAME: timeframe, PERIOD: text}
        label = " ".join(named[name] for name in NAMES if name in values)
        places.append(Place(folder, timeframe, since, until, label))
    return places


def _period(text: str, earliest: Policy) -> tuple[float, float, str]:
    """Return begin, end and text of a period `FROM..TO`. earliest: the policy that saw least."""
    flag = f"--over {PERIOD}"
    since, dots, until = text.partition("..")
    if not dots:
        raise InputError(f"{flag}={text} must be FROM..TO, like 2023-01-01..2023-07-01")
    begin = parse_moment(since, flag) if since else -math.inf
    end = parse_moment(until, flag) if until else float(earliest.seen_until)
    if end > earliest.seen_until:
        raise InputError(
            f"{flag}={text} reaches into the hold-out of {earliest.name}, which begins at "
            f"{format_time(earliest.seen_until)}: end it there or before"
        )
    if begin >= end:
        raise InputError(f"{flag}={text} ends before it begins, or in the hold-out")
    return begin, end, text


def play_places(
    kept: KeptScores,
    policies: Sequence[Policy],
    places: Sequence[Place],
    tick: Tick = lambda _done, _total: None,
) -> dict[str, Any]:
    """Trade all policies at all places, and return the transfer matrix as JSON.

    The policies of a row trade the same bars, from the first one that all can trade.

    Returns:
        `over`, `confidence`, `score`, `sample`, `players` and `rows`: one per place with `value`
            (its label), `params` (`market`, `timeframe`, `first`, `last`, `bars`), `random` and
            `best` (None), and `players`: by name `mean`, `low`, `high`, `normalised` (None),
            `trained` (whether the policy's study had these bars) and `metrics` of the window, or
            `misfit`: why the policy cannot trade there. Bounds are None where no return differed
            from that of equal weight.

    Raises:
        InputError: a policy can trade nowhere.
    """
    load = cache(partial(load_bars, accept_jumps=True))
    rows: list[dict[str, Any]] = []
    for index, place in enumerate(places):
        found: dict[str, Bars] = {}
        row: dict[str, Any] = {}
        for policy in policies:
            try:
                tickers = policy.bundle.manifest.tickers
                found[policy.name] = load(place.folder, place.timeframe, tickers)
            except InputError as error:
                row[policy.name] = {"misfit": str(error)}
        windows = _windows(policies, found, place)
        for number, policy in enumerate(policies):
            tick(index * len(policies) + number, len(places) * len(policies))
            if policy.name in row:
                continue
            window = windows[policy.name]
            if window[1] - window[0] < FEWEST:
                row[policy.name] = {"misfit": f"fewer than {FEWEST} bars to trade"}
                continue
            row[policy.name] = _cell(kept, policy, found[policy.name], window)
        rows.append(
            {
                "value": place.label,
                "params": _facts(place, found, windows),
                "random": None,
                "best": None,
                "players": row,
            }
        )
    for policy in policies:
        cells = [row["players"][policy.name] for row in rows]
        if all("misfit" in cell for cell in cells):
            raise InputError(f"{policy.name} can trade nowhere here: {cells[0]['misfit']}")
    traded = [row["params"]["bars"] for row in rows if row["params"]["bars"]]
    span = f"{min(traded):,} to {max(traded):,}" if min(traded) < max(traded) else f"{traded[0]:,}"
    return {
        "over": "bars",
        "confidence": LEVEL,
        "score": SCORE,
        "sample": f"{span} bars",
        "players": [policy.name for policy in policies],
        "rows": rows,
    }


def _windows(
    policies: Sequence[Policy], found: Mapping[str, Bars], place: Place
) -> dict[str, tuple[int, int]]:
    """Return the windows, first decision and last bar, in which all trade the same bars.

    A policy without bars here has the window (0, 0).
    """
    spans = {}
    for policy in policies:
        if policy.name not in found:
            continue
        times = found[policy.name].time
        ended = bar_ends(place.timeframe, times) <= place.until
        allowed = np.flatnonzero((times >= place.since) & ended)
        earliest = first_decision(policy.bundle)
        if allowed.size and max(allowed[0] - 1, earliest) < allowed[-1]:
            spans[policy.name] = times[[max(allowed[0] - 1, earliest), allowed[-1]]]
    windows = dict.fromkeys(found, (0, 0))
    for name in spans:
        common = [
            max(first for first, _ in spans.values()),
            min(last for _, last in spans.values()),
        ]
        start, end = np.searchsorted(found[name].time, common)
        windows[name] = (int(start), int(end))
    return windows


def _cell(kept: KeptScores, policy: Policy, bars: Bars, window: tuple[int, int]) -> dict[str, Any]:
    key = {"policy": policy.identity, "bars": bars.fingerprint, "window": list(window)}
    found = kept.kept(
        "market", key, lambda: _numbers(trade_bundle(policy.bundle, bars, window), bars.timeframe)
    )
    numbers = {name: float(values[0]) for name, values in found.items()}
    return {
        "mean": numbers["information_ratio"],
        "low": numbers.pop("low", None),
        "high": numbers.pop("high", None),
        "normalised": None,
        "trained": policy.trained_on(bars),
        "metrics": numbers,
    }


def _numbers(score: Score, timeframe: str) -> dict[str, Scores]:
    """Return the metrics of a score, and bounds of its information ratio unless it is certain."""
    moments = luck.moments(score.returns - score.equal_weight)
    numbers = {
        name: float(value)
        for name, value in score.metrics.to_dict().items()
        if not isinstance(value, str)
    }
    if moments.sharpe:
        annual = math.sqrt(bars_per_year(timeframe))
        reach = moments.reach(LEVEL)
        numbers["low"] = annual * (moments.sharpe - reach)
        numbers["high"] = annual * (moments.sharpe + reach)
    return {name: np.array([value]) for name, value in numbers.items()}


def _facts(
    place: Place, found: Mapping[str, Bars], windows: Mapping[str, tuple[int, int]]
) -> dict[str, Any]:
    """Return what the policies of a row trade, as JSON."""
    facts: dict[str, Any] = {MARKET: str(place.folder), TIMEFRAME: place.timeframe}
    for name, bars in found.items():
        first, last = windows[name]
        if first < last:
            facts["first"] = format_time(int(bars.time[first + 1]))
            facts["last"] = format_time(int(bars.time[last]))
            return facts | {"bars": last - first}
    return facts | {"first": None, "last": None, "bars": 0}
