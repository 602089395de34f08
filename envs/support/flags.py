"""Commands whose options are the fields of dataclasses."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def takes_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each dataclass parameter of a command by one option per field.

    The fields are annotated with `typer.Option`, as parameters are. `--help` shows the command's
    own parameters first, then the fields in their order.
    """
    hints = get_type_hints(command, include_extras=True)
    kinds: dict[str, Any] = {
        name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)
    }
    own = [
        parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in inspect.signature(command).parameters.items()
        if name not in kinds
    ]
    options = [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hint
        )
        for kind in kinds.values()
        for field, hint in _fields(kind)
    ]

    @functools.wraps(command)
    def with_options(**values: Any) -> None:
        for name, kind in kinds.items():
            values[name] = kind(
                **{field.name: values.pop(field.name) for field, _ in _fields(kind)}
            )
        command(**values)

    # Typer reads the options from the signature and the annotations.
    with_options.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
    with_options.__annotations__ = {one.name: one.annotation for one in (*own, *options)}
    return with_options


def _fields(kind: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    hints = get_type_hints(kind, include_extras=True)
    return [(field, hints[field.name]) for field in dataclasses.fields(kind)]
