"""start_vectorized_training.sh, with a stand-in for the installed `sweepd`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sweepd.envs.support.passwords import has_password
from sweepd.envs.support.supervisor import Supervisor

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "start_vectorized_training.sh"
STAMP = 'printf "%s" "$(cat "$root"/requirements*.lock "$root/pyproject.toml" | cksum) cpu 0 $root"'
# Prints its arguments; then, depending on WHAT, fails or is ready after a while, or exits with 0.
SWEEPD = r"""#!/usr/bin/env bash
printf '[%s]' "$@"; echo " storage=${SWEEPD_STORAGE:-}"
case ${WHAT:-} in
    fails) sleep 3; echo "error: --data-dir none: no such folder" >&2; exit 2 ;;
    ready) sleep 1; touch "$SWEEPD_READY_FILE"; exec sleep 60 ;;
esac
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A finished installation, as the script recognises it."""
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    program = tmp_path / "venv" / "bin" / "sweepd"
    program.write_text(SWEEPD)
    program.chmod(0o755)
    stamp = subprocess.check_output(["bash", "-c", STAMP], env={**os.environ, "root": str(ROOT)})
    (tmp_path / "venv" / ".sweepd-installed").write_bytes(stamp)
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("SWEEPD_STORAGE", "SWEEPD_DEV", "SWEEPD_EXTRAS")
    }
    return kept | {"SWEEPD_VENV": str(tmp_path / "venv"), "SWEEPD_TORCH": "cpu"}


def start(
    folder: Path, environment: dict[str, str], *words: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SCRIPT), *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "demo"),
    [
        ((), True),
        (("--n-trials", "80"), True),
        (("--gpu", "cpu", "--seed=3"), True),
        (("--env", "cartpole"), False),
        (("--env=cartpole",), False),
        (("--study-name", "btc", "--n-trials", "80"), False),
        (("--data-dir", "bars"), False),
        (("--config=c.toml",), False),
        (("--smoke",), False),
        (("--storage", "a.db"), False),
        (("--help",), False),
        (("--tickers", "BTC/USDT"), False),
    ],
)
def test_the_demo_runs_only_where_no_argument_says_what_to_train_on(
    tmp_path: Path, environment: dict[str, str], words: tuple[str, ...], demo: bool
) -> None:
    done = start(tmp_path, environment, *words)
    assert done.returncode == 0, done.stderr
    assert ("[--demo]" in done.stdout) == demo
    assert ("running the demo" in done.stdout) == demo
    assert all(word.partition("=")[2] in done.stdout for word in words)


def test_a_storage_in_the_environment_is_no_place_for_a_demo(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    assert "--demo" not in start(tmp_path, {**environment, "SWEEPD_STORAGE": "a.db"}).stdout


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:hunter2@h/d",
        "postgresql://:hunter2@/d",
        "postgresql://u@h/d?sslmode=require&PASSWORD=hunter2",
        "postgresql://h/d?password=hunter2",
        "postgresql://h/d?user=u&passwd=hunter2",
        "postgresql://h/d?pwd=hunter2",
        "postgresql://h/d?sslpassword=hunter2",
        "postgresql://u@h:5432/d",
        "sqlite:////tmp/a:b@c/s.db",
        "runs/s.db",
    ],
)
def test_a_password_is_no_argument_of_the_worker(
    tmp_path: Path, environment: dict[str, str], url: str
) -> None:
    """The script finds the same passwords as `has_password`; the last --storage counts."""
    for words in (
        ("--storage", url),
        (f"--storage={url}",),
        ("--storage", "a.db", "--storage", url),
    ):
        said = start(tmp_path, environment, "--study-name", "s", *words).stdout
        assert ("warning" in said) == has_password(url)
        passed = f" storage={url}" if has_password(url) else f"[--storage={url}] storage="
        assert said.endswith(f"[train][--study-name][s]{passed}\n")


def test_detached_with_wrong_input_it_fails_as_the_worker_does(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """Also where finding out takes longer than a moment."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker_vectorized.log").write_text("an earlier run\n")
    done = start(tmp_path, {**environment, "WHAT": "fails"}, "--detach", "--data-dir", "none")
    assert done.returncode == 2
    assert "error: --data-dir none: no such folder" in done.stderr
    assert "exit code 2" in done.stderr
    assert "an earlier run" not in done.stderr
    assert "runs in the background" not in done.stdout


def test_detached_it_returns_once_the_worker_is_ready(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    began = time.monotonic()
    done = start(tmp_path, {**environment, "WHAT": "ready"}, "--detach", "--data-dir", "bars")
    worker = int(done.stdout.partition("as process ")[2].split(";")[0])
    try:
        assert done.returncode == 0
        assert time.monotonic() - began > 1.0
        assert os.getsid(worker) == worker  # no Ctrl-C of this terminal reaches it
        assert (
            "[train][--data-dir][bars]" in (tmp_path / "logs" / "worker_vectorized.log").read_text()
        )
    finally:
        os.kill(worker, signal.SIGTERM)


def test_detached_a_worker_that_ends_well_is_no_failure(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    done = start(tmp_path, environment, "--detach", "--help")
    assert done.returncode == 0
    assert "[train][--help]" in done.stderr


def test_a_worker_that_is_ready_creates_the_file_it_is_told(tmp_path: Path) -> None:
    Supervisor({"SWEEPD_READY_FILE": str(tmp_path / "ready")}).ready("at work")
    assert (tmp_path / "ready").exists()
    Supervisor({"SWEEPD_READY_FILE": str(tmp_path / "gone" / "ready")}).ready(
        "at work"
    )  # no process waits any more


# A Python that records what pip is asked to install.
PYTHON = """#!/usr/bin/env bash
if [ "$1" = -m ]; then echo "$@"; cat; else exec {python} "$@"; fi
"""


@pytest.fixture
def with_python(environment: dict[str, str]) -> dict[str, str]:
    program = Path(environment["SWEEPD_VENV"]) / "bin" / "python"
    program.write_text(PYTHON.format(python=sys.executable))
    program.chmod(0o755)
    return environment


def test_extras_are_installed_once_at_the_locked_versions(
    tmp_path: Path, with_python: dict[str, str]
) -> None:
    wanted = with_python | {"SWEEPD_EXTRAS": "ccxt, postgres"}
    found = start(tmp_path, wanted, "--install-only")
    assert found.returncode == 0, found.stderr
    assert "installing the extras ccxt, postgres" in found.stdout
    constraints = Path(with_python["SWEEPD_VENV"]) / ".sweepd-constraints"
    assert f"--constraint {constraints} " in found.stdout
    said = constraints.read_text()
    for name in ("requirements.lock", "requirements-dev.lock"):
        for package in re.findall(r"^[a-z0-9-]+==\S+", (ROOT / name).read_text(), re.MULTILINE):
            assert package in said
    assert "--hash" not in said  # pip would demand pinned versions of the extras' requirements
    assert found.stdout.endswith(" sweepd[ccxt, postgres]\n")
    assert start(tmp_path, wanted, "--install-only").stdout == ""
    assert start(tmp_path, with_python, "--install-only").stdout == ""


def test_an_unknown_extra_is_refused(tmp_path: Path, with_python: dict[str, str]) -> None:
    found = start(tmp_path, with_python | {"SWEEPD_EXTRAS": "ccxt,nope"}, "--install-only")
    assert found.returncode == 2
    assert "SWEEPD_EXTRAS names 'nope'; the extras are dashboard, ccxt" in found.stderr
    assert "pip" not in found.stdout
