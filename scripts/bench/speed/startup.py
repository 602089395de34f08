"""How long a command takes to start, and how much memory it takes.

Each command runs in a new process, `--runs` times. `wall`: seconds from its start to its end, the
median; `processor`: seconds of processor time, the least, on which other processes have little
influence; `memory`: the largest resident set, MB. `status` shows a study of CartPole with two trials
that it trains first. Below the commands are imports that no such command can start without
(SQLAlchemy, and Optuna's tables with it) or that it must not have (torch).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scripts.bench.harness import benchmark_parser, print_machine, save_results

SWEEPD = (sys.executable, "-m", "sweepd")
COMMANDS = {
    "--version": (*SWEEPD, "--version"),
    "--help": (*SWEEPD, "--help"),
    "status": (*SWEEPD, "status"),
    "python": (sys.executable, "-c", "pass"),
    "import sqlalchemy.orm": (sys.executable, "-c", "import sqlalchemy.orm"),
    "import optuna's tables": (sys.executable, "-c", "import optuna.storages._rdb.models"),
    "import torch": (sys.executable, "-c", "import torch"),
}
STUDY = (
    *("train", "--env", "cartpole", "--n-trials", "2", "--budget", "2048", "--rungs", "2"),
    *("--n-envs", "8", "--horizon", "64", "--episodes", "10", "--fresh-seeds", "0"),
    *("--threads", "1", "--gpu", "cpu", "--no-auto-deploy"),
)


def measure(command: tuple[str, ...], folder: Path) -> tuple[float, float, float]:
    """Run a command in a folder. Returns wall and processor time in seconds, and memory in MB."""
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    assert process.stderr is not None
    errors = process.stderr.read().decode()
    assert os.waitstatus_to_exitcode(status) == 0, errors
    process.returncode = 0  # it has been waited for
    return wall, used.ru_utime + used.ru_stime, used.ru_maxrss / 1000.0


def main(argv: list[str] | None = None) -> int:
    parser = benchmark_parser(__doc__ or "")
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args(argv)
    described, found = print_machine(), {}
    with tempfile.TemporaryDirectory() as folder:
        measure((*SWEEPD, *STUDY), Path(folder))
        for name, command in COMMANDS.items():
            runs = [measure(command, Path(folder)) for _ in range(options.runs)]
            wall, processor, memory = zip(*runs, strict=True)
            row = {"wall": statistics.median(wall), "processor": min(processor)}
            found[name] = row | {"memory": max(memory)}
            print(
                f"{name:24s} {row['wall']:6.2f} s  {row['processor']:6.2f} s of the processor  "
                f"{max(memory):6.0f} MB",
                flush=True,
            )
    save_results(options.save, {"machine": described, "commands": found})
    return 0
