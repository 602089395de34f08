"""Write the tables of measured figures in `docs/` from the files in `scripts/bench/results/`.

    python scripts/result_tables.py

A table stands between `<!-- table NAME -->` and `<!-- end -->` (`TABLES` has the names), and ends
with a line that says on which machine, at which commit and with which peers it was measured. A test
compares the pages with the files.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sweepd.envs.support.intervals import clopper_pearson

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "scripts" / "bench" / "results"
_MARKED = re.compile(r"(<!-- table (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)
_FAMILIES = {
    "25/17": "Zen 4",
    "26/2": "Zen 5",
    "6/143": "Sapphire Rapids",
    "6/207": "Emerald Rapids",
}


def load(name: str) -> dict[str, Any]:
    """Return the content of a results file."""
    content: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return content


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)


def origin(name: str, *machines: dict[str, Any]) -> str:
    """Return the line that says how the figures of a results file were made.

    Different values of a part, such as two commits, are joined by "and".
    """
    parts = zip(*map(_parts, machines), strict=True)
    described = (" and ".join(sorted({value for value in values if value})) for values in parts)
    loads = [machine["load"] for machine in machines]
    low, high = f"{min(loads):.1f}", f"{max(loads):.1f}"
    load_range = low if low == high else f"{low} to {high}"
    return f"\n(`{name}.json`: {', '.join(filter(None, described))}; load {load_range})\n"


def _parts(machine: dict[str, Any]) -> tuple[str, ...]:
    """Return processor, cores, torch, commit, date and the versions of peers; "": unknown."""
    family = machine.get("family")
    processor = machine["processor"] + (f" ({_FAMILIES.get(family, family)})" if family else "")
    processor += f" with {machine['gpu']}" if "gpu" in machine else ""
    described = processor, f"{machine['cores']} cores", f"torch {machine['torch']}"
    source = machine.get("source")
    if source is None:  # files from before these were recorded
        return *described, "commit and date not recorded", "", ""
    commit = f"commit {source['commit'][:10]}" if source["commit"] else "no commit"
    peers = ", ".join(f"{name} {number}" for name, number in source["peers"].items())
    return *described, commit + " with changes" * source["dirty"], source["date"], peers


def _ratio(value: float) -> str:
    return f"{value:.1f}×" if value < 20 else f"{value:.0f}×"


def train_vs_peers(task: str) -> str:
    """Ratios to the fastest of three peers, by network and minibatch."""
    cells = load("train_vs_peers")["speed"].values()
    found = {
        (cell["cell"]["width"], cell["cell"]["minibatch"]): cell
        for cell in cells
        if cell["cell"]["task"] == task and cell["cell"]["num_envs"] == 256
    }
    widths, minibatches = (sorted({key[at] for key in found}) for at in (0, 1))

    def entry(cell: dict[str, Any]) -> str:
        runs = cell["runs"]
        ours = statistics.median(runs["ours"])
        peer = max(
            statistics.median(rates)
            for name, rates in runs.items()
            if name not in ("ours", "torch") and not name.endswith(" pair")
        )
        share = ours * cell["operations_per_step"] / 1e9 / cell["peak_gflops"]
        return (
            f"{_ratio(cell['ours_over_best'])} · {ours:,.0f} against {peer:,.0f} · {share:.0%} · "
            f"{_ratio(cell['ours_over_torch'])}"
        )

    rows = [
        [f"{width}×{width}", *(entry(found[width, size]) for size in minibatches)]
        for width in widths
    ]
    machines = [cell["machine"] for cell in found.values()]
    head = [task, *(f"minibatch {size:,}" for size in minibatches)]
    return table(head, rows) + origin("train_vs_peers", *machines)


def trials_per_hour() -> str:
    """The standard study."""
    found = load("trials_per_hour")
    names = {
        "ours": "the worker, including all its other work",
        "elegant": "ElegantRL, one fold after another, the same number of envs, training only",
        "elegant 1 env": "ElegantRL with one env",
    }
    goals = {"elegant": "5×", "elegant 1 env": "50×"}
    rows = []
    for name, title in names.items():
        rate = statistics.median(run["trials_per_hour"][name] for run in found["runs"])
        ratio = found["ours_over"].get(name)
        rows.append([title, f"{rate:.1f}", _ratio(ratio) if ratio else "", goals.get(name, "")])
    head = ["trials per hour", "", "sweepd is", "goal"]
    return table(head, rows) + origin("trials_per_hour", found["machine"])


def roofline() -> str:
    """Share of the processor's peak, and of the time."""
    found = load("roofline")
    phases = {
        "env": "env",
        "policy forward": "policy forward",
        "update products": "updates",
        "other": "other",
    }
    goals = {256: "70%", 128: "55%"}
    rows = [
        [
            "×".join(map(str, row["network"])),
            f"{row['share_of_peak']:.1%} ({goals[row['network'][0]]})",
            f"{row['peak_gflops']:.0f} GFLOP/s",
            *(f"{row['split'][phase]:.1%}" for phase in phases),
        ]
        for row in found["results"]
    ]
    head = ["network", "share (goal)", "peak", *phases.values()]
    return table(head, rows) + origin("roofline", found["machine"])


