"""`sweepd status`: progress, workers and health of studies."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial, TrialState
from rich.console import Group
from rich.table import Column, Table
from rich.text import Text
from sqlalchemy.exc import SQLAlchemyError

from sweepd.envs.support.errors import RunError
from sweepd.envs.support.formatting import counted, duration, hourly, minute
from sweepd.envs.support.passwords import hide_password
from sweepd.envs.support.plugins import described
from sweepd.envs.support.terminal import screen
from sweepd.optimize.cli.hooks import Hooks
from sweepd.optimize.objectives.outlook import BY_FRESH_SEEDS, CountLooks, gate_outlook, sentence
from sweepd.optimize.study.insight.time_left import seconds_left, work_left
from sweepd.optimize.study.pause import pause_of
from sweepd.optimize.study.record.configurations import Configuration, latest, value_words
from sweepd.optimize.study.record.database import (
    is_away,
    open_to_read,
    our_studies,
    reason_of,
    storage_url,
)
from sweepd.optimize.study.record.forks import fork_words
from sweepd.optimize.study.record.fresh import fresh_seeds
from sweepd.optimize.study.record.frontier import frontier_lines, frontier_of
from sweepd.optimize.study.record.keys import EVALUATE_KEY, TOTAL_KEY
from sweepd.optimize.study.record.reader import StudyReader, count_states
from sweepd.optimize.study.record.rows import FINISHED, TrialRow
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.recovery.registration import (
    GRACE_SECONDS,
    GpuUse,
    WorkerRecord,
    list_workers,
)

FAILURES_SHOWN = 5
FRONTIER_SHOWN = 5
EVALUATIONS_SHOWN = 4
STATE_WORDS = {"FAIL": "failed"}


def study_status(handle: StudyReader, count_looks: CountLooks | None = None) -> dict[str, Any]:
    """Return the status of a study as plain data; docs/reference/status.md describes the keys."""
    attributes = handle.storage.attributes(handle.study_id)
    rows = handle.rows.read()
    workers = [_worker(w) for w in list_workers(handle.storage, handle.study_id)]
    living = [w for w in workers if w["status"] != "dead"]
    counts = count_states(row.state for row in rows)
    done = sum(counts[state] for state in FINISHED)
    # Workers may have been started with different --n-trials: the largest one decides.
    total = max(
        [w["total"] for w in living if "total" in w], default=attributes.get(TOTAL_KEY, len(rows))
    )
    left = max(0, total - done)
    pause, best = pause_of(attributes), handle.best()
    ahead = handle.leading() if best is None else None
    # A paused study needs no worker.
    reasons = _unhealthy(workers, 0 if pause else left)
    # Waiting and stalled workers still report the speed of their last batch.
    at_work = [w for w in workers if w["status"] == "alive" and w["state"] == "training"]
    speed = sum(w.get("steps_per_second", 0) for w in at_work)
    rates = [w["trials_per_hour"] for w in at_work if w.get("trials_per_hour") is not None]
    frontier = frontier_of(handle)
    return {
        "study": handle.name,
        "healthy": not reasons,
        "unhealthy": reasons,
        "run_dir": str(handle.run_dir),
        "about": handle.spec.about,
        "paused": None if pause is None else {"since": pause.since, "by": pause.by},
        "trials": counts,
        "total": total,
        "done": done,
        "rungs": handle.spec.rungs,
        "steps_per_second": speed,
        "trials_per_hour": sum(rates) if rates else None,
        "eta_seconds": _eta(handle.spec, rows, total, at_work),
        "best": None if best is None else _best(handle, best),
        "leading": None if ahead is None else _leading(ahead),
        # Only of studies that have several values or constraints.
        **({} if frontier is None else {"frontier": frontier}),
        # Only of studies with evaluations beside rungs.
        **_evaluations(rows, attributes.get(EVALUATE_KEY, 0)),
        "gate": _gate(handle, max(total, done), count_looks),
        "workers": workers,
        "storage_retries": sum(w.get("storage_retries", 0) for w in living),
        "failures": _failures(rows),
        **({"plugins": handle.flags["plugins"]} if "plugins" in handle.flags else {}),
        **({} if handle.origin is None or handle.fork is None else {"fork": _fork(handle.origin)}),
    }


def _best(handle: StudyReader, best: Configuration) -> dict[str, Any]:
    fresh, spec = fresh_seeds(handle, best), handle.spec
    return {
        **best.to_dict(spec.solved),
        "trial": best.best_trial.number,
        "params": best.best_trial.params,
        "metrics": handle.rows.metrics([best.best_trial.number]).get(best.best_trial.number),
        "schedule": _schedule(handle, best.best_trial.number),
        "fresh": None if fresh is None else fresh.to_dict(),
    }


def _fork(origin: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: origin["fork"][name] for name in ("rung", "changes")}
    return {"study": origin["study"], "trial": origin["trial"], **own}


def _schedule(handle: StudyReader, number: int) -> list[dict[str, Any]] | None:
    if not handle.spec.evolves:
        return None
    from sweepd.optimize.study.population import schedule_record  # with all of the search

    return schedule_record(handle, number)


def _leading(trial: FrozenTrial) -> dict[str, Any]:
    rung = max(trial.intermediate_values)
    return {"trial": trial.number, "value": latest(trial), "rung": rung, "params": trial.params}


def _gate(handle: StudyReader, total: int, count_looks: CountLooks | None) -> dict[str, Any] | None:
    found = gate_outlook(handle, total)
    if found is None or found == BY_FRESH_SEEDS:
        return found
    return {**found, "looks": None if count_looks is None else count_looks(handle)}


def _evaluations(rows: Sequence[TrialRow], every: int) -> dict[str, Any]:
    """Return the interval of the evaluations beside rungs, and the last one of trials in training."""
    running = [row for row in rows if row.state == "RUNNING" and row.evaluations]
    if not every and not running:
        return {}
    last = [
        {"trial": row.number, "steps": row.evaluations[-1][0], "value": row.evaluations[-1][1]}
        for row in running
    ]
    return {"evaluations": {"every": every, "last": last}}


def _worker(worker: WorkerRecord) -> dict[str, Any]:
    silent = worker.beat_age >= GRACE_SECONDS
    # Where the process cannot be looked up (on another machine), its heartbeat decides.
    alive = not silent if worker.alive is None else worker.alive
    status = "dead" if not alive else "stale" if silent else "alive"
    return {
        "worker": worker.worker,
        "host": worker.host,
        "pid": worker.pid,
        "status": status,
        "state": worker.state,
        "beat_age": round(worker.beat_age, 1),
        **worker.info,
    }


def _unhealthy(workers: list[dict[str, Any]], left: int) -> list[str]:
    reasons = [
        f"worker {w['host']}:{w['pid']} is running, but its last heartbeat is "
        f"{w['beat_age']:.0f} s old"
        for w in workers
        if w["status"] == "stale"
    ]
    reasons += [
        f"worker {w['host']}:{w['pid']} makes no progress; other workers take over its trials"
        for w in workers
        if w["status"] == "alive" and w["state"] == "stalled"
    ]
    if left and not any(w["status"] == "alive" for w in workers):
        reasons.append(f"no worker is alive, but {left} trial{'s are' if left > 1 else ' is'} left")
    return reasons


def _eta(
    spec: StudySpec, rows: Sequence[TrialRow], total: int, at_work: Sequence[Mapping[str, Any]]
) -> float | None:
    """Return the seconds left at the pace of all workers; None until that is known."""
    reached = ((row.state, max(row.rungs, default=0)) for row in rows)
    steps = max((w.get("steps_per_trial", 0) for w in at_work), default=0)
    seconds = seconds_left(
        work_left(reached, spec, total, steps),
        sum(w.get("work_since_rung", 0) for w in at_work),
        sum(w.get("pace", 0.0) for w in at_work),
    )
    return None if math.isnan(seconds) else round(seconds, 1)


def _failures(rows: Sequence[TrialRow]) -> list[dict[str, Any]]:
    failed = [row for row in rows if row.state == TrialState.FAIL.name]
    return [{"trial": row.number, "reason": row.reason} for row in failed[-FAILURES_SHOWN:]]


def _shown(best: dict[str, Any]) -> str:
    """Format the selected configuration: its value by the selection, and on fresh seeds."""
    mean = f"mean of {counted(len(best['scores']), 'seed')} " if best["between"] else ""
    text = f"trial {best['trial']}, {mean}{value_words(best)}"
    if best["second"]:
        text += f"; difference to the second best {best['second']['between']}"
    if best["schedule"]:
        changes = len(best["schedule"]) - 1
        text += f", {counted(changes, 'change')} of hyperparameters on the way to its weights"
    if best["fresh"]:
        fresh = best["fresh"]
        seeds = counted(fresh["seeds"], "fresh seed")
        text += f"; on {seeds} {fresh['average']} {value_words(fresh)}"
        text += f"; warning: {fresh['warning']}" if fresh["warning"] else ""
    return text


def show(found: dict[str, Any]) -> Group:
    """Format the result of `study_status` as tables."""
    grid = Table.grid(Column(style="bold", no_wrap=True), "", padding=(0, 2))
    counts = found["trials"]
    by_state = ", ".join(
        f"{n} {STATE_WORDS.get(state, state.lower())}" for state, n in counts.items() if n
    )
    grid.add_row(
        "trials",
        f"{found['done']} of {found['total']} done" + (f": {by_state}" if by_state else ""),
    )
    if "fork" in found:
        grid.add_row("continues", Text(fork_words(found["fork"])))
    frontier = found.get("frontier")
    if found["best"]:
        several = frontier is not None and len(frontier["values"]) > 1
        grid.add_row("selected" if several else "best", _shown(found["best"]))
    for line in frontier_lines(frontier, FRONTIER_SHOWN) if frontier is not None else ():
        name, _, text = line.partition(": ")
        grid.add_row(
            "" if name.startswith(" ") else name, Text(line if name.startswith(" ") else text)
        )
    if found["leading"]:
        ahead = found["leading"]
        none = "is complete" if not counts["COMPLETE"] else "meets the constraints"
        grid.add_row(
            "leading",
            f"trial {ahead['trial']}, {ahead['value']:+.4f} at rung {ahead['rung']} of "
            f"{found['rungs']}; no trial {none} yet",
        )
    if "evaluations" in found:
        grid.add_row("evaluations", _evaluations_words(found["evaluations"]))
    for kind, one in found.get("plugins", {}).items():
        note = f"; {one['note']}" if "note" in one else ""
        grid.add_row(kind.partition(" ")[0], Text(f"{described(one)}{note}"))
    grid.add_row("gate", sentence(found["gate"], (found["gate"] or {}).get("looks")))
    if found["paused"]:
        grid.add_row(
            "paused",
            f"since {minute(found['paused']['since'])} UTC, by {found['paused']['by']}; resume with: "
            f"sweepd resume {found['study']}",
        )
    elif found["steps_per_second"]:
        grid.add_row(
            "speed",
            f"{found['steps_per_second']:,} steps/s · {hourly(found['trials_per_hour'])} trials/hour "
            f"· ETA {duration(found['eta_seconds'])}",
        )
    if found["storage_retries"]:
        grid.add_row("database", f"{found['storage_retries']} retries by the current workers")
    for failure in found["failures"]:
        grid.add_row(
            "failed", Text(f"trial {failure['trial']}: {failure['reason'] or 'no reason recorded'}")
        )
    for worker in found["workers"]:
        grid.add_row("worker", _describe(worker, found["rungs"]))
    if not found["workers"]:
        grid.add_row("worker", "none")
    for reason in found["unhealthy"]:
        grid.add_row(Text("unhealthy", style="bold red"), Text(reason))
    title = Text.assemble((f"study {found['study']}", "bold cyan"), f"  {found['about']}")
    return Group(title, grid)


def _evaluations_words(found: dict[str, Any]) -> str:
    """Say how often trials are evaluated beside rungs, and what was found last."""
    said = [f"every {found['every']:,} steps"] if found["every"] else ["no longer"]
    said += [
        f"trial {one['trial']} {one['value']:+.4f} at {one['steps']:,}"
        for one in found["last"][:EVALUATIONS_SHOWN]
    ]
    return " · ".join(said)


def _describe(w: dict[str, Any], rungs: int) -> Text:
    """Format a worker as one line."""
    colour = {"alive": "green", "stale": "bold red", "dead": "dim"}[w["status"]]
    state = w["state"] if w["status"] == "alive" else f"{w['status']}, was {w['state']}"
    said = []
    if w["status"] != "dead" and w["state"] == "training" and w.get("trials"):
        numbers = ", ".join(map(str, w["trials"]))
        said += [f"trials {numbers}, rung {w['rung']} of {rungs}"]
        said += [
            f"{w['steps_per_second']:,} steps/s",
            f"{hourly(w['trials_per_hour'])} trials/hour",
        ]
    if w["status"] != "dead" and "resident_bytes" in w:
        said.append(f"memory {w['resident_bytes'] / 2**30:.1f} GiB")
        said.append(f"GPU {GpuUse(**w['gpu'])}" if w["gpu"] else w["device"])
    said.append(f"heartbeat {duration(w['beat_age'])} ago")
    return Text.assemble(f"{w['host']}:{w['pid']} ", (state, colour), " · " + " · ".join(said))


@contextmanager
def reading(url: str) -> Iterator[None]:
    """Return a context in which a database that does not answer is a RunError. url: of it."""
    try:
        yield
    except (SQLAlchemyError, StorageInternalError) as error:
        if not is_away(error):
            raise
        raise RunError(
            f"--storage {hide_password(url)} cannot be read now ({reason_of(error)})"
        ) from None


def show_status(
    study_name: str | None, where: str | None, runs_dir: Path | None, *, as_json: bool, hooks: Hooks
) -> bool:
    """Print the status of one study, or of all in the database.

    Args:
        study_name: None for all studies.
        where: `--storage`.
        runs_dir: `--runs-dir`.
        as_json: print JSON instead of tables.
        hooks: with the number of hold-out evaluations used.

    Returns:
        Whether all of them are healthy.
    """
    url = storage_url(where, runs_dir)
    with reading(url):
        storage = open_to_read(url)
        names = [study_name] if study_name else list(reversed(our_studies(storage)))
        handles = [StudyReader(storage, name, runs_dir) for name in names]
        found = [study_status(handle, hooks.count_looks) for handle in handles]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        console = screen()
        console.print(*(Group(show(study), "") for study in found), end="")
        if not found:
            console.print_line(f"no study in {hide_password(url)}")
    return all(study["healthy"] for study in found)
