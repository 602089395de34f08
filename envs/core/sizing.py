"""Choice of the number of parallel environments by measurement, and this machine's resources."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from sweepd.envs.support.errors import InputError

# GAIN: factor by which a size must be faster than all smaller ones, else it counts as flat.
# CLOSE: factor within which a size counts as fast as the fastest: half of the gain, because the
# other half may be measurement noise.
GAIN = 1.1
CLOSE = 1.0 + (GAIN - 1.0) / 2.0

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Measurement:
    """Speed and memory with one number of environments.

    Attributes:
        steps_per_second: summed over all environments.
        memory: peak in bytes; 0 if unknown.
    """

    steps_per_second: float
    memory: int = 0


@dataclass(frozen=True)
class SizingChoice:
    """The chosen number and how it was found. `str()` is a table of all measurements.

    Attributes:
        num_envs: the choice.
        measured: (number, measurement) in ascending order.
        upper: the upper bound.
        reason: why the search stopped.
    """

    num_envs: int
    measured: tuple[tuple[int, Measurement], ...]
    upper: int
    reason: str

    def lines(self) -> list[str]:
        """Return the table, one line per number, and the choice."""
        rows = [f"{'envs':>8} {'steps/s':>12} {'memory':>10}"]
        for number, result in self.measured:
            memory = f"{result.memory / 2**20:,.0f} MiB" if result.memory else "-"
            mark = " <- chosen" if number == self.num_envs else ""
            rows.append(f"{number:>8,} {result.steps_per_second:>12,.0f} {memory:>10}{mark}")
        rows.append(
            f"{self.num_envs:,} envs: the fewest within {CLOSE - 1:.0%} of the "
            f"fastest; at most {self.upper:,} were allowed; stopped because {self.reason}"
        )
        return rows

    def __str__(self) -> str:
        return "\n".join(self.lines())


def choose_num_envs(
    measure: Callable[[int], Measurement],
    *,
    upper: int,
    start: int = 1,
    memory_limit: int | None = None,
) -> SizingChoice:
    """Double the number of environments while that increases speed, and choose from these sizes.

    The choice is the smallest number whose speed is within the factor `CLOSE` of the fastest. Two
    flat sizes in a row (see `GAIN`) end the search, since a single one may be noise.

    Args:
        measure: measures one number of environments. Running out of memory ends the search.
        upper: largest number allowed.
        start: first number.
        memory_limit: bytes that the next size, extrapolated from the last peak, must not exceed.

    Raises:
        InputError: `upper` is below 1, or the first size does not fit into memory.
    """
    if upper < 1:
        raise InputError(
            f"at most {upper} environments are allowed: none; raise the budget or lower the horizon"
        )
    measured: list[tuple[int, Measurement]] = []
    number, fastest, flat = min(start, upper), 0.0, 0
    reason = ""
    while not reason:
        result = _measure_if_it_fits(measure, number)
        if result is None and not measured:
            raise InputError(f"{number} environments do not fit into memory; use a smaller network")
        if result is None:
            reason = f"{number:,} envs ran out of memory"
            break
        measured.append((number, result))
        flat = 0 if result.steps_per_second > GAIN * fastest else flat + 1
        fastest = max(fastest, result.steps_per_second)
        following = min(2 * number, upper)
        # Memory is taken as proportional to the number of environments, which overestimates the
        # next peak: networks and libraries do not grow with it.
        expected = result.memory * following / number
        if number == upper:
            reason = "the bound was reached"
        elif flat == 2:
            reason = f"twice in a row, doubling gained less than {GAIN - 1:.0%}"
        elif memory_limit is not None and expected > memory_limit:
            reason = (
                f"{following:,} envs would need about {expected / 2**20:,.0f} of "
                f"{memory_limit / 2**20:,.0f} MiB"
            )
        number = following
    chosen = next(size for size, result in measured if result.steps_per_second * CLOSE >= fastest)
    return SizingChoice(chosen, tuple(measured), upper, reason)


def _measure_if_it_fits(measure: Callable[[int], Measurement], number: int) -> Measurement | None:
    """Return the measurement, or None if memory ran out."""
    try:
        return measure(number)
    except (MemoryError, RuntimeError) as error:
        if out_of_memory(error):
            return None
        raise


def out_of_memory(error: BaseException) -> bool:
    """Whether the exception means that a device or the machine ran out of memory."""
    # torch raises RuntimeError if the machine's memory runs out.
    words = ("can't allocate memory", "not enough memory", "out of memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )


def processor_name() -> str:
    """Return the processor's model name as the operating system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def available_memory(device: torch.device | str) -> int:
    """Return the available bytes: free GPU memory, or free RAM within the control group's limit."""
    device = torch.device(device)
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    # Control groups version 2, then version 1.
    limit, used = _read_number("memory.max"), _read_number("memory.current")
    if limit is None:
        limit, used = (
            _read_number("memory/memory.limit_in_bytes"),
            _read_number("memory/memory.usage_in_bytes"),
        )
    return free if limit is None else max(0, min(free, int(limit - (used or 0))))


def total_memory() -> int:
    """Return the bytes that this process may use: RAM, or the lowest control-group limit."""
    limits = [int(psutil.virtual_memory().total)]
    own = _read("/proc/self/cgroup") or ""
    group = Path(
        next((line[len("0::/") :] for line in own.splitlines() if line.startswith("0::/")), "")
    )
    for folder in (group, *group.parents):  # any enclosing group may set a limit
        limits.append(int(_read_number(f"{folder}/memory.max") or limits[0]))
    limits.append(int(_read_number("memory/memory.limit_in_bytes") or limits[0]))
    return min(limits)


def cpu_count() -> int:
    """Return the usable processors: CPU affinity, limited by the control group's quota; ≥ 1."""
    allowed = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quota = _cpu_quota()
    return max(1, allowed if quota is None else min(allowed, int(quota + 0.5)))


def _cpu_quota() -> float | None:
    """Return the CPU quota in processors, or None without a limit."""
    text = _read("cpu.max")
    if text is not None:
        allowance, _, period = text.partition(" ")
        return None if allowance == "max" else float(allowance) / float(period or 100_000)
    quota, period_v1 = _read_number("cpu/cpu.cfs_quota_us"), _read_number("cpu/cpu.cfs_period_us")
    return quota / period_v1 if quota is not None and quota > 0 and period_v1 else None


def _read(name: str) -> str | None:
    try:
        return (_CGROUPS / name).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _read_number(name: str) -> float | None:
    text = _read(name)
    return float(text) if text is not None and text.lstrip("-").isdigit() else None
