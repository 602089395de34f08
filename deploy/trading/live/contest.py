"""The arena of a slot: challengers that trade beside the champion, earn its place, or retire.

Statistics are in `deploy.trading.live.arena`; here is who takes part, when they are compared, and what follows. The champion's
side is its shadow where there is one, so that both sides are filled by the simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deploy.market.bundle import Bundle
from deploy.market.scoring import bootstrap_seed
from deploy.registry.bundle_files import NAME_DIGITS
from deploy.registry.records import ChampionMoved
from deploy.registry.registry import Registry
from deploy.trading.live.arena import compare, days_due
from deploy.trading.live.lane import TradingLane
from deploy.trading.live.records import returns_beside
from deploy.trading.live.store import TraderStore
from envs.crypto.timeframe import bar_seconds
from envs.support.errors import InputError

Told = tuple[str, str]  # kind and text of an event


class Contest:
    """Who trades beside a slot's champion. size: how many at most. state: what was looked at so far, a JSON object."""

    def __init__(self, slot: str, registry: Registry, store: TraderStore, size: int) -> None:
        self._slot, self._registry, self._store, self._size = slot, registry, store, size
        self._unfit: set[str] = set()
        self._whole: dict[str, Bundle] = {}  # read and checked once; a bundle never changes

    def entrants(self, champion: Bundle) -> list[Bundle]:
        """The challengers that are to trade now, the best objective first: those of the champion's tickers and
        timeframe, whose files are whole.
        """
        found = []
        for hash_ in self._registry.slot(self._slot).challengers if self._size else ():
            if hash_ in self._unfit:
                continue
            try:
                bundle = self._whole[hash_] = self._whole.get(hash_) or self._registry.bundle(
                    hash_, Bundle
                )
            except InputError:
                self._unfit.add(hash_)
                continue
            ours, theirs = champion.manifest, bundle.manifest
            if theirs.timeframe == ours.timeframe and set(theirs.tickers) == set(ours.tickers):
                found.append(bundle)
            else:
                self._unfit.add(hash_)
        return sorted(found, key=lambda bundle: -bundle.origin.objective_value)[: self._size]

    def judge(
        self,
        champion_lane: str,
        champion: Bundle,
        rivals: Sequence[TradingLane],
        bar: int,
        state: dict[str, Any],
    ) -> tuple[dict[str, Any], list[Told]]:
        """Compare every challenger for whom a look is due; who is better becomes champion, who is worse withdraws.

        bar: open of the bar that is done. state: what this returned before. Returns the new state and what there is to
        tell.
        """
        timeframe = champion.manifest.timeframe
        if state.get("champion") != champion.hash:
            state = {"champion": champion.hash, "since": bar, "looks": 0, "days": {}}
        told: list[Told] = []
        for lane in rivals:
            bundle, since = (
                lane.bundle,
                max(state["since"], bar if lane.since is None else lane.since),
            )
            if days_due((bar - since) // bar_seconds(timeframe), timeframe) <= state["days"].get(
                bundle.hash, 0
            ):
                continue
            records = returns_beside(self._store, self._slot, (lane.name, champion_lane), since)
            days = days_due(len(records[lane.name]), timeframe)
            if days <= state["days"].get(bundle.hash, 0):
                continue
            result = compare(
                records[lane.name],
                records[champion_lane],
                timeframe,
                state["looks"],
                seed=bootstrap_seed(bundle),
            )
            state = state | {
                "looks": state["looks"] + 1,
                "days": state["days"] | {bundle.hash: days},
            }
            told.append(("arena", f"{bundle.name}: {result.outcome}: {result.text}"))
            if result.outcome == "worse":
                self._registry.withdraw(
                    self._slot, bundle.hash, f"lost in the arena: {result.text}"
                )
            elif result.outcome == "better":
                try:
                    self._registry.promote(
                        self._slot,
                        bundle,
                        expected=champion.hash,
                        reason=f"earned its place in the arena: {result.text}",
                        report={"arena": result.to_dict()},
                    )
                except ChampionMoved:
                    told.append(("arena", f"{bundle.name}: the slot has another champion by now"))
                    continue
                return state, [*told, ("promoted", f"{bundle.name} earned the slot in the arena")]
        return state, told


def lane_name(bundle: Bundle) -> str:
    """The name of a challenger's lane."""
    return bundle.hash[:NAME_DIGITS]