def items() -> str:
    """The item encoder."""
    found = load("items")
    rows = [
        [name, f"{value:.1f}", f"{1e3 * found['rows'] / value:,.0f}"]
        for name, value in found["milliseconds"].items()
    ]
    return table(["", "ms", "rows/s"], rows) + origin("items", found["machine"])


def gradient_steps() -> str:
    """Gradient steps of SAC and D3QN."""
    found = load("gradient_steps")
    rows = []
    for row in found["results"]:
        cell = row["cell"]
        rate = {name: statistics.median(values) for name, values in row["runs"].items()}
        peers = [
            max(rate[name] for name in rate if name.startswith(kinds))
            for kinds in (("elegant", "modsac"), ("sb3",))
        ]
        speeds = [rate["ours"], rate["ours, torch"], *peers]
        rows.append(
            [
                *(cell["algorithm"].upper(), str(cell["minibatch"])),
                *(f"{speed:,.0f}" for speed in speeds),
                _ratio(row["ours_over_best"]),
            ]
        )
    head = ["steps per second", "minibatch", "sweepd", "in torch", "ElegantRL"]
    head += ["Stable-Baselines3", "sweepd is"]
    return table(head, sorted(rows, reverse=True)) + origin("gradient_steps", found["machine"])


def env_steps() -> str:
    """Steps of the market environment and CartPole."""
    found = load("env_steps")
    rows = {(row["env"], row["num_envs"]): row for row in found["results"]}

    def entry(env: str, count: int) -> list[str]:
        row = rows[env, count]
        speeds = [f"{row[key]:,.0f}" for key in ("steps_per_second", "torch_steps_per_second")]
        return [*speeds, f"{row['over_torch']:.1f}"]

    counts = sorted({count for _, count in rows})
    lines = [[f"{n:,}", *entry("crypto", n), *entry("cartpole", n)] for n in counts]
    head = ["envs", "crypto, native", "torch", "ratio", "CartPole, native", "torch", "ratio"]
    return table(head, lines) + origin("env_steps", found["machine"])


def process_vec() -> str:
    """Vectorizers of external environments."""
    found = load("process_vec")
    rows = []
    apart = {row["envs"]: row["ratio"]["best peer"] for row in found["one_process"]}
    for row in found["cartpole"]:
        speed, alone = (row["steps_per_second"][name] for name in _PROCESS_VEC)
        ratio = f"{row['ratio']['best peer']:.2f}"
        one = f"{alone:,.0f}; {apart[row['envs']]:.2f}"
        rows.append([str(row["envs"]), row["layout"], f"{speed:,.0f}", ratio, one])
    for row in found["uneven"]:
        kind = "computing" if row["burn"] else "waiting"
        speed = next(iter(row["steps_per_second"].values()))
        locked = row["ratio"]["sweepd, all together"]
        rows.append(
            [
                f"{row['envs']} with uneven steps ({kind}), those that are ready first",
                f"{row['workers']} workers",
                *(f"{speed:,.0f}", f"{row['ratio']['best peer']:.2f}"),
                f"{locked:.2f} times the speed of steps in lockstep",
            ]
        )
    head = ["environments", "layout chosen", "steps/s", "ratio to the best peer"]
    machines = [found[f"{part} run"]["machine"] for part in ("cartpole", "one-process", "uneven")]
    one = "steps/s in one process; its ratio by processor time"
    return table([*head, one], rows) + origin("process_vec", *machines)


