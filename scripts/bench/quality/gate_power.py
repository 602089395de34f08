"""The stated power of the gate of markets, compared with simulated studies.

`sweepd plan` and the verdict of `sweepd promote` state edges (returns over equal weight per year) and
the share of studies in which the gate finds them. Here, studies with an edge that is planned to be
found in half of them, or in another share, are simulated bar by bar, and judged by the gate's own
functions: `deflated-sharpe`, `pbo` and `holdout-excess`. One trial has the edge; the returns of all
trials have one correlation, and another trial has that share of the edge. Returns are normal, of
Student's distribution with three degrees of freedom ("t3"), or of clustered volatility, and have an
autocorrelation of order 1.

* planned: the share that `sweepd plan` states. It does not know the autocorrelation, and takes the
  trials as independent for `deflated-sharpe`;
* stated: the share that verdicts of such studies state about the edge, on average. Required: the 95%
  interval of the found share (Clopper and Pearson 1934) is at most `ERROR` away from it;
* found: the share of studies that meet the three rules.
"""

from __future__ import annotations

import math
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from scripts.bench.harness import (
    benchmark_parser,
    load_results,
    machine,
    print_machine,
    save_results,
)
from sweepd.deploy.market.advice import study_power
from sweepd.deploy.market.backtests import Backtest, SearchStatistics
from sweepd.deploy.market.power import PBO_LIMIT, GatePower, planned_power
from sweepd.deploy.market.rules import Selection
from sweepd.deploy.promotion.bootstrap import gate_level, mean_above_zero
from sweepd.envs.crypto.data.timeframe import bars_per_year
from sweepd.envs.crypto.scoring.luck import CONFIDENCE
from sweepd.envs.crypto.scoring.selection import TrialReturns
from sweepd.envs.support.intervals import clopper_pearson

Array = NDArray[np.float64]
HOLDOUT, TRACKING_ERROR = 0.15, 0.2
ERROR = 0.1  # allowed, of a stated share
RULES = ("dsr", "pbo", "holdout")


@dataclass(frozen=True)
class Case:
    """Studies of one kind.

    Attributes:
        timeframe: length of a bar.
        years: of bars, hold-out included.
        trials: of a study.
        correlation: of two trials.
        phi: autocorrelation of order 1.
        tails: "normal", "t3" or "clustered".
        looks: evaluations that were made on the hold-out before.
        share: of studies in which the edge is found by the plan.
    """

    timeframe: str = "4h"
    years: float = 2.0
    trials: int = 8
    correlation: float = 0.5
    phi: float = 0.0
    tails: str = "normal"
    looks: int = 0
    share: float = 0.5

    def plan(self) -> GatePower:
        """The power that `sweepd plan` states."""
        return planned_power(
            self.years,
            holdout=HOLDOUT,
            trials=self.trials,
            tracking_error=TRACKING_ERROR * self.factor,
            correlation=self.correlation,
            looks=self.looks,
            timeframe=self.timeframe,
        )

    @property
    def factor(self) -> float:
        """By which autocorrelation raises the standard error of a mean."""
        return math.sqrt((1.0 + self.phi) / (1.0 - self.phi))


CASES = (
    Case(),
    Case(correlation=0.9),
    Case(phi=0.9),
    Case(trials=40),
    Case(tails="t3"),
    Case(looks=6),
    Case("1d", 6.0),
    Case("1h", 1.0),
    Case(share=0.8),
    Case(correlation=0.0),
    Case(trials=2),
    Case(phi=-0.3),
    Case(tails="clustered"),
    Case(share=0.2),
    Case("5m", 0.25, phi=0.3),
    Case(trials=40, correlation=0.9),
    Case("1d", 6.0, trials=200),
)


def unit_noise(random: np.random.Generator, rows: int, bars: int, case: Case) -> Array:
    """Return (rows, bars) independent series with a variance of about 1."""
    burn = 300
    shape = (rows, bars + burn)
    if case.tails == "t3":
        draws = random.standard_t(3, shape) / math.sqrt(3.0)
    else:
        draws = random.standard_normal(shape)
    if case.tails == "clustered":
        # The volatility is common to all trials, as that of a market: its logarithm is an AR(1).
        logs = lfilter([0.1], [1.0, -0.98], random.standard_normal(shape[1]))
        draws *= np.exp(logs - 0.1**2 / (1.0 - 0.98**2))
    if case.phi:
        draws = math.sqrt(1.0 - case.phi**2) * lfilter([1.0], [1.0, -case.phi], draws)
    made: Array = draws[:, burn:]
    return made


def returns(random: np.random.Generator, case: Case, bars: int, trials: int) -> Array:
    """Return (trials, bars) excess returns without an edge, of the case's correlation."""
    noise = unit_noise(random, trials + 1, bars, case)
    own = math.sqrt(case.correlation) * noise[0] + math.sqrt(1.0 - case.correlation) * noise[1:]
    made: Array = TRACKING_ERROR / math.sqrt(bars_per_year(case.timeframe)) * own
    return made


