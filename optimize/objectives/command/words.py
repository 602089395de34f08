"""The words of a command, in which `{name}` stands for a parameter or for what sweepd knows."""

from __future__ import annotations

import difflib
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from sweepd.envs.support.errors import InputError

# Names besides those of the parameters.
KNOWN = ("seed", "budget", "trial", "study", "out", "checkpoint_dir")
# ${NAME} is for a shell.
_NAME = re.compile(r"(?<!\$)\{([A-Za-z_]\w*)\}")


def split_words(command: str) -> list[str]:
    """Return the words of a command.

    Raises:
        InputError: there is none, or a quotation does not end.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise InputError(f"--env command:{command}: {error}") from None
    if not words:
        raise InputError(
            "--env command: names no program; give one, like --env 'command:python train.py'"
        )
    return words


def check_program(command: str) -> None:
    """Raise InputError if the program of a command cannot be found."""
    program = split_words(command)[0]
    if shutil.which(program) is None:
        raise InputError(
            f"--env command:{command}: there is no program {program!r} that can be started here"
        )


def check_names(command: str, params: Sequence[str], source: str) -> None:
    """Raise InputError if the names in a command do not fit the parameters of a search space.

    Args:
        command: the command.
        params: names of the parameters.
        source: name of the search space, for the message.
    """
    taken = next((name for name in params if name in KNOWN), None)
    if taken is not None:
        raise InputError(
            f"{source}: [params] {taken} is a name that sweepd sets itself; give the parameter "
            "another one"
        )
    named = _NAME.findall(" ".join(split_words(command)))
    unknown = next((name for name in named if name not in (*params, *KNOWN)), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, [*params, *KNOWN], 1)
        hint = (
            f"did you mean {{{near[0]}}}?" if near else f"there are {', '.join((*params, *KNOWN))}"
        )
        raise InputError(f"--env command:{command}: {{{unknown}}} is not known; {hint}")
    idle = [name for name in params if name not in named]
    if idle and len(idle) < len(params):
        raise InputError(
            f"{source}: [params] {idle[0]} has no effect: the command does not contain {{{idle[0]}}}; "
            "name all parameters in the command, or none and read SWEEPD_PARAMS"
        )


def filled_in(command: str, values: Mapping[str, Any]) -> list[str]:
    """Return the words of a command with values in place of the names."""
    return [
        _NAME.sub(lambda found: as_text(values[found[1]]), word) for word in split_words(command)
    ]


def as_text(value: Any) -> str:
    """Return a value as a word of a command: `true` and `false`, others as Python writes them."""
    return str(value).lower() if isinstance(value, bool) else str(value)
