"""MkDocs hook: write the pages of the command line, one per command, from their definitions.

`reference/cli.md` lists the commands; `reference/cli/NAME.md` has the arguments and options of one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
OVERVIEW = "reference/cli.md"
# These take the settings of `train`, which are listed once.
AS_TRAIN = ("profile", "doctor")
HEAD = """# Command line

This page lists the commands of `sweepd`; each has a page with its options. `sweepd COMMAND --help` shows the
same in the terminal. [Exit codes](exit_codes.md) and [environment variables](environment.md) are the same for
all commands.

| command | what it does |
|---|---|
"""


def visible_commands() -> dict[str, TyperCommand | TyperGroup]:
    """Return the commands that `sweepd --help` lists, with all their options."""
    sys.path.insert(0, str(ROOT))
    from sweepd.commands import COMMANDS, CommandTable, build_app

    group = typer.main.get_group(build_app())
    assert isinstance(group, CommandTable)
    group.load_all()
    return {name: group.commands[name] for name, (_, help_text) in COMMANDS.items() if help_text}


def cli_reference() -> dict[str, str]:
    """Return the Markdown of each page, by path."""
    commands = visible_commands()
    rows = [
        f"| [`sweepd {name}`](cli/{name}.md) | {_cell(_summary(command))} |"
        for name, command in commands.items()
    ]
    pages = {OVERVIEW: HEAD + "\n".join(rows) + "\n"}
    known = {_record(param) for param in commands["train"].params}
    for name, command in commands.items():
        if name in AS_TRAIN:
            command.params = [param for param in command.params if _record(param) not in known]
        text = "\n".join(_page(f"sweepd {name}", command, 1))
        # Help texts name pages as a reader of the terminal finds them.
        pages[f"reference/cli/{name}.md"] = re.sub(r"docs/([\w/]+\.md)", r"[\1](../../\1)", text)
    return pages


def _page(name: str, command: TyperCommand | TyperGroup, level: int) -> Iterator[str]:
    """Yield the lines of a command, and of the commands of a group."""
    context = typer.Context(command, info_name=name)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    yield from (f"{'#' * level} `{name}`", "", (command.help or "").strip(), "")
    yield from ("```console", usage, "```", "")
    if name.removeprefix("sweepd ") in AS_TRAIN:
        yield from ("It takes the settings of [`sweepd train`](train.md) as well.", "")
    panels: dict[str, list[tuple[str, str]]] = {}
    for param in command.params:  # without --help
        if record := _record(param):
            default = "Arguments" if param.param_type_name == "argument" else "Options"
            panel = getattr(param, "rich_help_panel", None)
            title = f"{'#' * (level + 1)} {panel}" if panel else f"**{default}**"
            panels.setdefault(title, []).append(record)
    for title, records in panels.items():
        yield from (title, "", "| name | meaning |", "|---|---|")
        yield from (f"| `{names}` | {_cell(meaning)} |" for names, meaning in records)
        yield ""
    if isinstance(command, TyperGroup):
        for part, member in command.commands.items():
            if not member.hidden:
                assert isinstance(member, TyperCommand | TyperGroup)
                yield from _page(f"{name} {part}", member, level + 1)


def _record(param: Any) -> tuple[str, str] | None:
    """Return the names of a parameter, and its help with the default."""
    found: tuple[str, str] | None = param.get_help_record(typer.Context(TyperCommand(None)))
    return found


def _summary(command: TyperCommand | TyperGroup) -> str:
    return (command.help or "").strip().split("\n\n")[0]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the page of each command below the overview in the navigation."""

    def with_commands(entry: Any) -> Any:
        if isinstance(entry, list):
            return [with_commands(one) for one in entry]
        if not isinstance(entry, dict):
            return entry
        [(title, target)] = entry.items()
        if target != OVERVIEW:
            return {title: with_commands(target)}
        return {title: [{"Overview": OVERVIEW}, *_pages_of_commands()]}

    config.nav = with_commands(config.nav)
    return config


def _pages_of_commands() -> list[dict[str, str]]:
    return [{name: f"reference/cli/{name}.md"} for name in visible_commands()]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages to the site."""
    from mkdocs.structure.files import File

    for path, text in cli_reference().items():
        files.append(File.generated(config, path, content=text))
    return files
