"""Tables of speeds, on a CPU."""

from __future__ import annotations

import statistics
from typing import Any

from scripts.result_tables.results import load, origin, ratio_text, table


def train_vs_peers(task: str, file: str = "train_vs_peers") -> str:
    """Ratios to the fastest peer of a results file, by network and minibatch."""
    cells = load(file)["speed"].values()
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
            f"{ratio_text(cell['ours_over_best'])} · {ours:,.0f} against {peer:,.0f} · {share:.0%} · "
            f"{ratio_text(cell['ours_over_torch'])}"
        )

    rows = [
        [f"{width}×{width}", *(entry(found[width, size]) for size in minibatches)]
        for width in widths
    ]
    machines = [cell["machine"] for cell in found.values()]
    head = [task, *(f"minibatch {size:,}" for size in minibatches)]
    return table(head, rows) + origin(file, *machines)


def trials_per_hour() -> str:
    """The standard study."""
    found = load("trials_per_hour")
    names = {
        "ours": "the worker, including all its other work",
        "elegant": "ElegantRL, one fold after another, the same number of envs, training only",
        "elegant, two processes": "the same, two folds at a time in two processes",
        "elegant 1 env": "ElegantRL with one env",
        "elegant 1 env, two processes": "the same in two processes",
    }
    goals = {"elegant": "5×", "elegant 1 env": "50×"}
    rows = []
    for name, title in names.items():
        if name not in found["runs"][0]["trials_per_hour"]:
            continue
        rate = statistics.median(run["trials_per_hour"][name] for run in found["runs"])
        ratio = found["ours_over"].get(name)
        rows.append([title, f"{rate:.1f}", ratio_text(ratio) if ratio else "", goals.get(name, "")])
    head = ["trials per hour", "", "sweepd is", "goal"]
    return table(head, rows) + origin("trials_per_hour", found["machine"])


def search_vs_sb3() -> str:
    """The same search with Optuna and Stable-Baselines3: medians of the seeds."""
    titles = {
        "sb3": "Optuna + Stable-Baselines3, one process",
        "sb3 x2": "the same, two processes",
        "sweepd": "`sweepd train`",
        "tensors": "`sweepd train`, CartPole in tensors",
    }
    rows, machines = [], []
    for own in load("search_vs_sb3").values():
        for name, title in titles.items():
            found = [one for one in own["searches"].values() if one["search"] == name]
            if not found:
                continue
            machines += [one["machine"] for one in found]
            reached = [one["seconds_to_level"] for one in found]
            level = "never" if None in reached else f"{statistics.median(reached):.0f} s"
            finished = statistics.median(one["seconds"] for one in found)
            selected = statistics.median(one["selected"] for one in found)
            sizes = (
                f"{own['task']['env']}, {own['task']['trials']} × {own['task']['steps']:,} steps"
            )
            rows.append([sizes, title, f"{finished:.0f} s", level, f"{selected:.0f}"])
    head = ["search", "", "all trials finished", "first trial at the level", "score of the chosen"]
    return table(head, rows) + origin("search_vs_sb3", *machines)


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
                ratio_text(row["ours_over_best"]),
            ]
        )
    head = ["steps per second", "minibatch", "sweepd", "in torch", "ElegantRL"]
    head += ["Stable-Baselines3", "sweepd is"]
    return table(head, sorted(rows, reverse=True)) + origin("gradient_steps", found["machine"])


def recurrent_steps() -> str:
    """PPO with recurrent networks, in native code and in torch."""
    found = load("recurrent_steps")
    rows = []
    for row in found["results"]:
        cell = row["cell"]
        rate = {name: statistics.median(values) for name, values in row["runs"].items()}
        name = f"{cell['task']}, {cell['recurrent'].upper()}, {cell['width']}"
        speeds = [f"{rate[one]:,.0f}" for one in ("ours", "torch", "feed-forward")]
        rows.append([name, *speeds, ratio_text(row["ours_over_torch"])])
    head = ["steps per second", "native", "in torch", "without recurrent layer", "native is"]
    return table(head, rows) + origin("recurrent_steps", found["machine"])


def image_steps() -> str:
    """PPO with images, in native code and in torch."""
    found = load("image_steps")
    rows = []
    for row in found["results"]:
        cell = row["cell"]
        rate = {name: statistics.median(values) for name, values in row["runs"].items()}
        channels, *sides = cell["image"]
        name = f"{'×'.join(map(str, [*sides, channels]))}, {cell['width']}"
        speeds = [f"{rate[one]:,.0f}" for one in ("ours", "torch")]
        rows.append([name, *speeds, ratio_text(row["ours_over_torch"])])
    head = ["steps per second", "native", "in torch", "native is"]
    return table(head, rows) + origin("image_steps", found["machine"])


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


def startup() -> str:
    """What commands take to start."""
    found = load("startup")
    goal, unit = found["goal"], found["commands"]["import optuna"]["processor"]
    rows = [
        [
            f"`{name}`",
            f"{row['processor']:.2f}",
            f"{row['processor'] / unit:.1f}×",
            f"{row['memory']:.0f}",
        ]
        for name, row in found["commands"].items()
    ]
    limits = f"s (goal {goal['processor']:g})", f"MB (goal {goal['memory']:g})"
    head = ["", limits[0], "`import optuna`", limits[1]]
    return table(head, rows) + origin("startup", found["machine"])


def pages_of(name: str) -> str:
    """Times of the dashboard's pages."""
    found = load(name)
    rows = [
        [one["page"], *(f"{one[figure]:,.0f}" for figure in ("first", "median", "p95", "kB"))]
        for one in found["pages"]
    ]
    head = ["page", "first, ms", "median, ms", "95%, ms", "kB"]
    return table(head, rows) + origin(name, found["machine"])
