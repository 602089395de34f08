"""Expensive cases of parametrized tests, which only `scripts/test.sh -m extra` runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def with_extra(names: Iterable[Any], extra: Collection[Any]) -> list[Any]:
    """Return the parameters of a test, of which some are marked as extra."""
    return [
        pytest.param(name, marks=[pytest.mark.extra] if name in extra else []) for name in names
    ]
