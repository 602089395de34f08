"""Trials per hour on the standard study: the real worker against ElegantRL, fold by fold.

The standard study: seven assets, lookback 1, hourly bars 2021 to 2023, CPCV 5/2 (10 folds), 200,000
steps per fold, num_envs 32, horizon 64, 128 x 128, minibatch 512, 4 epochs, 4 rungs, no pruning.

    ours           the worker with all its work: asking, training, evaluating each rung, reporting,
                   writing files
    elegant        AgentPPO with as many envs, fold after fold: training only, no evaluation
    elegant 1 env  the same with one env and num_envs times the horizon, that is, equal
                   transitions per update

Each of ElegantRL's runs in one process with one thread, in one with all threads, and in two
concurrent processes with half of the threads each, which train different folds. The goals compare
with the faster one of single processes, as a script of ElegantRL is one; the two processes are
reported beside.

Both are extrapolated from a measured part. Ours trains a batch of 4 trials with `--part` of the
budget and all rungs; the training time is divided by the part, and everything else occurs as often
as with the full budget. ElegantRL's trial is 10 folds of 200,000 steps at the speed measured over
some seconds of full rollouts.

The worker's time by phase is printed. Paired runs, medians. `--save` adds to the file's runs of the
same setup on the same processor.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import torch

from scripts.bench.harness import (
    benchmark_parser,
    idle_machine,
    load_results,
    median_ratio,
    print_machine,
    save_results,
)
from scripts.bench.peers import PeerProcesses, serve
from scripts.bench.speed.elegantrl_run import ElegantEnv, make_agent, train_rollout
from scripts.bench.studies import STANDARD, STANDARD_SPACE, standard_bars, study_in, work
from sweepd.agents.networks.shape import Shape
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.optimize.objectives.market.experiment import CryptoExperiment
from sweepd.optimize.study.space.search_space import Settings

HOUR = 3600.0
GOALS = {"elegant 1 env": 50.0, "elegant": 5.0}
PAIR = ", two processes"


def prepare(name: str, cell: dict[str, Any]) -> Callable[[], int]:
    """Return the rollouts of a peer, for `peers.serve`, with the parameters of a trial."""
    with tempfile.TemporaryDirectory() as folder:
        handle, experiment = study_in(Path(folder), standard_bars()[0], STANDARD, STANDARD_SPACE)
        plan = handle.space.resolve(cell["params"])
    return elegant(experiment, plan, experiment.spec.num_envs if name == "elegant" else 1)


def elegant(experiment: CryptoExperiment, settings: Settings, num_envs: int) -> Callable[[], int]:
    """Return a function that trains the first fold for one rollout with ElegantRL's agent."""
    spec = experiment.spec
    horizon = spec.transitions // num_envs
    env = CryptoEnv(
        experiment.market,
        [experiment.env_params(settings)],
        [list(experiment.folds[0].train)],
        num_envs,
    )
    env.reset([0])
    adapted = ElegantEnv(env)
    torch.manual_seed(0)
    shape = Shape.for_env(env, horizon=horizon, **settings.shape)
    agent = make_agent(
        adapted, shape, experiment.learner_params(settings), *experiment.normaliser(0, settings)
    )

    def rollout() -> int:
        train_rollout(agent, adapted, horizon)
        return horizon * num_envs

    return rollout