_PROCESS_VEC = ("sweepd", "sweepd, all in one process")


def game_steps() -> str:
    """Steps of the games, by number of games at once."""
    found = load("game_steps")
    rates = {(row["game"], row["games"]): row for row in found["rows"]}
    names, counts = (list(dict.fromkeys(key[at] for key in rates)) for at in (0, 1))
    rows = []
    for name in names:
        own = [rates[name, count] for count in counts]
        title = f"`{name}`, {own[0]['unit']}"
        rows.append([title, *(f"{row['rate']:,.0f}" for row in own), f"{own[0]['goal']:,}"])
    head = ["per second", *(f"{count:,} games" for count in counts), "goal at 4,096"]
    return table(head, rows) + origin("game_steps", found["machine"])


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


def registry_chaos() -> str:
    """Kills and races at the registry."""
    files = {title: load(f"registry_chaos_{title.lower()}") for title in ("SQLite", "PostgreSQL")}
    rows = []
    for title, found in files.items():
        kills, races = found["kills"], found["races"]
        figures = [
            *(kills["kills"], kills["promotions_and_rollbacks"], kills["interrupted_writes_seen"]),
            *(len(kills["failures"]), races["races"], len(races["failures"])),
        ]
        rows.append([title, *(f"{figure:,}" for figure in figures)])
    head = ["", "kills", "changes of the champion", "interrupted writes found", "invalid states"]
    machines = [found["machine"] for found in files.values()]
    return table([*head, "races", "races lost"], rows) + origin("registry_chaos_*", *machines)


def chaos() -> str:
    """Kills of workers."""
    found = load("chaos")
    titles = {
        "sqlite": "SQLite",
        "postgresql": "PostgreSQL",
        "sqlite, evicted": "SQLite, `--evict`",
    }
    rows = []
    for key, title in titles.items():
        one = found[key]
        names = ("killed", "suspended", "retrained")
        rows.append([title, *(str(one[name]) for name in names), str(len(one["problems"]))])
    head = ["", "kills", "suspensions", "trials, each trained again", "problems found"]
    return table(head, rows) + origin("chaos", *(found[key]["machine"] for key in titles))


def trader_chaos() -> str:
    """Kills of a trader."""
    found = load("trader_chaos")
    titles = {
        "kills": "kills",
        "bars": "bars",
        "bars_decided_at": "bars with a decision",
        "orders": "orders",
        "orders_filled_in_part": "filled in part",
        "faults": "faults",
    }
    figures = found["figures"]
    row = [*(f"{figures[name]:,}" for name in titles), str(len(found["problems"]))]
    row.append(f"{figures['cash_difference']:.1g} USD")
    head = [*titles.values(), "lost, doubled or wrong", "cash: difference to the server's"]
    return table(head, [row]) + origin("trader_chaos", found["machine"])


def trader_tracking() -> str:
    """A live trader against the simulator."""
    found = load("trader_tracking")
    figures, tracking = found["figures"], found["figures"]["tracking"]
    row = [
        *(f"{figures['bars']:,}", f"{figures['orders']:,}"),
        *(f"{figures[name]:+.4%}" for name in ("account_return", "simulator_return")),
        f"{tracking['error']:.4%} a year",
        f"{tracking['worst']:.1g}",
        *(
            f"{figures[name]:.1g}"
            for name in ("cash_difference", "simulator_against_canonical_score")
        ),
    ]
    head = [
        *("bars", "orders", "account", "its shadow", "tracking error", "largest error of a bar"),
        "cash: difference to the server's",
        "shadow: difference to the canonical score",
    ]
    return table(head, [row]) + origin("trader_tracking", found["machine"])


