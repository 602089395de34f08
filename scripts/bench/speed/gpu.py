"""What a first half hour on a graphics card should measure, written to one results file.

Every part is written when it is done; a second call with the same file goes on with the parts that
are missing or failed. In their order:

    ready       whether the fused kernels were compiled and steps recorded as CUDA graphs, and what
                was logged
    bits        whether a member's weights are equal to the bit in a second run, without CUDA
                graphs, in another slot with other members, and in a program of another size
    env-kernels whether the kernels of environments' steps were compiled, and whether they give the
                bits of torch's operations on the same device; steps per second of both
    waits       operations that make the host wait for the card in a rollout with its gradient
                steps, with the lines that call them (`torch.cuda.set_sync_debug_mode`)
    kernels     kernels of a rollout with its gradient steps and their time, as profiled
    steps       microseconds per gradient step and per step of a rollout, with and without graphs
                and fused kernels
    speed       environment steps per second of whole training, over members and networks, with and
                without graphs and fused kernels
    off-policy  gradient steps per second of SAC and D3QN, likewise
    envs        steps per second of environments alone, with random actions
    memory      bytes on the card by number of members
    standard    time of 500 trials of the standard study (128x128, 10 folds x 200,000 steps)
    large       time of 500 trials of the predecessor's task (observation 498, 1024x1024, minibatch
                4,096, 8 epochs, 10 folds x 125,000 steps), its share of the card's fastest product,
                utilisation and memory as the driver reports them. The predecessor took "< 20 hours
                at 75-85% utilisation" on a GPU with 16 GB

Times of 500 trials are EXTRAPOLATED, without pruning: training, and an evaluation at each of four
rungs. --curves also trains the members of "large" in full precision and prints the mean rewards of
both, since a precision that learns worse is no speed-up.

    python -m scripts.bench run gpu --save scripts/bench/results/gpu.json [--parts speed envs]
    python -m scripts.bench run gpu --device cpu --tiny     # the script itself, without a card
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any, Self

import torch

from scripts.bench.harness import benchmark_parser, load_results, print_machine, save_results
from scripts.bench.speed.gpu_envs import env_kernels, envs
from scripts.bench.speed.peak import peaks
from scripts.bench.speed.roofline import operations, split
from sweepd.agents.algorithms.acceptance import (
    ALONE,
    PROGRAMS,
    SHOWN,
    SLOTS,
    SMALL,
    compared,
    differences,
    messages,
    trained,
    waits_in_a_rollout,
)
from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.algorithms.sample_programs import Cell, make_program, market_of, now, rate
from sweepd.agents.networks.gpu_kernels import kernels_for
from sweepd.agents.networks.precision import PRECISIONS, set_precision
from sweepd.envs.core.gpu import numbers_on
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.support.periodic_thread import PeriodicThread
from sweepd.optimize.study.recovery.registration import GpuUse
from sweepd.optimize.worker.gpu_meter import GpuMeter

TRIALS, FOLDS, RUNGS, GROUPS = 500, 10, 4, 5
PREDECESSOR_HOURS = 20.0
STANDARD_STEPS, LARGE_STEPS = 200_000, 125_000
STANDARD = Cell(width=128, minibatch=512, num_envs=32, horizon=64, bars=23_987)
# 1 + 3 * 7 columns of the portfolio and 7 * 68 of the market: 498.
LARGE = Cell(
    members=100,
    width=1024,
    minibatch=4096,
    num_envs=64,
    horizon=128,
    epochs=8,
    lookback=7,
    columns=68,
    bars=24_000,
)


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Attributes:
        members: numbers of members.
        compared_steps: of environments with and without kernels.
        rows: of environments alone.
        small: a small program.
        bits: programs whose bits are compared.
        speed: programs of PPO.
        off_policy: programs of SAC and D3QN.
        standard: the standard study.
        standard_members: numbers of members to train it with.
        large: the predecessor's task.
    """

    members: Sequence[int] = (1, 10, 100)
    compared_steps: int = 300
    rows: Sequence[int] = (256, 4_096, 65_536)
    small: Cell = SMALL
    bits: Mapping[str, Cell] = field(default_factory=lambda: PROGRAMS)
    speed: Sequence[Cell] = (
        SMALL,
        replace(SMALL, minibatch=1024),
        replace(SMALL, width=128, minibatch=512, num_envs=32),
        replace(SMALL, width=256, minibatch=2048, num_envs=128),
        replace(SMALL, env="cartpole", minibatch=1024, num_envs=256),
    )
    off_policy: Sequence[Cell] = (
        replace(SMALL, algorithm="sac", num_envs=32, horizon=32),
        replace(SMALL, algorithm="sac", num_envs=32, horizon=32, width=256),
        replace(SMALL, algorithm="d3qn", env="cartpole", num_envs=32, horizon=32),
    )
    standard: Cell = STANDARD
    standard_members: Sequence[int] = (10, 40, 100, 400, 1_000)
    large: Cell = LARGE

    def tiny(self) -> Sizes:
        """Return sizes that only try the script."""

        def small(cell: Cell) -> Cell:
            return replace(
                cell,
                members=2,
                width=16,
                minibatch=16,
                num_envs=4,
                horizon=8,
                epochs=1,
                updates=2,
                buffer=64,
                bars=2_000,
            )

        return Sizes(
            members=(1, 2),
            compared_steps=60,
            rows=(8,),
            small=small(self.small),
            bits={name: small(self.bits[name]) for name in ("ppo, gru", "sac", "d3qn")},
            speed=[small(self.speed[0])],
            off_policy=[small(cell) for cell in self.off_policy[1:]],
            standard=small(self.standard),
            standard_members=(2,),
            large=small(self.large),
        )


