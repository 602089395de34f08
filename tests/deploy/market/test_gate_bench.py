"""The benchmark of whole studies fails gates that promote luck or refuse everything."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import pytest

AS_ASKED = {"null": 2, "planted-1": 1, "planted-2": 5, "planted-3": 8, "oracle": 5}


@pytest.fixture
def bench() -> ModuleType:
    return importlib.import_module("scripts.bench.quality.gate_studies")


def results(bench: ModuleType, promoted: dict[str, int]) -> dict[str, dict[str, Any]]:
    """Results of the requested number of studies, with that many promotions of each kind."""
    return {
        f"{kind}-{number}": {
            "kind": kind,
            "promoted": number < promoted[kind],
            "without_statistics": True,
            "failed": [],
        }
        for kind, count in bench.COUNTS.items()
        for number in range(count)
    }


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"null": 3}, False),
        ({"planted-3": 7}, False),
        ({"planted-1": 6}, False),  # a stronger edge is found less often than a weaker one
        ({"oracle": 4}, False),
        ({"planted-1": 8, "planted-2": 8}, False),  # the strength makes no difference
    ],
)
def test_what_is_asked_of_the_gate(bench: ModuleType, change: dict[str, int], good: bool) -> None:
    assert bench.report(results(bench, AS_ASKED | change)) is good


def test_saying_always_yes_or_always_no_fails(bench: ModuleType) -> None:
    assert not bench.report(results(bench, bench.COUNTS))
    assert not bench.report(results(bench, dict.fromkeys(bench.COUNTS, 0)))


def test_fewer_studies_than_asked_are_not_enough(bench: ModuleType) -> None:
    found = results(bench, AS_ASKED)
    del found["null-39"]
    assert not bench.report(found)
