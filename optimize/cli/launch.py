"""Around a worker: choosing the device, making the demo market, one worker per GPU."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import torch

from envs.external.guard import untagged
from envs.support.database_url import without_passwords
from envs.support.errors import InputError, RunError


def choose_device(gpu: str | None) -> torch.device:
    """None: the first GPU where there is one, else the CPU. Raises InputError for a GPU that is not there."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpu is None:
        return torch.device("cuda:0" if count else "cpu")
    if gpu == "cpu":
        return torch.device("cpu")
    if gpu != "all" and not gpu.isdecimal():
        raise InputError(f"--gpu {gpu!r} is not right; give a GPU's number, all, or cpu")
    if count == 0:
        raise InputError(
            f"--gpu {gpu}: this machine has no GPU that torch can use (sweepd doctor says more); use --gpu cpu"
        )
    if gpu == "all":
        return torch.device("cuda:0")
    if int(gpu) >= count:
        raise InputError(
            f"--gpu {gpu}: this machine has {count} GPU{'s' if count > 1 else ''}, numbered from 0 to {count - 1}"
        )
    return torch.device(f"cuda:{gpu}")


def own_arguments(
    index: int, log_file: Path | None, metrics_port: int | None, max_memory: float
) -> list[str]:
    """What the worker of one GPU of several gets instead of the command's: two cannot share a log file or a port.

    max_memory: GiB for each.
    """
    own = ["--gpu", str(index), "--alongside", "--max-memory", f"{max_memory:.3f}"]
    if log_file is not None:
        own += ["--log-file", str(log_file.with_stem(f"{log_file.stem}-gpu{index}"))]
    if metrics_port is not None:
        own += ["--metrics-port", str(metrics_port + index)]
    return own


def run_on_all(arguments: Sequence[str], own: Sequence[Sequence[str]]) -> None:
    """Run one worker process per GPU, pass signals on, and wait for all.

    Each worker has a process group of its own: Ctrl-C on the terminal reaches this process alone, so each worker gets
    every signal exactly once (the second one ends it at once). SIGINT, SIGTERM and SIGHUP (unless ignored, as under
    nohup) are passed on as SIGTERM.

    arguments: what all get (a password in --storage through the environment); own: what each gets after them. Raises
    RunError where one of them failed; the others then go on to the study's end. A worker that was ended by a signal
    passed on has not failed.
    """
    arguments, secret = without_passwords(arguments)
    environment = {**untagged(), **secret}
    workers: list[subprocess.Popen[bytes]] = []
    told: set[int] = set()
    asked: list[int] = []  # signals passed on

    def forward(signum: int, _frame: FrameType | None) -> None:
        asked.append(signum)
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
                told.add(worker.pid)

    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    handled = [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]
    before = {s: signal.signal(s, forward) for s in handled}
    try:
        for extra in own:
            if asked:
                break
            command = [sys.executable, "-m", "sweepd", *arguments, *extra]
            worker = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, process_group=0, env=environment
            )
            workers.append(worker)
            if (
                asked and worker.pid not in told
            ):  # the signal came before this worker was in the list
                worker.send_signal(signal.SIGTERM)
        while any(worker.poll() is None for worker in workers):
            time.sleep(0.2)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    ended = {0, -signal.SIGTERM, 128 + signal.SIGTERM} if asked else {0}
    failed = [str(index) for index, worker in enumerate(workers) if worker.returncode not in ended]
    if failed:
        raise RunError(
            f"the worker{'s' if len(failed) > 1 else ''} on GPU {', '.join(failed)} failed; their messages are above"
        )
