"""A program whose training is a row of a table: it prints the curve nearest to its parameters.

    python -I -S table_program.py TABLE.json

`search_programs.py` writes the table, and starts the program by `--env command:…`. It imports the
standard library alone, since it is started once per trial.
"""

import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def position(column: Mapping[str, Any], value: float) -> float:
    """Return the position of a value in a range or among choices, from 0 to 1."""
    if choices := column.get("choices"):
        return float(choices.index(value) / (len(choices) - 1))
    low, high = column["low"], column["high"]
    if column["log"]:
        return math.log(value / low) / math.log(high / low)
    return float((value - low) / (high - low))


def nearest(
    columns: Sequence[Mapping[str, Any]],
    points: Sequence[Sequence[float | None]],
    params: Mapping[str, Any],
) -> int:
    """Return the index of the point that is nearest to the parameters; ties: the first.

    Args:
        columns: name, and choices or low, high and log, of each parameter.
        points: positions; None where a configuration does not have the parameter.
        params: by name.
    """
    asked = [position(column, params[column["name"]]) for column in columns]
    gaps = [
        sum((own - other) ** 2 for own, other in zip(point, asked, strict=True) if own is not None)
        for point in points
    ]
    return gaps.index(min(gaps))


def print_curve() -> None:
    """Print the reports of the nearest configuration, up to the failure if the run failed."""
    table = json.loads(Path(sys.argv[1]).read_text())
    params, seed = json.loads(os.environ["SWEEPD_PARAMS"]), int(os.environ["SWEEPD_SEED"])
    curves = table["curves"][nearest(table["columns"], table["points"], params)]
    for step, value in enumerate(curves[seed % len(curves)], start=1):
        if value is None:
            raise SystemExit("this run of the table failed")
        print(json.dumps({"step": step, "value": value}))


if __name__ == "__main__":
    print_curve()
