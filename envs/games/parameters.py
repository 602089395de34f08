"""Parameters of games as texts of the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sweepd.envs.external import roles, wrapping
from sweepd.envs.support.errors import InputError

# Words of Python that are not JSON: as text, "False" would be true.
_PYTHON_WORDS = {"true": True, "false": False, "none": None}


_FLAGS = {wrapping.KEY: wrapping.FLAG, roles.KEY: roles.FLAG}


def game_params(scenario: str | None, env_param: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of a game.

    Args:
        scenario: name of a scenario, or None.
        env_param: texts like NAME=VALUE.

    Raises:
        InputError: a text is not of that form, or names wrappers or roles.
    """
    params: dict[str, Any] = {"scenario": scenario} if scenario else {}
    for text in env_param:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise InputError(f"--env-param {text!r} is not valid: give NAME=VALUE, like length=0.7")
        if name.strip() in _FLAGS:
            own = _FLAGS[name.strip()]
            raise InputError(
                f"--env-param {text!r}: {name.strip()} have a flag of their own, {own}"
            )
        params[name.strip()] = parameter_value(value)
    return params


def parameter_value(text: str) -> Any:
    """Return a value as JSON has it, so that numbers and booleans have their types; else the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return _PYTHON_WORDS.get(text.lower(), text)
