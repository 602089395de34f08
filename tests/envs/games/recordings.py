"""Recorded games next to the checkout."""

from __future__ import annotations

from pathlib import Path

import pytest

REFERENCE = Path(__file__).resolve().parents[4] / "shared" / "reference"


def reference_file(name: str) -> Path:
    """Return a reference file next to the checkout; skip the test if it does not exist."""
    path = REFERENCE / name
    if not path.is_file():
        pytest.skip(f"the recorded games (../shared/reference/{name}) are not here")
    return path
