"""The report of a training run: learning curves, and intervals over its seeds."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.trial import TrialState
from rich.table import Column, Table

from envs.support.files import write_atomic
from envs.support.study_record import GameSpec, rung_scores
from optimize.experiments.artifacts import attach_files
from optimize.study.study import StudyHandle

Floats = NDArray[np.float64]
FILES = ("learning_curves.png", "run.json")


def run_report(handle: StudyHandle, source: StudyHandle, trial: int) -> dict[str, Any]:
    """Return the results of a run as plain data.

    Args:
        handle: the run's study.
        source: the study of its trial.
        trial: number of the trial.

    Returns:
        study, origin (study, trial, and its value, None of an
        unfinished one), objective, rungs: per
        rung `steps` (environment steps per member), `seeds` (values), `mean`, `low` and `high`
        (95% interval of the mean over seeds, by Student's t; None for one seed).
    """
    spec, curves = handle.spec, _curves(handle)
    selected = next(item for item in source.trials() if item.number == trial)
    rungs = []
    for rung in range(1, spec.rungs + 1):
        values = curves.get(rung, np.empty(0))
        if values.size:
            low, high = mean_interval(values)
            rungs.append(
                {
                    "steps": spec.rung_end(rung) * spec.transitions,
                    "seeds": values.tolist(),
                    "mean": float(values.mean()),
                    "low": low,
                    "high": high,
                }
            )
    return {
        "study": handle.name,
        "origin": {"study": source.name, "trial": trial, "value": selected.value},
        "objective": spec.objective,
        "rungs": rungs,
    }


def mean_interval(values: Floats) -> tuple[float | None, float | None]:
    """Return the 95% interval of the mean of (n,) values (Student 1908); None for n = 1."""
    from scipy.stats import t

    if values.size < 2:
        return None, None
    reach = float(t.ppf(0.975, values.size - 1)) * values.std(ddof=1) / math.sqrt(values.size)
    return float(values.mean() - reach), float(values.mean() + reach)


def _curves(handle: StudyHandle) -> dict[int, Floats]:
    """Return the values of the seeds by rung: members of a game's trial, or trials of a market."""
    found: dict[int, list[float]] = {}
    game = isinstance(handle.spec, GameSpec)
    for trial in handle.trials():
        if trial.state == TrialState.FAIL:
            continue
        for rung, value in trial.intermediate_values.items():
            members = rung_scores(trial.user_attrs, rung)
            found.setdefault(rung, []).extend(members if game and members else [value])
    return {rung: np.array(values) for rung, values in found.items()}


def report_table(found: dict[str, Any]) -> Table:
    """Return the report as a table, one row per rung."""
    names = ("steps", f"{found['objective']}, mean over seeds", "95% interval", "seeds")
    table = Table(
        *(Column(name, justify="right") for name in names),
        title=f"learning curve of {found['study']}",
        title_justify="left",
    )
    for rung in found["rungs"]:
        low, high = rung["low"], rung["high"]
        interval = "" if low is None else f"{low:,.3f} … {high:,.3f}"
        table.add_row(
            f"{rung['steps']:,}", f"{rung['mean']:,.3f}", interval, str(len(rung["seeds"]))
        )
    return table


def write_run_report(handle: StudyHandle, found: dict[str, Any]) -> None:
    """Write `run.json` and `learning_curves.png` into the study's folder, as its artifacts."""
    from matplotlib.figure import Figure

    folder = handle.run_dir
    write_atomic(folder / "run.json", json.dumps(found, indent=1))
    figure = Figure(figsize=(8, 4.5), dpi=100)
    axes = figure.add_axes((0.1, 0.12, 0.87, 0.8))
    steps = [rung["steps"] for rung in found["rungs"]]
    means = [rung["mean"] for rung in found["rungs"]]
    count = min((len(rung["seeds"]) for rung in found["rungs"]), default=0)
    for seed in range(count):
        own = [rung["seeds"][seed] for rung in found["rungs"]]
        axes.plot(steps, own, color="tab:gray", linewidth=0.8, alpha=0.7)
    if all(rung["low"] is not None for rung in found["rungs"]):
        low, high = ([rung[name] for rung in found["rungs"]] for name in ("low", "high"))
        axes.fill_between(steps, low, high, color="tab:blue", alpha=0.2, label="95% of the mean")
    axes.plot(steps, means, color="tab:blue", marker="o", label="mean over seeds")
    every = [value for rung in found["rungs"] for value in rung["seeds"]]
    if every and min(every) < max(every):
        # The seeds set the scale: intervals of two or three seeds are many times as wide.
        margin = 0.25 * (max(every) - min(every))
        axes.set_ylim(min(every) - margin, max(every) + margin)
    axes.set_xlabel("environment steps per member")
    axes.set_ylabel(found["objective"])
    axes.set_title(found["study"])
    axes.legend()
    write_atomic(folder / FILES[0], lambda path: figure.savefig(path, format="png"))
    attach_files(handle.storage, handle.study_id, folder, FILES)