Part = Callable[[argparse.Namespace], Any]


def named(cell: Cell) -> str:
    """Describe a cell in a few words."""
    return (
        f"{cell.algorithm} {cell.recurrent} {cell.env} {cell.members} members x {cell.num_envs} "
        f"envs, {cell.width}x{cell.width}, minibatch {cell.minibatch}"
    ).replace("  ", " ")


def with_and_without(device: torch.device) -> dict[str, dict[str, bool]]:
    """Return kinds of programs: with graphs and with fused kernels only where there is a card."""
    plain = {"launches": {"graphs": False, "fused": False}}
    if device.type != "cuda":
        return plain
    return {
        "graphs": {"graphs": True, "fused": True},
        "graphs, unfused": {"graphs": True, "fused": False},
        "launches, fused": {"graphs": False, "fused": True},
        **plain,
    }


# Parts.


def ready(args: argparse.Namespace) -> Any:
    """Tell whether kernels were compiled and steps recorded, and what was logged if not."""
    programs = {}
    with messages() as logged:
        fused = kernels_for(args.device) is not None
        numbers = numbers_on(args.device) is not None
        for name, cell in args.sizes.bits.items():
            program, env = make_program(cell, args.device)
            program.train(env, 3)
            recorded = program.recorded_steps()
            programs[name] = {f"{kind}_steps_recorded": own for kind, own in recorded.items()}
            print(f"{name:<14} {programs[name]}", flush=True)
    print(f"fused kernels: {fused}; of random numbers: {numbers}; logged: {logged or 'nothing'}")
    return {
        "fused_kernels": fused,
        "random_numbers": numbers,
        "programs": programs,
        "logged": logged,
    }


def bits(args: argparse.Namespace) -> Any:
    """Compare a member's state after three rollouts."""
    found: dict[str, Any] = {}
    for name, cell in args.sizes.bits.items():
        ways = dict(compared(cell, args.device))
        first = trained(replace(cell, members=SLOTS), args.device, ALONE)
        for members, seeds in ((1, {0: SHOWN}), (10, {slot: SHOWN - slot for slot in range(7)})):
            other = trained(replace(cell, members=members), args.device, seeds)
            ways[f"of {members}"] = differences(first, other)
        found[name] = {
            kind: {"equal": not differing, "largest_difference": differing}
            for kind, differing in ways.items()
        }
        verdicts = (
            f"{kind} {'equal' if at['equal'] else 'OTHER'}" for kind, at in found[name].items()
        )
        print(f"{name:<14} " + ", ".join(verdicts), flush=True)
    return found


