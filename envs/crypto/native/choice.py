"""The decision where the native step is used."""

from __future__ import annotations

import torch

from sweepd.envs.crypto.native.self_test import DIGEST, digest
from sweepd.envs.crypto.native.step import MOST_ASSETS, SOURCE, Library
from sweepd.envs.native.use import NativeLibrary

STEP = NativeLibrary("the crypto step", SOURCE, Library, digest, DIGEST)


def library_for(assets: int, device: torch.device, *, shorts: bool = False) -> Library | None:
    """Return the native step for such environments; None where torch makes the steps."""
    library = STEP.library(device) if assets <= MOST_ASSETS else None
    # With shorts, a step needs torch's logarithm within (crypto.cpp).
    return None if shorts and library is not None and library.log1p is None else library
