"""The actions of `sweepd studies` and `sweepd enqueue`."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import optuna
import pandas as pd
import typer
from rich.table import Column, Table

from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.formatting import counted, duration, megabytes
from sweepd.envs.support.terminal import screen
from sweepd.optimize.study.action_log import log_action
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.enqueue import best_guesses, enqueue, parse_guess
from sweepd.optimize.study.frame import comparison_frame, studies_frame, trials_frame
from sweepd.optimize.study.insight.comparison import spec_differences
from sweepd.optimize.study.prior import refuse_seen_holdout
from sweepd.optimize.study.record.database import open_to_read, storage_url
from sweepd.optimize.study.record.keys import source_key
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.study.thin import plan_thinning, refuse_workers, thin


def list_studies(where: str | None, runs_dir: Path | None, *, as_json: bool) -> None:
    """Print one row per study, the newest first."""
    frame = studies_frame(open_to_read(storage_url(where, runs_dir)))
    if as_json:
        typer.echo(
            frame.reset_index().to_json(
                orient="records", date_format="iso", indent=1, double_precision=15
            )
        )
        return
    table = Table(
        "study", "on", "objective", *(Column(name, justify="right") for name in ("done", "best"))
    )
    table.add_column("created, UTC")
    for name, row in frame.iterrows():
        total = "" if pd.isna(row["total"]) else f" of {row['total']:.0f}"
        best = "none" if pd.isna(row["best_trial"]) else f"{row['best_value']:+.4f}"
        if not pd.isna(row["best_trial"]):
            best += f" (trial {row['best_trial']:.0f})"
        created = "" if pd.isna(row["created"]) else f"{row['created']:%Y-%m-%d %H:%M}"
        on = f"{row['environment']}, {row['algorithm']}"
        table.add_row(str(name), on, row["objective"], f"{row['finished']}{total}", best, created)
    console = screen()
    if len(frame):
        console.print(table)
    else:
        console.print_line("no study of sweepd in this database")


def compare_studies(
    names: Sequence[str], where: str | None, runs_dir: Path | None, *, as_json: bool
) -> None:
    """Print the figures of several studies side by side, and in what they were set up apart."""
    if len(set(names)) < 2:
        raise InputError(f"studies compare {' '.join(names)}: name at least two different studies")
    storage = open_to_read(storage_url(where, runs_dir))
    handles = [StudyReader(storage, name, runs_dir) for name in dict.fromkeys(names)]
    frame = comparison_frame(handles)
    if as_json:
        typer.echo(frame.to_json(orient="columns", indent=1, double_precision=15))
        return
    console = screen()
    table = Table("", *(Column(handle.name, justify="right") for handle in handles))
    for name, row in frame.iterrows():
        if name == "seconds":
            table.add_row("training time of all trials", *map(duration, row))
            continue
        form = "+.4f" if name in ("best", "median", "worst") else ",.4g"  # objectives
        table.add_row(str(name), *(_figure(value, form) for value in row))
    console.print(table)
    differences = spec_differences(handles)
    if not differences:
        return
    different = Table("set up with", *(handle.name for handle in handles))
    for field, values in differences.items():
        different.add_row(field, *values)
    console.print(different)
    apart = [
        name
        for name in ("environment", "env", "objective", "data", "cv", "holdout")
        if name in differences
    ]
    if apart:
        console.print_line(
            f"The values are not comparable: the studies differ in {', '.join(apart)}.", "yellow"
        )


def export_study(name: str, out: Path, where: str | None, runs_dir: Path | None) -> None:
    """Write a study's trials, one row each, to a CSV or Parquet file."""
    if out.suffix not in (".csv", ".parquet"):
        raise InputError(f"--out {out}: the name must end in .csv or .parquet")
    storage = open_to_read(storage_url(where, runs_dir))
    frame = trials_frame(StudyReader(storage, name, runs_dir))
    write: Callable[[Path], None] = frame.to_csv if out.suffix == ".csv" else frame.to_parquet
    try:
        write_atomic(out, write)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written ({error.strerror})") from None
    rows, columns = counted(len(frame), "trial"), len(frame.columns) + 1
    screen().print_line(f"{rows} with {columns} columns in {out}")


