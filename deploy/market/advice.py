"""An explanation why no candidate passed, with advice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sweepd.deploy.market.backtests import SearchStatistics
from sweepd.deploy.promotion.rules import RuleFinding
from sweepd.deploy.promotion.sections import number
from sweepd.envs.crypto.data.timeframe import bars_per_year
from sweepd.envs.crypto.scoring import luck
from sweepd.envs.support.formatting import counted

ADVICE: Mapping[str, str] = {
    "training-faults": "see the trial's reason in sweepd status, and continue the study",
    "path-trades": "longer data, or a search space that trades more (a larger action_scale, more "
    "entropy)",
    "deflated-sharpe": "more data, a larger --budget for better policies, or a study with fewer "
    "trials; more trials on the same data only raise the ratio that is expected by luck",
    "pbo": "a narrower search space, more data or longer bars: so far, being best on some bars "
    "says little about other bars",
    "constant-policy": "a search space in which trading pays, or lower fees: holding needs no "
    "policy",
    "holdout-excess": "wait for new bars: each further evaluation on these bars has half the level",
    "max-drawdown": "a larger cash_reserve, a trailing stop or a drawdown penalty in the search "
    "space",
    "beats-champion": "keep the champion; compare again when there are more bars that neither has "
    "seen",
}
ALIKE = (
    "the trials that reached the final rung are similar and all beat equal weight, so which one is "
    "best is chance: let worse trials finish as well (--pruner none), widen the search space, or "
    "use more bars"
)


def why_none(
    *, judged_count: int, name: str, findings: Sequence[RuleFinding], search: SearchStatistics
) -> str:
    """One paragraph: the closest candidate, which rules it failed and by how much, and advice."""
    lacking = [finding for finding in findings if finding.verdict in ("fail", "defer")]
    where = (
        "hold-out"
        if any(finding.stage == "hold-out" for finding in lacking)
        else "cross-validation"
    )
    lacks = [
        f"{one.name} is {'not measurable' if one.value is None else number(one)} "
        f"where {one.comparison} {one.limit:g} is needed ({one.explanation})"
        for one in lacking
    ]
    found = search.overfitting
    alike = {"pbo": ALIKE} if found is not None and found.loss <= 0.05 else {}
    advice = [
        f"{one.name}: {alike.get(one.name, ADVICE[one.name])}"
        for one in lacking
        if one.name in ADVICE
    ]
    used = (
        "the hold-out was evaluated" if where == "hold-out" else "no hold-out evaluation was used"
    )
    return (
        f"{counted(judged_count, 'candidate')} judged, {used}; {name} came closest but failed in "
        f"{where}: "
        + "; ".join(lacks)
        + ". This is a normal result: most searches find nothing that beats holding equal weight "
        "after fees, and the best of many trials always looks good. "
        + _length(search)
        + ("What helps: " + "; ".join(advice) if advice else "")
    )


def _length(search: SearchStatistics) -> str:
    """Compare the length of the data with the minimum for that many trials (`luck`)."""
    years = search.bars / bars_per_year(search.timeframe)
    enough = luck.minimum_backtest_years(search.trials)
    if years >= enough or search.trials < 2:
        return ""
    return (
        f"With {search.trials} trials on {years:.1f} years of bars, the best trial is expected to "
        f"reach an annual information ratio of 1 by luck alone ({enough:.1f} years of bars would "
        "avoid that). "
    )
