"""MKL's reproducible mode: products have the same bits in every slot and at any thread count.

MKL chooses the order of summation by processor, memory alignment and number of threads. By
default, on AMD processors, members in different slots of a batched product get different last
bits (for example in products with 5, 6, 7 or 10 columns). `MKL_CBWR=AVX2,STRICT` (conditional
numerical reproducibility, see Intel's oneMKL developer guide) prevents that, on AMD processors at
almost no cost (docs/evidence/reproducibility.md). MKL reads the variable at its first product.

On AMD processors MKL knows only the branches AUTO and COMPATIBLE and takes AUTO for every other
name. Processors other than x86-64 have no MKL and ignore the variable.
"""

from __future__ import annotations

import os
import sys
import warnings

VARIABLE = "MKL_CBWR"
MODE = "AVX2,STRICT"

_OFF, _COMPATIBLE = 1, 3
# Values of MKL_CBWR_* in oneMKL's mkl_types.h.
_BRANCHES = {2: "AUTO", _COMPATIBLE: "COMPATIBLE", 4: "SSE2", 8: "AVX", 10: "AVX2", 12: "AVX512"}
_STRICT = 0x10000
# The first name if torch is linked statically with MKL, the second if it loads MKL.
_GETTERS = ("mkl_serv_cbwr_get", "MKL_CBWR_Get")
_LIBRARIES = {"linux": "libtorch_cpu.so", "darwin": "libtorch_cpu.dylib", "win32": "torch_cpu.dll"}


def request_mode() -> None:
    """Request the reproducible mode, before MKL's first product. A mode set by the user stays.

    Warns if torch has already computed a product in another mode: then it is too late.
    """
    own = os.environ.get(VARIABLE)
    if not own:
        os.environ[VARIABLE] = MODE
    if "torch" in sys.modules and not own and current_mode() == "off":
        warnings.warn(
            f"torch computed a matrix product before sweepd was imported, so {VARIABLE}={MODE} "
            "came too late for this process: results may depend on a member's slot and on "
            "threads. Import sweepd before that, or set "
            f"{VARIABLE}={MODE} in the environment.",
            RuntimeWarning,
            stacklevel=3,
        )


def current_mode() -> str | None:
    """Return the mode in which MKL computes.

    Returns:
        The name as in `MKL_CBWR` ("AVX2,STRICT" on Intel, "AUTO,STRICT" on AMD processors), "off"
        if results need not be reproducible, None if torch has no MKL or does not report the mode.
    """
    # Not at the top: `import sweepd` does not need them.
    import ctypes
    from pathlib import Path

    import torch

    name = _LIBRARIES.get(sys.platform)
    if name is None or not torch.backends.mkl.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
    except OSError:
        return None
    getter = next((getattr(library, name) for name in _GETTERS if hasattr(library, name)), None)
    if getter is None:
        return None
    value = int(getter(-1))  # -1: branch and flags
    if value == _OFF:
        return "off"
    branch = value & ~_STRICT
    return _BRANCHES.get(branch, f"branch {branch}") + (",STRICT" if value & _STRICT else "")
