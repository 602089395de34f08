"""Names of environments that are programs, and the words that start them."""

from __future__ import annotations

# Before a colon: the environment is a program, or a training function. Every other name is a game.
COMMAND, PYTHON = "command", "python"


def is_command(environment: str) -> bool:
    """Return whether an environment is a program, `command:WORDS` or `python:MODULE:NAME`."""
    return environment.startswith((f"{COMMAND}:", f"{PYTHON}:"))


def is_function(environment: str) -> bool:
    """Return whether an environment is a training function, `python:MODULE:NAME`."""
    return environment.startswith(f"{PYTHON}:")


def command_of(environment: str) -> str:
    """Return the words of a program, with names of parameters in braces."""
    words = environment.partition(":")[2]
    return f"{PYTHON} -m sweepd.function {words}" if is_function(environment) else words
