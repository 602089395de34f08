"""The gate: the rules that a candidate must pass to become champion, as data.

Rules (`deploy.promotion.rules`) of the first stage read what cross-validation stored with the study's trials and cost nothing;
those of the second read the hold-out, at which every look is counted, so they are asked only about a candidate that
passed the first. A rule that cannot be measured yet defers the candidate: it stays a challenger.

Cross-validated statistics (deflated Sharpe ratio, PBO) describe the trial's members; what concerns the hold-out and
the constant policies is computed on the ensemble that would be deployed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from deploy.promotion.bootstrap import ALPHA, Bootstrap, gate_level
from deploy.promotion.overfitting import Overfitting
from deploy.promotion.rules import Measured, Rule
from envs.crypto.metrics import Metrics
from envs.crypto.selection import Deflation
from envs.support.formatting import percent

# Below so many batches the hold-out's test was seen to reject too often (scripts/bench/gate_statistics.py): at .05 in
# up to 8 % of series of at least `ENOUGH_BARS` without an advantage, and in up to 20 % of series of 100.
FEW_BATCHES, ENOUGH_BARS = 30, 300


@dataclass(frozen=True)
class Duel:
    """Candidate and champion, each flat at the start, over the bars that neither had seen.

    candidate, champion: metrics over the same bars, or None where there are too few of them. bars: how many there are.
    difference: whether the candidate's returns are higher. problem: why they cannot be compared at all, or "".
    """

    champion_name: str
    bars: int
    candidate: Metrics | None
    champion: Metrics | None
    difference: Bootstrap | None = None
    problem: str = ""


@dataclass(frozen=True)
class Selection:
    """What the whole search says about the candidate.

    finished: trials that ended in any way, reached: those whose paths are known at the final rung. deflation: None
    where the candidate's own are not known; overfitting: None where PBO could not be computed. annual: what makes a
    Sharpe ratio per bar an annual one. bars: of a path. chosen: how many trials the candidate consists of.
    """

    finished: int
    reached: int
    deflation: Deflation | None
    overfitting: Overfitting | None
    annual: float
    bars: int
    chosen: int = 1


@dataclass(frozen=True)
class Twin:
    """The constant policy that the deployed ensemble resembles most: its name, and the correlation of their returns
    over `bars` bars before the hold-out.
    """

    name: str
    correlation: float
    bars: int


@dataclass(frozen=True)
class Evidence:
    """What is known about a candidate.

    paths: its members' metrics, one per back-test path of cross-validation. faults: sentences about what went wrong in
    training. selection: None where no search chose it. twin: None if no constant policy was compared. look: number of
    the look at the hold-out; holdout: metrics of the deployed ensemble there through the canonical policy path; excess:
    whether it beats equal weight. duel: None if the slot is empty.
    """

    paths: tuple[Metrics, ...]
    faults: tuple[str, ...]
    selection: Selection | None = None
    twin: Twin | None = None
    look: int = 1
    holdout: Metrics | None = None
    excess: Bootstrap | None = None
    duel: Duel | None = None


def _training_faults(evidence: Evidence) -> Measured:
    count = len(evidence.faults)
    return Measured(
        count,
        evidence.faults[0]
        if count
        else "training and evaluation stayed finite, and the weights are those that were scored",
    )


def _path_trades(evidence: Evidence) -> Measured:
    if not evidence.paths:
        return Measured(None, "the trial stored no back-test path")
    fewest = min(metrics.trades for metrics in evidence.paths)
    return Measured(
        fewest,
        f"the quietest of {len(evidence.paths)} back-test paths made {fewest:,} trades; a few trades prove nothing",
    )


def _deflated_sharpe(evidence: Evidence) -> Measured | None:
    selection = evidence.selection
    if selection is None:
        return None
    found = selection.deflation
    if found is None:
        return Measured(None, "the trial stored no back-test path")
    own, luck, needed = (
        selection.annual * ratio for ratio in (found.moments.sharpe, found.luck, found.needed)
    )
    path = (
        "its path" if len(found.by_path) == 1 else f"the median of its {len(found.by_path)} paths"
    )
    lucky = f"the best of {found.trials} trials ({found.effective:.1f} independent ones) would show {luck:+.2f} by luck"
    if selection.chosen > 1:
        lucky = (
            f"{selection.chosen} trials, each as lucky as the best of {found.trials} ({found.effective:.1f} "
            f"independent ones), would show {luck:+.2f} together, {found.diversification:.2f} times what one would"
        )
    explanation = f"on {path} its members have an annual information ratio over equal weight of {own:+.2f}; {lucky}, "
    explanation += (
        f"and {needed:+.2f} is needed"
        if math.isfinite(needed)
        else "and there are too few bars for any"
    )
    if math.isfinite(found.record) and found.record > selection.bars:
        explanation += f", or {found.record / selection.bars:,.1f} times as much data at this ratio"
    return Measured(found.probability, explanation)


def _overfitting(evidence: Evidence) -> Measured | None:
    selection = evidence.selection
    if selection is None or selection.finished < 2:
        return None  # nothing was chosen
    found = selection.overfitting
    if found is None:
        return Measured(
            None,
            f"{selection.reached} of {selection.finished} trials reached the final rung: at least 2 (and 32 bars) are "
            "needed to see whether the best one stays ahead",
        )
    best = (
        "the trial that was best on one half was"
        if found.chosen == 1
        else "the trials chosen on one half were"
    )
    lost = (
        "it lost to equal weight" if found.chosen == 1 else "they lost to equal weight on average"
    )
    return Measured(
        found.pbo,
        f"in {found.pbo:.0%} of {len(found.logits):,} ways to halve the bars, {best} no better than the median of "
        f"{selection.reached} on the other, in {found.loss:.0%} {lost}",
    )


def _constant_policy(evidence: Evidence) -> Measured | None:
    twin = evidence.twin
    if twin is None:
        return None
    return Measured(
        twin.correlation,
        f"the returns of the constant policy it resembles most, {twin.name}, have a correlation of "
        f"{twin.correlation:.3f} with its own over the {twin.bars:,} bars before the hold-out",
    )


def _holdout_excess(evidence: Evidence) -> Measured:
    metrics, test = _need(evidence.holdout), evidence.excess
    returns = (
        f"{percent(metrics.total_return)} after fees on the hold-out, where equal weight made "
        f"{percent(metrics.equal_weight_return)} (annual Sharpe ratio {metrics.sharpe:+.2f} and "
        f"{metrics.equal_weight_sharpe:+.2f}, information ratio {metrics.information_ratio:+.2f})"
    )
    if test is None:
        return Measured(None, returns)
    return Measured(
        test.p,
        f"{returns}; were there no advantage, one like this would show with chance {test.p:.2g}, and look "
        f"{evidence.look} at this hold-out asks for {gate_level(evidence.look):.2g} at most{_few_values(test)}",
        scale=gate_level(evidence.look) / ALPHA,
    )


def _few_values(test: Bootstrap) -> str:
    """A warning where a p value comes from few independent values; "" elsewhere."""
    if not 0 < test.batches < FEW_BATCHES:
        return ""
    factor = 1.6 if test.bars >= ENOUGH_BARS else 4.0
    return (
        f"; the differences are so correlated from bar to bar that {test.bars:,} bars count as about {test.batches} "
        f"independent values, so p may be too small (measured at p = .05: up to {factor:g} times as many false "
        "positives as intended)"
    )


def _holdout_drawdown(evidence: Evidence) -> Measured:
    metrics = _need(evidence.holdout)
    return Measured(
        metrics.max_drawdown,
        f"fell at most {metrics.max_drawdown:.1%} from a peak (equal weight {metrics.equal_weight_drawdown:.1%})",
    )


def _beats_champion(evidence: Evidence) -> Measured | None:
    duel = evidence.duel
    if duel is None:
        return None
    if duel.problem:
        return Measured(None, duel.problem)
    if duel.candidate is None or duel.champion is None or duel.difference is None:
        return Measured(
            None,
            f"only {duel.bars} bars are newer than what both have seen: too few to compare with champion "
            f"{duel.champion_name}, so it stays a challenger",
            defer=True,
        )
    return Measured(
        duel.difference.p,
        f"{percent(duel.candidate.total_return)} after fees, where champion {duel.champion_name} made "
        f"{percent(duel.champion.total_return)}, over the {duel.bars:,} bars that neither had seen; without a "
        f"difference, one like this would show with chance {duel.difference.p:.2g}{_few_values(duel.difference)}",
        scale=gate_level(evidence.look) / ALPHA,
    )


def _need(metrics: Metrics | None) -> Metrics:
    if metrics is None:
        raise ValueError("hold-out rules are asked after the hold-out was scored")
    return metrics


DEFAULT_RULES: tuple[Rule[Evidence], ...] = (
    Rule(
        "training-faults",
        "cross-validation",
        "<=",
        0.0,
        "nothing went wrong in training",
        _training_faults,
    ),
    Rule(
        "path-trades", "cross-validation", ">=", 30.0, "enough trades to judge it by", _path_trades
    ),
    Rule(
        "deflated-sharpe",
        "cross-validation",
        ">=",
        0.95,
        "better than luck among so many trials",
        _deflated_sharpe,
    ),
    Rule(
        "pbo",
        "cross-validation",
        "<=",
        0.2,
        "the best trial stays ahead on other bars",
        _overfitting,
    ),
    Rule(
        "constant-policy",
        "cross-validation",
        "<",
        0.99,
        "more than buying and holding in disguise",
        _constant_policy,
    ),
    Rule(
        "holdout-excess",
        "hold-out",
        "<=",
        ALPHA,
        "beats equal weight on unseen bars",
        _holdout_excess,
    ),
    Rule("max-drawdown", "hold-out", "<=", 0.35, "bearable losses on the way", _holdout_drawdown),
    Rule("beats-champion", "hold-out", "<=", ALPHA, "beats the present champion", _beats_champion),
)