def waits(args: argparse.Namespace) -> Any:
    """Count what waits for the card in one rollout."""
    found: dict[str, Any] = {}
    for name, cell in args.sizes.bits.items():
        places = waits_in_a_rollout(cell, args.device)
        found[name] = {"waits": sum(places.values()), "places": dict(places.most_common(20))}
        print(f"{name:<14} {found[name]['waits']} waits per rollout", flush=True)
    return found


def kernels(args: argparse.Namespace) -> Any:
    """Profile one rollout without graphs, whose operations have names."""
    small = args.sizes.small
    program, env = make_program(small, args.device, graphs=False)
    program.train(env, 3)
    activities = [torch.profiler.ProfilerActivity.CPU]
    if args.device.type == "cuda":
        activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        program.train(env, 1)
        now(args.device)
    rows = []
    for event in profile.key_averages():
        spent = float(getattr(event, "self_device_time_total", 0.0) or event.self_cpu_time_total)
        rows.append({"name": event.key[:120], "count": event.count, "microseconds": spent})
    rows.sort(key=lambda row: -row["microseconds"])
    total = sum(row["count"] for row in rows)
    for row in rows[:8]:
        print(f"{row['microseconds']:>10,.0f} us {row['count']:>7,} x {row['name'][:80]}")
    print(f"{total:,} in a rollout of {small.horizon} steps", flush=True)
    return {"cell": asdict(small), "total": total, "rows": rows[:60]}


def steps(args: argparse.Namespace) -> Any:
    """Time rollouts and gradient steps apart."""
    found = []
    kinds = with_and_without(args.device).items()
    for members, (kind, how) in product(args.sizes.members, kinds):
        cell = replace(args.sizes.small, members=members)
        program, env = make_program(cell, args.device, **how)
        program.train(env, 3)
        parts = {"_collect": 0.0, "_learn": 0.0}
        count, until = 0, time.perf_counter() + args.seconds
        with torch.no_grad():
            while not count or time.perf_counter() < until:
                for part, arguments in (("_collect", (env,)), ("_learn", ())):
                    start = now(args.device)
                    getattr(program, part)(*arguments)
                    parts[part] += now(args.device) - start
                count += 1
        gradient_steps = cell.num_envs * cell.horizon // cell.minibatch * cell.epochs
        row = {
            "members": members,
            "kind": kind,
            "microseconds_per_rollout_step": 1e6 * parts["_collect"] / count / cell.horizon,
            "microseconds_per_gradient_step": 1e6 * parts["_learn"] / count / gradient_steps,
        }
        found.append(row)
        print(
            f"{members:>4} members, {kind:<15} "
            f"{row['microseconds_per_rollout_step']:>9,.0f} us per rollout step, "
            f"{row['microseconds_per_gradient_step']:>9,.0f} us per gradient step",
            flush=True,
        )
    return {"cell": asdict(args.sizes.small), "rows": found}


def rates(args: argparse.Namespace, cells: Sequence[Cell], unit: Callable[[Cell], int]) -> Any:
    """Measure rollouts per second times a unit, over cells, members and graphs."""
    found = []
    for sized, members in product(cells, args.sizes.members):
        cell = replace(sized, members=members)
        speeds = {}
        for kind, how in with_and_without(args.device).items():
            program, env = make_program(cell, args.device, **how)
            speeds[kind] = rate(program, env, args.seconds)[0] * unit(cell)
        found.append({"cell": asdict(cell), "per_second": speeds})
        shown = ", ".join(f"{kind} {speed:,.0f}/s" for kind, speed in speeds.items())
        print(f"{named(cell)}: {shown}", flush=True)
    return found


def speed(args: argparse.Namespace) -> Any:
    """Measure whole training."""
    return rates(args, args.sizes.speed, lambda cell: cell.samples)


def off_policy(args: argparse.Namespace) -> Any:
    """Measure SAC and D3QN, in gradient steps of all members."""
    return rates(args, args.sizes.off_policy, lambda cell: cell.members * cell.updates)


