"""Objectives whose trials are members of stacked programs: what is measured, and how they are opened."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch

from sweepd.agents.algorithms.identity import processor_kind
from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.native.choice import require
from sweepd.agents.networks.precision import set_precision
from sweepd.agents.networks.shape import FEWEST_SLOTS
from sweepd.envs.core.sizing import cpu_count
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.games.curriculum import LoadBundle
from sweepd.optimize.objectives.members.experiment import Experiment
from sweepd.optimize.objectives.members.measure import Bench, measure_num_envs, measure_threads
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.objectives.objective import Objective, Say, Spec
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.run import evaluated_from
from sweepd.optimize.study.fit import fewest_envs, multiple
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.search_space import SearchSpace, Settings

CPU_SLOTS, GPU_SLOTS = 10, 64  # slots per program that use a device well


class MemberObjective(Objective[Spec]):
    """An objective whose trials train in a `Trainer`, on environments that an `Experiment` makes."""

    def defaults(self, settings: StudySettings, given: frozenset[str]) -> dict[str, Any]:
        """Return settings that depend on the algorithm."""
        algorithm = get_algorithm(settings.algo)
        found: dict[str, Any] = {}
        if settings.horizon is None:
            found["horizon"] = algorithm.horizon
        # "auto" as default is not a request: the algorithm may have a fixed number.
        if settings.n_envs is None and "n_envs" not in given:
            found["n_envs"] = algorithm.num_envs
        if not algorithm.trains:  # a single rollout without updates
            found |= {"budget": 1, "rungs": 1, "threads": settings.threads or 1}
        return found

    def set_up(
        self, name: str, spec: Spec, request: Request, device: torch.device, say: Say
    ) -> None:
        """Set torch's threads, precision and kernels; say if the processor is another one."""
        torch.set_num_threads(request.threads or min(spec.threads, cpu_count()))
        set_precision(spec.precision, device)
        require(spec.kernels)
        here = processor_kind(device)
        if spec.processor != here:
            say(
                f"note: study {name} was made on {spec.processor}, and this is {here}: a trial's numbers "
                "agree between them to rounding, not to the bit"
            )

    @abstractmethod
    def make_experiment(
        self,
        spec: Spec,
        bars: Bars | None,
        device: torch.device,
        say: Say,
        load_bundle: LoadBundle | None = None,
    ) -> Experiment:
        """Return the environments of a study. Arguments as of `open`."""

    def open(
        self, spec: Spec, bars: Bars | None, device: torch.device, say: Say, request: Request
    ) -> Trainer:
        every = request.evaluate_every
        if every and evaluated_from(1, every, spec.transitions) >= spec.rollouts:
            raise InputError(
                f"--evaluate-every {every}: a trial of {spec.budget:,} steps ends before the first of "
                "these evaluations; give a smaller number, or leave it out"
            )
        return Trainer(self.make_experiment(spec, bars, device, say, request.load_bundle))

    def measured_spec(
        self,
        spec: Spec,
        request: Request,
        space: SearchSpace,
        bars: Bars | None,
        device: torch.device,
        say: Say,
    ) -> tuple[Spec, list[str]]:
        """Return the spec with measured CPU threads and environments; torch keeps the threads."""
        measure_cpu = request.threads is None and device.type == "cpu"
        if request.n_envs is not None and not measure_cpu:
            return spec, []
        bench = Bench(self.make_experiment(spec, bars, device, lambda _: None, request.load_bundle))
        # Environments are measured after the threads, so take their lower limit.
        few = multiple(
            fewest_envs(spec.budget, spec.horizon, space.minibatches), bench.experiment.unit
        )
        skipped = bench.why_skipped(request.n_envs or few)
        if skipped:
            say(skipped)
            threads = 1 if measure_cpu else spec.threads
            torch.set_num_threads(threads)
            num_envs = request.n_envs or few
            return dataclasses.replace(spec, threads=threads, num_envs=num_envs), [skipped]
        measured: list[str] = []
        if measure_cpu:
            threads, measured = measure_threads(bench, request.n_envs or few, say)
            spec = dataclasses.replace(spec, threads=threads)
        if request.n_envs is None:
            num_envs, lines = measure_num_envs(bench, say)
            spec, measured = dataclasses.replace(spec, num_envs=num_envs), measured + lines
        return spec, measured

    def check_installed(self, algorithm: str) -> None:
        get_algorithm(algorithm).check_installed()

    def kernels(self, algorithm: str) -> str:
        return get_algorithm(algorithm).kernels

    def trains(self, algorithm: str) -> bool:
        return get_algorithm(algorithm).trains

    def recorded_params(self, spec: Spec, settings: Settings) -> tuple[Mapping[str, Any], ...]:
        params = get_algorithm(spec.algorithm).params(**settings.learner)
        return dict(params), settings.shape


def choose_slots(
    members: int, device: torch.device, *, together: bool = False, trials: int | None = None
) -> int:
    """Return the number of slots per program: near what uses the device well.

    It is a multiple of a trial's members where that is possible, so that programs are full.

    Args:
        members: members per trial.
        device: where training runs.
        together: whether the members of a trial must be in one program.
        trials: the most trials that a batch has, if known: more slots would stay empty.
    """
    near = GPU_SLOTS if device.type == "cuda" else CPU_SLOTS
    if trials is not None:
        near = min(near, trials * members)
    slots = members * max(1, round(near / members)) if together or members <= 2 * near else near
    return max(FEWEST_SLOTS, slots)
