"""`python` as a fork of a test's process: what runs, how it ends, and what stays an interpreter."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, sys, time
import sweepd.optimize.cli.train
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
print(os.getpid(), sys.argv[1:], __name__, __file__, flush=True)
time.sleep(60)
"""


@pytest.fixture
def started(forked_python: Path, tmp_path: Path) -> subprocess.Popen[str]:
    (tmp_path / "script.py").write_text(SCRIPT)
    words = [str(forked_python), "script.py", "word"]
    return subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 3), (signal.SIGKILL, -9)])
def test_a_signal_reaches_a_script(
    started: subprocess.Popen[str], tmp_path: Path, sent: signal.Signals, code: int
) -> None:
    assert started.stdout is not None
    pid, _, shown = started.stdout.readline().partition(" ")
    assert shown == f"['word'] __main__ {tmp_path / 'script.py'}\n"
    assert int(pid) != started.pid
    started.send_signal(sent)
    assert started.wait(30) == code
    # The end of the output: the forked process has ended, too.
    assert started.stdout.read() == ""


def test_modules_and_code_are_forked_and_the_rest_is_not(
    forked_python: Path, tmp_path: Path
) -> None:
    code = "import sys; print('torch' in sys.modules, sys.argv); sys.exit(5)"
    for flags, forked in ((["-c"], True), (["-I", "-S", "-c"], False)):
        done = subprocess.run(
            [str(forked_python), *flags, code, "word"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stdout) == (5, f"{forked} ['-c', 'word']\n")
    done = subprocess.run(
        [sys.executable, "-m", "sweepd", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("sweepd ")
