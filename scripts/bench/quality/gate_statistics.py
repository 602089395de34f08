"""Error rates of the selection statistics on thousands of simulated studies without skill.

Records (`--only records`): the rate at which a single record without skill is significant at 5%,
for returns that are independent, autocorrelated, fat-tailed or of clustered volatility.

Searches (`--only searches`): the project's own searches (`gate_searches`) on policies without
skill, and with a planted one, judged by DSR and PBO as in the gate's first stage; also a search
that varies its best trial, by ratio or by score, with and without 100 copies of the winner.
Required: a rate of DSR ≥ .95 of at most .05.

Selection (`--only selection`): each study is a matrix of returns, trials × bars, with zero mean:
normal, or fat-tailed with volatility clustering and correlated trials. DSR is that of the trial
with the highest Sharpe ratio. Required: P(DSR ≥ .95) ≤ .05 and a median PBO in [.35, .65]. The same
is required of the best three trials together, whose luck is that of one trial times the
diversification factor; DSR without this factor is also shown.

Rates are shown with their 95% interval (Clopper and Pearson 1934), and a requirement counts as met
if the interval does not lie above it.

The hold-out test (`sweepd.deploy.promotion.bootstrap.mean_above_zero`): its rejection rate at .05
if the mean is 0 (size) and if it is three standard errors (power), for excess returns that are
independent or autocorrelated (AR(1), AR(2), AR(1) plus equal noise, volatility clustering),
compared with the stationary bootstrap alone. Required: a size of at most .10 from 300 bars on, and
of .07 with little autocorrelation. 100 bars are shown for information.

Also for information: how often one trial with skill (an annual Sharpe ratio of 3 in two years of
hourly bars) among 40 is found. gate_studies.py measures power on whole studies.
"""

from __future__ import annotations

import argparse
import itertools
import math
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from scipy.signal import lfilter

from scripts.bench.harness import (
    benchmark_parser,
    load_results,
    machine,
    print_machine,
    save_results,
)
from scripts.bench.quality.gate_searches import (
    MEASURES,
    SEARCHES,
    Market,
    best_of,
    climb,
    search,
    with_copies,
)
from scripts.bench.quality.gate_searches import judge as judge_search
from sweepd.deploy.promotion.bootstrap import (
    batch_count,
    batch_means_p,
    block_length,
    bootstrap_means,
)
from sweepd.deploy.promotion.overfitting import cscv
from sweepd.envs.crypto.scoring import luck
from sweepd.envs.crypto.scoring.selection import TrialReturns

SKILL, HOURS, TOGETHER = 3.0, 8766, 3
LEVEL, DRAWS = 0.05, 500  # of the hold-out test
WRONG = "  NOT AS ASKED"
RECORDS = (
    ("ar1", 0.0),
    ("ar1", 0.3),
    ("ar1", 0.5),
    ("ar1", -0.3),
    ("ar1", 0.9),
    ("clustered", 0.0),
    ("t3", 0.0),
)
HOLDOUTS = (
    ("ar1", 0.0),
    ("clustered", 0.0),
    ("ar1", 0.5),
    ("ar1", 0.9),
    ("ar2", 0.9),
    ("ar1", 0.95),
    ("ar1+noise", 0.95),
)


def trials_without_skill(
    rng: np.random.Generator, bars: int, trials: int, kind: str
) -> NDArray[np.float64]:
    """Return (bars, trials) returns with zero mean."""
    own = rng.standard_normal((bars, trials))
    if kind == "normal":
        return 0.01 * own
    own = rng.standard_t(4, (bars, trials))
    shared = rng.standard_t(4, (bars, 1))
    slow = np.convolve(rng.standard_normal(bars + 99), np.ones(100) / 10.0, "valid")[:, None]
    return 0.01 * np.exp(0.4 * slow) * (np.sqrt(0.3) * shared + np.sqrt(0.7) * own)


