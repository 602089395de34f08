"""Commands whose options are the fields of dataclasses, and the same settings in Python."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, get_type_hints

import typer

from sweepd.envs.support.errors import InputError

Flags = TypeVar("Flags")


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


def given_flags(context: typer.Context) -> frozenset[str]:
    """Return the names of parameters set on the command line, in a file or the environment."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return frozenset(
        name for name, source in sources.items() if source is not None and source.name != "DEFAULT"
    )


def as_defaults(
    values: Mapping[str, Any], parameters: Sequence[Any], source: str
) -> dict[str, Any]:
    """Return values for a command's options as click takes them in `Context.default_map`.

    Args:
        values: by parameter name, with _.
        parameters: parameters of the command.
        source: where the values are from, for messages.

    Raises:
        InputError: a name is not one of the parameters.
    """
    known = {parameter.name: parameter for parameter in parameters if parameter.name}
    defaults = {}
    for key, value in values.items():
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"did you mean {near[0]}?" if near else "its --help lists them"
            raise InputError(f"{source}: {key!r} is not a flag of this command; {hint}")
        if isinstance(value, Mapping):
            raise InputError(f"{source}: [{key}] is a table; every key must be a flag with a value")
        if key == "phases" and isinstance(value, list):  # [[phases]] in a file
            value = json.dumps(value, default=str)
        # Flags that are not repeatable take lists as text, such as --tickers.
        if isinstance(value, list | tuple) and not getattr(known[key], "multiple", False):
            value = ",".join(map(str, value))
        defaults[key] = value
    return defaults


def read_flags(
    kind: type[Flags], values: Mapping[str, Any], source: str
) -> tuple[Flags, frozenset[str]]:
    """Return the flags that a command with these values would have.

    Values are checked and converted as on the command line. None leaves a flag at its default.

    Args:
        kind: dataclass of the command's options.
        values: by field name.
        source: what names the values in messages.

    Returns:
        The flags, and the names of those that are set in `values` or by an environment variable.

    Raises:
        InputError: a name is unknown, or a value has the wrong type.
    """
    found: list[tuple[Flags, frozenset[str]]] = []

    def settings(context: typer.Context, flags: Any) -> None:
        found.append((flags, given_flags(context)))

    settings.__annotations__ = {"context": typer.Context, "flags": kind, "return": None}
    app = typer.Typer(add_completion=False)
    app.command()(takes_flags(settings))
    command = typer.main.get_command(app)
    given = {name: value for name, value in values.items() if value is not None}
    options = [option for option in command.params if option.name != "help"]
    defaults = as_defaults(given, options, source)
    try:
        with command.make_context(source, [], default_map=defaults) as context:
            command.invoke(context)
    except typer.BadParameter as error:
        raise InputError(f"{source}: {error.format_message()}") from None
    return found[0]


def _fields(kind: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    """Return the fields and their annotations; in the order of the class's panels, if it has some."""
    hints = get_type_hints(kind, include_extras=True)
    found = [(field, hints[field.name]) for field in dataclasses.fields(kind)]
    panels = getattr(kind, "panels", ())

    def panel(one: tuple[dataclasses.Field[Any], Any]) -> int:
        return panels.index(one[1].__metadata__[0].rich_help_panel) if panels else 0

    return sorted(found, key=panel)
