"""`sweepd studies list|compare|export|thin|delete`: the studies of a database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweepd.envs.support.loading import loading
from sweepd.envs.support.study_options import RunsDir, Storage
from sweepd.optimize.cli.options import StudyName

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


studies_app = typer.Typer(
    no_args_is_help=True, help="List, compare, export, thin and delete studies."
)


@studies_app.command("list")
def list_command(
    storage: Storage = None, runs_dir: RunsDir = None, as_json: AsJson = False
) -> None:
    """List the studies, the newest first: what they train on, their progress, their best value."""
    with loading():
        from sweepd.optimize.cli.studies import list_studies
    list_studies(storage, runs_dir, as_json=as_json)


@studies_app.command("compare")
def compare_command(
    studies: Annotated[list[str], typer.Argument(help="Names of two or more studies.")],
    storage: Storage = None,
    runs_dir: RunsDir = None,
    as_json: AsJson = False,
) -> None:
    """Compare studies: their values, best parameters, and the settings in which they differ."""
    with loading():
        from sweepd.optimize.cli.studies import compare_studies
    compare_studies(studies, storage, runs_dir, as_json=as_json)


@studies_app.command("export")
def export_command(
    study: StudyName,
    out: Annotated[Path, typer.Option(help="File to write, .csv or .parquet.")],
    storage: Storage = None,
    runs_dir: RunsDir = None,
) -> None:
    """Write a study's trials to a file, one row each: state, value, parameters, metrics, scores."""
    with loading():
        from sweepd.optimize.cli.studies import export_study
    export_study(study, out, storage, runs_dir)


@studies_app.command("thin")
def thin_command(
    study: StudyName,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    keep: Annotated[
        list[int] | None,
        typer.Option(help="Number of a further trial that keeps its files; may be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the files of all trials but the best of a study that is over; its rows stay.

    Reports and what training a trial again needs stay, too. The study is not continued afterwards,
    and the gate judges no market's trial of it. Bundles in the registry are complete without it.
    """
    with loading():
        from sweepd.optimize.cli.studies import thin_study
    thin_study(study, storage, runs_dir, keep or (), dry_run=dry_run, as_json=as_json)


@studies_app.command("delete")
def delete_command(
    study: StudyName,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    keep_files: Annotated[
        bool, typer.Option("--keep-files", help="Delete it from the database only.")
    ] = False,
) -> None:
    """Delete a study and its files. Bundles in the registry are complete without it, and stay."""
    with loading():
        from sweepd.optimize.cli.studies import delete_study
    delete_study(study, storage, runs_dir, yes=yes, keep_files=keep_files)
