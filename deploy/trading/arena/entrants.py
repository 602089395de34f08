"""The bundles that trade beside the champion: those with a seat in the arena."""

from __future__ import annotations

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.arena_rows import REFIT
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.slot_accounts import fits
from sweepd.envs.support.errors import InputError


class Entrants:
    """Loads the bundles that have a seat and fit the champion.

    Args:
        slot: the slot.
        registry: the registry that holds it.
        library: bundles by hash, to which those that are loaded are added: a bundle never changes.
        size: the most challengers; a refit of the champion is none. 0: nothing trades beside it.
    """

    def __init__(
        self, slot: str, registry: Registry, library: dict[str, Bundle], size: int
    ) -> None:
        self._slot, self._registry, self._library, self._size = slot, registry, library, size
        self._unfit: set[str] = set()

    def of(self, champion: Bundle) -> list[Bundle]:
        """Return the bundles that should trade now, in the order of entry.

        So one that trades is not displaced by a newer one, and keeps its record. A bundle must have
        intact files, and the tickers and timeframe of the champion.
        """
        found, challengers = list[Bundle](), 0
        for seat in self._registry.arena.seats(self._slot) if self._size else ():
            hash_, counts = seat.bundle, seat.kind != REFIT
            if hash_ in self._unfit or (counts and challengers == self._size):
                continue
            try:
                if hash_ not in self._library:
                    self._library[hash_] = self._registry.bundle(hash_, Bundle)
            except InputError:
                self._unfit.add(hash_)
                continue
            if fits(self._library[hash_], champion):
                found.append(self._library[hash_])
                challengers += counts
            else:
                self._unfit.add(hash_)
        return found