def memory(args: argparse.Namespace) -> Any:
    """Measure the most that a program needs."""
    found, small = [], args.sizes.small
    for sized, members in product((small, replace(small, algorithm="sac")), args.sizes.members):
        cell = replace(sized, members=members)
        gc.collect()  # earlier programs: their recordings refer to them
        if args.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(args.device)
        program, env = make_program(cell, args.device)
        program.train(env, 3)
        used = held = 0
        if args.device.type == "cuda":
            used = torch.cuda.max_memory_allocated(args.device)
            held = torch.cuda.max_memory_reserved(args.device)
        found.append({"cell": asdict(cell), "allocated": used, "reserved": held})
        print(f"{named(cell)}: {used / 2**20:,.0f} MiB, {held / 2**20:,.0f} reserved", flush=True)
    return found


def standard(args: argparse.Namespace) -> Any:
    """Measure the standard study with several numbers of members."""
    rows = [
        study_time(args, replace(args.sizes.standard, members=members), STANDARD_STEPS)
        for members in args.sizes.standard_members
    ]
    return {"rows": rows, "best": min(rows, key=lambda row: row["hours_for_500_trials"])}


def large(args: argparse.Namespace) -> Any:
    """Measure the predecessor's task."""
    set_precision(args.precision, args.device)
    cell = replace(args.sizes.large, members=args.members or args.sizes.large.members)
    best = max(peaks(args.device, args.seconds).values())
    with CardWatch(args.device) as watch:
        found = study_time(args, cell, LARGE_STEPS, args.steady)
    program, env = make_program(cell, args.device, graphs=False)
    reached = found["rollouts_per_second"] * operations(program.shape, env)
    found |= {
        "precision": args.precision,
        "tflops": reached / 1e12,
        "peak_tflops": best / 1e12,
        "share_of_peak": reached / best,
        "split": split(program, env, 1),
        "card": watch.summary(),
    }
    print(
        f"{found['tflops']:.2f} of {found['peak_tflops']:.2f} Tflop/s, "
        f"{found['share_of_peak']:.0%} of the peak; "
        + "  ".join(f"{phase} {share:.1%}" for phase, share in found["split"].items())
    )
    card = found["card"]
    print(
        f"card: {card['utilisation']:.0%} busy, {card['memory_gib']:.1f} of "
        f"{card['memory_total_gib']:.0f} GiB (the predecessor: < {PREDECESSOR_HOURS:.0f} hours)"
        if card
        else "card: not told"
    )
    if args.curves:
        found["curves"] = curves(args, cell)
    return found


PARTS: dict[str, Part] = {
    "ready": ready,
    "bits": bits,
    "env-kernels": env_kernels,
    "waits": waits,
    "kernels": kernels,
    "steps": steps,
    "speed": speed,
    "off-policy": off_policy,
    "envs": envs,
    "memory": memory,
    "standard": standard,
    "large": large,
}


# What the parts use.


def study_time(
    args: argparse.Namespace, cell: Cell, budget: int, seconds: float | None = None
) -> dict[str, Any]:
    """Extrapolate the time of 500 trials from the speed of a program and of an evaluation."""
    ppo, env = make_program(cell, args.device, learning_rate=args.learning_rate)
    per_second, measured = rate(ppo, env, args.seconds if seconds is None else seconds)
    evaluation = evaluation_seconds(args, cell, ppo)
    speed = per_second * cell.samples
    training_hours = TRIALS * FOLDS * budget / speed / 3600
    evaluation_hours = evaluation * RUNGS * TRIALS * FOLDS / cell.members / 3600
    print(
        f"{named(cell)}, observation {env.state_dim}: {speed:,.0f} steps/s; {TRIALS} trials of "
        f"{FOLDS} folds x {budget:,} steps, EXTRAPOLATED: {60 * training_hours:,.1f} min of "
        f"training + {60 * evaluation_hours:,.1f} min of evaluation",
        flush=True,
    )
    return {
        "cell": asdict(cell),
        "observation": env.state_dim,
        "rollouts_per_second": per_second,
        "rollouts_measured": measured,
        "steps_per_second": speed,
        "evaluation_seconds": evaluation,
        "hours_for_500_trials": training_hours + evaluation_hours,
        "of_which_evaluation": evaluation_hours,
    }


