"""The trials of a study, and the studies of a database, as pandas frames with scalar columns."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pandas as pd
from optuna.trial import FrozenTrial, TrialState

from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.population import schedule_record
from sweepd.optimize.study.record.stored import (
    CREATED_KEY,
    SPEC_KEY,
    TOTAL_KEY,
    TrialRecord,
    is_ours,
)
from sweepd.optimize.study.study import FINISHED, StudyHandle, best_configuration

STUDY_COLUMNS = (
    "study",
    "environment",
    "algorithm",
    "objective",
    "trials",
    "running",
    "finished",
    "total",
    "best_trial",
    "best_value",
    "created",
)


def trials_frame(handle: StudyHandle) -> pd.DataFrame:
    """Return one row per trial, in the order of their numbers.

    Returns:
        A frame with the index `number` and these columns:
        state: as in Optuna, such as "COMPLETE".
        value: objective of a complete trial, NaN otherwise.
        ours: False for a trial that another program finished (see `is_ours`).
        started, ended: local times without a zone, as Optuna stores them.
        seconds: training time, all attempts together.
        steps_per_second: environment steps per second of the worker.
        seed: the trial's seed (Int64).
        reason: why it was pruned or failed.
        schedule: with `--search pbt`, the hyperparameters by rung that led to its weights, as JSON
            (`sweepd.optimize.study.population.schedule_record`); the parameters are those at its
            start.
        params_NAME: sampled parameters.
        metrics_NAME: metrics of the last evaluation.
        scores_I: score of member I (fold or seed) in the last evaluation.
        Columns without any value are left out, except the first three.
    """
    rows = [_row(trial) for trial in handle.trials()]
    if handle.spec.evolves:
        for row in rows:
            row["schedule"] = json.dumps(schedule_record(handle, row["number"]))
    fixed = ("number", "state", "value", "ours")
    named = {name for row in rows for name, value in row.items() if value is not None}
    # In order of first appearance, but grouped: all parameters, then all metrics, then all scores.
    order = dict.fromkeys(name for row in rows for name in row)
    groups = ("params_", "metrics_", "scores_")
    others = [name for name in order if not name.startswith(groups)]
    columns = [*dict.fromkeys((*fixed, *others))]
    for prefix in groups:
        columns += [name for name in order if name.startswith(prefix)]
    kept = [name for name in columns if name in fixed or name in named]
    frame = pd.DataFrame(rows, columns=kept).set_index("number")
    # Seeds are 63 bits long, which a float cannot hold.
    kinds = {"value": "float64", "ours": "bool", "seed": "Int64"}
    return frame.astype({name: kind for name, kind in kinds.items() if name in frame})


def _row(trial: FrozenTrial) -> dict[str, Any]:
    record = TrialRecord.from_attributes(trial.user_attrs)
    return {
        "number": trial.number,
        "state": trial.state.name,
        "value": trial.value if trial.state == TrialState.COMPLETE else None,
        "ours": not trial.state.is_finished() or is_ours(trial.user_attrs),
        "started": trial.datetime_start,
        "ended": trial.datetime_complete,
        "seconds": record.seconds,
        "steps_per_second": record.steps_per_second,
        "seed": record.seed,
        "reason": record.reason or None,
        **{f"params_{name}": value for name, value in trial.params.items()},
        **{f"metrics_{name}": value for name, value in (record.metrics or {}).items()},
        **{f"scores_{index}": score for index, score in enumerate(record.scores or ())},
    }


def studies_frame(storage: StudyStorage) -> pd.DataFrame:
    """Return one row per study that sweepd made, the newest first.

    Returns:
        A frame with the index `study` and the columns environment, algorithm, objective, trials,
        running, finished (complete, pruned and failed), total (the number asked for; NaN before the
        first worker), best_trial and best_value (NaN without a complete trial), created (UTC).
    """
    ours = [study for study in storage.get_all_studies() if SPEC_KEY in study.user_attrs]
    # Ids increase in order of creation, which decides between equal dates.
    ours.sort(key=lambda s: (str(s.user_attrs.get(CREATED_KEY, "")), s._study_id), reverse=True)
    rows = []
    for study in ours:
        handle = StudyHandle(storage, study.study_name)
        counts, best = handle.counts(), best_configuration(handle)
        rows.append(
            {
                "study": study.study_name,
                "environment": handle.spec.environment,
                "algorithm": handle.spec.algorithm,
                "objective": handle.spec.objective,
                "trials": sum(counts.values()),
                "running": counts[TrialState.RUNNING.name],
                "finished": sum(counts[state.name] for state in FINISHED),
                "total": study.user_attrs.get(TOTAL_KEY),
                "best_trial": None if best is None else best.best_trial.number,
                "best_value": None if best is None else best.value,
                "created": study.user_attrs.get(CREATED_KEY),
            }
        )
    frame = pd.DataFrame(rows, columns=list(STUDY_COLUMNS)).set_index("study")
    frame["created"] = pd.to_datetime(frame["created"], utc=True)
    return frame.astype({"total": "float64", "best_trial": "float64", "best_value": "float64"})


def comparison_frame(handles: Sequence[StudyHandle]) -> pd.DataFrame:
    """Return one column per study, and rows with figures of its trials.

    Returns:
        The rows objective, complete, pruned, failed (numbers of trials), best (value of the selected
        configuration, in a race a mean over trials), median and worst (values of the complete
        trials), best trial (number of the selected configuration's best one), seconds (training time of
        all trials), and the best trial's parameters as `params_NAME`. None where there is no value.
    """
    columns = {}
    for handle in handles:
        frame, selected = trials_frame(handle), best_configuration(handle)
        best = None if selected is None else selected.best_trial
        counts = handle.counts()
        values = frame.loc[frame["ours"], "value"].dropna()
        seconds = frame["seconds"].sum() if "seconds" in frame else 0.0
        known = len(values) > 0
        columns[handle.name] = {
            "objective": handle.spec.objective,
            "complete": counts["COMPLETE"],
            "pruned": counts["PRUNED"],
            "failed": counts["FAIL"],
            "best": None if selected is None else selected.value,
            "median": float(values.median()) if known else None,
            "worst": float(values.min()) if known else None,
            "best trial": None if best is None else best.number,
            "seconds": float(seconds),
            **({} if best is None else {f"params_{k}": v for k, v in best.params.items()}),
        }
    rows = dict.fromkeys(name for column in columns.values() for name in column)
    table = {study: [column.get(row) for row in rows] for study, column in columns.items()}
    return pd.DataFrame(table, index=list(rows), dtype="object")


def spec_differences(handles: Sequence[StudyHandle]) -> dict[str, list[str]]:
    """Return the fields of the studies' specs in which they differ, with each study's value."""
    specs = [dataclasses.asdict(handle.spec) for handle in handles]
    differences: dict[str, list[str]] = {}
    for field in dict.fromkeys(name for spec in specs for name in spec):
        values = [spec.get(field) for spec in specs]
        if any(value != values[0] for value in values):
            differences[field] = [_short(field, value) for value in values]
    return differences


def _short(field: str, value: Any) -> str:
    if field == "space" and isinstance(value, dict):
        return str(value["name"])
    if field == "data" and isinstance(value, dict):
        return f"{len(value['tickers'])} tickers, {value['first'][:10]} to {value['last'][:10]}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {one}" for name, one in value.items())
    return "" if value is None else str(value)
