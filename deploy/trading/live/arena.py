"""The arena of a slot: challengers that trade on virtual money until they win, lose or withdraw.

`sweepd.deploy.trading.live.comparison` has the statistics; this module decides who takes part, when
they are compared and what follows. The champion is represented by its shadow if there is one, so
that the simulator fills both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.scoring import bootstrap_seed
from sweepd.deploy.registry.bundle_files import NAME_DIGITS
from sweepd.deploy.registry.records import ChampionMoved
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.account import TradingAccount
from sweepd.deploy.trading.live.comparison import Comparison, compare, days_due
from sweepd.deploy.trading.live.returns import Array, paired_returns
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.crypto.data.timeframe import bars_between
from sweepd.envs.support.errors import InputError

Told = tuple[str, str]  # kind and text of an event


class Arena:
    """Selects and judges the challengers of a slot's champion; at most `size` of them trade."""

    def __init__(self, slot: str, registry: Registry, store: TraderStore, size: int) -> None:
        self._slot, self._registry, self._store, self._size = slot, registry, store, size
        self._unfit: set[str] = set()
        self._loaded: dict[str, Bundle] = {}  # verified once: a bundle never changes

    def entrants(self, champion: Bundle) -> list[Bundle]:
        """Return the challengers that should trade now, best objective first.

        A challenger must have intact files, and the tickers and timeframe of the champion.
        """
        found = []
        for hash_ in self._registry.slot(self._slot).challengers if self._size else ():
            if hash_ in self._unfit:
                continue
            try:
                bundle = self._loaded.get(hash_) or self._registry.bundle(hash_, Bundle)
            except InputError:
                self._unfit.add(hash_)
                continue
            self._loaded[hash_] = bundle
            ours, theirs = champion.manifest, bundle.manifest
            if theirs.timeframe == ours.timeframe and set(theirs.tickers) == set(ours.tickers):
                found.append(bundle)
            else:
                self._unfit.add(hash_)
        return sorted(found, key=lambda bundle: -bundle.origin.objective_value)[: self._size]

    def judge(
        self,
        champion_account: str,
        champion: Bundle,
        challengers: Sequence[TradingAccount],
        bar: int,
        state: dict[str, Any],
    ) -> tuple[dict[str, Any], list[Told]]:
        """Compare every challenger for which a comparison is due; promote or withdraw it.

        Args:
            champion_account: name of the account that represents the champion.
            champion: the champion's bundle.
            challengers: the challengers' accounts.
            bar: open of the last processed bar.
            state: what this method returned before, a JSON object.

        Returns:
            The new state, and the events.
        """
        if state.get("champion") != champion.hash:
            state = {"champion": champion.hash, "since": bar, "looks": 0, "days": {}}
        told: list[Told] = []
        for account in challengers:
            due = self._returns_if_due(champion_account, champion, account, bar, state)
            if due is None:
                continue
            own, champions, days = due
            bundle, timeframe = account.bundle, champion.manifest.timeframe
            result = compare(own, champions, timeframe, state["looks"], seed=bootstrap_seed(bundle))
            # Every comparison spends level, whatever its outcome.
            state = state | {
                "looks": state["looks"] + 1,
                "days": state["days"] | {bundle.hash: days},
            }
            told.append(("arena", f"{bundle.name}: {result.outcome}: {result.text}"))
            if result.outcome == "worse":
                reason = f"lost in the arena: {result.text}"
                self._registry.withdraw(self._slot, bundle.hash, reason)
            elif result.outcome == "better":
                if self._promote(bundle, champion, result):
                    told.append(("promoted", f"{bundle.name} won the slot in the arena"))
                    break  # the others are compared with the new champion from now on
                told.append(("arena", f"{bundle.name}: the champion has changed meanwhile"))
        return state, told

    def _returns_if_due(
        self,
        champion_account: str,
        champion: Bundle,
        account: TradingAccount,
        bar: int,
        state: dict[str, Any],
    ) -> tuple[Array, Array, int] | None:
        """Return challenger's and champion's returns, and the days of the due comparison."""
        timeframe = champion.manifest.timeframe
        done = state["days"].get(account.bundle.hash, 0)
        # Only bars that both traded while this bundle was champion.
        since = max(state["since"], bar if account.since is None else account.since)
        if days_due(bars_between(timeframe, since, bar), timeframe) <= done:
            return None
        # The cheap check above counts all bars in the time; common bars may be fewer.
        names = (account.name, champion_account)
        returns = paired_returns(self._store, self._slot, names, since)
        own, champions = returns[account.name], returns[champion_account]
        days = days_due(len(own), timeframe)
        return None if days <= done else (own, champions, days)

    def _promote(self, bundle: Bundle, champion: Bundle, result: Comparison) -> bool:
        """Promote a challenger; return False if the slot has another champion meanwhile."""
        try:
            self._registry.promote(
                self._slot,
                bundle,
                expected=champion.hash,
                reason=f"won in the arena: {result.text}",
                report={"arena": result.to_dict()},
            )
        except ChampionMoved:
            return False
        return True


def challenger_name(bundle: Bundle) -> str:
    """Return the name of a challenger's account."""
    return bundle.hash[:NAME_DIGITS]
