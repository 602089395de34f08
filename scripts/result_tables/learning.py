"""Tables of what is learned, and of searches."""

from __future__ import annotations

import re
import statistics
from typing import Any

from scripts.result_tables.results import load, origin, table


def learning() -> str:
    """Learning on markets with a known answer."""
    found = load("learning")
    titles = {
        "planted": "planted edge (AR(1) deviations, fees .25% + .05%)",
        "oracle": "leaked oracle (the next bar's return as a feature)",
        "shuffled": "shuffled returns (nothing to learn)",
    }
    rows = []
    for kind, title in titles.items():
        values = [f"{one['excess']:+.2f}" for one in found["outcomes"] if one["kind"] == kind]
        rows.append([title, f"{found['steps'][kind]:,}", *values])
    head = ["market", "steps per member", "seed 0", "seed 1", "seed 2"]
    return table(head, rows) + origin("learning", found["machine"])


def learning_vs_sb3() -> str:
    """Learning against Stable-Baselines3; rows of which both sides are finished."""
    lines, machines = [], []
    for found in load("learning_vs_sb3")["rows"].values():
        row = found["row"]
        for play, one in found.get("comparison", {}).items():
            name = row["name"] or re.split(r"[.:]", row["environment"])[-1]
            sampled = ", sampled" if play == "sampled" else ""
            sides = [one["ours"], one["sb3"]]
            lines.append(
                [
                    f"{name}, `{row['algorithm']}`{sampled}",
                    f"{row['steps']:,}",
                    "" if row["solved"] is None else f"{row['solved']:g}".replace("-", "−"),
                    *map(_solved, sides),
                    *map(_median, sides),
                    f"{one['p']:.2g}" if one["p"] < 0.1 else f"{one['p']:.2f}",
                    one["verdict"],
                ]
            )
            ours, theirs = (found["sides"][side] for side in ("ours", "sb3"))
            machines += [ours["machine"], *(run["machine"] for run in theirs["runs"].values())]
    head = ["", "steps", "solved at", "sweepd solves", "Stable-Baselines3 solves"]
    head += ["sweepd: median (range)", "Stable-Baselines3: median (range)", "p", "sweepd is"]
    return table(head, lines) + origin("learning_vs_sb3", *machines)


def _solved(side: dict[str, Any]) -> str:
    if "solved" not in side:
        return ""
    shares = f"{side['share_low']:.0%} to {side['share_high']:.0%}"
    return f"{side['solved']} of {side['seeds']} ({shares})"


def _median(side: dict[str, Any]) -> str:
    values = [side["median"], side["worst"], side["best"]]
    digits = 0 if max(map(abs, values)) >= 100 else 1 if max(map(abs, values)) >= 10 else 2
    median, worst, best = (f"{value:,.{digits}f}".replace("-", "−") for value in values)
    return f"{median} ({worst} to {best})"


def search_replay() -> str:
    """Searches on recorded learning curves."""
    found = load("search_replay")
    titles = {
        "race": "`sweepd` with `--sampler race` (1 seed, 10 rungs, batches of 10)",
        "tpe": "`sweepd` with `--sampler tpe` (4 seeds, 4 rungs, hyperband)",
        "smac": "SMAC3, its facade for hyperparameters, which races seeds",
        "optuna-tpe-hyperband": "Optuna's TPE, its Hyperband pruner",
        "optuna-tpe": "Optuna's TPE, 96 × 1 seed",
        "optuna-cmaes": "Optuna's CMA-ES, 96 × 1 seed",
        "optuna-tpe-asha": "Optuna's TPE, ASHA pruner",
        "random-32x3": "random, 32 × 3 seeds",
        "random-96x1": "random, 96 × 1 seed",
    }
    rows = []
    for name in (name for name in titles if name in found["means"]):
        one = found["means"][name]
        score = f"{one['fresh']:.3f} ± {one['standard_error']:.3f}"
        rows.append([titles[name], score, f"{one['selected']:.3f}", str(one["repetitions"])])
    ceilings = {
        "best of 96": "ceiling: the best of 96 random ones, without noise",
        "best": "ceiling: the best configuration of each table",
    }
    for name, title in ceilings.items():
        value = f"{statistics.fmean(found[name].values()):.3f}"
        rows.append([title, value, value, ""])
    head = ["search", "on fresh seeds", "by what it was selected", "repetitions"]
    return table(head, rows) + origin("search_replay", found["machine"])


def pbt_hockey() -> str:
    """Population-based training on hockey beside single trials of the same steps."""
    content = load("pbt_hockey")
    titles = {"pbt": "`--search pbt`", "random": "`--sampler random`"}
    rows = []
    for seed, own in content["seeds"].items():
        for name, title in titles.items():
            values, points = sorted(own[name]["values"]), own["points"][name]
            against = (
                points["strong"],
                points["weak"],
                points[next(n for n in titles if n != name)],
            )
            shares = own[name]["shares"]
            rows.append(
                [
                    f"{title}, seed {seed}",
                    " · ".join(
                        f"{v:.3f}" for v in (values[-1], statistics.median(values), values[0])
                    ),
                    " · ".join(f"{points:.3f}" for points in against),
                    f"{own[name]['seconds']:.0f} s",
                    f"{shares['evaluation']:.0%} · {shares.get('population', 0.0):.0%}",
                ]
            )
    head = [
        *("search", "trials: best · median · worst", "selected: against strong · weak · the other"),
        *("processor time", "evaluations · population"),
    ]
    return table(head, rows) + origin("pbt_hockey", content["machine"])
