"""How many of a program's G slots a machine computes at once (the chunk): measured and cached.

The study fixes G. A worker may compute a program in chunks of fewer members, because this is faster
on its machine or because more do not fit into memory. Every member keeps its environments,
minibatches and, to rounding, its numbers.

Measurements are cached in a JSON file by machine (processor or GPU, memory, threads, versions) and
shape. The file may be read, edited and deleted. Entries of other machines and versions are ignored.
A chunk that was chosen because memory ran out is valid for one day, since another process may have
used the memory at that time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil
import torch

from sweepd.agents.networks.shape import FEWEST_SLOTS
from sweepd.envs.core.sizing import cpu_count, out_of_memory, processor_name
from sweepd.envs.support.measurement_cache import MeasurementCache, cache_dir
from sweepd.optimize.study.record.specs import code_version

GAIN = 1.1  # fewer members at once must be faster by this factor to be worth it
SHORTAGE_LASTS = 86_400.0  # seconds
MEASURED, SHORTAGE = "measured", "out of memory"


def machine_key(device: torch.device) -> str:
    """Return a description of the hardware and software that a measurement depends on."""
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        what = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB"
    else:
        memory = psutil.virtual_memory().total / 2**30
        what = (
            f"{processor_name()}, {cpu_count()} cores, {torch.get_num_threads()} threads, "
            f"{memory:.0f} GiB"
        )
    what = f"{what}, {torch.get_float32_matmul_precision()} precision"
    return f"{what}; torch {torch.__version__}, sweepd {code_version()}"


@dataclass(frozen=True)
class Chunk:
    """A choice, as it is cached.

    Attributes:
        size: members computed at once.
        why: `MEASURED` or `SHORTAGE`.
        at: time of the choice, seconds since the epoch.
        speeds: measured steps per second by size.
    """

    size: int
    why: str
    at: float
    speeds: dict[str, float]

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> Chunk | None:
        """Return an entry of the cache; None if it is empty, invalid or has expired."""
        try:
            size, why = int(entry["size"]), str(entry["why"])
            chunk = cls(size, why, float(entry["at"]), dict(entry["speeds"]))
        except (TypeError, KeyError, ValueError):
            return None
        stale = chunk.why == SHORTAGE and time.time() - chunk.at > SHORTAGE_LASTS
        return None if stale or chunk.size < 1 else chunk


class Chunks:
    """Chooses chunks for the programs of one study on this machine.

    Args:
        measure: returns steps per second of a program with these shape parameters and this number
            of members.
        fixed: other sizes of the program: observation, environments, horizon.
        slots: the study's G, the largest chunk.
        device: where programs run.
        say: prints one line.
        file: the cache of choices.
        unit: chunks are multiples of it, and have at least `FEWEST_SLOTS` members.
    """

    def __init__(
        self,
        measure: Callable[[Mapping[str, int], int], float],
        fixed: Mapping[str, Any],
        slots: int,
        device: torch.device,
        say: Callable[[str], None],
        file: MeasurementCache | None = None,
        unit: int = 1,
    ) -> None:
        self._unit, self._fewest = unit, min(max(FEWEST_SLOTS, unit), slots)
        self._measure, self._fixed, self._slots, self._say = measure, fixed, slots, say
        self._file = file or MeasurementCache(cache_dir() / "chunks.json")
        self._machine = self._whole = machine_key(device)
        self._chosen: dict[str, int] = {}

    def size(self, shape: Mapping[str, int]) -> int:
        """Return the chunk for these shape parameters, from the cache or measured now."""
        key = self._key(shape)
        if key not in self._chosen:
            known = Chunk.read(self._file.get(self._machine, key))
            self._chosen[key] = (
                max(min(known.size, self._slots), self._fewest)
                if known
                else self._choose(shape, key)
            )
        return self._chosen[key]

    def share_with(self, workers: int) -> None:
        """Choose chunks for a device shared by this number of workers, this one included."""
        self._machine = (
            self._whole if workers == 1 else f"{self._whole}; shared by {workers} workers"
        )
        self._chosen = {}  # less memory is left to each: measure again, or read that machine's entry

    def ran_out(self, shape: Mapping[str, int], size: int) -> None:
        """Cache that memory ran out, and that `size` members are used from now on."""
        key = self._key(shape)
        self._chosen[key] = size
        self._put(key, Chunk(size, SHORTAGE, time.time(), {}))

    def _put(self, key: str, chunk: Chunk) -> None:
        self._file.put(self._machine, key, vars(chunk))

    def _key(self, shape: Mapping[str, int]) -> str:
        parts = {**self._fixed, **shape, "slots": self._slots}
        return " ".join(f"{name}={value}" for name, value in sorted(parts.items()))

    def _choose(self, shape: Mapping[str, int], key: str) -> int:
        """Measure G, G/2, … while the smaller chunk is faster or the larger one does not fit."""
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
            # Half of it, rounded down to whole units, since members of a unit cannot be separated.
            half = size // (2 * self._unit) * self._unit
            size = max(self._fewest, half) if size > self._fewest else 0
        if not chosen:
            return self._fewest  # training will report the error
        named = {str(s): v for s, v in speeds.items()}
        self._put(key, Chunk(chosen, MEASURED, time.time(), named))
        if chosen < self._slots:
            said = ", ".join(f"{s}: {v:,.0f} steps/s" for s, v in speeds.items())
            self._say(
                f"{chosen} of {self._slots} members at once ({said}; cached in {self._file.path})"
            )
        return chosen
