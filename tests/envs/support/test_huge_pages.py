"""Large tensors lie in pages of 2 MB in a process of sweepd."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sweepd.envs.support.huge_pages import VARIABLE

# Prints the bytes in large pages before and with a tensor of 64 MB.
CODE = """
import sweepd, torch
from pathlib import Path
def in_large_pages():
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("AnonHugePages")]
    return int(line.split()[1]) * 1024
before, tensor = in_large_pages(), torch.ones(2**24)
print(in_large_pages() - before)
"""
ENABLED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.parametrize(("own", "large"), [(None, True), ("0", False)])
def test_large_tensors_are_in_large_pages_unless_the_user_says_otherwise(
    own: str | None, large: bool
) -> None:
    if not ENABLED.exists() or "[madvise]" not in ENABLED.read_text():
        pytest.skip("the kernel does not give large pages on request")
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if own is not None:
        environment[VARIABLE] = own
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=True
    )
    found = int(done.stdout) > 0
    if large and not found:
        pytest.skip("no large page is free")
    assert found == large
