"""Which layout is fastest for an environment: measured on this machine and cached.

Environments stay in this process unless env workers are clearly faster: stepping in parallel saves
only part of the time of a step, and handing work over costs some.
"""

from __future__ import annotations

import logging
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from sweepd.envs.core.sizing import cpu_count, processor_name
from sweepd.envs.external.action_check import ActionCheck, action_masks
from sweepd.envs.external.describe import Description, describe
from sweepd.envs.external.env_worker import why_unpicklable
from sweepd.envs.external.sharded import Layout, ShardedEnvs, even_layout
from sweepd.envs.external.sources import Source
from sweepd.envs.support.measurement_cache import MeasurementCache, cache_dir

GAIN = 1.1  # factor by which workers must be faster to be used
QUICK = 150e-6  # seconds; a faster step of all environments is not worth distributing
# Seconds; with slower steps, a comparison would take minutes, and all cores are used.
LONG = 0.5
MOST_WORKERS = 64  # of environments that are stepped one by one
_ROUNDS, _SECONDS = 9, 0.05  # timings per candidate, and the seconds of each
# Seconds for the timings of this process alone. Where steps are slow, fewer timings suffice.
_LONGEST = 1.0


@dataclass(frozen=True)
class LayoutChoice:
    """A layout and why it was chosen.

    Attributes:
        layout: The layout.
        speeds: Steps of all environments per second, by layout; empty if nothing was measured.
        reason: Why, as part of a sentence.
    """

    layout: Layout
    speeds: dict[str, float]
    reason: str

    def __str__(self) -> str:
        speeds = "; ".join(f"{name}: {speed:,.0f} steps/s" for name, speed in self.speeds.items())
        return f"environments {self.layout}, {self.reason}" + (f" ({speeds})" if speeds else "")


def choose_layout(
    source: Source,
    env_kwargs: Sequence[Mapping[str, Any]],
    description: Description | None = None,
    *,
    cores: int | None = None,
    file: MeasurementCache | None = None,
) -> LayoutChoice:
    """Choose the layout of one environment per entry of `env_kwargs`.

    Takes the cached choice if there is one; else measures copies of the environments, which act at
    random, and caches the result.

    Args:
        source: What makes an environment.
        env_kwargs: Arguments of each environment.
        description: What `describe` says of the source, if known.
        cores: Processors to use at most; None: those this process may use.
        file: The cache; None: `layouts.json` in the cache directory.
    """
    envs, cores = len(env_kwargs), cores or cpu_count()
    if min(envs, cores) == 1:
        return LayoutChoice(
            Layout(envs), {}, "since there is only one of them" if envs == 1 else "on one core"
        )
    reason = why_unpicklable(source, env_kwargs)
    if reason:
        return LayoutChoice(Layout(envs), {}, f"since workers cannot be sent them: {reason}")
    file = file or MeasurementCache(cache_dir() / "layouts.json")
    machine = (
        f"{processor_name()}, {cores} cores; python {platform.python_version()}, "
        f"gymnasium {gymnasium.__version__}"
    )
    key = f"{envs} of {source.identity} {dict(source.kwargs)} {dict(env_kwargs[0])}"
    entry = file.get(machine, key)
    try:
        cached = Layout(int(entry["here"]), tuple(int(size) for size in entry["workers"]))
        if cached.total == envs and min(cached.here, *cached.workers, 1) >= 0:
            return LayoutChoice(cached, dict(entry["speeds"]), "from the measurement cache")
    except (KeyError, TypeError, ValueError):
        pass  # no entry, or one that was edited by hand: measure
    choice = _measure(source, env_kwargs, description or describe(source, env_kwargs[0]), cores)
    logging.getLogger(__name__).info("%s: %s", source.name, choice)
    file.put(
        machine,
        key,
        {"here": choice.layout.here, "workers": choice.layout.workers, "speeds": choice.speeds},
    )
    return choice


