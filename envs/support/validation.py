"""Files of users and of sweepd as pydantic models, and one sentence on what is wrong with one."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from sweepd.envs.support.errors import InputError

Made = TypeVar("Made")

# What should be there instead, by the type of pydantic's error.
SHOULD_BE = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "a table",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "mapping_type": "a table",
    "model_type": "a table",
    "path_type": "a path",
    "string_type": "text",
}


class StrictModel(BaseModel):
    """A table of a file: unknown keys, conversions and numbers that are not finite are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Table = TypeVar("Table", bound=BaseModel)


def checked(model: type[Table], given: object, before: str) -> Table:
    """Return a table of a file as its model.

    Args:
        model: the model.
        given: the table.
        before: begins the message.

    Raises:
        InputError: a key or value is unknown or wrong.
    """
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise InputError(before + first_fault(error, model)) from None
    except InputError as error:  # of a model with sentences of its own
        raise InputError(f"{before}{error}") from None


def first_fault(
    error: ValidationError,
    model: type[BaseModel],
    words: str = "{name} = {value!r} should be {right}",
) -> str:
    """Return key, value and what would be right of one fault, as the end of a sentence.

    Args:
        error: why a file is no `model`.
        model: the file's model, for the keys that it knows.
        words: of a value that is wrong.
    """
    faults = error.errors()
    # A misspelt key first: that the right one is missing follows from it.
    fault = next((one for one in faults if one["type"] == "extra_forbidden"), faults[0])
    where = ".".join(map(str, fault["loc"]))
    found = f"{where} = {fault['input']!r}".strip()
    if fault["type"] == "extra_forbidden":
        *tables, key = map(str, fault["loc"])
        known = _keys(model, tables)
        near = get_close_matches(key, known, 1)
        hint = f"; choose one of {', '.join(known)}" if known else ""
        return f"{where} is not known" + (f"; did you mean {near[0]}?" if near else hint)
    if fault["type"] == "missing":
        return f"{where} is missing"
    if fault["type"] in SHOULD_BE:
        limits = fault.get("ctx", {}).items()
        shown = {name: f"{n:g}" if isinstance(n, float) else n for name, n in limits}
        expected = SHOULD_BE[fault["type"]].format(**shown)
        return words.format(name=where, value=fault["input"], right=expected).strip()
    message = fault["msg"].removeprefix("Value error, ")
    if message.startswith("Input "):
        return f"{found} {message.removeprefix('Input ')}"
    return f"{where}: {message}" if where else message


def make_with(make: Callable[..., Made], given: Mapping[str, Any], subject: str) -> Made:
    """Return what `make` returns for these parameters.

    Args:
        make: a class or function.
        given: the parameters by name.
        subject: beginning of the sentence of an error.

    Raises:
        InputError: it does not take them.
    """
    try:
        return make(**given)
    except TypeError as error:
        raise InputError(f"{subject} {_refused(make, given, error)}") from None


def _refused(make: Callable[..., object], given: Iterable[str], error: TypeError) -> str:
    """Return why `make` does not take parameters by these names, as the end of a sentence."""
    parameters = inspect.signature(make).parameters
    unknown = [name for name in given if name not in parameters]
    if not unknown or any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return f"does not take these parameters: {error}"
    return f"has no parameter {', '.join(unknown)}; it has {', '.join(parameters) or 'none'}"


def _keys(model: type[BaseModel], tables: list[str]) -> list[str]:
    """Return the keys that a table of the model knows; none if it is no model of its own."""
    for table in tables:
        annotation = model.model_fields[table].annotation if table in model.model_fields else None
        inner = [
            kind
            for kind in (annotation, *get_args(annotation))
            if isinstance(kind, type) and issubclass(kind, BaseModel)
        ]
        if not inner:
            return []
        model = inner[0]
    return sorted(model.model_fields)


def check_numbers(
    params: Any, of: str, *, may_be_zero: Collection[str] = (), **most: float
) -> None:
    """Check the fields of a dataclass: finite numbers above 0, whole ones where typed `int`.

    Args:
        params: the dataclass.
        of: what it belongs to, for messages.
        may_be_zero: names of fields that may be 0.
        most: the largest values of some fields.

    Raises:
        InputError: one is not.
    """
    for field in fields(params):
        value = getattr(params, field.name)
        whole = field.type in ("int", int)
        right_type = isinstance(value, int if whole else int | float)
        wrong = f"{of} parameter {field.name} is {value!r}; it must be "
        if isinstance(value, bool) or not right_type or not math.isfinite(value):
            raise InputError(wrong + ("a whole number" if whole else "a number"))
        if value < 0 or (value == 0 and field.name not in may_be_zero):
            raise InputError(wrong + ("at least 0" if field.name in may_be_zero else "above 0"))
    for name, largest in most.items():
        if getattr(params, name) > largest:
            raise InputError(
                f"{of} parameter {name} is {getattr(params, name)!r}; it must be at most {largest!r}"
            )
