"""How many of a program's G slots a machine computes at once: measured, and remembered in a file.

The study freezes G. A worker may compute a program in chunks of fewer members, because that is faster on this machine
or because more do not fit into its memory: every member keeps its environments, minibatches and numbers, to rounding.

What was measured is remembered per machine (processor or graphics card, memory, threads, versions) and shape in a JSON
file that may be read, edited and deleted; entries of another machine or version are never looked at, and a chunk that
was found because memory ran out counts for a day, since something else may have used the memory then.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from agents.networks.shape import FEWEST_SLOTS
from envs.core.sizing import cpu_count, out_of_memory, processor_name
from envs.support.measurement_cache import MeasurementCache, cache_dir
from envs.support.study_record import code_version

GAIN = 1.1  # fewer members at once must be faster by this factor to be worth it
SHORTAGE_LASTS = 86_400.0
MEASURED, SHORTAGE = "measured", "out of memory"


def machine_key(device: torch.device) -> str:
    """Everything about machine and software that a measurement depends on."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        what = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    else:
        memory = psutil.virtual_memory().total / 2**30
        what = f"{processor_name()}, {cpu_count()} cores, {torch.get_num_threads()} threads, {memory:.0f} GiB"
    what = f"{what}, {torch.get_float32_matmul_precision()} precision"
    return f"{what}; torch {torch.__version__}, sweepd {code_version()}"


@dataclass(frozen=True)
class Chunk:
    """size: members computed at once. why: `MEASURED` or `SHORTAGE`. at: seconds since the epoch. speeds: steps per
    second by size, where measured.
    """

    size: int
    why: str
    at: float
    speeds: dict[str, float]


class ChunkFile:
    """The file."""

    def __init__(self, path: Path | None = None) -> None:
        self._file = MeasurementCache(path or cache_dir() / "chunks.json")
        self.path = self._file.path

    def get(self, machine: str, shape: str) -> Chunk | None:
        """What is remembered, unless it is too old."""
        entry = self._file.get(machine, shape)
        try:
            chunk = Chunk(
                int(entry["size"]), str(entry["why"]), float(entry["at"]), dict(entry["speeds"])
            )
        except (TypeError, KeyError, ValueError):
            return None
        stale = chunk.why == SHORTAGE and time.time() - chunk.at > SHORTAGE_LASTS
        return None if stale or chunk.size < 1 else chunk

    def put(self, machine: str, shape: str, chunk: Chunk) -> None:
        """Remember."""
        self._file.put(machine, shape, vars(chunk))


class Chunks:
    """Chooses chunks for the programs of one study on this machine.

    measure: steps per second of programs of these shape parameters with so many members. fixed: what else decides a
    program's size (observation, envs, horizon). slots: the study's G, the largest chunk. unit:
    what a chunk must be a multiple of; it has at least `FEWEST_SLOTS`.
    """

    def __init__(
        self,
        measure: Callable[[Mapping[str, int], int], float],
        fixed: Mapping[str, Any],
        slots: int,
        device: torch.device,
        say: Callable[[str], None],
        file: ChunkFile | None = None,
        unit: int = 1,
    ) -> None:
        self._unit, self._fewest = unit, min(max(FEWEST_SLOTS, unit), slots)
        self._measure, self._fixed, self._slots, self._say = measure, fixed, slots, say
        self._file = file or ChunkFile()
        self._machine = self._whole = machine_key(device)
        self._chosen: dict[str, int] = {}

    def size(self, shape: Mapping[str, int]) -> int:
        """Members to compute at once for programs of these shape parameters: as remembered, else measured now."""
        key = self._key(shape)
        if key not in self._chosen:
            known = self._file.get(self._machine, key)
            self._chosen[key] = (
                max(min(known.size, self._slots), self._fewest)
                if known
                else self._choose(shape, key)
            )
        return self._chosen[key]

    def share_with(self, workers: int) -> None:
        """From now on, so many workers share the device's memory, this one included: other sizes may fit."""
        self._machine = (
            self._whole if workers == 1 else f"{self._whole}; shared by {workers} workers"
        )
        self._chosen = {}

    def ran_out(self, shape: Mapping[str, int], size: int) -> None:
        """Memory ran out, and `size` members are what is tried now."""
        key = self._key(shape)
        self._chosen[key] = size
        self._file.put(self._machine, key, Chunk(size, SHORTAGE, time.time(), {}))

    def _key(self, shape: Mapping[str, int]) -> str:
        parts = {**self._fixed, **shape, "slots": self._slots}
        return " ".join(f"{name}={value}" for name, value in sorted(parts.items()))

    def _choose(self, shape: Mapping[str, int], key: str) -> int:
        """All slots at once, then half as many, as long as that is faster or the larger ones do not fit."""
        speeds: dict[int, float] = {}
        size, chosen = self._slots, 0
        while size:
            try:
                speeds[size] = self._measure(shape, size)
            except (MemoryError, RuntimeError) as error:
                if not out_of_memory(error):
                    raise
            else:
                if chosen and speeds[size] < GAIN * speeds[chosen]:
                    break
                chosen = size
            half = size // (2 * self._unit) * self._unit
            size = max(self._fewest, half) if size > self._fewest else 0
        if not chosen:
            return self._fewest  # training will say what is wrong
        self._file.put(
            self._machine,
            key,
            Chunk(chosen, MEASURED, time.time(), {str(s): v for s, v in speeds.items()}),
        )
        if chosen < self._slots:
            said = ", ".join(f"{s}: {v:,.0f} steps/s" for s, v in speeds.items())
            self._say(
                f"{chosen} of {self._slots} members at once ({said}; cached in {self._file.path})"
            )
        return chosen