def evaluation_seconds(args: argparse.Namespace, cell: Cell, ppo: PPO) -> float:
    """Time one pass of all members over two test groups each, on a part of the bars."""
    market, params = market_of(cell.bars, cell.columns), EnvParams(lookback=cell.lookback)
    first, bars = market.first_bar(cell.lookback), market.length - 1
    length = (bars - first) // GROUPS
    windows = [[(first, first + length), (first + length, first + 2 * length)]] * cell.members
    env = CryptoEnv.for_windows(market, params, windows, device=args.device)
    act, obs = ppo.act_fn(), env.reset(0)
    measured = min(length, 200)
    for step in range(measured + 5):
        if step == 5:
            start = now(ppo.device)
        obs = env.step(act(obs)).obs
    return (now(ppo.device) - start) / measured * length


def curves(args: argparse.Namespace, cell: Cell) -> dict[str, list[float]]:
    """Return the mean reward per rollout, in full precision and in the given precision."""
    found = {}
    for name in dict.fromkeys(("fp32", args.precision)):
        set_precision(name, args.device)
        ppo, env = make_program(cell, args.device, learning_rate=args.learning_rate)
        found[name] = [float(stats.reward.mean()) for stats in ppo.train(env, args.curves)]
    print(
        "mean reward by rollout: "
        + "; ".join(f"{k} " + " ".join(f"{v:+.4f}" for v in vs) for k, vs in found.items())
    )
    return found


class CardWatch:
    """Samples the GPU's utilisation and memory twice a second while the block runs."""

    def __init__(self, device: torch.device) -> None:
        self._meter = GpuMeter(device)
        self._thread = PeriodicThread(self._read, 0.5, "card")
        self.readings: list[GpuUse] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.stop()

    def _read(self) -> None:
        reading = self._meter.read()
        if reading is not None:
            self.readings.append(reading)

    def summary(self) -> dict[str, float] | None:
        """Return the means, or None if the driver reports nothing."""
        if not self.readings:
            return None
        return {
            "utilisation": statistics.mean(reading.share for reading in self.readings),
            "memory_gib": max(reading.used for reading in self.readings) / 2**30,
            "memory_total_gib": self.readings[0].total / 2**30,
        }


def main(arguments: list[str]) -> None:
    """Measure the parts that the results file lacks, and save each of them."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--again", action="store_true", help="measure parts in the file, too")
    parser.add_argument("--seconds", type=float, default=2.0, help="minimum time per measurement")
    parser.add_argument(
        "--steady", type=float, default=60.0, help='minimum length of the steady state of "large"'
    )
    parser.add_argument("--precision", choices=list(PRECISIONS), default="fp32", help='of "large"')
    parser.add_argument("--members", type=int, help='members of "large" trained together')
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument(
        "--curves", type=int, default=0, metavar="ROLLOUTS", help="compare its learning with fp32"
    )
    parser.add_argument("--tiny", action="store_true", help="sizes that only try the script")
    args = parser.parse_args(arguments)
    args.sizes = Sizes().tiny() if args.tiny else Sizes()
    if args.device.type == "cuda" and not torch.cuda.is_available():
        sys.exit("gpu.py: torch sees no card here; --device cpu --tiny tries the script")
    content = load_results(args.save)
    parts = content.setdefault("parts", {})
    found = print_machine(args.device)
    for name in args.parts:
        if name in parts and "failed" not in parts[name]["found"] and not args.again:
            print(f"{name}: in {args.save} already")
            continue
        print(f"\n{name}", flush=True)
        set_precision("fp32", args.device)
        start = time.perf_counter()
        try:
            measured = PARTS[name](args)
        except (RuntimeError, MemoryError) as error:
            # One part must not cost the others: the card is lent for half an hour.
            measured = {"failed": f"{type(error).__name__}: {error}"[:2_000]}
            print(f"FAILED: {measured['failed']}")
        parts[name] = {
            "machine": found,
            "tiny": args.tiny,
            "seconds": round(time.perf_counter() - start, 1),
            "found": measured,
        }
        save_results(args.save, content)
    failed = [name for name in args.parts if "failed" in parts[name]["found"]]
    if failed:
        sys.exit(f"gpu.py: these parts failed: {', '.join(failed)}; the next call repeats them")