def reproducible_mode() -> str:
    """The cost of MKL's reproducible mode."""
    found = load("reproducible_mode")
    rows = {(row["width"], row["minibatch"]): row["ratio"] for row in found["results"]}
    widths, minibatches = (sorted({key[at] for key in rows}) for at in (0, 1))
    lines = [
        [f"{width}×{width}", *(f"{rows[width, size]:.2f}" for size in minibatches)]
        for width in widths
    ]
    head = ["default mode's time / ours", *(f"minibatch {size:,}" for size in minibatches)]
    return table(head, lines) + origin("reproducible_mode", found["machine"])


def soak() -> str:
    """One worker and one study with many trials."""
    found = load("soak")
    spent, samples = found["ask_and_tell_cpu_ms"], found["samples"]
    row = [
        f"{found['trials']:,}",
        *(f"{spent[part]:.0f} ms" for part in ("first", "last")),
        f"{found['mib_per_100_trials']:.1f} MiB",
        f"{samples[-1]['resident_mib']:.0f} MiB",
    ]
    head = ["trials", "database work of a trial, first tenth", "last tenth"]
    head += ["growth of the resident set per 100 trials", "at the end"]
    return table(head, [row]) + origin("soak", found["machine"])


def ask_time() -> str:
    """Time of a draw."""
    found = load("ask_time")
    times = found["milliseconds"]

    def entry(name: str) -> str:
        return ", ".join(f"{times[name][key]:.0f}" for key in ("median", "worst", "first")) + " ms"

    counts = sorted({int(name.rpartition("-")[2]) for name in times})
    rows = [[f"{n:,}", entry(f"race-{n}"), entry(f"tpe-{n}")] for n in counts]
    head = ["finished trials", "race: median, longest, first", "TPE: median, longest, first"]
    return table(head, rows) + origin("ask_time", found["machine"])


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


def _rate(found: dict[str, Any]) -> str:
    low, high = found["interval"]
    return f"{found['rate']:.1%} ({low:.1%} to {high:.1%})"


def gate_records() -> str:
    """How often a record without skill is significant."""
    found = load("gate_first_stage")
    kinds = {
        "ar1": "AR(1), {phi:g}",
        "clustered": "volatility in clusters",
        "t3": "Student, 3 degrees of freedom",
    }
    rows = [[kinds[one["kind"]].format(phi=one["phi"]), _rate(one)] for one in found["records"]]
    head = ["record", "significant at 5%"]
    return table(head, rows) + origin("gate_first_stage", found["records_machine"])


def gate_searches(skilled: bool) -> str:
    """How often searches pass the first stage."""
    found = [
        one
        for one in load("gate_first_stage")["searches"].values()
        if (one["skill"] > 0.0) == skilled
    ]
    if skilled:
        found.sort(key=lambda one: (one["skill"], one["search"]))
    rows = [
        [
            *([f"{one['skill']:g}"] if skilled else []),
            one["search"].removesuffix(", 0 copies"),
            f"{one['studies']:,}",
            *(_rate(one[rule]) for rule in ("dsr", "pbo", "both")),
        ]
        for one in found
    ]
    head = [
        *(["skill"] if skilled else []),
        *("search", "studies", "deflated Sharpe ratio ≥ .95", "PBO ≤ .2", "both"),
    ]
    return table(head, rows) + origin("gate_first_stage", *(one["machine"] for one in found))


