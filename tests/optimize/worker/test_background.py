"""Background work does not slow down training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import os
import torch
from sweepd.optimize.worker.records import Background

torch.set_num_threads(2)
background = Background("early")
background.submit(lambda: None)
background.wait()
background.close()
print(torch.get_num_threads())
numbers = torch.rand(2000, 2000)
numbers + 1  # starts the second thread of the training thread's team
threads = len(os.listdir("/proc/self/task"))
background = Background("test")
background.submit(lambda: numbers + 1)
background.wait()
print(len(os.listdir("/proc/self/task")) - threads, torch.get_num_threads())
background.close()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts the threads in /proc")
def test_a_job_starts_no_second_openmp_team() -> None:
    """A second OpenMP team would have more threads than cores.

    libgomp's threads then sleep at every barrier, and training loses a third of its speed. An early
    job does not change the number of threads.
    """
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    assert done.stdout.split() == ["2", "1", "2"]
