"""The report of a training run: learning curves, and intervals over its seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from optuna.trial import TrialState
from rich.table import Column, Table

from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.intervals import Floats, Interval, few_scores, over_seeds
from sweepd.optimize.objectives.artifacts import attach_files
from sweepd.optimize.study.record.configurations import first_value
from sweepd.optimize.study.record.keys import rung_interval, rung_scores
from sweepd.optimize.study.study import StudyHandle

FILES = ("learning_curves.png", "run.json")


def run_report(handle: StudyHandle, source: StudyHandle, trial: int) -> dict[str, Any]:
    """Return the results of a run as plain data.

    Args:
        handle: the run's study.
        source: the study of its trial.
        trial: number of the trial.

    Returns:
        study, origin (study, trial, and its value, None of an unfinished one), objective, rungs:
        per rung `steps` (environment steps per member), `seeds` (values), `mean`, `low` and `high`
        (95% interval of the mean), `resampled`: what the interval resamples, and `interval`: its
        name. These four are None where there is no interval, as of one seed on a market. `low` and
        `high` are None of equal values without a known range, too.
    """
    spec, curves = handle.spec, _curves(handle)
    selected = next(item for item in source.trials() if item.number == trial)
    rungs = []
    for rung in range(1, spec.rungs + 1):
        if rung in curves:
            values, interval = curves[rung]
            own = {} if interval is None else interval.to_dict()
            rungs.append(
                {
                    "steps": spec.rung_end(rung) * spec.transitions,
                    "seeds": values.tolist(),
                    "mean": float(values.mean()),
                    "low": own.get("low"),
                    "high": own.get("high"),
                    "resampled": own.get("resampled"),
                    "interval": own.get("method"),
                }
            )
    return {
        "study": handle.name,
        "origin": {"study": source.name, "trial": trial, "value": first_value(selected)},
        "objective": spec.objective,
        "rungs": rungs,
    }


def _curves(handle: StudyHandle) -> dict[int, tuple[Floats, Interval | None]]:
    """Return by rung the values of the seeds, and the interval of their mean.

    In a game, seeds are the members of the trial, and the interval is that of their evaluation.
    On a market, seeds are trials.
    """
    found: dict[int, list[float]] = {}
    intervals: dict[int, Interval | None] = {}
    for trial in handle.trials():
        if trial.state == TrialState.FAIL:
            continue
        for rung, value in trial.intermediate_values.items():
            members = rung_scores(trial.user_attrs, rung)
            found.setdefault(rung, []).extend(
                members if handle.spec.repeats and members else [value]
            )
            intervals[rung] = rung_interval(trial.user_attrs, rung)
    curves = {}
    for rung, own in found.items():
        values = np.array(own)
        interval = intervals[rung] if handle.spec.repeats else over_seeds(values)
        curves[rung] = values, None if interval is None or interval.empty else interval
    return curves


def report_table(found: dict[str, Any]) -> Table:
    """Return the report as a table, one row per rung."""
    shown = [_shown(rung) for rung in found["rungs"]]
    resampled = {own.resampled for own in shown if own is not None}
    over = "95% interval" if len(resampled) != 1 else f"95% over {resampled.pop()}"
    names = ("steps", f"{found['objective']}, mean over seeds", over, "seeds")
    table = Table(
        *(Column(name, justify="right") for name in names),
        title=f"learning curve of {found['study']}",
        title_justify="left",
    )
    for rung, own in zip(found["rungs"], shown, strict=True):
        seeds = rung["seeds"]
        bounds = "" if own is None else own.bounds()
        listed = few_scores(seeds) or str(len(seeds))
        table.add_row(f"{rung['steps']:,}", f"{rung['mean']:+.4f}", bounds, listed)
    return table


def _shown(rung: Mapping[str, Any]) -> Interval | None:
    """Return the interval of a rung; None if it may not be shown, see `Interval.trusted`."""
    if rung["interval"] is None:
        return None
    kept = {name: rung[name] for name in ("low", "high", "resampled")}
    found = Interval.from_dict({"value": rung["mean"], "method": rung["interval"], **kept})
    return found if found.trusted(len(rung["seeds"])) else None


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
    shown = [_shown(rung) for rung in found["rungs"]]
    drawn = [own if own is not None and own.known else None for own in shown]
    if any(drawn):  # the band has gaps where seeds are equal or too few
        low, high = ([getattr(own, name, math.nan) for own in drawn] for name in ("low", "high"))
        over = next(own.over for own in reversed(drawn) if own is not None)
        axes.fill_between(steps, low, high, color="tab:blue", alpha=0.2, label=over)
    axes.plot(steps, means, color="tab:blue", marker="o", label="mean over seeds")
    every = [value for rung in found["rungs"] for value in rung["seeds"]]
    if every and min(every) < max(every):
        # The seeds set the scale: intervals of two or three seeds are many times as wide.
        margin = 0.25 * (max(every) - min(every))
        axes.set_ylim(min(every) - margin, max(every) + margin)
    axes.set_xlabel("steps per member")
    axes.set_ylabel(found["objective"])
    axes.set_title(found["study"])
    axes.legend()
    write_atomic(folder / FILES[0], lambda path: figure.savefig(path, format="png"))
    attach_files(handle.storage, handle.study_id, folder, FILES)
