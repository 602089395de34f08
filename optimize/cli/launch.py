"""Choosing the device of a worker, and running one worker process per GPU."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import torch

from sweepd.envs.external.guard import untagged
from sweepd.envs.support.database_url import without_passwords
from sweepd.envs.support.errors import InputError, RunError


def choose_device(gpu: str | None) -> torch.device:
    """Return the device for `--gpu`; by default the first GPU if there is one, else the CPU.

    A GPU becomes this thread's current device: torch launches its graphs and compiled kernels
    there, whatever the device of their tensors is.

    Raises:
        InputError: there is no such GPU.
    """
    device = _device(gpu)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def _device(gpu: str | None) -> torch.device:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpu is None:
        return torch.device("cuda:0" if count else "cpu")
    if gpu == "cpu":
        return torch.device("cpu")
    if gpu == "mps":
        raise InputError(
            "--gpu mps: GPUs of Macs are not supported, since sweepd computes money in float64, "
            "which MPS does not have; use --gpu cpu"
        )
    if gpu != "all" and not gpu.isdecimal():
        raise InputError(f"--gpu {gpu!r} is not valid; give the index of a GPU, all, or cpu")
    if count == 0:
        raise InputError(
            f"--gpu {gpu}: this machine has no GPU that torch can use (run sweepd doctor for "
            "details); use --gpu cpu"
        )
    # The first GPU measures and creates the study; then there is one worker per GPU.
    if gpu == "all":
        return torch.device("cuda:0")
    if int(gpu) >= count:
        raise InputError(
            f"--gpu {gpu}: this machine has {count} GPU{'s' if count > 1 else ''}, numbered from 0 "
            f"to {count - 1}"
        )
    return torch.device(f"cuda:{gpu}")


def own_arguments(
    index: int, log_file: Path | None, metrics_port: int | None, max_memory: float
) -> list[str]:
    """Return the arguments that differ between the workers of several GPUs.

    Args:
        index: index of the GPU.
        log_file: the command's log file; each worker gets its own.
        metrics_port: the command's port; each worker gets its own.
        max_memory: memory limit of each worker in GiB.
    """
    # Without --alongside, each worker would replace the one before it.
    own = ["--gpu", str(index), "--alongside", "--max-memory", f"{max_memory:.3f}"]
    if log_file is not None:
        own += ["--log-file", str(log_file.with_stem(f"{log_file.stem}-gpu{index}"))]
    if metrics_port is not None:
        own += ["--metrics-port", str(metrics_port + index)]
    return own


def run_on_all(arguments: Sequence[str], own: Sequence[Sequence[str]]) -> None:
    """Run one worker process per GPU, forward signals, and wait for all.

    Each worker has its own process group, so Ctrl-C on the terminal reaches this process only, and
    each worker gets every signal exactly once (the second ends it at once). SIGINT, SIGTERM and
    SIGHUP (unless ignored, as under nohup) are forwarded as SIGTERM.

    Args:
        arguments: arguments of all workers; a password in --storage is passed in the environment.
        own: additional arguments of each worker.

    Raises:
        RunError: a worker failed; the others have continued to the end of the study. A worker ended
            by a forwarded signal has not failed.
    """
    arguments, secret = without_passwords(arguments)
    environment = {**untagged(), **secret}
    workers: list[subprocess.Popen[bytes]] = []
    told: set[int] = set()
    asked: list[int] = []  # forwarded signals

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
            # The signal arrived before this worker was in the list.
            if asked and worker.pid not in told:
                worker.send_signal(signal.SIGTERM)
        while any(worker.poll() is None for worker in workers):
            time.sleep(0.2)
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
    # A worker that a forwarded signal ended may also report the signal itself.
    ended = {0, -signal.SIGTERM, 128 + signal.SIGTERM} if asked else {0}
    failed = [str(index) for index, worker in enumerate(workers) if worker.returncode not in ended]
    if failed:
        raise RunError(
            f"the worker{'s' if len(failed) > 1 else ''} on GPU {', '.join(failed)} failed; see "
            "the messages above"
        )
