"""The action of `sweepd run`."""

from __future__ import annotations

from pathlib import Path

from sweepd.envs.crypto.scoring.figures import shown
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.terminal import Terminal
from sweepd.optimize.cli.launch import choose_device
from sweepd.optimize.tracking.tracker import check_trackers
from sweepd.optimize.worker.batch import Interrupted
from sweepd.optimize.worker.run import run as run_once
from sweepd.optimize.worker.run_config import read_config
from sweepd.optimize.worker.stopping import StopRequest


def run(
    config: Path, out: Path | None, start_from: Path | None, gpu: str | None, track: tuple[str, ...]
) -> None:
    """Train once outside any study, and print the results."""
    check_trackers(track)
    say = Terminal().print_line
    tables = read_config(config)
    settings = dict(tables.get("train", {}))
    settings["out"] = str(out or settings.get("out") or f"runs/run-{config.stem}")
    if start_from is not None:
        settings["start_from"] = str(start_from)
    if gpu == "all":
        raise InputError("--gpu all is for train; a run uses one GPU")
    stop = StopRequest(say)
    try:
        with stop.installed():
            result = run_once(
                {**tables, "train": settings},
                device=choose_device(gpu),
                stop=stop,
                say=say,
                track=track,
                source=str(config),
            )
    except Interrupted:
        say(f"stopped; continue with --start-from {settings['out']}")
        return
    evaluation = result.evaluation
    scores = ", ".join(f"{score:+.4f}" for score in evaluation.scores)
    say(
        f"objective {evaluation.final:+.4f}; fold scores {scores}; "
        f"{result.steps_per_second:,.0f} steps/s"
    )
    for path, metrics in enumerate(evaluation.metrics):
        say(
            f"  path {path}: Sharpe ratio {shown('sharpe', metrics.sharpe)} "
            f"(equal weight {shown('equal_weight_sharpe', metrics.equal_weight_sharpe)}), return "
            f"{shown('total_return', metrics.total_return)} "
            f"({shown('equal_weight_return', metrics.equal_weight_return)}), drawdown "
            f"{shown('max_drawdown', metrics.max_drawdown)}, {metrics.trades:,} trades"
        )
    for reason in evaluation.reasons:
        say(f"  {reason}")
    say(f"results in {result.out}")
