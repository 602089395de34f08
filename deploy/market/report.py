"""What is told about a market's policy: a promotion, and a bundle in `registry show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sweepd.deploy.market.backtests import SearchStatistics
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.candidates import MarketPromotion, MarketResult, MarketStudy, name_trials
from sweepd.deploy.market.rules import HOLDOUT
from sweepd.deploy.promotion.report import gate_findings, identity, promotion_report
from sweepd.deploy.promotion.sections import (
    SYNTHETIC,
    Cell,
    Report,
    ReportPicture,
    ReportTable,
    ReportTerms,
    Section,
    Styled,
    capital,
    parameters_text,
)
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.crypto.scoring.figures import COLUMNS, TITLE, figures
from sweepd.envs.support.formatting import minute

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOOTER = "Research software, paper trading only. Past results do not predict future ones."
READING = ReportTerms(
    "How to read this",
    (
        (
            "What is tested",
            "A search tries many settings and keeps the best. Even if none of them had any skill, the "
            "best would look good, and better the more are tried. The rules test whether this one is "
            "better than that: first on bars that its training did not use (cross-validation), and "
            "only then on the newest bars, which the search did not use (the hold-out).",
        ),
        (
            "Hold-out evaluations",
            "Each evaluation on a hold-out makes it more likely that some candidate passes by luck, so "
            "each has half the significance level of the one before. Evaluations are counted over all "
            "studies whose hold-outs overlap in time and share a base asset (quote currencies do not "
            "matter), in this registry only. Evaluations in another registry (another deployments "
            "folder or database) or with other programs are unknown here; if there were any, the limit "
            "of holdout-excess is too mild.",
        ),
        (
            "After and before fees",
            "Before fees means the same trades without their fees; slippage remains. So the difference is "
            "what the fees took. Equal weight holds all assets in equal shares.",
        ),
        (
            "A year over equal weight",
            "The mean excess return of a bar on the median path, times the bars of a year, without "
            "compounding, as in the information ratio. The returns in the table compound, and are "
            "means over paths. Where prices fluctuate much, they can be ahead of equal weight while "
            "the mean is behind.",
        ),
        (
            "Equity",
            "The value of one unit of money after fees, compared with holding all assets in equal "
            "shares; below it, the drawdown from the highest value. Cross-validation has one line per "
            "path: the same bars, traded by policies trained on different parts of the other bars.",
        ),
        (
            "Better than luck?",
            "The information ratio is the Sharpe ratio (return per risk) of the returns in excess of "
            "equal weight. Grey: all trials that reached the final rung. Red: the expected best of "
            "that many trials without any skill. Dashed: the ratio that is needed to be 95% sure that "
            "it is more than that (deflated Sharpe ratio).",
        ),
        (
            "Good on other bars?",
            "The bars are cut in halves in thousands of ways. Each time, the trial that is best on one "
            "half is ranked on the other. If choosing the best means anything, it mostly ranks above "
            "the median there (right of 0). The share of halves in which it does not is the "
            "probability of back-test overfitting (PBO); pure chance gives 50%.",
        ),
        (
            "Good in every fold?",
            "Blue is better than holding equal weight, red is worse. A column that is blue throughout "
            "is good in every fold; one that is blue in a single row was lucky once. The candidate is "
            "framed.",
        ),
    ),
)


def market_report(
    study: MarketStudy,
    promotion: MarketPromotion,
    search: SearchStatistics | None,
    registry: Registry,
    data_dir: Path,
) -> Report:
    """The report on a promotion.

    Args:
        study: the study.
        promotion: of one of its candidates.
        search: statistics of all trials of the study; None if nothing was judged.
        registry: where the slot's champion is.
        data_dir: folder of the bars.
    """
    chosen = promotion.chosen
    evidence, picture = list[ReportTable](), None
    if chosen is not None and search is not None:
        candidate, score = chosen.candidate, chosen.score
        holdout = {} if score is None else score.report()
        evidence = metrics_tables(candidate.trials, candidate.metrics, holdout)
        picture = ReportPicture(
            "Equity, Sharpe ratios, ranks out of sample and fold scores",
            partial(_draw, study, promotion, search, registry, data_dir),
        )
    return promotion_report(
        promotion,
        evaluation=f"{HOLDOUT} evaluation",
        cells=_cells,
        about=_about(promotion, search, synthetic=study.spec.data.synthetic),
        evidence=evidence,
        picture=picture,
        reading=READING,
        footer=FOOTER,
    )


def metrics_tables(
    trials: Sequence[int], over_paths: Mapping[str, Any], holdout: Mapping[str, Any]
) -> list[ReportTable]:
    """The metrics that trials were judged by; see `sweepd.envs.crypto.scoring.figures`.

    Args:
        trials: their numbers.
        over_paths: in cross-validation; empty if the trial recorded none.
        holdout: as `Score.report` returns it; empty if they were not scored there.
    """
    tables = []
    if over_paths:
        tables.append(_table(f"{capital(name_trials(trials))}, {TITLE}", over_paths))
    if holdout:
        traded_by = (
            "the ensemble of the trial's fold members"
            if len(trials) == 1
            else "trials as sub-accounts, netted orders"
        )
        times = f"{minute(holdout['first'])} to {minute(holdout['last'])} UTC"
        span = f"{holdout['bars']:,} bars, {times}"
        tables.append(_table(f"Hold-out, {span}: {traded_by}, canonical policy path", holdout))
    return tables


def _table(title: str, metrics: Mapping[str, Any]) -> ReportTable:
    return ReportTable(title, ("", *COLUMNS), [one.cells for one in figures(metrics)])


def _cells(result: MarketResult) -> dict[str, str]:
    return {
        "trial": " ".join(str(number) for number in result.candidate.trials),
        "objective": f"{result.candidate.objective:+.4f}",
    }


def _about(
    promotion: MarketPromotion, search: SearchStatistics | None, *, synthetic: bool
) -> list[str]:
    chosen = promotion.chosen
    lines = []
    if search is not None and chosen is not None:
        judged = (
            "in cross-validation alone"
            if chosen.look is None
            else f"in cross-validation and by hold-out evaluation {chosen.look.number}"
        )
        lines.append(
            f"Study {promotion.study}: {search.trials} trials, {len(search.backtests)} of them at "
            f"the final rung; {search.bars:,} bars of {search.timeframe}. "
            f"{capital(chosen.candidate.name)} was judged {judged}. Hold-out evaluations used, in "
            f"this registry: {promotion.looks}."
        )
    return [*lines, *([SYNTHETIC] if synthetic else [])]


def _draw(
    study: MarketStudy,
    promotion: MarketPromotion,
    search: SearchStatistics,
    registry: Registry,
    data_dir: Path,
) -> Figure:
    from sweepd.deploy.market.pictures import draw_promotion  # imports matplotlib

    return draw_promotion(study, promotion, search, registry, data_dir)


def market_facts(
    registry: Registry, bundle: Bundle, places: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What `registry show` prints about a policy. places: its present and former slots."""
    manifest = bundle.manifest
    return {
        "bundle": bundle.hash,
        "weights_sha256": bundle.members_sha256,
        "folder": str(registry.path(bundle.hash)),
        "slots": list(places),
        "study": bundle.origin.study,
        "trial": bundle.origin.trial,
        "seed": bundle.origin.seed,
        "objective": {bundle.origin.objective: bundle.origin.objective_value},
        "policy": manifest.trials[0].policy.model_dump(mode="json"),
        "trials": [trial.model_dump(mode="json") for trial in manifest.trials],
        "tickers": list(manifest.tickers),
        "timeframe": manifest.timeframe,
        "recipe": f"{manifest.recipe.name} {manifest.recipe.version}",
        "data": manifest.data.model_dump(mode="json"),
        "last_seen_bar": manifest.last_seen_bar,
        "code_version": manifest.code_version,
        "look": manifest.gate.get("look"),
        "looks_now": _looks_now(registry, bundle),
        "metrics": manifest.metrics["over_paths"],
        "holdout": manifest.gate.get("holdout") or {},
        "findings": manifest.gate.get("findings", []),
        "parameters": bundle.origin.parameters,
        "environment": manifest.trials[0].env_params,
    }