def pairs(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Make `--runs` paired runs: a batch through the worker, then some rollouts of each peer."""
    bars, described = standard_bars()
    budget = round(STANDARD["budget"] * args.part)
    handle, experiment = study_in(folder, bars, {**STANDARD, "budget": budget}, STANDARD_SPACE)
    spec = handle.spec
    scale = STANDARD["budget"] / (spec.rollouts * spec.transitions)
    processes = {", 1 thread": PeerProcesses(__name__, 1)}
    if args.threads >= 2:
        processes[f", {args.threads} threads"] = PeerProcesses(__name__, args.threads)
        processes[PAIR] = PeerProcesses(__name__, args.threads // 2, 2)
    mode = None
    runs: list[dict[str, Any]] = []
    trial_steps = len(experiment.folds) * STANDARD["budget"]
    for run in range(args.runs):
        worker, seconds = work(handle, experiment, spec.trials_per_batch)
        phases = {name: spent for name, spent, _ in worker.phases.shares(seconds)}
        phases["training"] *= scale
        whole = sum(phases.values())
        if run == 0:
            cell = {"params": handle.trials()[-1].params}
            for peer in processes.values():
                mode = {peer.prepare(name, cell) for name in GOALS}.pop()
        speeds = {
            name + setting: peer.measure(name, args.seconds)
            for name in GOALS
            for setting, peer in processes.items()
        }
        rates = {"ours": HOUR * spec.trials_per_batch / whole}
        rates |= {name: HOUR * speed / trial_steps for name, speed in fastest(speeds).items()}
        speeds["ours, training alone"] = spec.trials_per_batch * trial_steps / phases["training"]
        runs.append(
            {"trials_per_hour": rates, "steps_per_second": speeds, "seconds_per_batch": phases}
        )
        print(
            ", ".join(f"{name} {rate:.2f} trials/hour" for name, rate in rates.items()), flush=True
        )
    for peer in processes.values():
        peer.close()
    setup = {
        "bars": described,
        "peers_mkl": mode,
        "peers": [setting.removeprefix(", ") for setting in processes],
        "observation": experiment.training_env(1, 1).state_dim,
        "folds": len(experiment.folds),
        **STANDARD,
        "network": [128, 128],
        "minibatch": 512,
        "epochs": 4,
        "rungs": spec.rungs,
        "members per program": spec.slots,
        "trials per batch": spec.trials_per_batch,
        "measured part of the budget": args.part,
    }
    return {"setup": setup, "runs": runs}


def fastest(speeds: dict[str, float]) -> dict[str, float]:
    """Return the speed of each peer in its best single process, and in two if it was measured."""
    found = {}
    for name in GOALS:
        own = {key: speed for key, speed in speeds.items() if key.rpartition(", ")[0] == name}
        pair = own.pop(name + PAIR, None)
        found[name] = max(own.values())
        if pair is not None:
            found[name + PAIR] = pair
    return found


def same_setup(kept: dict[str, Any], result: dict[str, Any]) -> bool:
    """Return whether the runs in the file may be added: the same setup on the same processor."""
    if kept["machine"]["processor"] != result["machine"]["processor"]:
        return False
    return kept["setup"] == json.loads(json.dumps(result["setup"]))


def report(result: dict[str, Any]) -> None:
    """Print medians over the runs: trials per hour, ratios and the worker's phases."""
    runs = result["runs"]
    ours = [run["trials_per_hour"]["ours"] for run in runs]
    print(
        f"\n{'':30}{'trials/hour':>12}{'ours is':>10}{'goal':>8}   (medians of {len(runs)} paired "
        "runs)"
    )
    for name in runs[0]["trials_per_hour"]:
        rates = [run["trials_per_hour"][name] for run in runs]
        ratio = median_ratio(ours, rates)
        result.setdefault("ours_over", {})[name] = ratio
        goal = f"{GOALS[name]:.0f}x" if name in GOALS else ""
        print(
            f"{name:30}{statistics.median(rates):>12.2f}"
            f"{'' if name == 'ours' else f'{ratio:.1f}x':>10}{goal:>8}"
        )
    del result["ours_over"]["ours"]
    print("where the worker's time goes (training scaled to the whole budget):")
    phases = {
        name: statistics.median(
            run["seconds_per_batch"].get(name, 0.0) / sum(run["seconds_per_batch"].values())
            for run in runs
        )
        for name in sorted({name for run in runs for name in run["seconds_per_batch"]})
    }
    for name, share in sorted(phases.items(), key=lambda row: -row[1]):
        print(f"  {name:12}{share:>8.2%}")
    result["shares_of_worker"] = phases
    host = sum(share for name, share in phases.items() if name not in ("training", "evaluation"))
    result["host_share"] = host
    print(f"  host work (all but training and evaluation): {host:.2%} (goal: under 3%)")


def main(argv: list[str]) -> None:
    """Measure, print and save."""
    parser = benchmark_parser(__doc__, threads=2)
    parser.add_argument("as_peer", nargs="?", choices=["as-peer"], help=argparse.SUPPRESS)
    parser.add_argument("--runs", type=int, default=5, help="paired repetitions")
    parser.add_argument(
        "--part", type=float, default=0.125, help="fraction of the budget that ours trains"
    )
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="minimum time per measurement of a peer"
    )
    parser.add_argument("--folder", type=Path, help="keep the study here and continue it")
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    if args.as_peer:
        serve(prepare)
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    described = print_machine()
    kept = load_results(args.save)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        with idle_machine():
            result = pairs(args, folder) | {"machine": described}
        if kept and same_setup(kept, result):
            result["runs"] = kept["runs"] + result["runs"]
        report(result)
    save_results(args.save, result)
