"""Why no candidate passed, and what to do about it, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deploy.market.backtests import SearchStatistics
from deploy.promotion.rules import Finding
from envs.crypto import luck
from envs.crypto.timeframe import bars_per_year

NEXT: Mapping[str, str] = {
    "training-faults": "look at the trial's reason in sweepd status, and let the study go on",
    "path-trades": "longer data, or a search space that trades more (a larger action_scale, more entropy)",
    "deflated-sharpe": "more data, a larger --budget so that policies get better, or a study with fewer trials; "
    "more trials on the same data only raise what luck would show",
    "pbo": "a narrower search space, more data or longer bars: being best on some bars says little about others so far",
    "constant-policy": "a search space in which trading pays, or lower fees: holding needs no policy",
    "holdout-excess": "wait for new bars: every further look at these bars is tested at half the level",
    "max-drawdown": "a larger cash_reserve, a trailing stop or a drawdown penalty in the search space",
    "beats-champion": "keep the champion; compare again when there are more bars that neither has seen",
}


ALIKE = (
    "the trials that reached the end are alike and all beat equal weight, so which one is best is chance: let worse "
    "ones finish, too (--pruner none), widen the search space, or use more bars"
)


def why_none(
    *, judged_count: int, name: str, findings: Sequence[Finding], search: SearchStatistics
) -> str:
    """One paragraph: which candidate came closest, which rules it failed and by how much, and what helps."""
    lacking = [finding for finding in findings if finding.verdict in ("fail", "defer")]
    where = (
        "hold-out"
        if any(finding.stage == "hold-out" for finding in lacking)
        else "cross-validation"
    )
    lacks = [
        f"{finding.name} is {'not measurable' if finding.value is None else format(finding.value, '.4g')} "
        f"where {finding.comparison} {finding.limit:g} is needed ({finding.explanation})"
        for finding in lacking
    ]
    found = search.overfitting
    alike = {"pbo": ALIKE} if found is not None and found.loss <= 0.05 else {}
    advice = [
        f"{one.name}: {alike.get(one.name, NEXT[one.name])}" for one in lacking if one.name in NEXT
    ]
    looked = (
        "the hold-out was looked at" if where == "hold-out" else "no look at the hold-out was spent"
    )
    return (
        f"{judged_count} candidate(s) judged, {looked}; {name} came closest but failed in {where}: "
        + "; ".join(lacks)
        + ". This is a normal result: most searches find nothing that beats holding equal weight after fees, and the "
        "best of many trials always looks good. "
        + _length(search)
        + ("What helps: " + "; ".join(advice) if advice else "")
    )


def _length(search: SearchStatistics) -> str:
    """How the data's length compares with what so many trials need."""
    years = search.bars / bars_per_year(search.timeframe)
    enough = luck.minimum_backtest_years(search.trials)
    if years >= enough or search.trials < 2:
        return ""
    return (
        f"With {search.trials} trials on {years:.1f} years of bars, the best trial is expected to reach an annual "
        f"information ratio of 1 by luck alone ({enough:.1f} years of bars would be enough to avoid that). "
    )
