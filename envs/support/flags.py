"""Commands whose options are the fields of dataclasses, and the same settings in Python."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model
from typer.models import OptionInfo

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.validation import checked

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
        _check_name(key, known, source)
        if isinstance(value, Mapping):
            raise InputError(f"{source}: [{key}] is a table; every key must be a flag with a value")
        repeatable = getattr(known[key], "multiple", False)
        defaults[key] = value if repeatable else _as_text(value)
    return defaults


def read_flags(
    kind: type[Flags], values: Mapping[str, Any], source: str
) -> tuple[Flags, frozenset[str]]:
    """Return the flags that a command with these values would have.

    Types and limits are those of the command line. None leaves a flag at its default.

    Args:
        kind: dataclass of the command's options.
        values: by field name.
        source: what names the values in messages.

    Returns:
        The flags, and the names of those that are set in `values` or by an environment variable.

    Raises:
        InputError: a name is unknown, or a value has the wrong type or is out of range.
    """
    declared = {field.name: hint for field, hint in _fields(kind)}
    for name in values:
        _check_name(name, declared, source)
    options = {name: hint.__metadata__[0] for name, hint in declared.items()}
    variables = {
        name: os.environ[option.envvar]
        for name, option in options.items()
        if option.envvar and os.environ.get(option.envvar)
    }
    given = variables | {name: value for name, value in values.items() if value is not None}
    fields: dict[str, Any] = {
        name: (_checked_type(declared[name].__origin__, options[name]), ...) for name in given
    }
    model = create_model(kind.__name__, __base__=_Flags, **fields)
    found = vars(checked(model, given, f"{source}: "))
    return kind(**found), frozenset(given)


class _Flags(BaseModel):
    """Converts as the command line does: 0 for the text "0", 1e6 for a whole number."""

    model_config = ConfigDict(allow_inf_nan=False, coerce_numbers_to_str=True)


def _checked_type(kind: Any, option: OptionInfo) -> Any:
    """Return the type of an option with its parser and limits."""
    if option.parser is not None:
        return Annotated[Any, AfterValidator(option.parser)]
    if str in (kind, *get_args(kind)):
        kind = Annotated[kind, BeforeValidator(_as_text)]
    return Annotated[kind, Field(ge=option.min, le=option.max)]


def _check_name(name: str, known: Iterable[str], source: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else "its --help lists them"
        raise InputError(f"{source}: {name!r} is not a flag of this command; {hint}")


def _as_text(value: Any) -> Any:
    """Return a list or path as the text of one flag: a,b, or JSON for a list of tables."""
    if isinstance(value, list | tuple):
        tables = any(isinstance(one, Mapping) for one in value)
        return json.dumps(value, default=str) if tables else ",".join(map(str, value))
    return str(value) if isinstance(value, Path) else value


def _fields(kind: Any) -> list[tuple[dataclasses.Field[Any], Any]]:
    """Return the fields and their annotations; in the order of the class's panels, if it has some."""
    hints = get_type_hints(kind, include_extras=True)
    found = [(field, hints[field.name]) for field in dataclasses.fields(kind)]
    panels = getattr(kind, "panels", ())

    def panel(one: tuple[dataclasses.Field[Any], Any]) -> int:
        return panels.index(one[1].__metadata__[0].rich_help_panel) if panels else 0

    return sorted(found, key=panel)
