"""What a command takes to start: seconds of processor time, and memory.

    python -m scripts.bench run startup --save FILE

Each command runs in a new process, --runs times, the commands in turn. `processor`: the median of
user and system time; `memory`: the largest resident set, MB. `status` shows a market's study with
--trials finished trials, `trader status` a slot with a year of hourly bars. For comparison: Python
itself, and imports of the libraries that the commands need or should not need (torch).
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scripts.bench.harness import benchmark_parser, print_machine, save_results
from scripts.bench.speed.dashboard_pages import SLOT, fill
from scripts.bench.speed.study_pages import filled_study

GOAL = {"processor": 0.5, "memory": 100.0}
SWEEPD = (sys.executable, "-m", "sweepd")
# As sweepd imports them: without garbage collections, and pydantic in the way that Typer uses it.
LIBRARIES = (
    "import gc; gc.disable(); import typer, sqlalchemy, numpy; from pydantic import TypeAdapter"
)
COMMANDS = {
    "python -c pass": (sys.executable, "-c", "pass"),
    "import optuna": (sys.executable, "-c", "import optuna"),
    "import typer, pydantic, sqlalchemy, numpy": (sys.executable, "-c", LIBRARIES),
    "import torch": (sys.executable, "-c", "import torch"),
    "import sweepd": (sys.executable, "-c", "import sweepd"),
    "sweepd --version": (*SWEEPD, "--version"),
    "sweepd --help": (*SWEEPD, "--help"),
    "sweepd status": (*SWEEPD, "status"),
    "sweepd studies list": (*SWEEPD, "studies", "list"),
    "sweepd trader status": (*SWEEPD, "trader", "status"),
    "sweepd registry list": (*SWEEPD, "registry", "list"),
    "sweepd dashboard --help": (*SWEEPD, "dashboard", "--help"),
    "sweepd dashboard --once": (*SWEEPD, "dashboard", SLOT, "--once"),
    "sweepd train --help": (*SWEEPD, "train", "--help"),
}


# Starts a command and prints exit code, seconds and MB. Linux counts the memory of the process that
# starts a command as the command's, so that a small one has to.
STARTER = """
import os, subprocess, sys
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
_, status, used = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
print(process.returncode, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000)
"""


def measure(command: tuple[str, ...], folder: Path) -> tuple[float, float]:
    """Run a command in a folder. Returns seconds of processor time, and memory in MB."""
    words = [sys.executable, "-c", STARTER, *command]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    code, processor, memory = done.stdout.split()
    assert code in ("0", "1"), done.stderr  # 1: the study has no worker, or the slot no trader
    return float(processor), float(memory)


def main(argv: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__ or "")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--trials", type=int, default=500)
    parser.add_argument("--bars", type=int, default=8_760)
    options = parser.parse_args(argv)
    described = print_machine()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as folder:
        filled_study(Path(folder) / "runs", "bench", options.trials, 0)
        fill(Path(folder) / "deployments", options.trials, options.bars)
        for command in COMMANDS.values():
            measure(command, Path(folder))  # reads the files, and compiles the modules
        for _ in range(options.runs):
            for name, command in COMMANDS.items():
                found[name].append(measure(command, Path(folder)))
    rows = {
        name: {
            "processor": statistics.median(one for one, _ in runs),
            "memory": max(one for _, one in runs),
        }
        for name, runs in found.items()
    }
    for name, row in rows.items():
        print(f"{name:44s} {row['processor']:6.2f} s  {row['memory']:6.0f} MB")
    save_results(options.save, {"machine": described, "goal": GOAL, "commands": rows})
    return 0
