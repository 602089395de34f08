"""What `sweepd league` compares, and transfer matrices: players by the values of a parameter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from sweepd.agents.policy.league_pictures import cell_words, draw_transfer, is_scaled, scale_words
from sweepd.deploy.registry.bundle_files import StoredBundle
from sweepd.deploy.registry.kept_scores import Tick
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic

RESULTS = "results"  # in the folder of a comparison: what was computed


@dataclass(frozen=True)
class Comparison:
    """What is asked for.

    Attributes:
        words: names of the players.
        bundles: those that are bundles, by word.
        over: NAME=VALUES, the parameters over which they are compared.
        options: further options by name; None or empty: not given.
        leagues: folder of all comparisons.
        out: folder of this one; None: one in `leagues`.
        tick: gets the progress.
    """

    words: Sequence[str]
    bundles: Mapping[str, StoredBundle[Any]]
    over: Sequence[str]
    options: Mapping[str, Any]
    leagues: Path
    out: Path | None
    tick: Tick

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Raise InputError if one of these options was given."""
        for name in names:
            if self.options[name] not in (None, []):
                raise InputError(f"--{name.replace('_', '-')} is for {why}; leave it out")


@dataclass(frozen=True)
class Compared:
    """What was compared.

    Attributes:
        report: as JSON.
        view: for a terminal.
        written: the files.
        computed: number of results that were not read from files.
    """

    report: Mapping[str, Any]
    view: RenderableType
    written: Sequence[Path]
    computed: int


def split_over(text: str) -> tuple[str, str]:
    """Return the name and the text of the values of `--over NAME=VALUES`; InputError if it is none."""
    name, equals, listed = text.partition("=")
    if not name.strip() or not equals or not listed.strip():
        raise InputError(
            f"--over {text!r} must be NAME=VALUES, like scenario=all or length=0.5,0.7"
        )
    return name.strip(), listed.strip()


def write_transfer(report: Mapping[str, Any], path: Path, title: str, computed: int) -> Compared:
    """Write a transfer matrix and its picture.

    Args:
        report: as `draw_transfer` takes it.
        path: of the JSON file; the picture is beside it.
        title: of the picture.
        computed: see `Compared`.
    """
    picture = path.with_suffix(".png")
    draw_transfer(picture, report, title)
    write_atomic(path, json.dumps(report, indent=1))
    return Compared(report, transfer_view(report), [path, picture], computed)


def transfer_view(report: Mapping[str, Any]) -> RenderableType:
    """Return a transfer matrix as `sweepd league --over` prints it."""
    table = Table(Column(report["over"], no_wrap=True))
    for name in report["players"]:
        table.add_column(name, justify="right")
    scaled = is_scaled(report)
    for title in ("random", "best scripted player") if scaled else ():
        table.add_column(title, justify="right")
    for row in report["rows"]:
        cells = [cell_words(row["players"][name], scaled=scaled) for name in report["players"]]
        if row["best"]:
            cells += [
                f"{row['random']['mean']:.5g}",
                f"{row['best']['name']} {row['best']['mean']:.5g}",
            ]
        table.add_row(str(row["value"]), *cells)
    return Group(Text(scale_words(report)), table)
