"""The decision where the native step is used."""

from __future__ import annotations

from functools import partial

import torch

from sweepd.envs.crypto.native.self_test import DIGEST, digest, kernels_agree
from sweepd.envs.crypto.native.step import MOST_ASSETS, SOURCE, Kernels, Library
from sweepd.envs.native.build import SHARED
from sweepd.envs.native.gpu import KernelSource
from sweepd.envs.native.use import NativeLibrary, turned_off

STEP = NativeLibrary("the crypto step", SOURCE, Library, digest, DIGEST)
# Assets for which kernels are compiled: a thread has 90 bytes of memory for each of them.
SIZES = (8, 32, MOST_ASSETS)


def code_for(
    assets: int, device: torch.device, *, shorts: bool = False
) -> Library | Kernels | None:
    """Return the native step for such environments; None where torch makes the steps."""
    if assets > MOST_ASSETS or turned_off():
        return None
    if device.type == "cpu":
        library = STEP.library(device)
        # With shorts, a step needs torch's logarithm within (crypto.cpp).
        return None if shorts and library is not None and library.log1p is None else library
    kernels = kernels_of(assets, shorts=shorts).on(device)
    return None if kernels is None else Kernels(kernels, device)


def kernels_of(assets: int, *, shorts: bool) -> KernelSource:
    """Return the source of kernels for a number of assets."""
    size = next(size for size in SIZES if assets <= size)
    return KernelSource(
        of="the crypto step",
        file=SOURCE.with_suffix(".cu"),
        names=(f"crypto_trade<{str(shorts).lower()}>", "crypto_market", "crypto_restart"),
        agrees=partial(kernels_agree, shorts=shorts),
        threads=32,
        folders=(SOURCE.parent, SHARED),
        constants=(("KERNEL_ASSETS", size),),
        exact=True,
    )
