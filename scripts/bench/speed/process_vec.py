"""External environments, vectorized: ours against Gymnasium's and PufferLib's vectorizers.

CartPole-v1 with random actions at several numbers of environments: ours with its measured layout
and in one process, and the peers, in paired runs. One process also by its processor time alone,
which is reliable on a busy machine. Then an environment with uneven steps (one in twenty is fifty
times slower), where a vectorizer can take the first that are ready. Figures are environment steps
per second; ratios to the best peer are per round; medians are over rounds.

    python -m scripts.bench run process_vec [--sizes 8 64 256] [--rounds 5] [--seconds 0.5]
        [--save scripts/bench/results/process_vec.json]

PufferLib is included if installed (`pip install pufferlib`, or pufferlib-core). Gymnasium's
AsyncVectorEnv, with a process per environment, is included up to --most-processes environments.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from scripts.bench.harness import (
    benchmark_parser,
    load_results,
    median_ratio,
    medians,
    paired_runs,
    print_machine,
    save_results,
)
from scripts.bench.speed.uneven_env import Uneven
from sweepd.envs.core.sizing import cpu_count
from sweepd.envs.external.first_ready import FirstReadyEnvs
from sweepd.envs.external.layouts import choose_layout
from sweepd.envs.external.sharded import Layout, ShardedEnvs, even_layout
from sweepd.envs.external.sources import FactorySource, GymSource, Source
from sweepd.envs.external.vec_env import ExternalVecEnv

CARTPOLE = GymSource("CartPole-v1")
GOALS = {8: 0.97, 64: 1.5, 256: 1.5}  # ratio to the best peer
PARTS = ["cartpole", "one-process", "uneven"]
UNEVEN_ENVS, UNEVEN_WORKERS = 32, 8
Stepper = tuple[
    Callable[[int], Any], Callable[[], None], int
]  # step function (of the step's number), close function, environments per step


def ours(source: Source, envs: int, layout: Layout) -> Stepper:
    """Step all environments together through the shared buffers."""
    hosted = ShardedEnvs(source, [{}] * envs, layout)
    hosted.reset(range(envs), range(envs))
    drawn = np.random.default_rng(0).integers(0, 2, (64, envs, 1))

    def step(number: int) -> None:
        hosted.buffers.action[:] = drawn[number % 64]
        hosted.step()

    return step, hosted.close, envs


def as_learners_see_it(envs: int, layout: Layout) -> Stepper:
    """Step through `ExternalVecEnv`, with tensors, action checks and checkpoint data."""
    env = ExternalVecEnv(CARTPOLE, 1, envs, layout=layout)
    env.reset(0)
    drawn = torch.randint(0, 2, (64, envs))
    obs = torch.empty(envs, env.state_dim)
    return lambda number: env.step(drawn[number % 64], out=obs), env.close, envs


def ours_first_ready(source: Source, envs: int, workers: int, batch: int) -> Stepper:
    hosted = FirstReadyEnvs(source, [{}] * envs, workers)
    hosted.reset(range(envs), range(envs))
    drawn = np.random.default_rng(0).integers(0, 2, (64, batch, 1))
    hosted.send(np.arange(envs), np.zeros((envs, 1), np.int64))

    def step(number: int) -> None:
        hosted.send(hosted.receive(batch), drawn[number % 64])

    return step, hosted.close, batch


def gymnasiums(kind: Callable[..., Any], make: Callable[[], Any], envs: int) -> Stepper:
    vector = kind([make] * envs)
    vector.reset(seed=0)
    drawn = np.random.default_rng(0).integers(0, 2, (64, envs))
    return lambda number: vector.step(drawn[number % 64]), vector.close, envs


def puffers(
    backend: str, make: Callable[[], Any], envs: int, batch: int | None = None, **more: Any
) -> Stepper:
    import pufferlib.emulation
    import pufferlib.vector

    creator = functools.partial(pufferlib.emulation.GymnasiumPufferEnv, env_creator=make)
    if backend == "Multiprocessing":
        more |= {"overwork": True, "batch_size": batch or envs}
    vector = pufferlib.vector.make(
        creator, backend=getattr(pufferlib.vector, backend), num_envs=envs, **more
    )
    vector.async_reset(seed=0)
    size = batch or envs
    drawn = np.random.default_rng(0).integers(0, 2, (64, size))
    vector.recv()

    def step(number: int) -> None:
        vector.send(drawn[number % 64])
        vector.recv()

    return step, vector.close, size


def rate(stepper: Stepper, seconds: float) -> float:
    """Measure environment steps per second, after a warm-up of a tenth of the time."""
    step, close, envs = stepper
    try:
        for part in (seconds / 10, seconds):
            began = now = time.perf_counter()
            number = 0
            while now < began + part:
                step(number)
                number, now = number + 1, time.perf_counter()
        return number * envs / (now - began)
    finally:
        close()


def compare(
    steppers: dict[str, Callable[[], Stepper]], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Measure in turn. Each is created for every run: some keep processors busy while idle."""
    return paired_runs(
        {name: lambda make=make: rate(make(), seconds) for name, make in steppers.items()}, rounds
    )


def summary(rates: dict[str, list[float]], mine: str) -> dict[str, Any]:
    """Return medians, and median ratios of `mine` to the best peer and to each other entry."""
    peers = [name for name in rates if not name.startswith("sweepd")]
    best = [max(rates[peer][at] for peer in peers) for at in range(len(rates[mine]))]
    against = {"best peer": best, **{name: rates[name] for name in rates if name != mine}}
    return {
        "steps_per_second": medians(rates),
        "runs": rates,
        "ratio": {name: median_ratio(rates[mine], values) for name, values in against.items()},
    }


