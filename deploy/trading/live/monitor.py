"""The live monitor of a slot: judges the account when a look is due.

The account is compared with the bundle's own hold-out, which is scored again by the canonical path
from the bars that it was promoted on; or, of a bundle from the arena, with the record that it was
chosen by (`sweepd.deploy.market.scored`). Without either there is no verdict. `due`, `judge` and
`heard` are pure; the class reads the record for them.
`sweepd.deploy.trading.live.monitor_statistics` has the statistics.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.scoring import bars_of, bootstrap_seed, score_bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.events import Judged, Look
from sweepd.deploy.trading.live.monitor_statistics import (
    FEWEST_SCORED,
    MonitorReport,
    judge_record,
    look_number,
    track,
)
from sweepd.deploy.trading.live.records import EQUAL_WEIGHT, SLOT_ACCOUNT, STRAYS
from sweepd.deploy.trading.live.returns import Array, paired_returns, since_present_bundle
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.crypto.data.timeframe import bars_per_day
from sweepd.envs.support.errors import InputError


@dataclass(frozen=True)
class Finding:
    """The result of a look at a bundle's record.

    look: its number. result: of the statistics, or why there is nothing to compare with.
    """

    bundle: str
    look: int
    result: MonitorReport | str


def due(state: dict[str, Any], bundle: str, bars: int, timeframe: str) -> int:
    """Return the number of the look that is due, 0 if none is.

    Args:
        state: what `heard` returned last, empty at first.
        bundle: hash of the traded bundle.
        bars: number of bars in which it could trade freely.
        timeframe: of the bars.
    """
    number = look_number(bars, timeframe)
    return number if number > _of(state, bundle)["look"] else 0


def judge(
    bundle: str,
    look: int,
    account: Array,
    equal_weight: Array,
    simulator: Array | None,
    scored: tuple[Array, Array] | str,
    timeframe: str,
    *,
    seed: int,
) -> Finding | None:
    """Judge a record of simple returns per bar, (n,); None if it is too short for the look.

    Args:
        bundle: hash of the traded bundle.
        look: number of the look that is due.
        account: of the slot's own account, without spans in which it was kept out of the market.
        equal_weight: of the same bars.
        simulator: of the same bars, or None.
        scored: the scored returns and those of equal weight, (m,) each, or why there are none.
        timeframe: of the bars.
        seed: of the bootstrap.
    """
    if isinstance(scored, str):
        return Finding(bundle, look, scored)
    if look_number(len(account), timeframe) < look:
        return None
    report = judge_record(account, equal_weight, simulator, *scored, timeframe, seed=seed)
    return Finding(bundle, look, report)


def heard(state: dict[str, Any], found: Finding) -> Judged:
    """Return what follows from a look."""
    state, report = _of(state, found.bundle), found.result
    if isinstance(report, str):
        text = f"there is no record to compare with: {report}"
        known = {"look": found.look, "verdict": "unknown", "text": text}
        return Judged("monitor", state | known, (("monitor", text),))
    state = {"bundle": found.bundle} | report.to_dict() | {"look": found.look}
    if report.verdict == "tracking off":
        return Judged("monitor", state, (("alert", report.text),))
    if report.verdict != "worse than scored":
        return Judged("monitor", state, (("monitor", f"{report.verdict}: {report.text}"),))
    # A deep drawdown may have been bad luck of the account; a lost edge is the policy's.
    aged = report.edge is not None and report.edge.p <= report.level
    return Judged("monitor", state, (("alert", report.text),), worse=report.text, aged=aged)


def _of(state: dict[str, Any], bundle: str) -> dict[str, Any]:
    """Return the state, or a new one for another bundle."""
    if state.get("bundle") == bundle:
        return state
    text = "too early for a verdict"
    return {"bundle": bundle, "look": 0, "verdict": "too early", "text": text}


class Monitor:
    """Monitors a slot's own account.

    Args:
        slot: the slot.
        registry: the registry that holds it.
        store: the traders' rows.
        simulator: name of the account that repeats it in the simulator, or None.
    """

    def __init__(
        self, slot: str, registry: Registry, store: TraderStore, simulator: str | None
    ) -> None:
        self._slot, self._registry, self._store = slot, registry, store
        self._simulator = simulator
        self._scored: dict[str, tuple[Array, Array] | str] = {}

    def evaluate(self, bundle: Bundle, look: Look, state: dict[str, Any]) -> Judged:
        """Judge the account's record with this bundle, if a look is due.

        Args:
            bundle: the traded bundle.
            look: what is asked.
            state: of the last judgement, a JSON object.
        """
        timeframe = bundle.manifest.timeframe
        state, number = _of(state, bundle.hash), due(state, bundle.hash, look.bars, timeframe)
        if not number:
            return Judged("monitor", state)
        since, _ = since_present_bundle(self._store, self._slot, SLOT_ACCOUNT)
        names = (SLOT_ACCOUNT, EQUAL_WEIGHT, *([self._simulator] if self._simulator else []))
        returns = paired_returns(self._store, self._slot, names, since, without=look.kept_out)
        found = judge(
            bundle.hash,
            number,
            returns[SLOT_ACCOUNT],
            returns[EQUAL_WEIGHT],
            returns[self._simulator] if self._simulator else None,
            self._scored_returns(bundle),
            timeframe,
            seed=bootstrap_seed(bundle),
        )
        return Judged("monitor", state) if found is None else heard(state, found)

    def check_tracking(self, bundle: Bundle, look: Look, state: dict[str, Any]) -> Judged:
        """Compare the account with the simulator; this is no test, so it may be done every day.

        An event reports when the account starts or stops straying.
        """
        if self._simulator is None:
            return Judged("tracking", state)
        since, _ = since_present_bundle(self._store, self._slot, SLOT_ACCOUNT)
        names = (SLOT_ACCOUNT, self._simulator)
        # Halts do not stop the simulator.
        returns = paired_returns(self._store, self._slot, names, since, without=look.kept_out)
        if len(returns[SLOT_ACCOUNT]) < bars_per_day(bundle.manifest.timeframe):
            return Judged("tracking", state)
        tracking = track(returns[SLOT_ACCOUNT], returns[self._simulator], bundle.manifest.timeframe)
        told: tuple[tuple[str, str], ...] = ()
        if tracking.off != state.get("strays", False):
            words = STRAYS if tracking.off else "follows the simulator again"
            text = (
                f"the account {words}: tracking error {tracking.error:.1%} a year, "
                f"gap {tracking.gap:+.2%}"
            )
            told = (("alert" if tracking.off else "monitor", text),)
        state = state | {"strays": tracking.off, "tracking": asdict(tracking)}
        return Judged("tracking", state, told)

    def _scored_returns(self, bundle: Bundle) -> tuple[Array, Array] | str:
        """Return `_score` of a bundle, which is computed once."""
        if bundle.hash not in self._scored:
            self._scored[bundle.hash] = _score(bundle, self._registry)
        return self._scored[bundle.hash]


def _score(bundle: Bundle, registry: Registry) -> tuple[Array, Array] | str:
    """Return the scored returns of a bundle and of equal weight, or why there are none."""
    found = _score_holdout(bundle, registry)
    # A bundle from the arena has seen no hold-out, and has the record that it was chosen by.
    if isinstance(found, str) and bundle.scored is not None:
        found = bundle.scored.expected, bundle.scored.equal_weight
    if isinstance(found, str):
        return found
    if len(found[0]) < FEWEST_SCORED:
        return f"its scored record has only {len(found[0])} bars"
    return found


def _score_holdout(bundle: Bundle, registry: Registry) -> tuple[Array, Array] | str:
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
    return score.returns, score.equal_weight
