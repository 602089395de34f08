"""Who steps how many environments: measured on this machine, and remembered.

Environments stay in this process unless workers are really faster: all that can be won is a share of the time that a
step of all of them takes, and a hand-off costs a part of that.
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

from envs.core.sizing import cpu_count, processor_name
from envs.external.action_check import ActionCheck
from envs.external.driver import unsendable
from envs.external.hosted import HostedEnvs, Layout, split
from envs.external.masks import masks_of
from envs.external.sources import Description, Source, describe
from envs.support.errors import InputError
from envs.support.remembered import MachineFile, cache_dir

GAIN = 1.1  # workers must be faster by this factor to be worth it
QUICK = 150e-6  # seconds: a step of all environments that takes no longer isn't worth sharing
_ROUNDS, _SECONDS = 9, 0.05  # turns of each candidate, and how long each of them takes
_LONGEST = 1.0  # seconds of all turns of this process alone: where steps are slow, fewer turns are sure enough


@dataclass(frozen=True)
class LayoutChoice:
    """What was chosen, and steps of all environments per second by layout (none where it was plain)."""

    layout: Layout
    speeds: dict[str, float]
    reason: str

    def __str__(self) -> str:
        speeds = "; ".join(f"{name}: {speed:,.0f} steps/s" for name, speed in self.speeds.items())
        return f"environments {self.layout}, {self.reason}" + (f" ({speeds})" if speeds else "")


def choose_layout(
    source: Source,
    own: Sequence[Mapping[str, Any]],
    description: Description | None = None,
    *,
    cores: int | None = None,
    file: MachineFile | None = None,
) -> LayoutChoice:
    """For `len(own)` environments: as remembered, else measured now, with random actions in copies of their own.

    cores: processors to use at most; None: those this process may use (`sizing.cpu_count`). file: where it is
    remembered; None: layouts.json in `remembered.cache_dir`.
    """
    envs, cores = len(own), cores or cpu_count()
    if min(envs, cores) == 1:
        return LayoutChoice(
            Layout(envs), {}, "since there is only one of them" if envs == 1 else "on one core"
        )
    reason = unsendable(source, own)
    if reason:
        return LayoutChoice(Layout(envs), {}, f"since workers cannot be sent them: {reason}")
    file = file or MachineFile(cache_dir() / "layouts.json")
    machine = f"{processor_name()}, {cores} cores; python {platform.python_version()}, gymnasium {gymnasium.__version__}"
    key = f"{envs} of {source.name} {dict(source.kwargs)} {dict(own[0])}"
    entry = file.get(machine, key)
    try:
        known = Layout(int(entry["here"]), tuple(int(size) for size in entry["workers"]))
        if known.total == envs and min(known.here, *known.workers, 1) >= 0:
            return LayoutChoice(known, dict(entry["speeds"]), "as remembered")
    except (KeyError, TypeError, ValueError):
        pass
    choice = _measured(source, own, description or describe(source, own[0]), cores)
    logging.getLogger(__name__).info("%s: %s", source.name, choice)
    file.put(
        machine,
        key,
        {"here": choice.layout.here, "workers": choice.layout.workers, "speeds": choice.speeds},
    )
    return choice


def fixed_layout(envs: int, workers: int, *, here: bool = True) -> Layout:
    """As many workers as the user wants. Raises InputError where there aren't that many environments for them."""
    most = envs - here
    if not 0 <= workers <= most:
        raise InputError(
            f"{workers} workers for {envs} environments are not possible; from 0 to {most} are"
        )
    return split(envs, workers, here)


def _measured(
    source: Source, own: Sequence[Mapping[str, Any]], description: Description, cores: int
) -> LayoutChoice:
    """All here against shares here and in 1, 3, 7, … workers, and in workers only, as long as that gets faster."""
    envs = len(own)
    alone = _Candidate(source, own, description, Layout(envs))
    try:
        best, speeds = alone.layout, {str(alone.layout): alone.speed()}
        rounds = min(_ROUNDS, max(1, int(_LONGEST * speeds[str(best)])))
        if 1.0 / alone.speed() <= QUICK:
            return LayoutChoice(best, speeds, "since a step of all of them is quick")
        fastest = 1.0
        for layout in _candidates(envs, cores):
            other = _Candidate(source, own, description, layout)
            try:
                # By turns, since whatever else the machine does changes from moment to moment.
                pairs = [(other.speed(), alone.speed()) for _ in range(rounds)]
            finally:
                other.close()
            ratio = statistics.median(mine / plain for mine, plain in pairs)
            speeds[str(layout)] = ratio * speeds[str(alone.layout)]
            if ratio < max(fastest, GAIN):
                if layout.here:
                    break
                continue
            best, fastest = layout, ratio
        return LayoutChoice(
            best, speeds, "the fastest measured" if best.workers else "since workers weren't faster"
        )
    finally:
        alone.close()


def _candidates(envs: int, cores: int) -> list[Layout]:
    parts, found = 2, []
    while parts < 2 * cores:
        found.append(split(envs, min(parts, cores, envs) - 1, here=True))
        parts *= 2
    return list(dict.fromkeys(found))


class _Candidate:
    """Environments under measurement, acting at random."""

    def __init__(
        self,
        source: Source,
        own: Sequence[Mapping[str, Any]],
        description: Description,
        layout: Layout,
    ) -> None:
        self.layout = layout
        self._envs = HostedEnvs(source, own, layout, description=description)
        actions, shape = self._envs.actions, self._envs.buffers.action.shape
        rng = np.random.default_rng(0)
        drawn = rng.uniform(
            actions.low, actions.high + actions.discrete, (16, *shape)
        )  # choices are rounded down
        self._actions = drawn.astype(actions.dtype)
        self._check = ActionCheck(shape[0], 1, actions, masks_of(self._envs, 1))
        self._envs.reset(range(len(own)), range(len(own)))
        self._turn = 0
        self._step()

    def speed(self) -> float:
        """Steps of all environments per second, over a moment."""
        began = now = time.perf_counter()
        steps = 0
        while now < began + _SECONDS:
            self._step()
            steps, now = steps + 1, time.perf_counter()
        return steps / (now - began)

    def close(self) -> None:
        self._envs.close()

    def _step(self) -> None:
        self._turn = (self._turn + 1) % len(self._actions)
        # Where some are masked, the first that are not instead: many environments raise otherwise.
        self._envs.buffers.action[:] = self._check.legal(self._actions[self._turn])
        self._envs.step()
