"""Peers in processes of their own, where MKL computes as it does without sweepd.

sweepd asks MKL for its reproducible mode, which limits products to AVX2 on Intel processors. MKL's
mode holds for a whole process, so peers run in others. Two concurrent processes often make more
steps per second than one with all threads.

A benchmark that uses them calls `serve` when its first argument is `as-peer`; one whose peers need
a process for every run calls `run_apart`, and answers with `answer`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from scripts.bench.harness import CLOCKS, ROOT, steps_per_second
from sweepd.envs.support import huge_pages, mkl

# Runs a benchmark after a product, at which MKL has chosen its default mode.
_START = """
import importlib, sys, warnings
import torch
torch.ones(64, 64) @ torch.ones(64, 64)
warnings.filterwarnings("ignore", message="torch computed a matrix product before sweepd")
name = sys.argv[1]
sys.argv = [name.rpartition(".")[2], *sys.argv[2:]]
sys.exit(importlib.import_module(name).main(sys.argv[1:]))
"""


class PeerProcesses:
    """Processes that run the same peers at the same time.

    Args:
        benchmark: module of the benchmark that they run.
        threads: of each process.
        count: number of processes.
        environment: variables that they get besides this process's own.
    """

    def __init__(
        self,
        benchmark: str,
        threads: int,
        count: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        given = environment or {}
        self._processes = [_process(benchmark, threads, given) for _ in range(count)]

    def _ask(self, request: dict[str, Any]) -> list[Any]:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        answers = []
        for process in self._processes:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                sys.exit(f"A process of the peers ended with exit code {process.wait()}.")
            answers.append(json.loads(line))
        return answers

    def prepare(self, name: str, cell: dict[str, Any]) -> str | None:
        """Create and warm up a peer in all processes. Returns the mode of MKL there."""
        mode: str | None = self._ask({"prepare": name, "cell": cell})[0]
        return mode

    def measure(self, name: str, seconds: float, clock: str = "wall") -> float:
        """Return the steps per second of all processes, summed.

        Args:
            name: a peer that was prepared.
            seconds: minimum time of the measurement.
            clock: of `CLOCKS`.
        """
        return float(sum(self._ask({"measure": name, "seconds": seconds, "clock": clock})))

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
            process.wait()


def users_environment() -> dict[str, str]:
    """Return the variables of a process that a user starts, without those that sweepd sets."""
    own = {mkl.VARIABLE, huge_pages.VARIABLE}
    environment = {name: value for name, value in os.environ.items() if name not in own}
    path = [str(ROOT), environment.get("PYTHONPATH", "")]
    return environment | {"PYTHONPATH": os.pathsep.join(filter(None, path))}


def _process(benchmark: str, threads: int, given: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start a process of a benchmark as a peer, with further environment variables."""
    command = [sys.executable, "-c", _START, benchmark, "as-peer", "--threads", str(threads)]
    environment = {**users_environment(), **given}
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def run_apart(benchmark: str, request: dict[str, Any], threads: int = 1) -> dict[str, Any]:
    """Return what a process of its own answers to one request.

    Args:
        benchmark: module of the benchmark that it runs.
        request: of the benchmark, as JSON.
        threads: of the process.
    """
    with _process(benchmark, threads, {}) as process:
        output, _ = process.communicate(json.dumps(request) + "\n")
    lines = output.splitlines()
    if process.returncode or not lines:
        sys.exit(f"A process of the peers ended with exit code {process.returncode}.")
    found: dict[str, Any] = json.loads(lines[-1])  # environments may print lines of their own
    return found


def answer(run: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the one request from stdin of a process of `run_apart`. run: makes the answer."""
    print(json.dumps(run(json.loads(sys.stdin.readline()))), flush=True)


def serve(prepare: Callable[[str, dict[str, Any]], Callable[[], int]]) -> None:
    """Serve requests from stdin as one of the processes.

    Args:
        prepare: returns a function that runs a peer, by name and sizes, and returns its steps.
    """
    made = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "prepare" in request:
            made[request["prepare"]] = run = prepare(request["prepare"], request["cell"])
            run()
            answer: Any = mkl.current_mode()
        else:
            run, clock = made[request["measure"]], CLOCKS[request["clock"]]
            answer = steps_per_second(run, request["seconds"], clock)
        print(json.dumps(answer), flush=True)
