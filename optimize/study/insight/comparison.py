"""Two studies side by side: what they found, when, and in which settings they differ."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Any

from sweepd.optimize.study.insight.axes import Axis
from sweepd.optimize.study.record.configurations import Configuration
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.rows import TrialRow

# Settings that say where a study was made, not what it is.
_ASIDE = ("code_version", "torch_version", "processor", "threads")


def best_so_far(rows: Sequence[TrialRow]) -> list[dict[str, Any]]:
    """Return the trials that were the best one when they ended, by the objective.

    Returns:
        Per such trial, and for the last trial of all: `trial`, `value` (best so far), `finished`
        (number of finished trials then) and `hours` since the first trial began.
    """
    ended = sorted(
        (row for row in rows if row.finished and row.ended is not None),
        key=lambda row: (row.ended or 0.0, row.number),
    )
    began = min((row.started for row in rows if row.started is not None), default=0.0)
    found: list[dict[str, Any]] = []
    best: TrialRow | None = None
    for count, row in enumerate(ended, 1):
        better = row.selectable and (best is None or (row.value or 0.0) > (best.value or 0.0))
        best = row if better else best
        if best is not None and (better or count == len(ended)):
            found.append(
                {
                    "trial": best.number,
                    "value": best.value,
                    "finished": count,
                    "hours": ((row.ended or began) - began) / 3600.0,
                }
            )
    return found


def summary(
    rows: Sequence[TrialRow], so_far: Sequence[dict[str, Any]], selected: Configuration | None
) -> dict[str, Any]:
    """Return figures of a study's trials: numbers by state, values, and time.

    Args:
        rows: the trials.
        so_far: result of `best_so_far`.
        selected: the configuration that the study selects; its value is `best`.
    """
    values = [row.value for row in rows if row.judged and row.value is not None]
    last = so_far[-1] if so_far else None
    return {
        "complete": sum(row.state == "COMPLETE" for row in rows),
        "pruned": sum(row.state == "PRUNED" for row in rows),
        "failed": sum(row.state == "FAIL" for row in rows),
        "best": None if selected is None else selected.value,
        "best_trial": None if selected is None else selected.best_trial.number,
        "median": statistics.median(values) if values else None,
        "worst": min(values, default=None),
        "wall_seconds": None if last is None else 3600.0 * last["hours"],
        "seconds": sum(row.seconds or 0.0 for row in rows),
    }


def common_parameters(
    axes: Sequence[Sequence[Axis]], best: Sequence[dict[str, Any] | None]
) -> list[dict[str, Any]]:
    """Return the parameters that either study samples.

    Args:
        axes: of each study.
        best: each study's best trial, with `params`; None without one.

    Returns:
        Per parameter: `name`, `ranges` (an axis as plain data, None if the study does not sample
        it), `best` (values in the best trials, None if there is none). Those of both come first.
    """
    by_name = [{axis.name: axis for axis in own} for own in axes]
    names = dict.fromkeys(axis.name for own in axes for axis in own)
    found = [
        {
            "name": name,
            "ranges": [own[name].to_dict() if name in own else None for own in by_name],
            "best": [None if one is None else one["params"].get(name) for one in best],
        }
        for name in names
    ]
    return sorted(found, key=lambda one: None in one["ranges"])


def differences(handles: Sequence[StudyReader]) -> dict[str, list[str]]:
    """Return the settings in which the studies differ, with each study's value."""
    found = spec_differences(handles)
    return {name: values for name, values in found.items() if name not in _ASIDE}


def spec_differences(handles: Sequence[StudyReader]) -> dict[str, list[str]]:
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
