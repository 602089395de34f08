"""Fixtures shared by all tests."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings

# A busy machine is slow now and then; only wrong answers shall fail a property.
settings.register_profile("sweepd", deadline=None)
settings.load_profile("sweepd")

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Tests run small tensors: one thread is faster, and leaves a core to the others."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real bars beside the checkout; tests that need it are skipped where it is absent."""
    folder = SHARED / "data"
    if not folder.is_dir():
        pytest.skip("the folder of real bars (../shared/data) is not here")
    return folder
