"""`examples/act_without_sweepd.py`, which docs/reference/bundle.md shows, acts as sweepd does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweepd.agents.networks.activation import ACTIVATIONS
from sweepd.deploy.market.bundle import load_bundle
from sweepd.deploy.registry.bundle_files import write_bundle
from sweepd.envs.core.entities import Entities
from tests.deploy.builders import ensemble_of, small_bundle

# Columns of the portfolio, and features of a bar, but not in the market's order.
ASSETS = Entities(2, ((7, 12), (1, 1), (5, 1)))
PROGRAM = Path(__file__).resolve().parents[3] / "examples" / "act_without_sweepd.py"


@pytest.fixture
def program() -> Path:
    return PROGRAM


def _run(program: Path, *arguments: Path) -> subprocess.CompletedProcess[str]:
    """Run it in a process that imports neither sweepd nor torch."""
    code = (
        "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__'); "
        "assert not {'torch', 'sweepd'} & set(sys.modules)"
    )
    words = [sys.executable, "-I", "-c", code, program, *arguments]
    return subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, check=False
    )


def test_fifty_lines_suffice(program: Path) -> None:
    lines = [line for line in program.read_text().splitlines() if line.strip()]
    assert len(lines) <= 50


@pytest.mark.parametrize(
    "network", [{"activation": own} for own in ACTIVATIONS] + [{"entities": ASSETS}]
)
def test_it_acts_as_sweepd_does(program: Path, tmp_path: Path, network: dict[str, Any]) -> None:
    bundle = small_bundle(5, members=3, gain=2.0, **network)
    folder = write_bundle(bundle, tmp_path / "bundles")
    rows = (
        np.random.default_rng(0)
        .normal(size=(50, bundle.trials[0].policy.state_dim))
        .astype(np.float32)
    )
    np.save(tmp_path / "obs.npy", rows)
    done = _run(program, folder, tmp_path / "obs.npy", tmp_path / "actions.npy")
    assert done.returncode == 0, done.stderr
    expected = np.array([load_bundle(folder).trials[0].policy.act(row) for row in rows])
    assert np.abs(expected).max() > 0.5
    assert np.array_equal(np.load(tmp_path / "actions.npy"), expected)


def test_it_gives_the_actions_of_several_trials_one_by_one(program: Path, tmp_path: Path) -> None:
    bundle = ensemble_of(
        [small_bundle(5, members=3, gain=2.0), small_bundle(6, gain=2.0)], (0.3, 0.7)
    )
    folder = write_bundle(bundle, tmp_path / "bundles")
    rows = (
        np.random.default_rng(0)
        .normal(size=(20, bundle.trials[0].policy.state_dim))
        .astype(np.float32)
    )
    np.save(tmp_path / "obs.npy", rows)
    done = _run(program, folder, tmp_path / "obs.npy", tmp_path / "actions.npy")
    assert done.returncode == 0, done.stderr
    expected = np.array(
        [[trial.policy.act(row) for row in rows] for trial in load_bundle(folder).trials]
    )
    assert np.array_equal(np.load(tmp_path / "actions.npy"), expected)


@pytest.mark.parametrize("name", ["bundle.json", "members.safetensors"])
def test_it_refuses_a_changed_bundle(program: Path, tmp_path: Path, name: str) -> None:
    folder = write_bundle(small_bundle(), tmp_path / "bundles")
    content = bytearray((folder / name).read_bytes())
    content[content.index(b"0.") if name == "bundle.json" else -1] ^= 1
    (folder / name).chmod(0o644)
    (folder / name).write_bytes(bytes(content))
    done = _run(program, folder, tmp_path / "obs.npy", tmp_path / "actions.npy")
    assert done.returncode == 1
    assert "has been changed" in done.stderr
