"""The declaration of one setting, and what is derived from it."""

from __future__ import annotations

import os
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import Any, get_type_hints

from typer.models import OptionInfo

from sweepd.envs.support.errors import InputError


class Panel(StrEnum):
    """The groups of settings in `--help`, in their order."""

    STUDY = "Study"
    ENVIRONMENT = "Environment and algorithm"
    DATA = "Market: data and folds"
    TRAINING = "Training"
    MARKET = "Market: costs and cash"
    COMMAND = "Commands"
    MACHINE = "Machine"


def most_threads() -> int:
    """Return the largest allowed number of CPU threads per process, a few per core."""
    return max(64, 4 * (os.cpu_count() or 1))


class Setting(OptionInfo):
    """What is known of a setting besides its name, type and default.

    Attributes:
        fixes: dotted name of the field of the study's spec that it determines when the study is
            created, and with which it is compared afterwards; "": it may change.
        automatic: value that stands for one that is chosen or measured when the study is created.
        least: smallest number.
        most: largest number, or what returns it; None: not checked here.
        in_space: whether `[study]` of a search space may set its default.
    """

    def __init__(
        self,
        panel: Panel | None,
        text: str,
        *names: str,
        fixes: str = "",
        automatic: Any = None,
        least: int = 1,
        most: int | Callable[[], int] | None = None,
        in_space: bool = False,
        **option: Any,
    ) -> None:
        """Declare a setting. names: of the flag, if it is not the field's. option: of Typer's."""
        super().__init__(
            default=..., param_decls=names or None, help=text, rich_help_panel=panel, **option
        )
        self.fixes, self.automatic, self.in_space = fixes, automatic, in_space
        self.least, self.most = least, most

    def check(self, flag: str, number: int | None) -> None:
        """Raise InputError if a number was given that is out of range. flag: for the message."""
        most = self.most() if callable(self.most) else self.most
        if number is None or most is None or self.least <= number <= most:
            return
        limit = f"must be at least {self.least}"
        if number > most:
            limit = f"is more than sweepd can use here; give at most {most:,}"
        raise InputError(f"{flag} {number} {limit}")


def num_envs(value: object) -> int | None:
    """Return a number of environments; None for auto. Raises InputError for anything else."""
    text = str(value)
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError(
            f"--n-envs {text!r} is not valid: give auto or a whole number of at least 1"
        )
    return int(text)


@cache
def declared(kind: type) -> dict[str, Setting]:
    """Return the declarations of a class of settings, by field."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):  # a subclass may give a field another type
        for name, hint in get_type_hints(base, include_extras=True).items():
            one = getattr(hint, "__metadata__", (None,))[0]
            if isinstance(one, Setting):
                found[name] = one
    return found


def flag_of(name: str) -> str:
    """Return the flag of a field, such as --n-envs."""
    return f"--{name.replace('_', '-')}"


def check_counts(settings: Any) -> None:
    """Raise InputError for the first number of some settings that is out of its range."""
    for name, one in declared(settings.__class__).items():
        if one.most is not None:
            one.check(flag_of(name), getattr(settings, name))