def gate_selection() -> str:
    """The best of trials, and the best three together, on simulated returns."""
    content = load("gate_first_stage")

    def share(one: dict[str, Any], name: str) -> str:
        found = clopper_pearson(round(one[name] * one["studies"]), one["studies"])
        return _rate({"rate": found.value, "interval": [found.low, found.high]})

    rows = [
        [
            one["kind"] + (f", one with a ratio of {one['skill']:g}" if one["skill"] else ""),
            *(f"{one[name]:,}" for name in ("trials", "bars", "studies")),
            *(share(one, "share_dsr_95"), f"{one['median_pbo']:.2f}"),
            *(share(one, "together_share_dsr_95"), f"{one['together_median_pbo']:.2f}"),
            share(one, "unscaled_share_dsr_95"),
        ]
        for one in content["results"]
    ]
    head = [
        *("returns", "trials", "bars", "studies", "DSR ≥ .95", "median PBO"),
        *("best three together: DSR ≥ .95", "median PBO", "without the factor D"),
    ]
    return table(head, rows) + origin("gate_first_stage", content["machine"])


def gate_holdout() -> str:
    """Size of the hold-out test, and in brackets that of the bootstrap alone."""
    content = load("gate_statistics")
    kinds = {
        ("ar1", 0.0): "independent",
        ("clustered", 0.0): "volatility in clusters",
        ("ar1", 0.5): "AR(1), .5",
        ("ar1", 0.9): "AR(1), .9",
        ("ar2", 0.9): "AR(2), .5 and .4",
        ("ar1", 0.95): "AR(1), .95",
        ("ar1+noise", 0.95): "AR(1), .95, plus as much noise",
    }
    found = {(one["kind"], one["phi"], one["bars"]): one for one in content["holdout"]}
    lengths = sorted({one["bars"] for one in content["holdout"]})

    def entry(one: dict[str, Any]) -> str:
        exact = clopper_pearson(round(one["size"] * one["series"]), one["series"])
        low, high = 100.0 * exact.low, 100.0 * exact.high
        return f"{one['size']:.1%} ({low:.1f} to {high:.1f}); {one['size_bootstrap']:.1%}"

    rows = [
        [title, *(entry(found[*kind, bars]) for bars in lengths)] for kind, title in kinds.items()
    ]
    head = ["excess returns", *(f"{bars:,} bars" for bars in lengths)]
    return table(head, rows) + origin("gate_statistics", content["holdout_machine"])


def pages_of(name: str) -> str:
    """Times of the dashboard's pages."""
    found = load(name)
    rows = [
        [one["page"], *(f"{one[figure]:,.0f}" for figure in ("first", "median", "p95", "kB"))]
        for one in found["pages"]
    ]
    head = ["page", "first, ms", "median, ms", "95%, ms", "kB"]
    return table(head, rows) + origin(name, found["machine"])


def gate_studies() -> str:
    """Whole studies that the gate promoted."""
    found = load("gate_studies")
    kinds = {
        "null": "no edge, no costs",
        "planted-1": "planted edge, weak (4%), 4.6 years of hourly bars",
        "planted-2": "planted edge, medium (8%)",
        "planted-3": "planted edge, strong (16%), 4.6 years of hourly bars",
        "oracle": "the next bar's return among the features",
    }
    rows = []
    for kind, title in kinds.items():
        own = [one for one in found["results"].values() if one["kind"] == kind]
        if own:
            exact = clopper_pearson(sum(one["promoted"] for one in own), len(own))
            share = f"{exact.value:.0%} ({exact.low:.0%} to {exact.high:.0%})"
            luck = sum(one["without_statistics"] for one in own)
            rows.append([title, str(len(own)), share, str(luck)])
    head = ["market", "studies", "promoted", "by a gate without statistics"]
    return table(head, rows) + origin("gate_studies", found["machine"])


def _network(cell: dict[str, Any]) -> str:
    return f"{cell['width']}×{cell['width']}"


def gpu_steps() -> str:
    """Time of a rollout step and a gradient step on a GPU."""
    part = load("gpu")["parts"]["steps"]
    steps = "microseconds_per_rollout_step", "microseconds_per_gradient_step"
    rows = [
        [row["members"], row["kind"], *(f"{row[step]:,.0f} µs" for step in steps)]
        for row in part["found"]["rows"]
    ]
    head = ["members", "how", "rollout step", "gradient step"]
    return table(head, rows) + origin("gpu", part["machine"])


