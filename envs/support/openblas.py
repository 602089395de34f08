"""One thread for OpenBLAS, which computes the products and factorizations of NumPy and SciPy.

With several threads it rounds differently, so that decisions of a search could depend on the number
of cores. The project's matrices have a few hundred rows: threads save nothing, and on busy cores they
wait for each other (a draw of the race took 0.9 s instead of 0.03 s). Torch has threads of its own.
"""

from __future__ import annotations

import os

VARIABLE = "OPENBLAS_NUM_THREADS"


def request_one_thread() -> None:
    """Request one thread, before NumPy is imported. A number set by the user stays."""
    os.environ.setdefault(VARIABLE, "1")
