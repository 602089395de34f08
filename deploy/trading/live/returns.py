"""Returns of a slot's accounts over common bars."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.trading.flows import growth
from sweepd.deploy.trading.live.store import TraderStore

Array = NDArray[np.float64]
Span = tuple[int, int | None]  # opens of the first and last bar; last is None while it continues


def paired_returns(
    store: TraderStore,
    slot: str,
    accounts: tuple[str, ...],
    since: int,
    *,
    without: Sequence[Span] = (),
) -> dict[str, Array]:
    """Return the simple returns per bar, (n,), of each account over the bars that all have.

    Transfers are left out (`sweepd.deploy.trading.flows`).

    Args:
        store: the traders' rows.
        slot: the accounts' slot.
        accounts: names of the accounts.
        since: the first return starts at the close of the bar that opened then.
        without: spans of bars to leave out.
    """
    histories = {name: store.account_history(slot, name, since=since) for name in accounts}
    times = [history.time for history in histories.values()]
    # Accounts start at different bars; only common ones are comparable.
    common = times[0]
    for other in times[1:]:
        common = np.intersect1d(common, other)
    # A return belongs to the bar at whose close it ends.
    kept = np.ones(max(0, len(common) - 1), dtype=bool)
    for first, last in without:
        kept &= ~((common[1:] >= first) & (common[1:] <= (np.inf if last is None else last)))
    found = {}
    for name, history in histories.items():
        grown = growth(history.value, history.flow)[np.isin(history.time, common)]
        steps = np.divide(
            grown[1:], grown[:-1], out=np.ones_like(grown[1:]), where=grown[:-1] > 0.0
        )
        found[name] = (steps - 1.0)[kept]
    return found


def since_present_bundle(store: TraderStore, slot: str, account: str) -> tuple[int, str | None]:
    """Return since which bar (its open) an account trades its present bundle, and its hash.

    (0, None) for an account without bars.
    """
    history = store.account_history(slot, account, since=0)
    if not len(history.time):
        return 0, None
    changes = np.flatnonzero(history.bundle[1:] != history.bundle[:-1])
    first = int(changes[-1]) + 1 if len(changes) else 0
    return int(history.time[first]), str(history.bundle[-1])