def gpu_speed(name: str) -> str:
    """Speed of whole training on a GPU, by program and members."""
    part = load("gpu")["parts"][name]
    rows = [
        [
            f"{cell['algorithm']}, {cell['env']}",
            _network(cell),
            cell["minibatch"],
            cell["num_envs"],
            cell["members"],
            *(f"{row['per_second'][kind]:,.0f}" for kind in row["per_second"]),
        ]
        for row in part["found"]
        for cell in [row["cell"]]
    ]
    head = ["program", "network", "minibatch", "envs", "members", *part["found"][0]["per_second"]]
    return table(head, rows) + origin("gpu", part["machine"])


def gpu_envs() -> str:
    """Steps of environments alone on a GPU."""
    part = load("gpu")["parts"]["envs"]
    speeds: dict[str, list[str]] = {}
    for row in part["found"]:
        shown = f"{row['steps_per_second']:,.0f} ({row['rows']:,})"
        speeds.setdefault(row["env"], []).append(shown)
    rows = [[name, *found] for name, found in speeds.items()]
    head = ["environment", "steps/s (rows)", "", ""]
    return table(head, rows) + origin("gpu", part["machine"])


def gpu_studies() -> str:
    """Time of 500 trials on a GPU, extrapolated."""
    parts, tf32 = load("gpu")["parts"], load("gpu_tf32")["parts"]["large"]
    studies = [("standard", row) for row in parts["standard"]["found"]["rows"]]
    for part in (parts["large"], tf32):
        found = part["found"]
        studies.append(
            (f"large, {found['precision']}: {found['share_of_peak']:.0%} of peak", found)
        )
    rows = []
    for name, row in studies:
        minutes, evaluation = (60 * row[key] for key in _HOURS)
        speeds = f"{row['steps_per_second']:,.0f}", f"{minutes:.1f} min", f"{evaluation:.1f} min"
        rows.append([name, row["cell"]["members"], _network(row["cell"]), *speeds])
    head = ["study", "members", "network", "steps/s", "500 trials", "of which evaluation"]
    machines = parts["standard"]["machine"], parts["large"]["machine"], tf32["machine"]
    return table(head, rows) + origin("gpu", *machines)


_HOURS = "hours_for_500_trials", "of_which_evaluation"


TABLES: dict[str, Callable[[], str]] = {
    "train-crypto": partial(train_vs_peers, "crypto"),
    "train-cartpole": partial(train_vs_peers, "cartpole"),
    "trials-per-hour": trials_per_hour,
    "roofline": roofline,
    "items": items,
    "gradient-steps": gradient_steps,
    "env-steps": env_steps,
    "process-vec": process_vec,
    "game-steps": game_steps,
    "learning": learning,
    "learning-vs-sb3": learning_vs_sb3,
    "registry-chaos": registry_chaos,
    "chaos": chaos,
    "trader-chaos": trader_chaos,
    "trader-tracking": trader_tracking,
    "reproducible-mode": reproducible_mode,
    "soak": soak,
    "ask-time": ask_time,
    "search-replay": search_replay,
    "gate-records": gate_records,
    "gate-level": partial(gate_searches, skilled=False),
    "gate-power": partial(gate_searches, skilled=True),
    "gate-selection": gate_selection,
    "gate-holdout": gate_holdout,
    "gate-studies": gate_studies,
    "dashboard-pages": partial(pages_of, "dashboard_pages"),
    "study-pages": partial(pages_of, "study_pages"),
    "gpu-steps": gpu_steps,
    "gpu-speed": partial(gpu_speed, "speed"),
    "gpu-off-policy": partial(gpu_speed, "off-policy"),
    "gpu-envs": gpu_envs,
    "gpu-studies": gpu_studies,
}


def filled(text: str) -> str:
    """Return a page with its tables made from the results.

    Raises:
        KeyError: the page names a table that does not exist.
    """
    return _MARKED.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


def pages() -> list[Path]:
    """Return the pages with generated tables."""
    files = sorted((ROOT / "docs").glob("*.md"))
    return [path for path in files if _MARKED.search(path.read_text(encoding="utf-8"))]


def main() -> None:
    """Write the pages."""
    for path in pages():
        path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
