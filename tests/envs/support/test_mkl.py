"""MKL's reproducible mode: set on import, with a warning if sweepd is imported too late."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from sweepd.envs.support.mkl import MODE, VARIABLE, current_mode, request_mode

NO_MKL = not torch.backends.mkl.is_available()
needs_mkl = pytest.mark.skipif(NO_MKL, reason="this build of torch has no MKL: nothing to set")


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter without this one's mode."""
    environment = {
        name: value for name, value in os.environ.items() if name != VARIABLE
    } | variables
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
        cwd="/",
    )


@needs_mkl
def test_these_tests_run_in_the_reproducible_mode() -> None:
    if os.environ[VARIABLE] == MODE:
        assert current_mode() in ("AVX2,STRICT", "AUTO,STRICT")


# Torch is imported once: a forked process is in time, and the other one is late.
BOTH = """
import os, torch
if os.fork() == 0:
    torch.randn(3, 3)
    import sweepd
else:
    os.wait(); torch.ones(3, 3) @ torch.ones(3, 3)
    import sweepd.deploy
from sweepd.envs.support.mkl import current_mode
print(current_mode())
"""


@needs_mkl
def test_importing_torch_first_is_in_time_and_a_product_is_not() -> None:
    made = run(BOTH)
    early, late = made.stdout.splitlines()
    assert early in ("AVX2,STRICT", "AUTO,STRICT")
    assert late == "off"
    assert made.stderr.count("came too late for this process") == 1
    assert made.stderr.count("RuntimeWarning") == 1
    assert "<string>:8: RuntimeWarning" in made.stderr  # the line that imports sweepd


def test_a_mode_of_the_users_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, kept in (("COMPATIBLE", "COMPATIBLE"), ("", MODE)):
        monkeypatch.setenv(VARIABLE, given)
        request_mode()
        assert os.environ[VARIABLE] == kept
