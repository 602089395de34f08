"""Asks the live monitor whenever a look is due, and does what the rule says when the answer is bad.

What is compared with is the bundle's own hold-out, scored anew by the canonical path from the bars it was promoted on.
Where those are not there, there is no verdict, and that is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from deploy.market.bundle import Bundle
from deploy.market.scoring import bars_of, bootstrap_seed, score_bundle
from deploy.registry.registry import Registry
from deploy.trading.live.arena import EQUAL_WEIGHT
from deploy.trading.live.monitor import DEFAULT, FEWEST_SCORED, look_number, track, watch
from deploy.trading.live.records import Array, Span, returns_beside, since_present_bundle
from deploy.trading.live.store import ACCOUNT, TraderStore
from envs.crypto.timeframe import bars_per_day
from envs.support.errors import InputError

OnAlert = Literal["alert", "cash", "rollback"]
Told = tuple[str, str]  # kind and text of an event


class Watchman:
    """Watches a slot's account. simulator: the lane that says what the simulator made of it, or None."""

    def __init__(
        self,
        slot: str,
        registry: Registry,
        store: TraderStore,
        on_alert: OnAlert,
        simulator: str | None,
    ) -> None:
        self._slot, self._registry, self._store = slot, registry, store
        self._on_alert, self._simulator = on_alert, simulator
        self._scored: dict[str, tuple[Array, Array] | str] = {}

    def look(
        self, bundle: Bundle, bars: int, state: dict[str, Any], kept_out: Sequence[Span] = ()
    ) -> tuple[dict[str, Any], list[Told]]:
        """Judge the account's record with this bundle, where a look is due.

        bars: how many it has traded freely. kept_out: when a halt or a risk rule kept it from that; those bars say
        nothing about the policy. state: what this returned before, a JSON object. Returns the new state and what there
        is to tell; what the rule asks for is done.
        """
        timeframe = bundle.manifest.timeframe
        due = look_number(bars, timeframe)
        if state.get("bundle") != bundle.hash:
            state = {
                "bundle": bundle.hash,
                "look": 0,
                "verdict": "too early",
                "text": "too early for a verdict",
            }
        if due <= state["look"]:
            return state, []
        scored = self._scored_returns(bundle)
        if isinstance(scored, str):
            text = f"there is nothing to compare with: {scored}"
            return state | {"look": due, "verdict": "unknown", "text": text}, [("monitor", text)]
        since, _ = since_present_bundle(self._store, self._slot, ACCOUNT)
        lanes = (ACCOUNT, EQUAL_WEIGHT, *([self._simulator] if self._simulator else []))
        records = returns_beside(self._store, self._slot, lanes, since, without=kept_out)
        if look_number(len(records[ACCOUNT]), timeframe) < due:
            return state, []
        simulated = records[self._simulator] if self._simulator else None
        finding = watch(
            records[ACCOUNT],
            records[EQUAL_WEIGHT],
            simulated,
            *scored,
            timeframe,
            seed=bootstrap_seed(bundle),
        )
        state = {"bundle": bundle.hash} | finding.to_dict() | {"look": due}
        if finding.verdict == "tracking off":
            return state, [("alert", finding.text)]
        if finding.verdict != "worse than scored":
            return state, [("monitor", f"{finding.verdict}: {finding.text}")]
        return state, [("alert", finding.text), *self._act(finding.text)]

    def follow(self, bundle: Bundle, state: dict[str, Any]) -> tuple[dict[str, Any], list[Told]]:
        """Compare the account with the simulator, which takes no chance into account and may be done every day. Tells
        it once when the account strays, and when it is back.
        """
        if self._simulator is None:
            return state, []
        since, _ = since_present_bundle(self._store, self._slot, ACCOUNT)
        records = returns_beside(self._store, self._slot, (ACCOUNT, self._simulator), since)
        if len(records[ACCOUNT]) < bars_per_day(bundle.manifest.timeframe):
            return state, []
        tracking = track(records[ACCOUNT], records[self._simulator], bundle.manifest.timeframe)
        off = tracking.error > DEFAULT.tracking_error or abs(tracking.gap) > DEFAULT.tracking_gap
        told: list[Told] = []
        if off != state.get("strays", False):
            words = "strays from" if off else "follows again"
            text = f"the account {words} the simulator: {tracking.error:.1%} a year, {tracking.gap:+.2%} so far"
            told.append(("alert" if off else "monitor", text))
        return state | {"strays": off, "tracking": asdict(tracking)}, told

    def _act(self, text: str) -> list[Told]:
        """What follows an account that trades worse than scored."""
        if self._on_alert == "rollback" and self._registry.slot(self._slot).previous is not None:
            try:
                left, back = self._registry.rollback(
                    self._slot, f"the live monitor: {text}", Bundle
                )
                return [("rolled back", f"from {left[:16]} to {back[:16]}")]
            except InputError as error:
                return [("alert", f"no rollback: {error}"), *self._to_cash(text)]
        return [] if self._on_alert == "alert" else self._to_cash(text)

    def _to_cash(self, text: str) -> list[Told]:
        self._store.halt(self._slot, f"the live monitor: {text}", sells=True)
        return [("halted", f"sells everything, until: sweepd trade resume {self._slot}")]

    def _scored_returns(self, bundle: Bundle) -> tuple[Array, Array] | str:
        """Per-bar returns of the bundle and of equal weight over its hold-out; or why there are none."""
        if bundle.hash not in self._scored:
            self._scored[bundle.hash] = _score(bundle, self._registry)
        return self._scored[bundle.hash]


def _score(bundle: Bundle, registry: Registry) -> tuple[Array, Array] | str:
    span, folder = (
        registry.evaluations.holdout_span(bundle.members_sha256),
        registry.data_dir(bundle.hash),
    )
    if span is None or folder is None:
        return "the registry does not know its hold-out"
    try:
        bars = bars_of(bundle, folder)
        first, last = (int(bars.time.searchsorted(moment)) for moment in span)
        if last >= len(bars.time) or (int(bars.time[first]), int(bars.time[last])) != span:
            return f"the bars in {folder} do not hold its hold-out"
        score = score_bundle(bundle, bars, (first - 1, last))
    except (InputError, OSError) as error:
        return str(error)
    if len(score.returns) < FEWEST_SCORED:
        return f"its hold-out has {len(score.returns)} bars only"
    return score.returns, score.equal_weight
