"""The ways a command ends badly."""

from __future__ import annotations


class InputError(Exception):
    """What the user gave is wrong: one sentence naming the file or flag, the value, and what would be right.

    Commands print it and exit with code 2; nothing is half-written.
    """


class RunError(Exception):
    """What was right at the start went wrong while running (disk, database, device). Exit code 1."""


class TryAgainLater(RunError):
    """Something that the run needs is away (the database): nothing is lost, and the same command goes on later.

    Exit code 75, which supervisors know as a reason to start again (EX_TEMPFAIL of sysexits.h).
    """
