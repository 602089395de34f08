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
numbers = torch.rand(2000, 2000)
numbers + 1  # starts the second thread of the training thread's team
threads = len(os.listdir("/proc/self/task"))
background = Background("test")
background.submit(lambda: numbers + 1)
background.wait()
print(len(os.listdir("/proc/self/task")) - threads, torch.get_num_threads())
background.close()
"""
BEFORE = """
import torch
from sweepd.optimize.worker.records import Background

torch.set_num_threads(2)
background = Background("test")
background.submit(lambda: None)
background.wait()
print(torch.get_num_threads())
background.close()
"""


def _printed(code: str) -> list[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    ).stdout.split()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts the threads in /proc")
def test_a_job_starts_no_second_openmp_team():
    """A second OpenMP team would have more threads than cores.

    libgomp's threads then sleep at every barrier, and training loses a third of its speed.
    """
    assert _printed(CODE) == ["1", "2"]


def test_an_early_job_does_not_change_the_number_of_threads() -> None:
    assert _printed(BEFORE) == ["2"]
