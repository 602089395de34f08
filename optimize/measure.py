"""`--n-envs auto`: how many environments per member are fastest here, measured with the study's own program."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from agents.ppo import PPO, PPOParams
from envs.crypto.bars import Bars
from envs.sizing import Measurement, available_memory, choose_num_envs
from optimize.experiment import Experiment
from optimize.search_space import SHAPE_DEFAULTS, SearchSpace, Settings
from optimize.spec import UPDATES_PER_FOLD, StudySpec, upper_num_envs


def measure_num_envs(
    spec: StudySpec, bars: Bars, device: torch.device, say: Callable[[str], None]
) -> tuple[int, list[str]]:
    """Measure rollout and update for growing numbers of envs per member, with this study's program on this device.

    Returns the number chosen, and everything that was measured, as lines.
    """
    upper = upper_num_envs(spec.budget, spec.horizon)
    # From where every minibatch of the space fits into a rollout: fewer envs would be a smaller search, not only a
    # slower one.
    largest = spec.search_space.tables["shape"].get("minibatch")
    start = min(upper, -(-int(largest.highest() if largest else SHAPE_DEFAULTS["minibatch"]) // spec.horizon))
    shape = typical_shape(spec.search_space)
    experiment = Experiment(spec, bars, device)

    def measure(num_envs: int) -> Measurement:
        env = experiment.training_env(spec.slots, num_envs)
        settings = Settings({**shape, "minibatch": min(shape["minibatch"], num_envs * spec.horizon)}, {}, {})
        ppo = PPO(experiment.shape(settings, env, spec.slots), device)
        avg, std = experiment.normaliser(0, 1)
        for slot in range(spec.slots):
            ppo.add_member(slot, PPOParams(), slot, 100, avg, std)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        ppo.begin(env.reset(0))
        ppo.train(env, 1)
        began, rollouts = time.perf_counter(), 0
        while rollouts < 1 or (time.perf_counter() - began < 0.3 and rollouts < 20):
            ppo.train(env, 1)
            rollouts += 1
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - began
        peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
        return Measurement(steps_per_second=rollouts * spec.slots * num_envs * spec.horizon / seconds, memory=peak)

    say(
        f"--n-envs auto: measuring rollout and update of {spec.slots} members, network {shape['net_width']} x "
        f"{shape['net_depth']}, "
        f"{shape['epochs']} epochs, on {device}; at most {upper} envs, so that {spec.budget:,} steps hold "
        f"{UPDATES_PER_FOLD} rollouts of {spec.horizon}"
    )
    choice = choose_num_envs(measure, upper=upper, start=start, memory_limit=available_memory(device))
    for line in choice.lines():
        say(f"  {line}")
    return choice.num_envs, choice.lines()


def typical_shape(space: SearchSpace) -> dict[str, int]:
    """The middle of the space's shapes."""
    shape = dict(SHAPE_DEFAULTS)
    for name, dimension in space.tables["shape"].items():
        options = sorted(int(v) for v in (dimension.choices or (dimension.value,)) if isinstance(v, int | float))
        if options:
            shape[name] = options[len(options) // 2]
    return shape
