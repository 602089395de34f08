"""The live monitor of a slot: evaluates the account when due, and reacts as `--on-alert` says.

The account is compared with the bundle's own hold-out, which is scored again by the canonical path
from the bars that it was promoted on. Without these bars there is no verdict.
`sweepd.deploy.trading.live.monitor_statistics` has the statistics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.scoring import bars_of, bootstrap_seed, score_bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.monitor_statistics import (
    FEWEST_SCORED,
    judge_record,
    look_number,
    track,
)
from sweepd.deploy.trading.live.records import EQUAL_WEIGHT, SLOT_ACCOUNT, STRAYS
from sweepd.deploy.trading.live.returns import Array, Span, paired_returns, since_present_bundle
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.crypto.data.timeframe import bars_per_day
from sweepd.envs.support.errors import InputError

OnAlert = Literal["alert", "cash", "rollback"]
Told = tuple[str, str]  # kind and text of an event


class Monitor:
    """Monitors a slot's own account.

    Args:
        slot: the slot.
        registry: the registry that holds it.
        store: the traders' rows.
        on_alert: reaction to an account that trades worse than scored.
        simulator: name of the account that repeats it in the simulator, or None.
    """

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

    def evaluate(
        self, bundle: Bundle, bars: int, state: dict[str, Any], kept_out: Sequence[Span] = ()
    ) -> tuple[dict[str, Any], list[Told]]:
        """Judge the account's record with this bundle, if an interim look is due, and react.

        Args:
            bundle: the traded bundle.
            bars: number of bars in which it could trade freely.
            state: what this method returned before, a JSON object.
            kept_out: spans in which a halt or a risk rule prevented trading; left out.

        Returns:
            The new state, and the events.
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
            text = f"there is no hold-out to compare with: {scored}"
            return state | {"look": due, "verdict": "unknown", "text": text}, [("monitor", text)]
        since, _ = since_present_bundle(self._store, self._slot, SLOT_ACCOUNT)
        names = (SLOT_ACCOUNT, EQUAL_WEIGHT, *([self._simulator] if self._simulator else []))
        returns = paired_returns(self._store, self._slot, names, since, without=kept_out)
        # Spans without trading are left out, so the record may be shorter than `bars`.
        if look_number(len(returns[SLOT_ACCOUNT]), timeframe) < due:
            return state, []
        report = judge_record(
            returns[SLOT_ACCOUNT],
            returns[EQUAL_WEIGHT],
            returns[self._simulator] if self._simulator else None,
            *scored,
            timeframe,
            seed=bootstrap_seed(bundle),
        )
        state = {"bundle": bundle.hash} | report.to_dict() | {"look": due}
        if report.verdict == "tracking off":
            return state, [("alert", report.text)]
        if report.verdict != "worse than scored":
            return state, [("monitor", f"{report.verdict}: {report.text}")]
        return state, [("alert", report.text), *self._react(report.text)]

    def check_tracking(
        self, bundle: Bundle, state: dict[str, Any]
    ) -> tuple[dict[str, Any], list[Told]]:
        """Compare the account with the simulator; this is no test, so it may be done every day.

        Returns:
            The new state, and an event when the account starts or stops straying.
        """
        if self._simulator is None:
            return state, []
        since, _ = since_present_bundle(self._store, self._slot, SLOT_ACCOUNT)
        names = (SLOT_ACCOUNT, self._simulator)
        returns = paired_returns(self._store, self._slot, names, since)
        if len(returns[SLOT_ACCOUNT]) < bars_per_day(bundle.manifest.timeframe):
            return state, []
        tracking = track(returns[SLOT_ACCOUNT], returns[self._simulator], bundle.manifest.timeframe)
        told: list[Told] = []
        if tracking.off != state.get("strays", False):
            words = STRAYS if tracking.off else "follows the simulator again"
            text = (
                f"the account {words}: tracking error {tracking.error:.1%} a year, "
                f"gap {tracking.gap:+.2%}"
            )
            told.append(("alert" if tracking.off else "monitor", text))
        return state | {"strays": tracking.off, "tracking": asdict(tracking)}, told

    def _react(self, text: str) -> list[Told]:
        """React to an account that trades worse than scored."""
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
        return [("halted", f"sells everything, until: sweepd trader resume {self._slot}")]

    def _scored_returns(self, bundle: Bundle) -> tuple[Array, Array] | str:
        """Return the hold-out returns of the bundle and of equal weight, or why there are none."""
        if bundle.hash not in self._scored:
            self._scored[bundle.hash] = _score(bundle, self._registry)
        return self._scored[bundle.hash]


def _score(bundle: Bundle, registry: Registry) -> tuple[Array, Array] | str:
    span = registry.evaluations.holdout_span(bundle.members_sha256)
    folder = registry.data_dir(bundle.hash)
    if span is None or folder is None:
        return "the registry does not know its hold-out"
    try:
        bars = bars_of(bundle, folder)
        first, last = (int(bars.time.searchsorted(moment)) for moment in span)
        if last >= len(bars.time) or (int(bars.time[first]), int(bars.time[last])) != span:
            return f"the bars in {folder} do not contain its hold-out"
        score = score_bundle(bundle, bars, (first - 1, last))
    except (InputError, OSError) as error:
        return str(error)
    if len(score.returns) < FEWEST_SCORED:
        return f"its hold-out has only {len(score.returns)} bars"
    return score.returns, score.equal_weight
