"""The trials of a study, and the studies of a database, as pandas frames with scalar columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pandas as pd
from optuna.trial import FrozenTrial, TrialState

from sweepd.optimize.study.insight.comparison import summary
from sweepd.optimize.study.population import schedule_record
from sweepd.optimize.study.record.configurations import feasible, violations
from sweepd.optimize.study.record.database import StudyDatabase, our_studies
from sweepd.optimize.study.record.keys import CREATED_KEY, TOTAL_KEY, fitness_key, is_ours
from sweepd.optimize.study.record.reader import StudyReader, count_states
from sweepd.optimize.study.record.rows import FINISHED
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.record.trials import TrialRecord

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
SUMMARY = ("complete", "pruned", "failed", "best", "median", "worst")  # see `summary`


def trials_frame(handle: StudyReader) -> pd.DataFrame:
    """Return one row per trial, in the order of their numbers.

    Returns:
        A frame with the index `number` and these columns:
        state: as in Optuna, such as "COMPLETE".
        value: objective of a complete trial, its first value; NaN otherwise.
        ours: False for a trial that another program finished (see `is_ours`).
        started, ended: local times without a zone, as Optuna stores them.
        seconds: training time, all attempts together.
        steps_per_second: environment steps per second of the worker.
        seed: the trial's seed (Int64).
        reason: why it was pruned or failed.
        schedule: with `--search pbt`, the hyperparameters by rung that led to its weights, as JSON
            (`sweepd.optimize.study.population.schedule_record`); the parameters are those at its
            start.
        fitness: with `--search pbt` in games of two seats, that at the last rung as JSON
            (`sweepd.optimize.study.sampling.evolution.Fitness`).
        evaluations: with `--evaluate-every`, the evaluations beside rungs as JSON: pairs of
            environment steps per member and value.
        feasible: with constraints, whether a complete or pruned trial meets them.
        values_NAME: with several values, all of them.
        params_NAME: sampled parameters.
        metrics_NAME: metrics of the last evaluation.
        scores_I: score of member I (fold or seed) in the last evaluation.
        Columns without any value are left out, except the first three.
    """
    trials = handle.trials()
    rows = [_row(trial, handle.spec) for trial in trials]
    if handle.spec.evolves:
        for row, trial in zip(rows, trials, strict=True):
            row["schedule"] = json.dumps(schedule_record(handle, trial.number))
            fitness = trial.user_attrs.get(fitness_key(max(trial.intermediate_values, default=0)))
            row["fitness"] = None if fitness is None else json.dumps(fitness)
    fixed = ("number", "state", "value", "ours")
    named = {name for row in rows for name, value in row.items() if value is not None}
    # In order of first appearance, but grouped: all parameters, then all metrics, then all scores.
    order = dict.fromkeys(name for row in rows for name in row)
    groups = ("values_", "params_", "metrics_", "scores_")
    others = [name for name in order if not name.startswith(groups)]
    columns = [*dict.fromkeys((*fixed, *others))]
    for prefix in groups:
        columns += [name for name in order if name.startswith(prefix)]
    kept = [name for name in columns if name in fixed or name in named]
    frame = pd.DataFrame(rows, columns=kept).set_index("number")
    # Seeds are 63 bits long, which a float cannot hold.
    kinds = {"value": "float64", "ours": "bool", "seed": "Int64"}
    return frame.astype({name: kind for name, kind in kinds.items() if name in frame})


def _row(trial: FrozenTrial, spec: StudySpec) -> dict[str, Any]:
    values = trial.values if trial.state == TrialState.COMPLETE else None
    names = [f"values_{value.name}" for value in spec.values] if spec.several else []
    record = TrialRecord.from_attributes(trial.user_attrs)
    return {
        "number": trial.number,
        "state": trial.state.name,
        "value": values[0] if values else None,
        "ours": not trial.state.is_finished() or is_ours(trial.user_attrs),
        "started": trial.datetime_start,
        "ended": trial.datetime_complete,
        "seconds": record.seconds,
        "steps_per_second": record.steps_per_second,
        "seed": record.seed,
        "reason": record.reason or None,
        "evaluations": json.dumps(record.evaluations) if record.evaluations else None,
        "feasible": feasible(trial) if violations(trial) else None,
        **(dict(zip(names, values, strict=False)) if values else {}),
        **{f"params_{name}": value for name, value in trial.params.items()},
        **{f"metrics_{name}": value for name, value in (record.metrics or {}).items()},
        **{f"scores_{index}": score for index, score in enumerate(record.scores or ())},
    }


def studies_frame(storage: StudyDatabase) -> pd.DataFrame:
    """Return one row per study that sweepd made, the newest first.

    Returns:
        A frame with the index `study` and the columns environment, algorithm, objective, trials,
        running, finished (complete, pruned and failed), total (the number asked for; NaN before the
        first worker), best_trial and best_value (NaN without a complete trial), created (UTC).
    """
    rows = []
    for name, attributes in our_studies(storage).items():
        handle = StudyReader(storage, name)
        counts, best = count_states(row.state for row in handle.rows.read()), handle.best()
        rows.append(
            {
                "study": name,
                "environment": handle.spec.environment,
                "algorithm": handle.spec.algorithm,
                "objective": handle.spec.objective,
                "trials": sum(counts.values()),
                "running": counts[TrialState.RUNNING.name],
                "finished": sum(counts[state] for state in FINISHED),
                "total": attributes.get(TOTAL_KEY),
                "best_trial": None if best is None else best.best_trial.number,
                "best_value": None if best is None else best.value,
                "created": attributes.get(CREATED_KEY),
            }
        )
    frame = pd.DataFrame(rows, columns=list(STUDY_COLUMNS)).set_index("study")
    frame["created"] = pd.to_datetime(frame["created"], utc=True)
    return frame.astype({"total": "float64", "best_trial": "float64", "best_value": "float64"})


def comparison_frame(handles: Sequence[StudyReader]) -> pd.DataFrame:
    """Return one column per study, and rows with figures of its trials.

    Returns:
        The rows objective, complete, pruned, failed (numbers of trials), best (value of the selected
        configuration, in a race a mean over trials), median and worst (values of the complete
        trials), best trial (number of the selected configuration's best one), seconds (training time of
        all trials), and the best trial's parameters as `params_NAME`. None where there is no value.
    """
    columns = {}
    for handle in handles:
        selected = handle.best()
        found = summary(handle.rows.read(), (), selected)
        params = {} if selected is None else selected.best_trial.params
        columns[handle.name] = {
            "objective": handle.spec.objective,
            **{name: found[name] for name in SUMMARY},
            "best trial": found["best_trial"],
            "seconds": found["seconds"],
            **{f"params_{name}": value for name, value in params.items()},
        }
    rows = dict.fromkeys(name for column in columns.values() for name in column)
    table = {study: [column.get(row) for row in rows] for study, column in columns.items()}
    return pd.DataFrame(table, index=list(rows), dtype="object")