def statistics(excess: Array, timeframe: str) -> tuple[SearchStatistics, Selection]:
    """The gate's statistics of (trials, bars) excess returns, about trial 0."""
    trials, bars = excess.shape
    kept, backtests = TrialReturns(), {}
    for number, own in enumerate(excess):
        kept.add(number, own[None], np.arange(bars))
        deviations = (float(np.std(own, ddof=1)),)
        backtests[number] = Backtest((), kept.moments[number], own, deviations)
    search = SearchStatistics(trials, backtests, {}, kept, timeframe)
    found = search.deflate(backtests[0])
    return search, Selection(trials, trials, found, search.overfitting, search.annual, bars)


def judge(case: Case, edge: float, verdicts: int, seed: int) -> dict[str, float]:
    """Simulate and judge one study.

    Args:
        case: its kind.
        edge: per year.
        verdicts: the first so many studies also compute the stated share, which takes long.
        seed: number of the study.

    Returns:
        1 for every rule that is met, 0 for the others, and the stated share.
    """
    random = np.random.default_rng([CASES.index(case) if case in CASES else len(CASES), seed])
    plan, shares = case.plan(), np.full((case.trials, 1), case.correlation)
    shares[0] = 1.0
    excess = returns(random, case, plan.bars, case.trials) + edge / plan.year * shares
    unseen = returns(random, case, plan.holdout_bars, 1)[0] + edge / plan.year
    level = gate_level(case.looks + 1)
    search, selection = statistics(excess, case.timeframe)
    assert selection.deflation is not None
    assert selection.overfitting is not None
    # Fewer samples than the gate draws: the smallest p value is a tenth of the level.
    holdout = mean_above_zero(unseen, seed=seed, draws=max(500, math.ceil(10.0 / level)))
    met = {
        "dsr": selection.deflation.probability >= CONFIDENCE,
        "pbo": selection.overfitting.pbo <= PBO_LIMIT,
        "holdout": holdout.p <= level,
    }
    told = {rule: float(one) for rule, one in met.items()} | {"found": float(all(met.values()))}
    if seed < verdicts:
        power = study_power(search, 0, selection, plan.holdout_bars, level, PBO_LIMIT)
        assert power is not None
        told["stated"] = power.probability(edge)
    return told


def measure(case: Case, studies: int, verdicts: int, processes: int) -> dict[str, Any]:
    """Compare the stated share of a case with the share that is found."""
    plan = case.plan()
    edge = plan.edge_found(case.share)
    work = partial(judge, case, edge, verdicts)
    with ProcessPoolExecutor(processes) as pool:
        every = list(pool.map(work, range(studies), chunksize=4))
    found = clopper_pearson(round(sum(one["found"] for one in every)), studies)
    stated = float(np.mean([one["stated"] for one in every[:verdicts]]))
    return asdict(case) | {
        "edge": edge,
        "studies": studies,
        "planned": plan.probability(edge),
        "stated": stated,
        "rate": found.value,
        "interval": [found.low, found.high],
        "agrees": found.low - ERROR <= stated <= found.high + ERROR,
        **{rule: float(np.mean([one[rule] for one in every])) for rule in RULES},
    }


def shown(one: dict[str, Any]) -> str:
    """Return a result in words."""
    low, high = one["interval"]
    return (
        f"{one['timeframe']} bars, {one['years']:g} years, {one['trials']} trials, correlation "
        f"{one['correlation']:g}, autocorrelation {one['phi']:g}, {one['tails']}, evaluation "
        f"{one['looks'] + 1}, edge {one['edge']:.0%}: planned {one['planned']:.0%}, stated "
        f"{one['stated']:.0%}, found {one['rate']:.0%} ({low:.0%} to {high:.0%}); dsr "
        f"{one['dsr']:.0%}, pbo {one['pbo']:.0%}, hold-out {one['holdout']:.0%}"
        f"{'' if one['agrees'] else '  NOT AS ASKED'}"
    )


def main(argv: list[str]) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--studies", type=int, default=200, help="studies per case")
    parser.add_argument("--verdicts", type=int, default=10, help="of them with a stated power")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cases", type=int, nargs="*", help="numbers of the cases, from 0")
    options = parser.parse_args(argv)
    print_machine()
    kept = load_results(options.save)
    kept["machine"] = machine()
    kept.setdefault("cases", {})
    good = True
    for number in range(len(CASES)) if options.cases is None else options.cases:
        one = measure(CASES[number], options.studies, options.verdicts, options.processes)
        kept["cases"][str(number)] = one
        save_results(options.save, kept)
        print(shown(one), flush=True)
        good &= one["agrees"]
    return 0 if good else 1