def judge(returns: NDArray[np.float64]) -> dict[str, float]:
    """Compute DSR and PBO of the best trial and of the best `TOGETHER`.

    Everything else is estimated from the returns. `unscaled` is the latter's DSR with the SR0 of a
    single trial.
    """
    trials = returns.shape[1]
    search = TrialReturns()
    for number, column in enumerate(returns.T):
        search.add(number, column[None], np.arange(len(column)))
    best = np.argsort(-search.sharpes[:, 0])[:TOGETHER]
    whole = returns[:, best].mean(axis=1)
    several = [luck.moments(whole)]
    gain = np.array([np.mean(returns[:, best].std(axis=0)) / whole.std()])
    return {
        "dsr": search.deflate(search.moments[int(best[0])], trials).probability,
        "pbo": cscv(returns).pbo,
        "together_dsr": search.deflate(several, trials, gain).probability,
        "together_pbo": cscv(returns, chosen=TOGETHER).pbo,
        "unscaled": search.deflate(several, trials).probability,
    }


def measure(
    studies: int, bars: int, trials: int, kind: str, skill: float, seed: int
) -> dict[str, Any]:
    """Judge that many studies. skill: annual Sharpe ratio of one of the trials (hourly bars)."""
    every = []
    for index in range(studies):
        rng = np.random.default_rng([seed, index])
        returns = trials_without_skill(rng, bars, trials, kind)
        returns[:, 0] += skill / np.sqrt(HOURS) * np.std(returns[:, 0])
        every.append(judge(returns))
    found = {name: np.array([one[name] for one in every]) for name in every[0]}
    dsr, pbo = found["dsr"], found["pbo"]
    return {
        "kind": kind,
        "trials": trials,
        "bars": bars,
        "studies": studies,
        "skill": skill,
        "share_dsr_95": float(np.mean(dsr >= 0.95)),
        "median_dsr": float(np.median(dsr)),
        "median_pbo": float(np.median(pbo)),
        "share_pbo_20": float(np.mean(pbo <= 0.2)),
        "share_both": float(np.mean((dsr >= 0.95) & (pbo <= 0.2))),
        "together": TOGETHER,
        "together_share_dsr_95": float(np.mean(found["together_dsr"] >= 0.95)),
        "together_median_pbo": float(np.median(found["together_pbo"])),
        "unscaled_share_dsr_95": float(np.mean(found["unscaled"] >= 0.95)),
    }


def interval(hits: int, count: int) -> list[float]:
    """Return the 95% interval of a rate (Clopper and Pearson 1934)."""
    from scipy.stats import binomtest

    found = binomtest(hits, count).proportion_ci(0.95, method="exact")
    return [float(found.low), float(found.high)]


def rate(hits: NDArray[np.bool_]) -> dict[str, Any]:
    """Return a rate with its interval."""
    return {"rate": float(np.mean(hits)), "interval": interval(int(np.sum(hits)), hits.size)}


def shown(found: dict[str, Any]) -> str:
    """Return a rate in words."""
    low, high = found["interval"]
    return f"{found['rate']:.1%} ({low:.1%} to {high:.1%})"


def records(series: int, bars: int, seed: int) -> tuple[list[dict[str, Any]], bool]:
    """Measure single records, see `holdout_tests`."""
    results, good = [], True
    for kind, phi in RECORDS:
        random = np.random.default_rng([seed, bars])
        scores = np.array(
            [
                luck.moments(excess_returns(random, kind, phi, bars)[0]).score()
                for _ in range(series)
            ]
        )
        found = rate(scores > luck.NORMAL.inv_cdf(luck.CONFIDENCE))
        results.append({"kind": kind, "phi": phi, "bars": bars, "series": series} | found)
        ok = found["interval"][0] <= 0.06
        good &= ok
        print(f"record of {bars:,} bars, {kind:9} {phi:5.2f}: {shown(found)}{'' if ok else WRONG}")
    return results, good


