"""MkDocs hook: write the page `reference/cli.md` from the definitions of the commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer.cli import get_docs_for_click
from typer.core import TyperGroup

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent


def describe_in_full(group: TyperGroup) -> None:
    """Drop hidden commands, and show first sentences in full in lists of commands."""
    group.commands = {name: c for name, c in group.commands.items() if not c.hidden}
    for command in group.commands.values():
        command.short_help = (command.help or "").strip().split("\n\n")[0]
        if isinstance(command, TyperGroup):
            describe_in_full(command)


def cli_reference() -> str:
    """Return the Markdown of all commands and their options."""
    sys.path.insert(0, str(ROOT))
    from sweepd.commands import CommandTable, build_app

    group = typer.main.get_group(build_app())
    assert isinstance(group, CommandTable)
    group.load_all()
    describe_in_full(group)
    context = typer.Context(group, info_name="sweepd")
    return get_docs_for_click(obj=group, ctx=context, name="sweepd", title="Command line")


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the page to the site."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "reference/cli.md", content=cli_reference()))
    return files
