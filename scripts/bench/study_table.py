"""Print the results of a finished study and of its promotion, and save them as JSON.

    python scripts/bench/study_table.py STUDY --storage sqlite:///runs/sweepd.db
        --deployments deployments --save FILE

Steps per second are the workers' environment steps over their training time. Trials per hour are
over the time from the first trial's start to the last trial's end, including evaluation and
database.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from harness import benchmark_parser, machine, save_results
from optuna.trial import FrozenTrial, TrialState

from deploy.registry.reader import RegistryReader
from envs.support.study_record import TrialRecord
from optimize.study.database.opening import open_storage, storage_url
from optimize.study.study import StudyHandle

SPEC = (
    "env",
    "cv",
    "holdout",
    "budget",
    "rungs",
    "num_envs",
    "horizon",
    "slots",
    "trials_per_batch",
    "threads",
)


def describe(handle: StudyHandle) -> dict[str, Any]:
    """Return the study's spec, trials, speed and best trial."""
    trials = [trial for trial in handle.trials() if trial.state.is_finished()]
    complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    best: FrozenTrial = max(
        complete, key=lambda trial: trial.value if trial.value is not None else -np.inf
    )
    hours = (
        max(t.datetime_complete for t in trials) - min(t.datetime_start for t in trials)
    ).total_seconds() / 3600
    data = handle.spec.data
    return {
        "study": handle.name,
        "data": {
            "tickers": data.tickers,
            "timeframe": data.timeframe,
            "first": data.first,
            "last": data.last,
        },
        "space": handle.spec.space["name"],
        **{name: getattr(handle.spec, name) for name in SPEC},
        "trials": {
            state.name: sum(t.state == state for t in trials)
            for state in TrialState
            if state.is_finished()
        },
        "trials_per_hour": len(trials) / hours,
        "steps_per_second": float(
            np.median(
                [TrialRecord.from_attributes(t.user_attrs).steps_per_second for t in complete]
            )
        ),
        "objectives": sorted((t.value for t in complete if t.value is not None), reverse=True),
        "best": {"trial": best.number, "objective": best.value, "params": best.params}
        | {"metrics": TrialRecord.from_attributes(best.user_attrs).metrics},
    }


def verdicts(deployments: Path, study: str) -> list[dict[str, Any]]:
    """Return the registry's events about the study's candidates, with gate reports."""
    events = RegistryReader(deployments, create=False).events()
    return [
        {"kind": event.kind, "at": event.at, "reason": event.reason, "report": event.report}
        for event in events
        if event.report is not None and event.report.get("study") == study
    ]


def main(argv: list[str]) -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("study")
    parser.add_argument("--storage", default=None)
    parser.add_argument("--deployments", type=Path, default=Path("deployments"))
    parser.add_argument("--note", default="", help="a remark to store, for example on other load")
    args = parser.parse_args(argv)
    storage = open_storage(storage_url(args.storage, Path("runs")), read_only=True)
    table = describe(StudyHandle(storage, args.study))
    table["promotion"] = verdicts(args.deployments, args.study)
    table["machine"] = machine()
    table["note"] = args.note
    print(json.dumps(table, indent=1, default=str))
    save_results(args.save, table)


if __name__ == "__main__":
    main(sys.argv[1:])
