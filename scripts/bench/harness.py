"""What all benchmarks share: arguments, the description of the machine, timing, results files."""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
import torch

from sweepd.envs.core.sizing import cpu_count, processor_name
from sweepd.envs.native.build import TORCH, VARIABLE
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.mkl import current_mode

ROOT = Path(__file__).resolve().parents[2]
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
# Cores that other processes may use during the runs that make a ratio of wall-clock times.
SHARED = 0.25
PEERS = (
    *("elegantrl", "stable-baselines3", "sb3-contrib", "gymnasium", "pettingzoo"),
    *("pufferlib", "pufferlib-core", "jax", "optuna", "smac", "ray", "open-spiel", "wandb"),
    *("box2d", "mujoco", "minigrid", "mpe2"),
)


def benchmark_parser(description: str, *, threads: int | None = None) -> argparse.ArgumentParser:
    """Make a parser with `--save` and, if the script has a default for it, `--threads`.

    Args:
        description: the script's docstring, which `--help` prints as it is.
        threads: the default number of torch threads.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if threads is not None:
        parser.add_argument("--threads", type=int, default=threads, help="torch threads")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
    return parser


def parse_with_clock(
    parser: argparse.ArgumentParser, argv: list[str]
) -> tuple[argparse.Namespace, str]:
    """Parse arguments, among them `--cpu-time`, and set torch's threads.

    Args:
        parser: made with `threads`.
        argv: the arguments.

    Returns:
        The arguments, and the name of the clock, of `CLOCKS`.
    """
    parser.add_argument(
        "--cpu-time", action="store_true", help="measure processor time, on one thread"
    )
    args = parser.parse_args(argv)
    if args.cpu_time:
        args.threads = 1  # idle threads spin, which counts as processor time
    torch.set_num_threads(args.threads)
    return args, "processor" if args.cpu_time else "wall"


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return what a result must be read with: processor, MKL's mode, cores, threads, versions, load,
    on CUDA the GPU, and as `source` commit, date, command and the versions of peers."""
    described: dict[str, Any] = {
        "processor": processor_name(),
        "family": processor_family(),
        "mkl": current_mode(),
        "cores": cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }
    if torch.device(device).type == "cuda":
        described["gpu"] = torch.cuda.get_device_name(device)
    return described | {"source": source()}


def source() -> dict[str, Any]:
    """Return the program that makes a result.

    Returns:
        commit; dirty, whether files other than documents and results differ from it (both None
        outside a repository); sweepd's version; date (UTC); command, with the options' paths
        without their folders; versions of the installed peers.
    """
    files = ("status", "--porcelain", "--", ":!docs", ":!scripts/bench/results", ":!*.md")
    commit, changed = _git("rev-parse", "HEAD"), _git(*files)
    words = [Path(word).name if os.path.isabs(word) else word for word in sys.argv[1:]]
    peers = {}
    for name in PEERS:
        try:
            peers[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "commit": commit,
        "dirty": None if commit is None else bool(changed),
        "version": version("sweepd"),
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join([Path(sys.argv[0]).name, *words]),
        "peers": peers,
    }


def _git(*arguments: str) -> str | None:
    """Return the output of git in this repository; None if there is no git or no repository."""
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def processor_family() -> str:
    """Return family and model in numbers, as names such as "AMD EPYC" tell no generation."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return platform.processor()
    first = path.read_text(encoding="utf-8").partition("\n\n")[0]
    entries = {name.strip(): value.strip() for name, value in re.findall(r"(.+?):(.*)", first)}
    return f"{entries.get('cpu family', '?')}/{entries.get('model', '?')}"


def print_machine(device: torch.device | str = "cpu", **changes: Any) -> dict[str, Any]:
    """Print the machine on one line and return it. changes: entries that replace the measured."""
    described = machine(device) | changes
    shown = (f"{name} {value}" for name, value in described.items() if name != "source")
    print(", ".join(shown), flush=True)
    return described


def load_results(path: Path | None) -> dict[str, Any]:
    """Return the content of a results file; empty if there is none."""
    if path is None or not path.exists():
        return {}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def save_results(path: Path | None, content: Any) -> None:
    """Write a results file; does nothing if `--save` was not given."""
    if path is not None:
        write_atomic(path, json.dumps(content, indent=1, default=str) + "\n")


@contextmanager
def torch_only() -> Iterator[None]:
    """Programs that are made in this context use no native kernels."""
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = TORCH
    try:
        yield
    finally:
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def steps_per_second(
    run: Callable[[], int], seconds: float, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Call `run`, which returns its number of steps, for at least that long.

    What the benchmark's imports made is excluded from garbage collections, as in a worker.
    """
    gc.freeze()
    try:
        steps, start = 0, clock()
        while True:
            steps += run()
            passed = clock() - start
            if passed >= seconds:
                return steps / passed
    finally:
        gc.unfreeze()


def paired_runs(
    contenders: dict[str, Callable[[], float]], runs: int, clock: str = "wall"
) -> dict[str, list[float]]:
    """Measure all contenders in turn, `runs` times, so that a change of load affects all alike.

    Args:
        contenders: functions that measure, by name.
        runs: number of measurements of each.
        clock: the one of `CLOCKS` that they use; ratios of wall-clock times need an idle machine.
    """
    found: dict[str, list[float]] = {name: [] for name in contenders}
    with idle_machine(clock):
        for _ in range(runs):
            for name, measure in contenders.items():
                found[name].append(measure())
    return found


@contextmanager
def idle_machine(clock: str = "wall") -> Iterator[None]:
    """Refuse what was measured if other processes used the cores meanwhile.

    Programs differ in how much a shared core delays them (threads wait for each other at barriers),
    so ratios of wall-clock times say nothing then; ratios of processor times do.

    Raises:
        SystemExit: others used more than `SHARED` cores, and `clock` is not "processor".
    """
    began, before = time.perf_counter(), _seconds_of_others()
    yield
    used = (_seconds_of_others() - before) / (time.perf_counter() - began)
    if clock != "processor" and used > SHARED:
        sys.exit(
            f"Other processes used {used:.1f} cores during these runs (at most {SHARED:g}), so "
            "their wall-clock times cannot be compared. Stop the other processes, or use "
            "--cpu-time if this script has it."
        )


def processor_seconds() -> float:
    """Return the processor seconds that this process and its children have used."""
    own = psutil.Process()
    times = [own.cpu_times(), *(child.cpu_times() for child in own.children(recursive=True))]
    ended = times[0].children_user + times[0].children_system
    return float(sum(one.user + one.system for one in times) + ended)


def _seconds_of_others() -> float:
    """Return the processor seconds that others than this process and its children have used."""
    cores = psutil.cpu_times()
    idle = cores.idle + getattr(cores, "iowait", 0.0)
    guests = getattr(cores, "guest", 0.0) + getattr(cores, "guest_nice", 0.0)  # in user, too
    return float(sum(cores) - guests - idle - processor_seconds())


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios of paired runs."""
    return statistics.median(own / other for own, other in zip(ours, theirs, strict=True))


def medians(runs: dict[str, list[float]]) -> dict[str, float]:
    """Return the median of each contender's runs."""
    return {name: statistics.median(values) for name, values in runs.items()}