def delete_study(
    name: str, where: str | None, runs_dir: Path | None, *, yes: bool, keep_files: bool
) -> None:
    """Delete a study from its database, with its folder, after a question."""
    storage = open_storage(storage_url(where, runs_dir), create=False)
    handle = StudyHandle(storage, name, runs_dir)
    refuse_workers(handle)
    counts, folder = handle.counts(), handle.run_dir
    files = "; its files are kept" if keep_files else f" and its files in {folder}"
    what = f"study {name} with {counted(sum(counts.values()), 'trial')}{files}"
    if not yes:
        if not sys.stdin.isatty():
            raise InputError(f"studies delete {name}: give --yes to delete {what}")
        typer.confirm(f"Delete {what}?", abort=True)
    optuna.delete_study(study_name=name, storage=storage)
    storage.tidy()
    if not keep_files and folder.exists():
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise RunError(
                f"study {name} is deleted, but {folder} is not ({error.strerror}); delete it"
            ) from None
    screen().print_line(f"deleted {what}")


def thin_study(
    name: str,
    where: str | None,
    runs_dir: Path | None,
    keep: Sequence[int],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Delete the files of all trials of a study but the best and those to keep."""
    storage = open_storage(storage_url(where, runs_dir), create=False)
    handle = StudyHandle(storage, name, runs_dir)
    found = plan_thinning(handle, keep)
    if not dry_run:
        thin(handle, found)
    if as_json:
        facts = {"study": name, "kept": found.kept, "trials": found.trials, "bytes": found.size}
        typer.echo(json.dumps(facts, indent=1))
        return
    kept = ", ".join(map(str, found.kept)) or "none"
    screen().print_line(
        f"study {name}: {'would remove' if dry_run else 'removed'} the files of "
        f"{counted(len(found.trials), 'trial')}, {megabytes(found.size)}; trials with files: {kept}"
    )


def enqueue_trial(
    name: str,
    words: list[str],
    where: str | None,
    runs_dir: Path | None,
    from_study: str | None,
    best: int,
    why: str,
) -> None:
    """Add a trial with parameters of the user's, or those of another study's best trials."""
    if from_study is not None and words:
        raise InputError("--from-study and NAME=VALUE exclude each other")
    storage = open_storage(storage_url(where, runs_dir), create=False)
    handle = StudyHandle(storage, name, runs_dir)
    if handle.spec.evolves:
        raise InputError(
            f"enqueue {name}: the members of a population (--search pbt) are drawn together; only "
            "studies without it take parameters of your own"
        )
    guesses = [parse_guess(words)]
    source = None if from_study is None else StudyHandle(storage, from_study, runs_dir)
    if source is not None:
        refuse_seen_holdout(source, handle.spec, f"--from-study {from_study}", fixed=True)
        guesses = best_guesses(source, handle.space, best)
    for guess in guesses:  # all are checked before the first is written
        handle.space.fixed_params(guess)
    if source is not None and source.study_id != handle.study_id:
        record = source.as_source()
        storage.set_study_user_attr(handle.study_id, source_key(record["uid"]), record)
    console = screen()
    for guess in guesses:
        number = enqueue(storage, handle.study_id, handle.space, guess)
        with storage.transaction() as session:
            storage.lock_study(session, handle.study_id)
            log_action(session, handle.study_id, f"enqueued trial {number}", why)
        drawn = "" if guess else "; the sampler draws all its parameters"
        console.print_line(f"trial {number} of {name} is waiting for a worker{drawn}")


def _figure(value: object, form: str) -> str:
    if isinstance(value, float):
        return "" if pd.isna(value) else format(value, form)
    return "" if value is None else str(value)
