"""What a program of a study (`sweepd train --env command:…`) may import: docs/how_to/command.md.

Outside of a study the functions do what is useful for a run by hand.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def report(step: int, value: float, **numbers: float) -> None:
    """Report the value at a step; outside of a study, print it.

    Args:
        step: the program's own count, which does not decrease.
        value: the larger, the better; finite, or the trial fails.
        **numbers: further numbers, which are drawn as curves.
    """
    more = {name: float(number) for name, number in numbers.items()}
    line = json.dumps({"step": int(step), "value": float(value), **more})
    if "SWEEPD_REPORTS" not in os.environ:
        print(line, flush=True)
        return
    with open(os.environ["SWEEPD_REPORTS"], "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def params() -> dict[str, Any]:
    """Return the trial's parameters by name; none outside of a study."""
    return dict(json.loads(os.environ.get("SWEEPD_PARAMS", "{}")))


def checkpoint_dir() -> Path:
    """Return the folder that is kept until the trial ends; outside of a study, the current one."""
    return Path(os.environ.get("SWEEPD_CHECKPOINT_DIR", "."))


def out_dir() -> Path:
    """Return the folder of the files that are kept; outside of a study, the current one."""
    return Path(os.environ.get("SWEEPD_OUT", "."))