def searches(options: argparse.Namespace, kept: dict[str, Any]) -> bool:
    """Measure searches, add each to `kept`, and print it. Returns whether requirements are met."""
    good, seeds = True, [options.seed, 1]
    found = kept.setdefault("searches", {})
    for name in options.searches:
        for annual in (0.0, *options.planted):
            bars, studies = options.bars, options.studies
            if annual:
                bars, studies = options.long_bars, max(2, studies // 4)
            every = []
            for index in range(studies):
                random = np.random.default_rng([*seeds, index])
                market = Market(bars, options.phi, annual / math.sqrt(HOURS), random)
                every.append(search(market, name, options.search_trials, index))
            about = {"search": name, "bars": bars, "phi": options.phi, "skill": annual}
            found[f"{name} {annual:g}"] = about | _first_stage(every)
            good &= _told(found[f"{name} {annual:g}"])
            save_results(options.save, kept)
    for (followed, measure), copies in itertools.product(MEASURES.items(), (0, 100)):
        every = []
        for index in range(max(2, options.studies // 4) if copies else options.studies):
            random = np.random.default_rng([*seeds, index])
            made = climb(options.bars, options.search_trials, 0.9, measure, random)
            made = with_copies(made, copies, measure, random)
            every.append(judge_search(dict(enumerate(made)), best_of(made, measure), len(made)))
        name = f"varies its best trial by {followed}, {copies} copies"
        about = {"search": name, "bars": options.bars, "phi": 0.0, "skill": 0.0}
        found[name] = about | _first_stage(every)
        good &= _told(found[name])
        save_results(options.save, kept)
    return good


def _told(one: dict[str, Any]) -> bool:
    ok = bool(one["skill"] > 0.0 or one["dsr"]["interval"][0] <= 0.05)
    print(
        f"{one['search']:45} skill {one['skill']:3.1f}: DSR >= .95 in {shown(one['dsr'])}, PBO <= "
        f".2 in {shown(one['pbo'])}, both {shown(one['both'])}{'' if ok else WRONG}",
        flush=True,
    )
    return ok


def _first_stage(every: list[dict[str, float]]) -> dict[str, Any]:
    dsr, pbo = (np.array([one[name] for one in every]) for name in ("dsr", "pbo"))
    return {
        "machine": machine(),
        "studies": len(every),
        "dsr": rate(dsr >= 0.95),
        "pbo": rate(pbo <= 0.2),
        "both": rate((dsr >= 0.95) & (pbo <= 0.2)),
        "median_pbo": float(np.median(pbo)),
        "median_needed": float(np.median([one["needed"] for one in every])),
    }


def excess_returns(
    rng: np.random.Generator, kind: str, phi: float, bars: int
) -> tuple[NDArray[np.float64], float]:
    """Return (bars,) values with zero mean, and n times the asymptotic variance of their mean."""
    noise, extra = rng.standard_normal(bars + 300), rng.standard_normal(bars)
    if kind == "clustered":
        values, variance = np.empty_like(noise), 1.0
        for t, draw in enumerate(noise):
            values[t] = math.sqrt(variance) * draw
            variance = 0.05 + 0.15 * values[t] ** 2 + 0.8 * variance
        return values[300:], 1.0
    if kind == "t3":
        return rng.standard_t(3, bars), 3.0
    if kind == "ar2":
        return lfilter([1.0], [1.0, -0.5, -(phi - 0.5)], noise)[300:], (1.0 / (1.0 - phi)) ** 2
    values = lfilter([1.0], [1.0, -phi], noise)[300:]
    if kind == "ar1+noise":
        scale = 1.0 - phi**2
        return math.sqrt(scale) * values + extra, scale / (1.0 - phi) ** 2 + 1.0
    return values, (1.0 / (1.0 - phi)) ** 2


def measure_holdout(series: int, kind: str, phi: float, bars: int, seed: int) -> dict[str, Any]:
    """Measure size and power at .05 of the hold-out test and of the bootstrap alone."""
    edges = {"size": 0.0, "power": 3.0}
    said: dict[str, list[bool]] = {
        name: [] for edge in edges for name in (edge, f"{edge}_bootstrap")
    }
    batches = []
    for index in range(series):
        rng = np.random.default_rng([seed, bars, index])
        values, variance = excess_returns(rng, kind, phi, bars)
        block = block_length(values)
        # The bootstrap distribution around the mean does not depend on the mean, so one draw serves
        # all edges.
        luck_of_means = bootstrap_means(values, block, DRAWS, rng) - np.mean(values)
        batches.append(batch_count(bars, block))
        for name, edge in edges.items():
            shifted = values + edge * math.sqrt(variance / bars)
            alone = (1 + np.count_nonzero(luck_of_means >= np.mean(shifted))) / (DRAWS + 1)
            said[f"{name}_bootstrap"].append(bool(alone <= LEVEL))
            said[name].append(bool(max(alone, batch_means_p(shifted, batches[-1])) <= LEVEL))
    rates = {name: float(np.mean(values)) for name, values in said.items()}
    return {
        "kind": kind,
        "phi": phi,
        "bars": bars,
        "series": series,
        "batches": float(np.median(batches)),
        **rates,
    }


def holdout_tests(series: int, seed: int) -> tuple[list[dict[str, Any]], bool]:
    """Measure and print all settings. Returns the results and whether all requirements are met."""
    results, good = [], True
    for kind, phi in HOLDOUTS:
        for bars in (100, 300, 1000, 3600):
            # Long hold-outs take long to bootstrap and have little error.
            found = measure_holdout(series if bars <= 1000 else series // 5, kind, phi, bars, seed)
            results.append(found)
            asked = 1.0 if bars < 300 else 0.10 if phi > 0.5 else 0.07
            # Tolerance: two standard errors of the measured rate.
            ok = found["size"] <= asked + 2.0 * math.sqrt(asked * (1.0 - asked) / found["series"])
            good &= ok
            print(
                f"hold-out of {bars:5,} bars, {kind:9} {phi:.2f}, {found['batches']:4.0f} batches: "
                " "
                f"size {found['size']:5.1%} (bootstrap alone {found['size_bootstrap']:5.1%}), "
                f"power {found['power']:5.1%} ({found['power_bootstrap']:5.1%})  "
                f"{'ok' if ok else 'NOT AS ASKED'}",
                flush=True,
            )
    return results, good


def selection_tests(options: argparse.Namespace) -> tuple[list[dict[str, Any]], bool]:
    """Measure and print DSR and PBO in all settings, see `holdout_tests`."""
    results, good = [], True
    settings = [
        (kind, trials, options.bars, 0.0)
        for kind in ("normal", "clustered")
        for trials in options.trials
    ]
    for kind, trials, bars, skill in [*settings, ("clustered", 40, 2 * HOURS, SKILL)]:
        studies = options.studies if skill == 0.0 else max(20, options.studies // 5)
        found = measure(studies, bars, trials, kind, skill, options.seed)
        results.append(found)
        ok = skill > 0.0 or (
            found["share_dsr_95"] <= 0.05
            and 0.35 <= found["median_pbo"] <= 0.65
            and found["together_share_dsr_95"] <= 0.05
            and 0.35 <= found["together_median_pbo"] <= 0.65
        )
        good &= ok
        print(
            f"{kind:9}  {trials:4} trials  {bars:6,} bars  skill {skill:3.1f}:  DSR >= .95 in "
            f"{found['share_dsr_95']:6.1%} of {found['studies']} studies, median PBO "
            f"{found['median_pbo']:.2f}, "
            f"both rules met in {found['share_both']:6.1%}; best {TOGETHER} together: DSR >= .95 "
            "in "
            f"{found['together_share_dsr_95']:6.1%} ({found['unscaled_share_dsr_95']:6.1%} against "
            "the luck of one), "
            f"median PBO {found['together_median_pbo']:.2f}  {'ok' if ok else 'NOT AS ASKED'}",
            flush=True,
        )
    return results, good


def main(argv: list[str]) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--studies", type=int, default=200, help="studies per setting")
    parser.add_argument("--bars", type=int, default=1200)
    parser.add_argument("--trials", type=int, nargs="+", default=[10, 40, 100])
    parser.add_argument(
        "--series", type=int, default=1000, help="series per setting of the hold-out test"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--phi", type=float, default=0.3, help="autocorrelation of searches")
    parser.add_argument("--search-trials", type=int, default=40, help="trials of a search")
    parser.add_argument(
        "--searches", nargs="*", choices=SEARCHES, default=SEARCHES, help="samplers"
    )
    parser.add_argument(
        "--planted", type=float, nargs="*", default=[1.5, 3.0], help="annual Sharpe ratios"
    )
    parser.add_argument("--long-bars", type=int, default=2 * HOURS, help="bars with skill")
    parser.add_argument("--only", choices=["records", "searches", "selection", "holdout"])
    options = parser.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    print_machine()
    kept: dict[str, Any] = load_results(options.save)
    good = []
    if options.only in (None, "records"):
        kept["records"], fine = records(options.series, options.bars, options.seed)
        kept["records_machine"] = machine()
        good.append(fine)
    if options.only in (None, "searches"):
        good.append(searches(options, kept))
    if options.only in (None, "holdout"):
        kept["holdout"], fine = holdout_tests(options.series, options.seed)
        kept["holdout_machine"] = machine()
        good.append(fine)
    if options.only in (None, "selection"):
        kept["results"], fine = selection_tests(options)
        kept["machine"] = machine()
        good.append(fine)
    save_results(options.save, kept)
    return 0 if all(good) else 1
