"""Measured automatic choices: CPU threads, and environments per member (`--n-envs auto`)."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping

import torch

from sweepd.agents.engine.program import Program
from sweepd.envs.core.sizing import GAIN, Measurement, available_memory, choose_num_envs, cpu_count
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games.play import random_actions
from sweepd.envs.support.formatting import counted
from sweepd.optimize.objectives.members.chunks import Chunks
from sweepd.optimize.objectives.members.experiment import Experiment
from sweepd.optimize.study.fit import UPDATES_PER_FOLD, fewest_envs, fit_shape, most_envs, multiple
from sweepd.optimize.study.space.parsing import study_space
from sweepd.optimize.study.space.search_space import SearchSpace, Settings

# Seconds of a rollout in the environments alone, above which they dominate: neither threads nor
# chunks matter then, and measuring them would take minutes.
SLOW = 5.0
_PROBE = 0.5  # seconds for the speed of an environment


def environment_speed(experiment: Experiment) -> float:
    """Return steps per second of one environment that is stepped on the CPU; else infinity.

    Measured in random play, for a moment.
    """
    env = experiment.training_env(experiment.together, 1)
    if not isinstance(env, ExternalVecEnv):
        return math.inf
    with contextlib.closing(env):
        generator = torch.Generator().manual_seed(0)
        env.reset(0)
        began, steps = time.perf_counter(), 0
        while steps < 2 or time.perf_counter() - began < _PROBE:
            env.step(random_actions(env, generator))
            steps += 1
        return steps * env.num_envs / (time.perf_counter() - began)


def rollout_seconds(experiment: Experiment, speed: float, num_envs: int) -> float:
    """Return the seconds of a rollout that are spent in environments, on all cores."""
    spec = experiment.spec
    return spec.slots * num_envs * spec.horizon / (speed * cpu_count())


class Bench:
    """Measures rollout and update of a full program of a study on this device."""

    def __init__(self, experiment: Experiment) -> None:
        self.spec, self.device, self.experiment = experiment.spec, experiment.device, experiment
        self.shape = typical_shape(study_space(self.spec))

    def __str__(self) -> str:
        shape = self.shape
        has_network = {"net_width", "net_depth"} <= shape.keys()
        network = f", network {shape['net_width']} x {shape['net_depth']}" if has_network else ""
        return f"rollout and update of {self.spec.slots} members{network}, on {self.device}"

    def why_skipped(self, num_envs: int) -> str:
        """Return why nothing is measured, with what is chosen instead; "" if it is measured."""
        speed = environment_speed(self.experiment)
        seconds = rollout_seconds(self.experiment, speed, num_envs)
        if seconds <= SLOW:
            return ""
        return (
            f"--threads and --n-envs are not measured: one environment makes {speed:,.0f} steps/s, "
            f"so environments take about {seconds:,.0f} s of each rollout; {num_envs} envs per "
            "member"
        )

    def measure(self, num_envs: int) -> Measurement:
        """Return speed and memory with this number of environments per member."""
        return measure_program(self.experiment, self.shape, self.spec.slots, num_envs)


def full_program(
    experiment: Experiment, shape: Mapping[str, int], slots: int, num_envs: int
) -> tuple[VecEnv, Program]:
    """Return a started program with all slots in use, its minibatch fitted to the rollout."""
    spec = experiment.spec
    env = experiment.training_env(slots, num_envs, shape)
    settings = Settings(fit_shape(shape, num_envs * spec.horizon), {}, {})
    learner = experiment.algorithm.learner(
        experiment.shape(settings, env, slots), experiment.device
    )
    avg, std = experiment.normaliser(0, settings)
    for slot in range(slots):
        learner.add_member(slot, experiment.learner_params(settings), slot, 100, avg, std)
    learner.begin(env.reset(0))
    return env, learner


def measure_program(
    experiment: Experiment,
    shape: Mapping[str, int],
    slots: int,
    num_envs: int,
    progress: Callable[[], None] = lambda: None,
) -> Measurement:
    """Measure a full program for 0.3 seconds after one rollout to warm up.

    Args:
        experiment: environments and algorithm.
        shape: shape parameters.
        slots: members of the program.
        num_envs: environments per member.
        progress: called after every rollout.

    Returns:
        Steps per second and peak memory.
    """
    device, spec = experiment.device, experiment.spec
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    env, learner = full_program(experiment, shape, slots, num_envs)
    learner.train(env, 1)  # warm-up: kernels are selected and memory is allocated
    progress()
    synchronise(device)  # CUDA runs asynchronously: time finished work only
    began, rollouts = time.perf_counter(), 0
    while rollouts < 1 or (time.perf_counter() - began < 0.3 and rollouts < 20):
        learner.train(env, 1)
        progress()
        rollouts += 1
    synchronise(device)
    seconds = time.perf_counter() - began
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    return Measurement(
        steps_per_second=rollouts * slots * num_envs * spec.horizon / seconds, memory=peak
    )


def synchronise(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def make_chunks(
    experiment: Experiment, say: Callable[[str], None], progress: Callable[[], None] = lambda: None
) -> Chunks:
    """Return the choice of chunks for a study on this machine.

    Args:
        experiment: environments and algorithm.
        say: prints one line.
        progress: called after every measured rollout.
    """
    spec = experiment.spec
    environment = environment_speed(experiment)
    slow = rollout_seconds(experiment, environment, spec.num_envs) > SLOW
    env = experiment.training_env(experiment.together, 1)
    fixed = {
        "obs": env.spec.obs_dim,
        "act": env.action_dim,
        "envs": spec.num_envs,
        "horizon": spec.horizon,
    }

    def speed(shape: Mapping[str, int], slots: int) -> float:
        if slow:  # whatever the number of members is; a measurement would take minutes
            return environment * cpu_count()
        return measure_program(experiment, shape, slots, spec.num_envs, progress).steps_per_second

    return Chunks(speed, fixed, spec.slots, experiment.device, say, unit=experiment.together)


def measure_threads(
    bench: Bench, num_envs: int, say: Callable[[str], None]
) -> tuple[int, list[str]]:
    """Choose and set torch's CPU threads: the fewest within a factor `GAIN` of the fastest.

    Measures 1, 2, 4, … threads up to the number of cores. More threads are not always faster: they
    wait for each other by spinning, which is slow on a core that another process uses as well.

    Returns:
        The number of threads, and the measurements as lines of text.
    """
    cores = cpu_count()
    candidates = sorted({min(2**power, cores) for power in range(cores.bit_length() + 1)})
    say(f"--threads automatic: measuring {bench}, {num_envs} envs")
    speeds: dict[int, float] = {}
    for threads in candidates:
        torch.set_num_threads(threads)
        speeds[threads] = bench.measure(num_envs).steps_per_second
        # Far slower already: more threads than free cores would take long to measure.
        if threads > 1 and speeds[threads] < 0.5 * max(speeds.values()):
            break
    chosen = next(
        threads for threads, speed in speeds.items() if speed * GAIN >= max(speeds.values())
    )
    torch.set_num_threads(chosen)
    lines = [
        f"{counted(threads, 'thread')}: {speed:,.0f} steps/s{' <- chosen' * (threads == chosen)}"
        for threads, speed in speeds.items()
    ]
    for line in lines:
        say(f"  {line}")
    return chosen, lines


def measure_num_envs(bench: Bench, say: Callable[[str], None]) -> tuple[int, list[str]]:
    """Choose the number of environments per member by measuring growing numbers.

    Returns:
        The number, and the measurements as lines of text.
    """
    spec = bench.spec
    sizes = study_space(spec).minibatches
    unit = bench.experiment.unit
    upper = multiple(most_envs(spec.budget, spec.horizon, sizes), unit)
    say(
        f"--n-envs auto: measuring {bench}; at most {upper} envs, so that {spec.budget:,} steps "
        f"contain about {UPDATES_PER_FOLD} rollouts of {spec.horizon} steps"
    )
    start = multiple(fewest_envs(spec.budget, spec.horizon, sizes), unit)
    choice = choose_num_envs(
        bench.measure, upper=upper, start=start, memory_limit=available_memory(bench.device)
    )
    for line in choice.lines():
        say(f"  {line}")
    return choice.num_envs, choice.lines()


def typical_shape(space: SearchSpace) -> dict[str, int]:
    """Return the median of each shape parameter in the space."""
    shape = dict(space.subject.learner.shape)
    for name, dimension in space.tables["shape"].items():
        options = sorted(
            int(v) for v in (dimension.choices or (dimension.value,)) if isinstance(v, int | float)
        )
        if options:
            shape[name] = options[len(options) // 2]
    return shape
