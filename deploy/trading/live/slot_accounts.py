"""The accounts of a slot: its own, its shadow and its challengers, bar by bar.

The slot's own account is read outside. The others are virtual money, and are traded here: the
shadow repeats the own one with the simulator's fills and no halts, so it is the champion in
comparisons, and each challenger trades a bundle of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.flows import Flow
from sweepd.deploy.trading.live.account import Act, Parts, TradingAccount, challenger_name, whole
from sweepd.deploy.trading.live.events import BarClosed, Started
from sweepd.deploy.trading.live.hot_swap import Traded, mismatch
from sweepd.deploy.trading.live.records import (
    CHALLENGER,
    SHADOW,
    SLOT_ACCOUNT,
    AccountKind,
    AccountRecord,
    Changes,
)
from sweepd.deploy.trading.live.venue import Venue
from sweepd.deploy.trading.paper_trader import Entry, bars_needed
from sweepd.deploy.trading.risk import Conditions
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.support.errors import RunError


class SlotAccounts:
    """Accounts that are resumed from records, or begin.

    Args:
        slot: the slot.
        event: its start.
        library: bundles by hash.
        history: bars up to the last processed one.
        kept: records of accounts that are not retired, by name.
        parts: divides an order of the own account into those that its broker accepts.
        act: replaces the bundles' policies.

    Attributes:
        own: the slot's own account.
    """

    def __init__(
        self,
        slot: str,
        event: Started,
        library: Mapping[str, Bundle],
        history: Bars,
        kept: Mapping[str, AccountRecord],
        *,
        parts: Parts = whole,
        act: Act | None = None,
    ) -> None:
        self._slot, self._options, self._act = slot, event.options, act
        self._virtual: dict[TradingAccount, Venue] = {}
        bundle = library[event.bundle]
        self.own = self._made(SLOT_ACCOUNT, SLOT_ACCOUNT, bundle, parts)
        self._begin(self.own, None, event, history, kept)
        if event.immediate or event.options.arena:
            # With the money of the own account, whatever the bundle was trained with.
            cash = self.own.holdings.cash if event.holdings else _value(self.own, history)
            shadow = self._made(SHADOW, SHADOW, bundle)
            self._begin(shadow, Venue.virtual(bundle, cash), event, history, kept)
        for one in self._entrants([library[hash_] for hash_ in event.challengers]):
            account = self._made(challenger_name(one.hash), CHALLENGER, one)
            self._begin(account, Venue.virtual(one), event, history, kept)

    def __iter__(self) -> Iterator[TradingAccount]:
        """Iterate over all accounts, the own one first."""
        return iter([self.own, *self._virtual])

    def records(self, *kinds: AccountKind) -> list[AccountRecord]:
        """Return the records of accounts that have processed a bar; `kinds`: only of these."""
        return [
            one.record()
            for one in self
            if one.since is not None and (not kinds or one.kind in kinds)
        ]

    def on_bar(
        self,
        event: BarClosed,
        bar: ClosedBar,
        history: Bars,
        conditions: Callable[[bool], Conditions],
        changes: Changes,
        *,
        decide: bool,
        heir: Bundle | None,
    ) -> Entry:
        """Let every account process a closed bar.

        Args:
            event: what the own account's venue says.
            bar: the bar, in the order of `history`.
            history: the newest bars; `bar` is the last of them.
            conditions: input of the risk rules, with or without an operator's halt.
            changes: receives everything that is stored.
            decide: whether the policies decide.
            heir: a bundle that takes over the own account and its shadow.

        Returns:
            The line of the own account.
        """
        own = self.own.on_bar(
            bar, history, event.reading, conditions(True), changes, decide=decide, heir=heir
        )
        for account, venue in list(self._virtual.items()):
            # The shadow receives what the own account received.
            moved = own.flow if account.kind == SHADOW else Flow()
            reading = venue.reading(bar, history.tickers, moved)
            try:
                entry = account.on_bar(
                    bar,
                    history,
                    reading,
                    conditions(False),
                    changes,
                    decide=decide,
                    heir=heir if account.kind == SHADOW else None,
                )
            # A challenger that fails retires; the own account must not be affected.
            except RunError as error:
                if account.kind != CHALLENGER:
                    raise
                self._retire(account, str(error), changes, bar.time)
                continue
            venue.follow(account.bundle)
            venue.submit(entry.orders)
        return own

    def compete(self, bundles: Sequence[Bundle], history: Bars, changes: Changes) -> None:
        """Retire challengers that no longer take part; start new ones at the next bar.

        Args:
            bundles: those that want to take part, in order.
            history: the newest bars.
            changes: receives records and events.
        """
        last = int(history.time[-1])
        wanted = {challenger_name(one.hash): one for one in self._entrants(bundles)}
        present = {one.name: one for one in self._virtual if one.kind == CHALLENGER}
        for name, account in present.items():
            if name not in wanted:
                self._retire(account, "it has no seat any more", changes, last)
        for name, bundle in wanted.items():
            if name in present or bars_needed(bundle) > len(history):
                continue
            account, venue = self._made(name, CHALLENGER, bundle), Venue.virtual(bundle)
            account.start(history, venue.broker.account())
            self._virtual[account] = venue
            text = f"{name} trades as a challenger from now on"
            changes.events.append(("arena", text, last))

    def adjust(self, history: Bars, factors: Mapping[str, float], *, at_start: bool) -> None:
        """Follow a change of units.

        Args:
            history: bars up to the last processed one, in the present units.
            factors: of earlier prices, by ticker.
            at_start: accounts that have not processed a bar hold the present units.
        """
        for account in self:
            if at_start and account.since is None:
                account.start(history, account.holdings)
                continue
            account.adjust(history, factors)
            if account in self._virtual:
                self._virtual[account].adjust(factors)

    def _begin(
        self,
        account: TradingAccount,
        venue: Venue | None,
        event: Started,
        history: Bars,
        kept: Mapping[str, AccountRecord],
    ) -> None:
        """Resume an account from its record, or start it."""
        if account.name in kept:
            lost = None if account.kind == CHALLENGER else event.lost
            tickers = None if lost is None else lost.tickers
            account.resume(history, kept[account.name], tickers)
        else:
            holdings = event.holdings if venue is None else venue.broker.account()
            assert holdings is not None
            account.start(history, holdings)
        if venue is not None:
            venue.restore(account.holdings)
            venue.submit(account.open)
            self._virtual[account] = venue

    def _entrants(self, bundles: Sequence[Bundle]) -> list[Bundle]:
        """Return those that can trade beside the own account's bundle."""
        own = self.own.bundle
        return [one for one in bundles if one.hash != own.hash and fits(one, own)]

    def _retire(self, account: TradingAccount, why: str, changes: Changes, last: int) -> None:
        del self._virtual[account]
        if account.since is not None:
            changes.accounts.append(account.record(retired=why))
        changes.events.append(("arena", f"{account.name} retires: {why}", last))

    def _made(
        self, name: str, kind: AccountKind, bundle: Bundle, parts: Parts = whole
    ) -> TradingAccount:
        return TradingAccount(
            self._slot,
            name,
            kind,
            bundle,
            limits=self._options.limits,
            any_account=kind != SLOT_ACCOUNT or self._options.any_account,
            parts=parts,
            act=self._act,
        )


def fits(bundle: Bundle, champion: Bundle) -> bool:
    """Whether a bundle trades the champion's tickers at its timeframe."""
    return mismatch(Traded.of(bundle), Traded.of(champion)) is None


def _value(account: TradingAccount, history: Bars) -> float:
    """Return an account's value at the last closes, quote units."""
    order = [history.tickers.index(ticker) for ticker in account.bundle.manifest.tickers]
    return account.trader.accounts.value(history.close[-1][order])
