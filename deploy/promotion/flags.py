"""The options of `sweepd promote`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from sweepd.deploy.registry.flags import AsJson
from sweepd.envs.support.database_url import STORAGE_VARIABLE, warn_of_password
from sweepd.optimize.study.record.specs import Play

Weights = Literal["equal", "fold-score"]  # how the shares of an ensemble's trials are chosen


@dataclass(frozen=True)
class PromoteFlags:
    """Values of all options, in the order of `--help`."""

    study_name: Annotated[
        str | None, typer.Option(help="Study. Default: the only one in the storage.")
    ] = None
    storage: Annotated[
        str | None,
        typer.Option(
            envvar=STORAGE_VARIABLE,
            callback=warn_of_password,
            help="Database of the study, as for train.",
        ),
    ] = None
    runs_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the studies' files. Default: as recorded in the database."),
    ] = None
    slot: Annotated[
        str | None,
        typer.Option(
            help="Slot whose champion may change. Default: crypto-TIMEFRAME (demo-TIMEFRAME for "
            "synthetic bars), the game, or the script of a command."
        ),
    ] = None
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder of the study's bars. Default: as recorded in the study."),
    ] = None
    trial: Annotated[
        int | None,
        typer.Option(help="Evaluate only this trial. Default: all, best objective first."),
    ] = None
    looks: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum number of candidates evaluated on the hold-out. Each evaluation makes "
            "the rules stricter for the next one. Default: 1; 2 in games whose members play "
            "together: a trial's team, then its best member.",
        ),
    ] = None
    ensemble: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of best trials to promote together: each trades a share of the capital, "
            "and orders are netted.",
        ),
    ] = 1
    weights: Annotated[
        Weights,
        typer.Option(
            help="Shares of an ensemble's capital: equal, or by the trials' shrunken fold scores."
        ),
    ] = "equal"
    limit: Annotated[
        list[str] | None, typer.Option(help="Change a rule's limit: NAME=NUMBER. May be repeated.")
    ] = None
    rule: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="A rule of your own that candidates must pass, too, with JSON arguments after a "
            "space: see docs/how_to/plugins.md. May be repeated.",
        ),
    ] = None
    first_stage: Annotated[
        bool,
        typer.Option(
            "--first-stage",
            help="Apply only the rules that need no hold-out evaluation, to the best trial.",
        ),
    ] = False
    arena: Annotated[
        bool,
        typer.Option(
            "--arena",
            help="Make the best trial a challenger if it meets the rules that need no hold-out or "
            "panel. Only bars that come after it entered the arena decide then, or games.",
        ),
    ] = False
    refit: Annotated[
        bool,
        typer.Option(
            "--refit",
            help="Markets: make trial 0 a challenger as the champion's refit: its hyperparameters, "
            "trained on newer bars.",
        ),
    ] = False
    games: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Games: number of games per player in the panel. Default: 100; 400 against each "
            "opponent in a game of two players.",
        ),
    ] = None
    play: Annotated[
        Play | None,
        typer.Option(
            help="Games: whether the player takes its most probable actions, or draws them as a "
            "mixed strategy does. Recorded in its bundle. Default: as the study judged it."
        ),
    ] = None
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="Games: a baseline player of your own that the candidate must beat, too: a function "
            "of an observation that returns an action. May be repeated.",
        ),
    ] = None
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the verdict without promoting. Hold-out evaluations are still counted.",
        ),
    ] = False
    as_json: AsJson = False
    reason: Annotated[str, typer.Option(help="Reason for the slot's history.")] = ""

    @property
    def for_arena(self) -> bool:
        """Whether the candidate asks for a seat in the arena."""
        return self.arena or self.refit

    @property
    def without_looks(self) -> bool:
        """Whether no evaluation on unseen data is made."""
        return self.first_stage or self.for_arena