def show(title: str, found: dict[str, Any]) -> None:
    print(f"\n{title}")
    for name, speed in found["steps_per_second"].items():
        runs = found["runs"][name]
        ratio = f"ours {found['ratio'][name]:6.2f} x" if name in found["ratio"] else ""
        print(
            f"  {name:<46} {speed:>10,.0f} steps/s ({min(runs):,.0f} to {max(runs):,.0f})  {ratio}"
        )
    print(f"  of the best peer: {found['ratio']['best peer']:.2f}", flush=True)


def cartpole(envs: int, args: argparse.Namespace, puffer: bool) -> dict[str, Any]:
    """Compare at one number of environments."""
    make = functools.partial(gymnasium.make, "CartPole-v1")
    choice = choose_layout(CARTPOLE, [{}] * envs)
    steppers: dict[str, Callable[[], Stepper]] = {
        "sweepd": lambda: ours(CARTPOLE, envs, choice.layout),
        "sweepd, all in one process": lambda: ours(CARTPOLE, envs, Layout(envs)),
        "sweepd, as learners see it": lambda: as_learners_see_it(envs, choice.layout),
        "Gymnasium SyncVectorEnv": lambda: gymnasiums(SyncVectorEnv, make, envs),
    }
    if envs <= args.most_processes:
        steppers["Gymnasium AsyncVectorEnv"] = lambda: gymnasiums(AsyncVectorEnv, make, envs)
    if puffer:
        steppers["PufferLib Serial"] = lambda: puffers("Serial", make, envs)
        for workers in (1, 2):
            steppers[f"PufferLib Multiprocessing, {workers} workers"] = functools.partial(
                puffers, "Multiprocessing", make, envs, num_workers=workers
            )
    found = summary(compare(steppers, args.rounds, args.seconds), "sweepd")
    found |= {"envs": envs, "layout": str(choice.layout), "goal": GOALS.get(envs)}
    show(f"CartPole-v1, {envs} environments: {choice}", found)
    return found


def one_process(envs: int, rounds: int) -> dict[str, Any]:
    """Compare within one process by its thread's processor time, in interleaved runs."""
    make = functools.partial(gymnasium.make, "CartPole-v1")
    steppers = {
        "sweepd, all in one process": ours(CARTPOLE, envs, Layout(envs)),
        "sweepd, as learners see it": as_learners_see_it(envs, Layout(envs)),
        "Gymnasium SyncVectorEnv": gymnasiums(SyncVectorEnv, make, envs),
    }
    if importlib.util.find_spec("pufferlib") is not None:
        steppers["PufferLib Serial"] = puffers("Serial", make, envs)
    rates: dict[str, list[float]] = {name: [] for name in steppers}
    steps = max(1, 512 // envs)
    for turn in range(20 * rounds):
        for name, (step, _, _) in steppers.items():
            began = time.thread_time()
            for number in range(steps):
                step(turn * steps + number)
            rates[name].append(steps * envs / (time.thread_time() - began))
    for _, close, _ in steppers.values():
        close()
    found = summary(rates, "sweepd, all in one process")
    del found["runs"]
    show(
        f"CartPole-v1, {envs} environments in one process, per second of processor time",
        found | {"runs": rates},
    )
    return found | {"envs": envs}


def uneven(burn: bool, args: argparse.Namespace, puffer: bool) -> dict[str, Any]:
    """Compare first-ready stepping with lock-step on uneven environments."""
    envs, batch = UNEVEN_ENVS, UNEVEN_ENVS // 2
    workers = min(UNEVEN_WORKERS, cpu_count()) if burn else UNEVEN_WORKERS
    make = functools.partial(Uneven, burn=burn)
    source = FactorySource(Uneven, {"burn": burn})
    mine = f"sweepd, the first {batch} ready"
    steppers: dict[str, Callable[[], Stepper]] = {
        mine: lambda: ours_first_ready(source, envs, workers, batch),
        "sweepd, all together": lambda: ours(source, envs, even_layout(envs, workers, here=False)),
        "Gymnasium AsyncVectorEnv": lambda: gymnasiums(AsyncVectorEnv, make, envs),
    }
    if puffer:
        steppers[f"PufferLib Multiprocessing, first {batch}"] = lambda: puffers(
            "Multiprocessing",
            make,
            envs,
            batch,
            num_workers=workers,
            zero_copy=False,
            sync_traj=False,
        )
    found = summary(compare(steppers, args.rounds, args.seconds), mine)
    found |= {"envs": envs, "workers": workers, "burn": burn}
    how = "keeping the processor busy" if burn else "waiting"
    show(f"Uneven steps ({how}), {envs} environments, {workers} workers", found)
    return found


def main(arguments: list[str]) -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[8, 64, 256])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="approximate time per run")
    parser.add_argument("--most-processes", type=int, default=8)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SWEEPD_CACHE_DIR"] = cache  # no cached layouts
        measure(args)


def measure(args: argparse.Namespace) -> None:
    """Measure all parts, print and save."""
    puffer = importlib.util.find_spec("pufferlib") is not None
    about = print_machine()
    print(f"medians of {args.rounds} paired runs of {args.seconds:g} s")
    if not puffer:
        print("PufferLib isn't installed (pip install pufferlib): compared with Gymnasium's alone")
    found = load_results(args.save)
    about_run = {"machine": about, "rounds": args.rounds, "seconds": args.seconds}
    found |= {f"{part} run": about_run for part in args.parts}
    if "cartpole" in args.parts:
        found["cartpole"] = [cartpole(envs, args, puffer) for envs in args.sizes]
    if "one-process" in args.parts:
        found["one_process"] = [one_process(envs, args.rounds) for envs in args.sizes]
    if "uneven" in args.parts:
        found["uneven"] = [uneven(burn, args, puffer) for burn in (False, True)]
    save_results(args.save, found)
