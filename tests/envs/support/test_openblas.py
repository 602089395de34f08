"""NumPy and SciPy compute with one thread in a process of sweepd."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from sweepd.envs.support.openblas import VARIABLE

CODE = """
import sweepd, scipy.linalg, threadpoolctl
libraries = threadpoolctl.threadpool_info()
print(*sorted({one["num_threads"] for one in libraries if one["internal_api"] == "openblas"}))
"""


@pytest.mark.parametrize(("own", "threads"), [(None, "1"), ("2", "2")])
def test_openblas_has_one_thread_unless_the_user_says_otherwise(
    own: str | None, threads: str
) -> None:
    # The number of cores is the default of OpenBLAS.
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core: OpenBLAS has one thread in any case")
    names = {VARIABLE, "OMP_NUM_THREADS"}
    environment = {name: value for name, value in os.environ.items() if name not in names}
    if own is not None:
        environment[VARIABLE] = own
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [threads]
