"""Errors that end a command with a message instead of a traceback."""

from __future__ import annotations

import re

INTERRUPTED = 130  # exit code after Ctrl-C, as of shells: 128 + SIGINT


class InputError(Exception):
    """Invalid user input. The message is one sentence: file or flag, value, and what is expected.

    Commands print it and exit with code 2. No partial output is left behind.
    """

    exit_code = 2

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that the message names, in its order."""
        return tuple(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", str(self)))


class RunError(Exception):
    """A failure at run time (disk, database, device)."""

    exit_code = 1


class TryAgainLater(RunError):
    """A resource such as the database is temporarily unavailable; nothing is lost.

    Service managers take the exit code as a reason to restart.
    """

    exit_code = 75  # EX_TEMPFAIL in sysexits.h
