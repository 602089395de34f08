"""Printed commands, checked against the command line that reads them."""

from __future__ import annotations

import functools
import shlex

import typer
from typer.core import TyperGroup

from sweepd.commands import build_app
from sweepd.envs.support.invocation import program


@functools.cache
def _group() -> TyperGroup:
    return typer.main.get_group(build_app())


def parses(command: str) -> list[list[str]]:
    """Parse a printed line as the command line does, without running it.

    Returns:
        The words of each command of the line, without the name of the program.
    """
    own = shlex.split(program())
    found = []
    for part in command.split(" && "):
        words = shlex.split(part)
        assert words[: len(own)] == own, part
        words = words[len(own) :]
        found.append(list(words))
        group = _group()
        # Options that are unknown, or have a wrong type, raise.
        context = group.make_context("sweepd", list(words))
        name, own_command, rest = group.resolve_command(context, list(words))
        parsed = own_command.make_context(name, rest, parent=context)
        if isinstance(parsed.command, TyperGroup):
            inner, chosen, rest = parsed.command.resolve_command(
                parsed, [*parsed._protected_args, *parsed.args]
            )
            chosen.make_context(inner, rest, parent=parsed)
    return found
