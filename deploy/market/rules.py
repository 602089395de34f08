"""The gate of markets: the rules that a candidate must pass to become champion.

The rules (`sweepd.deploy.promotion.rules`) of the first stage read what cross-validation stored
with the study's trials and can be evaluated any number of times. Those of the second stage read the
hold-out; every evaluation on it is counted, so only candidates that passed the first stage reach
it. A rule that cannot be measured yet defers the candidate, which stays a challenger.

Statistics of cross-validation (deflated Sharpe ratio, PBO) describe the trial's members. Numbers of
the hold-out and of constant policies are computed on the ensemble that would be deployed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sweepd.deploy.promotion.bootstrap import ALPHA, Bootstrap, gate_level
from sweepd.deploy.promotion.overfitting import Overfitting
from sweepd.deploy.promotion.rules import GateRule, Measured, training_faults
from sweepd.envs.crypto.scoring.figures import shown
from sweepd.envs.crypto.scoring.metrics import Metrics
from sweepd.envs.crypto.scoring.selection import Deflation, verdict_text

CROSS_VALIDATION, HOLDOUT = "cross-validation", "hold-out"  # the stages

# With fewer batches the hold-out's test rejects too often
# (scripts/bench/quality/gate_statistics.py): at a level of .05 in up to 8% of series without an
# advantage that have at least `ENOUGH_BARS` bars, and in up to 20% of series of 100 bars.
FEW_BATCHES, ENOUGH_BARS = 30, 300
MOST_DATA = 100  # times the bars of a path: more of them is no advice


@dataclass(frozen=True)
class ChampionComparison:
    """Candidate and champion over the bars that neither had seen, each without positions at first.

    Attributes:
        champion_name: the champion's bundle.
        bars: number of those bars.
        candidate: the candidate's metrics, None if there are too few bars.
        champion: the champion's metrics over the same bars.
        difference: test whether the candidate's returns are higher.
        problem: why they cannot be compared at all, "" if they can.
    """

    champion_name: str
    bars: int
    candidate: Metrics | None
    champion: Metrics | None
    difference: Bootstrap | None = None
    problem: str = ""


@dataclass(frozen=True)
class Selection:
    """Statistics of the whole search about the candidate.

    Attributes:
        finished: trials that finished in any state.
        reached: trials with paths at the final rung.
        deflation: deflated Sharpe ratio, None without the candidate's paths.
        overfitting: PBO, None if it cannot be computed.
        annual: factor that makes a Sharpe ratio per bar an annual one.
        bars: number of bars of a path.
        chosen: number of trials in the candidate.
    """

    finished: int
    reached: int
    deflation: Deflation | None
    overfitting: Overfitting | None
    annual: float
    bars: int
    chosen: int = 1


@dataclass(frozen=True)
class NearestConstant:
    """The constant policy with the returns most similar to those of the deployed ensemble.

    Attributes:
        name: of the constant policy.
        correlation: of the two return series.
        bars: number of bars compared, all before the hold-out.
    """

    name: str
    correlation: float
    bars: int


@dataclass(frozen=True)
class MarketEvidence:
    """The evidence about a candidate.

    Attributes:
        paths: metrics of its members, one per back-test path of cross-validation.
        faults: what went wrong in training, in sentences.
        selection: statistics of the search, None if no search chose the candidate.
        nearest_constant: None if constant policies were not compared.
        look: number of the evaluation on the hold-out.
        holdout: metrics of the deployed ensemble on the hold-out (canonical policy path).
        excess: test whether the ensemble's returns exceed those of equal weight.
        comparison: with the champion, None for an empty slot.
    """

    paths: tuple[Metrics, ...]
    faults: tuple[str, ...]
    selection: Selection | None = None
    nearest_constant: NearestConstant | None = None
    look: int = 1
    holdout: Metrics | None = None
    excess: Bootstrap | None = None
    comparison: ChampionComparison | None = None


def _path_trades(evidence: MarketEvidence) -> Measured:
    if not evidence.paths:
        return Measured(None, "the trial stored no back-test path")
    fewest = min(metrics.trades for metrics in evidence.paths)
    return Measured(
        fewest, f"the back-test path with the fewest trades of {len(evidence.paths)} has {fewest:,}"
    )


def _deflated_sharpe(evidence: MarketEvidence) -> Measured | None:
    selection = evidence.selection
    if selection is None:
        return None
    found = selection.deflation
    if found is None:
        return Measured(None, "the trial stored no back-test path")
    # The explanation shows annual ratios; the test itself is on ratios per bar.
    explanation = "its members have " + verdict_text(
        selection.annual * found.moments.sharpe,
        selection.annual * found.needed,
        paths=len(found.by_path),
        trials=found.trials,
        effective=found.effective,
    )
    if selection.chosen > 1:
        explanation += (
            f", since {selection.chosen} trials, each as lucky as the best of {found.trials}, have "
            f"{found.diversification:.2f} times the ratio of one together"
        )
    return Measured(found.probability, explanation + _more_data(found.record / selection.bars))


def _more_data(times: float) -> str:
    """Say how many times as many bars would suffice at the same ratio; "" if these do."""
    if times <= 1.0:
        return ""
    if times > MOST_DATA:  # infinite where the ratio is not above the one of luck
        return "; no realistic amount of data would distinguish this ratio from luck"
    return f", or {math.ceil(times)} times as much data at this ratio"


def _overfitting(evidence: MarketEvidence) -> Measured | None:
    selection = evidence.selection
    if selection is None or selection.finished < 2:
        return None  # there was nothing to choose from
    found = selection.overfitting
    if found is None:
        return Measured(
            None,
            f"{selection.reached} of {selection.finished} trials reached the final rung: at least "
            "2 (and 32 bars) are needed to test whether the best one stays ahead",
        )
    best, lost = "the trials chosen on one half were", "they lost to equal weight on average"
    if found.chosen == 1:
        best, lost = "the trial that was best on one half was", "it lost to equal weight"
    return Measured(
        found.pbo,
        f"in {found.pbo:.1%} of {len(found.logits):,} ways to halve the bars, {best} no better "
        f"than the median of {selection.reached} on the other half; in {found.loss:.1%} {lost}",
    )


def _constant_policy(evidence: MarketEvidence) -> Measured | None:
    nearest = evidence.nearest_constant
    if nearest is None:
        return None
    return Measured(
        nearest.correlation,
        f"its returns have a correlation of {nearest.correlation:.3f} with those of the most "
        f"similar constant policy, {nearest.name}, over the {nearest.bars:,} bars before the "
        "hold-out",
    )


def _holdout_excess(evidence: MarketEvidence) -> Measured:
    metrics, test = _need(evidence.holdout), evidence.excess
    returns = (
        f"{shown('total_return', metrics.total_return)} after fees on the hold-out, equal weight "
        f"{shown('equal_weight_return', metrics.equal_weight_return)} (annual Sharpe ratios "
        f"{shown('sharpe', metrics.sharpe)} and "
        f"{shown('equal_weight_sharpe', metrics.equal_weight_sharpe)}, information ratio "
        f"{shown('information_ratio', metrics.information_ratio)})"
    )
    if test is None:
        return Measured(None, returns)
    return _p_value(
        evidence,
        test,
        f"{returns}; p = {test.p:.2g} for no advantage, and evaluation {evidence.look} on this "
        f"hold-out requires at most {gate_level(evidence.look):.2g}",
    )


def _p_value(evidence: MarketEvidence, test: Bootstrap, explanation: str) -> Measured:
    # The rule's limit is for all evaluations together, `ALPHA` by default; the scale turns it into
    # the level of this one, and a limit that the user set shrinks alike.
    scale = gate_level(evidence.look) / ALPHA
    return Measured(test.p, explanation + _few_values(test), scale=scale)


def _few_values(test: Bootstrap) -> str:
    """A warning if a p value comes from few independent values, else ""."""
    if not 0 < test.batches < FEW_BATCHES:
        return ""
    # The factors are the largest sizes of the table in docs/evidence/gate.md, divided by .05.
    factor = 1.6 if test.bars >= ENOUGH_BARS else 4.0
    return (
        f"; because of autocorrelation, {test.bars:,} bars count as about {test.batches} "
        f"independent values, so p may be too small (measured at p = .05: up to {factor:g} times "
        "as many false positives as intended)"
    )


def _holdout_drawdown(evidence: MarketEvidence) -> Measured:
    metrics = _need(evidence.holdout)
    return Measured(
        metrics.max_drawdown,
        f"fell at most {shown('max_drawdown', metrics.max_drawdown)} below a peak (equal weight "
        f"{shown('equal_weight_drawdown', metrics.equal_weight_drawdown)})",
    )


def _beats_champion(evidence: MarketEvidence) -> Measured | None:
    found = evidence.comparison
    if found is None:
        return None
    if found.problem:
        return Measured(None, found.problem)
    if found.candidate is None or found.champion is None or found.difference is None:
        return Measured(
            None,
            f"only {found.bars} bars are newer than what both have seen: too few to compare with "
            f"champion {found.champion_name}, so it stays a challenger",
            defer=True,
        )
    return _p_value(
        evidence,
        found.difference,
        f"{shown('total_return', found.candidate.total_return)} after fees, champion "
        f"{found.champion_name} {shown('total_return', found.champion.total_return)}, over the "
        f"{found.bars:,} bars that neither had seen; p = {found.difference.p:.2g} for no difference",
    )


def _need(metrics: Metrics | None) -> Metrics:
    if metrics is None:
        raise ValueError("hold-out rules need the metrics of the hold-out")
    return metrics


DEFAULT_RULES: tuple[GateRule[MarketEvidence], ...] = (
    training_faults(
        CROSS_VALIDATION,
        "training and evaluation stayed finite, and the weights are those that were scored",
    ),
    GateRule(
        "path-trades", CROSS_VALIDATION, ">=", 30.0, "enough trades for a judgement", _path_trades
    ),
    GateRule(
        "deflated-sharpe",
        CROSS_VALIDATION,
        ">=",
        0.95,
        "better than luck among so many trials",
        _deflated_sharpe,
    ),
    GateRule(
        "pbo", CROSS_VALIDATION, "<=", 0.2, "the best trial stays ahead on other bars", _overfitting
    ),
    GateRule(
        "constant-policy",
        CROSS_VALIDATION,
        "<",
        0.99,
        "not the same as a constant policy",
        _constant_policy,
    ),
    GateRule(
        "holdout-excess", HOLDOUT, "<=", ALPHA, "beats equal weight on unseen bars", _holdout_excess
    ),
    GateRule("max-drawdown", HOLDOUT, "<=", 0.35, "a limited largest loss", _holdout_drawdown),
    GateRule("beats-champion", HOLDOUT, "<=", ALPHA, "beats the present champion", _beats_champion),
)
