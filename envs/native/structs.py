"""Structs of the C++ sources in Python.

A struct's fields are written once, in the C++ source that declares it, and read from there. So
names, order and types cannot differ between the two languages.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping
from ctypes import c_double, c_float, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

_TYPES: Mapping[str, Any] = {"int64_t": c_int64, "float": c_float, "double": c_double}
_DTYPES = {c_float: torch.float32, c_double: torch.float64}


class CStruct(ctypes.Structure):
    """A struct that a C++ source declares; `c_struct` makes its class.

    Attributes:
        kinds: ctypes' types of the fields, by name.

    Args:
        values: of fields by name; the others are 0. A pointer may be a tensor or a struct, which
            then lives as long as this one; an address; or None.

    Raises:
        TypeError: there is no field of such a name.
    """

    kinds: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self._set(values)

    def but(self, **values: Any) -> Self:
        """Return a copy with other values."""
        copy = type(self).from_buffer_copy(self)
        copy._before = self
        copy._set(values)
        return copy

    def _set(self, values: Mapping[str, Any]) -> None:
        if unknown := values.keys() - self.kinds.keys():
            raise TypeError(f"{type(self).__name__} has no field {min(unknown)!r}")
        self._kept = values  # addresses do not keep tensors alive
        for name, value in values.items():
            setattr(self, name, _converted(value, self.kinds[name]))

    @classmethod
    def stacked(cls, numbers: Mapping[str, Any]) -> Tensor:
        """Return an array of such structs, whose fields are numbers of one type.

        Args:
            numbers: a list of G numbers or a tensor (G, …) of as many, by field; more are ignored.

        Returns:
            (G, fields).
        """
        fields = [torch.as_tensor(numbers[name], dtype=cls._dtype()) for name in cls.kinds]
        return torch.stack([field.reshape(-1) for field in fields], -1)

    @classmethod
    def zeros(cls, count: int) -> tuple[Tensor, dict[str, Tensor]]:
        """Return (count, fields), an array as of `stacked`, and its columns by field, (count,) each."""
        rows = torch.zeros(count, len(cls.kinds), dtype=cls._dtype())
        return rows, dict(zip(cls.kinds, rows.unbind(-1), strict=True))

    @classmethod
    def _dtype(cls) -> torch.dtype:
        [kind] = {*cls.kinds.values()}
        return _DTYPES[kind]


def _converted(value: Any, kind: Any) -> Any:
    """Return what ctypes takes as a field's value."""
    if isinstance(value, tuple):
        return tuple(_converted(one, kind._type_) for one in value)
    if isinstance(value, Tensor):
        return value.data_ptr()
    points = kind is c_void_p and isinstance(value, ctypes.Structure)
    return ctypes.addressof(value) if points else value


@cache
def c_struct(source: Path, name: str) -> type[CStruct]:
    """Return a struct of a C++ source or of a header beside it.

    Its fields come before its functions. They are int64_t, float, double, enumerations of int64_t,
    such structs, pointers to anything, and arrays of these.

    Raises:
        ValueError: there is no such struct, or a field of another type.
    """
    fields = [*_fields(source, name)]
    return type(name, (CStruct,), {"_fields_": fields, "kinds": dict(fields)})


def c_constant(source: Path, name: str) -> int:
    """Return a constant of a C++ source or of a header beside it."""
    return int(_declaration(source, name, rf"^constexpr \w+ {name} = (\d+);"))


def _fields(source: Path, name: str) -> Iterator[tuple[str, Any]]:
    body = _declaration(source, name, rf"^struct {name} {{\n(.*?)^}};")
    for declaration in body.partition("(")[0].split(";")[:-1]:
        kind, declared = re.findall(r"^\s*(?:const\s+)?(\w+)(.*)", declaration, re.DOTALL)[0]
        for part in declared.split(","):
            one = re.fullmatch(r"\s*(\*?)\s*(\w+)(?:\[(\d+)\])?\s*", part)
            if one is None or hasattr(CStruct, one[2]):
                raise ValueError(f"{source.parent}: {name} has the field {part.strip()!r}")
            of = c_void_p if one[1] else _type(source, kind)
            yield one[2], of * int(one[3]) if one[3] else of


def _type(source: Path, kind: str) -> Any:
    if f"enum class {kind} : int64_t" in _text(source.parent):
        return c_int64
    return _TYPES[kind] if kind in _TYPES else c_struct(source, kind)


def _declaration(source: Path, name: str, pattern: str) -> str:
    found = re.search(pattern, _text(source.parent), re.MULTILINE | re.DOTALL)
    if found is None:
        raise ValueError(f"{source.parent}: no C++ source declares {name}")
    return found[1]


@cache
def _text(folder: Path) -> str:
    """Return the sources in a folder, without comments."""
    files = (file for file in sorted(folder.iterdir()) if file.suffix in (".h", ".cpp"))
    texts = [file.read_text("utf-8") for file in files]
    return re.sub(r"//.*", "", "\n".join(texts))