def _looks_now(registry: Registry, bundle: Bundle) -> int | None:
    span = registry.evaluations.holdout_span(bundle.members_sha256)
    return (
        None if span is None else registry.evaluations.count_holdout(bundle.manifest.tickers, *span)
    )


def market_sections(facts: Mapping[str, Any]) -> list[Section]:
    """A policy: identity, gate and metrics. facts: as `market_facts` returns them."""
    trials = [trial["origin"]["trial"] for trial in facts["trials"]]
    return [
        identity(facts, _identity(facts), "hold-out"),
        *gate_findings(facts),
        *metrics_tables(trials, facts["metrics"], facts["holdout"]),
    ]


def _identity(facts: Mapping[str, Any]) -> list[tuple[str, Cell]]:
    trials, data = facts["trials"], facts["data"]
    terms: list[tuple[str, Cell]] = []
    if data["synthetic"]:
        terms.append(("market", Styled(SYNTHETIC, "defer")))
    for trial in trials:
        origin, policy = trial["origin"], trial["policy"]
        hidden = "×".join(str(width) for width in policy["hidden"])
        objective = f"{origin['objective']} {origin['objective_value']:+.4f}"
        whole = len(trials) == 1
        terms += [
            (
                "from" if whole else f"{trial['share']:.1%} of capital",
                f"study {origin['study']}, trial {origin['trial']} ({objective}), seed "
                f"{origin['seed']}",
            ),
            (
                "policy" if whole else "",
                f"{policy['algorithm']}, mean of {policy['members']} members, layers {hidden}",
            ),
            ("parameters" if whole else "", parameters_text(origin["parameters"])),
        ]
    synthetic = " (synthetic)" if data["synthetic"] else ""
    return [
        *terms,
        ("trades", f"{' '.join(facts['tickers'])} on {facts['timeframe']} bars"),
        (
            "made with",
            f"bars {data['first']} to {data['last']}{synthetic}, seen up to "
            f"{facts['last_seen_bar']}, sweepd {facts['code_version']}",
        ),
    ]
