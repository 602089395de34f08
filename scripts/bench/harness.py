"""What all benchmarks share: arguments, the description of the machine, timing, results files."""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from envs.core.sizing import cpu_count, processor_name
from envs.native.build import TORCH, VARIABLE
from envs.support.files import write_atomic
from envs.support.mkl import current_mode


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


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return processor, MKL's mode, cores, threads, versions, load and, on CUDA, the GPU."""
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
    return described


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
    print(", ".join(f"{name} {value}" for name, value in described.items()), flush=True)
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
    """Call `run`, which returns its number of steps, for at least that long."""
    steps, start = 0, clock()
    while True:
        steps += run()
        passed = clock() - start
        if passed >= seconds:
            return steps / passed


def paired_runs(contenders: dict[str, Callable[[], float]], runs: int) -> dict[str, list[float]]:
    """Measure all contenders in turn, `runs` times, so that a change of load affects all alike."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(runs):
        for name, measure in contenders.items():
            found[name].append(measure())
    return found


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios of paired runs."""
    return statistics.median(own / other for own, other in zip(ours, theirs, strict=True))


def medians(runs: dict[str, list[float]]) -> dict[str, float]:
    """Return the median of each contender's runs."""
    return {name: statistics.median(values) for name, values in runs.items()}
