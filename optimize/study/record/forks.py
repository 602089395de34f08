"""Forks: studies whose trial continues that of another study (`sweepd fork`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def fork_name(study: str, trial: int, rung: int) -> str:
    """Return the name of the study that continues a trial after a rung, unless another is given."""
    return f"{study}-fork{trial}-{rung}"


def fork_words(fork: Mapping[str, Any]) -> str:
    """Say what a fork continues.

    Args:
        fork: `study`, `trial`, `rung` and `changes`, hyperparameters by name.
    """
    changes = ", ".join(f"{name}={value}" for name, value in fork["changes"].items())
    return (
        f"trial {fork['trial']} of {fork['study']} after rung {fork['rung']}, with "
        f"{changes or 'its own hyperparameters'}"
    )