def _measure(
    source: Source, env_kwargs: Sequence[Mapping[str, Any]], description: Description, cores: int
) -> LayoutChoice:
    """Compare this process alone with layouts of ever more workers, until they get no faster."""
    envs = len(env_kwargs)
    alone = _Candidate(source, env_kwargs, description, Layout(envs))
    try:
        best, speeds = alone.layout, {str(alone.layout): alone.speed()}
        rounds = min(_ROUNDS, max(1, int(_LONGEST * speeds[str(best)])))
        if 1.0 / alone.speed() <= QUICK:
            return LayoutChoice(best, speeds, "since a step of all of them is quick")
        if 1.0 / speeds[str(best)] > LONG:
            most = _candidates(envs, cores)[-1]
            return LayoutChoice(most, speeds, "since a step of all of them takes long")
        highest = 1.0
        for layout in _candidates(envs, cores):
            other = _Candidate(source, env_kwargs, description, layout)
            try:
                # In turns, since the machine's other load changes from moment to moment.
                pairs = [(other.speed(), alone.speed()) for _ in range(rounds)]
            finally:
                other.close()
            # The median of paired ratios is robust against short interruptions.
            ratio = statistics.median(with_workers / plain for with_workers, plain in pairs)
            speeds[str(layout)] = ratio * speeds[str(alone.layout)]
            if ratio < max(highest, GAIN):
                if layout.here:
                    break
                continue
            best, highest = layout, ratio
        return LayoutChoice(
            best, speeds, "the fastest measured" if best.workers else "since workers weren't faster"
        )
    finally:
        alone.close()


def _candidates(envs: int, cores: int) -> list[Layout]:
    """Return layouts with 1, 3, 7, … workers next to this process, up to one process per core."""
    parts, found = 2, []
    while parts < 2 * cores:
        found.append(even_layout(envs, min(parts, cores, envs) - 1))
        parts *= 2
    return list(dict.fromkeys(found))


def count_workers(
    source: Source,
    env_kwargs: Sequence[Mapping[str, Any]],
    description: Description,
    cores: int | None = None,
) -> int:
    """Return how many env workers keep the processors busy if each steps one environment at a time.

    An environment that waits for something else, such as a simulator or a network, leaves its
    processor to others, so there may be more workers than processors. Measured in random play.

    Args:
        source: What makes an environment.
        env_kwargs: Arguments of each environment.
        description: What `describe` says of the source.
        cores: Processors to use; None: those this process may use.
    """
    cores = cores or cpu_count()
    alone = _Candidate(source, env_kwargs[:1], description, Layout(1))
    try:
        share = alone.busy()
    finally:
        alone.close()
    return min(len(env_kwargs), MOST_WORKERS, max(cores, round(cores / max(share, 0.01))))


class _Candidate:
    """Environments in one layout, acting at random."""

    def __init__(
        self,
        source: Source,
        env_kwargs: Sequence[Mapping[str, Any]],
        description: Description,
        layout: Layout,
    ) -> None:
        self.layout = layout
        self._envs = ShardedEnvs(source, env_kwargs, layout, description=description)
        actions, shape = self._envs.actions, self._envs.buffers.action.shape
        rng = np.random.default_rng(0)
        # Choices are rounded down, so the last one needs numbers above `high`.
        drawn = rng.uniform(actions.low, actions.high + actions.discrete, (16, *shape))
        self._actions = drawn.astype(actions.dtype)
        self._check = ActionCheck(shape[0], 1, actions, action_masks(self._envs))
        self._envs.reset(range(len(env_kwargs)), range(len(env_kwargs)))
        self._turn = 0
        self._step()

    def speed(self) -> float:
        """Return steps of all environments per second, measured for a moment."""
        began = now = time.perf_counter()
        steps = 0
        while now < began + _SECONDS:
            self._step()
            steps, now = steps + 1, time.perf_counter()
        return steps / (now - began)

    def busy(self) -> float:
        """Return the share of a step's time for which this process computes."""
        began, used = time.perf_counter(), time.process_time()
        self.speed()
        return (time.process_time() - used) / (time.perf_counter() - began)

    def close(self) -> None:
        self._envs.close()

    def _step(self) -> None:
        self._turn = (self._turn + 1) % len(self._actions)
        # The check replaces masked actions, for which many environments raise.
        self._envs.buffers.action[:] = self._check.legal(self._actions[self._turn])
        self._envs.step()
