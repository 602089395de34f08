"""Comparison of JSON objects, such as the specs of studies and the descriptions of members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def differences(
    one: Mapping[str, Any], other: Mapping[str, Any], absent: Any = None
) -> list[tuple[str, Any, Any]]:
    """Return (dotted name, its value in `one`, in `other`) of all entries that differ, by name.

    absent: the value of an entry that one of them does not have.
    """
    left, right = _flat(one), _flat(other)
    return [
        (name, left.get(name, absent), right.get(name, absent))
        for name in sorted({*left, *right})
        if left.get(name, absent) != right.get(name, absent)
    ]


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{prefix}.{key}" if prefix else str(key))
    return flat
