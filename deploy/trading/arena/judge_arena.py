"""Judges the arena of a slot from what its trader recorded, and carries out what follows.

`judge_arena` may be called at any time, by any process, and be killed between any two of its
effects: each is one transaction, and a later call finds what is missing. The trader is not asked;
it trades the bundles that have a seat, and follows a new champion at its next bar.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.constants import MOST_BARS, correlation
from sweepd.deploy.market.scoring import bars_of, first_decision, in_order, score_bundle
from sweepd.deploy.promotion.betting import MOST_BOUND, days_until, log_threshold, relative_returns
from sweepd.deploy.registry.arena_rows import REFIT, ArenaEntry, EntryKind, Reign
from sweepd.deploy.registry.records import Challenger
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.arena.arena import (
    ArenaRules,
    Conduct,
    Promotion,
    Rounds,
    Standing,
    day_rows,
    gives_way,
    judge,
)
from sweepd.deploy.trading.flows import growth
from sweepd.deploy.trading.live.account import challenger_name
from sweepd.deploy.trading.live.records import SHADOW, SLOT_ACCOUNT, AccountHistory, Trader
from sweepd.deploy.trading.live.slot_accounts import fits
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import bar_end, bar_ends
from sweepd.envs.support.errors import InputError

Array = NDArray[np.float64]
COPY = 0.99  # correlation with the champion or a seated bundle from which one is a copy


@dataclass(frozen=True)
class Seat:
    """A seat as it is shown.

    name: of the bundle. number, kind, reign: see `ArenaEntry`. days: since the entry.
    e, threshold: at E >= threshold it becomes champion; a refit has none.
    relative: growth over that of the champion, a fraction.
    expected_days: from the entry to the swap, if it goes on as so far; None if it does not gain.
    """

    name: str
    number: int
    kind: EntryKind
    days: int
    e: float
    threshold: float | None
    relative: float
    expected_days: float | None

    @classmethod
    def of(cls, one: Standing) -> Seat:
        """Return how a standing is shown."""
        entry, day = one.entry, one.day
        needed = None if entry.kind == REFIT else log_threshold(entry.number)
        days = math.inf if day is None or needed is None else days_until(day.ratio, needed)
        return cls(
            challenger_name(entry.bundle),
            entry.number,
            entry.kind,
            one.days,
            math.exp(min(one.log_e, 700.0)),
            None if needed is None else math.exp(needed),
            math.expm1(0.0 if day is None else day.relative),
            days if math.isfinite(days) else None,
        )


@dataclass(frozen=True)
class ArenaVerdict:
    """The arena after it was judged. told: what changed, in sentences. waiting: without a seat."""

    slot: str
    reign: int
    champion: str
    aged: bool
    seats: tuple[Seat, ...]
    waiting: tuple[str, ...]
    told: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return dataclasses.asdict(self)


def judge_arena(
    registry: Registry,
    slot: str,
    rules: ArenaRules = ArenaRules(),  # noqa: B008 (frozen)
) -> ArenaVerdict:
    """Judge the seats by all UTC days that are over, promote, withdraw, and give free seats.

    Args:
        registry: the registry that holds the slot.
        slot: the slot, which has been traded.
        rules: who gets a seat.

    Raises:
        InputError: the slot has no champion or trader, or its champion cannot be loaded.
        ChampionMoved, ReignEnded: the champion changed meanwhile; call again.
    """
    told: list[str] = []
    place = _Place.open(registry, slot, rules, told)
    place.begin_reign()
    if place.judge_seats():
        place = _Place.open(registry, slot, rules, told)
        place.begin_reign()
    place.admit()
    standings = place.standings()
    taken = {one.entry.bundle for one in standings}
    return ArenaVerdict(
        slot,
        place.reign.number,
        place.champion.name,
        place.aged,
        tuple(Seat.of(one) for one in standings),
        tuple(
            challenger_name(one.bundle)
            for one in registry.arena.challengers(slot)
            if one.bundle not in taken
        ),
        tuple(told),
    )


@dataclass
class _Place:
    """A slot's arena in one reign. told: receives what changes."""

    registry: Registry
    slot: str
    rules: ArenaRules
    told: list[str]
    champion: Bundle
    previous: str | None
    reign: Reign
    trader: Trader
    _scores: dict[tuple[str, str], Array] = field(default_factory=dict)

    @classmethod
    def open(cls, registry: Registry, slot: str, rules: ArenaRules, told: list[str]) -> _Place:
        now, reign = registry.require(slot), registry.arena.reign(slot)
        trader = TraderStore(registry.database).trader(slot)
        if trader is None or trader.last_bar is None:
            raise InputError(
                f"slot {slot!r} was never traded, so there is no record to judge: sweepd trade "
                f"{slot} --arena {rules.seats}"
            )
        assert now.champion is not None
        assert reign is not None  # written with the champion
        champion = registry.bundle(now.champion, Bundle)
        return cls(registry, slot, rules, told, champion, now.previous, reign, trader)

    # ---- what is known ----

    @property
    def timeframe(self) -> str:
        return self.champion.manifest.timeframe

    @property
    def last_bar(self) -> int:
        assert self.trader.last_bar is not None
        return self.trader.last_bar

    @property
    def aged(self) -> bool:
        """Whether the monitor has marked the champion since it became champion."""
        kinds = ["aged", "promoted", "rolled-back"]
        newest = self.registry.events(self.slot, kinds=kinds, newest=1)
        return bool(newest) and newest[0].kind == "aged"

    def entries(self) -> list[ArenaEntry]:
        """Return all entries of the reign."""
        return self.registry.arena.entries(self.slot, self.reign.number)

    def seats(self) -> list[ArenaEntry]:
        """Return those that have a seat."""
        return [one for one in self.entries() if one.left is None]

    def standings(self) -> list[Standing]:
        """Return the seats with their newest stored days."""
        days = {one.bundle: one for one in self.registry.arena.days(self.slot, self.reign.number)}
        return [
            Standing(
                entry, days.get(entry.bundle), self.conduct(entry) if entry.kind == REFIT else None
            )
            for entry in self.seats()
        ]

    # ---- the record ----

    def lines(self, entry: ArenaEntry) -> _Lines | None:
        """Return the lines of a bundle's account and the champion's in bars that both have.

        The champion is represented by its shadow, which no operator halts, so that the simulator
        fills both sides.
        """
        store = TraderStore(self.registry.database)
        kept = {one.name: one for one in store.accounts(self.slot)}
        name = challenger_name(entry.bundle)
        shadow = SHADOW if SHADOW in kept else SLOT_ACCOUNT
        if name not in kept or shadow not in kept:
            return None
        own, other = (
            store.account_history(self.slot, one, since=entry.since) for one in (name, shadow)
        )
        common, at, row = np.intersect1d(own.time, other.time, return_indices=True)
        # No round ends at a bar before which one of them did not trade, or at the first one of an
        # account that starts again with other money.
        whole = (np.diff(row) == 1) & (common[1:] != kept[name].since)
        return _Lines(_at(own, at), _at(other, row), whole)

    def rounds(self, entry: ArenaEntry) -> Rounds:
        """Return the bars since an entry in which it and the reign's champion both traded."""
        found = self.lines(entry)
        if found is None:
            return Rounds(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))
        champions = {self.reign.champion, self.champion.hash}
        champions |= {one.bundle for one in self.entries() if one.kind == REFIT}
        # The bundle that decided at a bar's close earns the next bar's return.
        fair = np.array([name in champions for name in found.champion.bundle[:-1]], dtype=bool)
        kept = found.whole & fair
        return Rounds(
            bar_ends(self.timeframe, found.own.time[1:])[kept],
            _returns(found.own)[kept],
            _returns(found.champion)[kept],
        )

    def conduct(self, entry: ArenaEntry) -> Conduct | None:
        """Return how a refit trades beside the champion; None before the first bar."""
        found = self.lines(entry)
        if found is None or not len(found.own.time):
            return None
        (own, long), (other, held) = _conduct(found.own), _conduct(found.champion)
        ratio = own / other if other > 0.0 else 1.0 if own == 0.0 else math.inf
        return Conduct(ratio, long - held)

    # ---- effects ----

    def begin_reign(self) -> None:
        """Give the seats of a new reign: to the former champion, then to those that have one, by age."""
        if self.entries():
            return
        asked: list[tuple[str, EntryKind]] = []
        if self.previous is not None:
            asked.append((self.previous, "former"))
        for one in self.registry.arena.seats(self.slot):
            if one.kind == REFIT:
                self.withdraw(one.bundle, "the champion that it refits was replaced")
            elif one.bundle != self.previous:
                asked.append((one.bundle, one.kind))
        entries = [self.entry(hash_, kind) for hash_, kind in asked]
        self.registry.arena.enter(
            [one for one in entries if one is not None], "it was champion before"
        )

    def judge_seats(self) -> bool:
        """Append the days that are over and perform the judgement; True if the champion moved."""
        until = bar_end(self.timeframe, self.last_bar)
        known = self.registry.arena.days(self.slot, self.reign.number)
        stored = {(one.bundle, one.day) for one in known}
        for entry in self.seats():
            days = day_rows(entry, self.rounds(entry), until, self.timeframe)
            self.registry.arena.add_days(
                [one for one in days if (one.bundle, one.day) not in stored]
            )
        judgement = judge(self.standings(), aged=self.aged)
        for one in judgement.withdrawals:
            self.withdraw(one.entry.bundle, one.why)
        return judgement.promotion is not None and self.promote(judgement.promotion)

    def promote(self, asked: Promotion) -> bool:
        """Make a seated bundle champion; withdraw it if its files are gone."""
        hash_ = asked.entry.bundle
        try:
            bundle = self.registry.bundle(hash_, Bundle)
        except InputError as error:
            self.withdraw(hash_, f"it won, but cannot be loaded: {error}")
            return False
        self.registry.promote(
            self.slot,
            bundle,
            expected=self.champion.hash,
            reason=asked.why,
            refit=asked.entry.kind == REFIT,
        )
        self.told.append(f"{bundle.name} is the champion: {asked.why}")
        return True

    def admit(self) -> None:
        """Give a seat to the challenger that has waited longest, and one to a refit."""
        seated = {one.bundle for one in self.entries()}
        waiting = [
            one for one in self.registry.arena.challengers(self.slot) if one.bundle not in seated
        ]
        for one in [*self.admit_refit(waiting), *self.admit_challenger(waiting)]:
            self.registry.arena.enter([one], "")
            kind = "a refit" if one.kind == REFIT else "a challenger"
            self.told.append(f"{challenger_name(one.bundle)} takes part as {kind}")

    def admit_refit(self, waiting: Sequence[Challenger]) -> list[ArenaEntry]:
        """Return the entry of the newest refit of the present champion, if one waits."""
        refits = [one for one in waiting if one.refit]
        for one in refits[:-1]:
            self.withdraw(one.bundle, "a newer refit waits")
        entries = [self.entry(one.bundle, REFIT) for one in refits[-1:]]
        found = [one for one in entries if one is not None]
        for seat in self.seats() if found else ():
            if seat.kind == REFIT:
                self.withdraw(seat.bundle, "a newer refit takes its place")
        return found

    def admit_challenger(self, waiting: Sequence[Challenger]) -> list[ArenaEntry]:
        """Return the entry of the challenger that has waited longest, if a seat is free."""
        moments = [one.since for one in self.entries() if one.kind == "challenger"]
        newest = max(moments, default=None)
        free, leaves = gives_way(self.standings(), newest, self.last_bar, self.rules)
        for one in waiting if free else ():
            entry = None if one.refit else self.entry(one.bundle, "challenger")
            if entry is not None:
                if leaves is not None:
                    self.withdraw(leaves.bundle, "its term is over, and another challenger waits")
                return [entry]
        return []

    def entry(self, hash_: str, kind: EntryKind) -> ArenaEntry | None:
        """Return the entry of a bundle at the newest bar; withdraw it if it cannot take part."""
        try:
            bundle = self.registry.bundle(hash_, Bundle)
            problem = self.problem(bundle, kind)
        except InputError as error:
            problem = f"it cannot be loaded: {error}"
        if problem is not None:
            self.withdraw(hash_, problem)
            return None
        # Only bars that neither of them has seen count.
        since = max(self.last_bar, bundle.last_seen, self.champion.last_seen)
        worst, best = MOST_BOUND / 2.0, MOST_BOUND  # no bar can be so bad or so good
        own, champion = self.past(bundle, bundle), self.past(self.champion, bundle)
        if own is not None and champion is not None:
            gained = relative_returns(own, champion)
            worst, best = max(0.0, -float(gained.min())), max(0.0, float(gained.max()))
        return ArenaEntry(self.slot, self.reign.number, 0, hash_, kind, "", since, worst, best)

    def problem(self, bundle: Bundle, kind: EntryKind) -> str | None:
        """Return why a bundle cannot take part, None if it can."""
        if not fits(bundle, self.champion):
            return "it trades other tickers or bars than the champion"
        if kind == REFIT and bundle.origin.parameters != self.champion.origin.parameters:
            return "the champion that it refits was replaced"
        other = self.copied(bundle) if kind == "challenger" else None
        return None if other is None else f"its returns are those of {other}"

    def withdraw(self, hash_: str, why: str) -> None:
        """Withdraw a challenger, unless it is none (any more)."""
        with suppress(InputError):
            self.registry.withdraw(self.slot, hash_, why)
            self.told.append(f"{challenger_name(hash_)} leaves: {why}")

    # ---- the past ----

    def copied(self, bundle: Bundle) -> str | None:
        """Return the name of the champion or seated bundle whose past returns are the same."""
        own, others = self.past(bundle, bundle), [self.champion]
        if own is None:
            return None
        for seat in self.seats():
            try:
                others.append(self.registry.bundle(seat.bundle, Bundle))
            except InputError:
                continue  # its trader retires it
        for other in others:
            theirs = self.past(other, bundle)
            if theirs is not None and correlation(own, theirs) >= COPY:
                return other.name
        return None

    def past(self, bundle: Bundle, asked: Bundle) -> Array | None:
        """Return a bundle's returns over the newest bars in the folder of `asked`.

        None if they are not there any more; then nothing can be said of the past.
        """
        key = bundle.hash, asked.hash
        if key not in self._scores:
            bars = self.bars(asked)
            if bars is None:
                return None
            last = len(bars) - 1
            # The same bars for all that are compared.
            first = max(first_decision(asked), first_decision(self.champion), last - MOST_BARS)
            if first >= last or first < first_decision(bundle):
                return None
            window = first, last
            self._scores[key] = score_bundle(bundle, in_order(bars, bundle), window).returns
        return self._scores[key]

    def bars(self, asked: Bundle) -> Bars | None:
        """Return the bars that a bundle was scored on, up to the newest one of the slot."""
        folder = self.registry.data_dir(asked.hash)
        try:
            found = None if folder is None else bars_of(asked, folder)
        except (InputError, OSError):
            return None
        return None if found is None else found.between(0, self.last_bar)


@dataclass(frozen=True)
class _Lines:
    """Lines of two accounts at the same bars, (n,). whole: (n - 1,) whether bar i + 1 is a round."""

    own: AccountHistory
    champion: AccountHistory
    whole: NDArray[np.bool_]


def _at(history: AccountHistory, rows: NDArray[np.int64]) -> AccountHistory:
    return AccountHistory(**{name: column[rows] for name, column in vars(history).items()})


def _returns(lines: AccountHistory) -> Array:
    """Return the simple returns of all lines but the first, without transfers."""
    grown = growth(lines.value, lines.flow)
    steps = np.divide(grown[1:], grown[:-1], out=np.ones_like(grown[1:]), where=grown[:-1] > 0.0)
    return np.asarray(steps - 1.0)


def _conduct(lines: AccountHistory) -> tuple[float, float]:
    """Return turnover per bar and mean exposure, both as fractions of the value."""
    value = np.where(lines.value > 0.0, lines.value, 1.0)
    return float(np.mean(lines.notional / value)), float(np.mean(1.0 - lines.cash / value))
