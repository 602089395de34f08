"""Every tutorial runs as it is printed, and prints what it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.tutorials.pages import ROOT, run_page

PAGES = ROOT / "docs" / "tutorials"
# By page: what the suite replaces, so that a tutorial takes seconds. `-m extra` runs it as printed.
QUICK = "rungs=1, seeds=1, episodes=10, n_envs=8, threads=1, look_steps=64"
SMALLER: dict[str, dict[str, str]] = {
    "first_study": {
        "n_trials=8, budget=50_000": f"n_trials=2, budget=4_096, fresh_seeds=2, {QUICK}",
        "sweepd.promote(study)": "sweepd.promote(study, games=10)",
        "n_trials=4, budget=20_000": f"n_trials=2, budget=4_096, fresh_seeds=0, {QUICK}",
    },
    "from_sb3": {
        "STEPS, ENVS, EVALUATIONS = 50_000, 8, 5": "STEPS, ENVS, EVALUATIONS = 1_024, 8, 2",
        "n_trials=8": "n_trials=2",
        "--budget 50_000 --rungs 5 --n-trials 8": (
            "--budget 1_024 --rungs 1 --n-trials 2 --seeds 1 --fresh-seeds 0 --n-envs 8 "
            "--threads 1 --look-steps 64 --episodes 10"
        ),
    },
    "from_cleanrl": {
        "--n-trials 8 --budget 20_000 --rungs 4": "--n-trials 2 --budget 1_024 --rungs 2"
    },
    "two_player_game": {
        "--n-trials 8 --trials-per-batch 2 --pruner none --budget 100_000": (
            "--n-trials 4 --trials-per-batch 2 --pruner none --budget 512 --rungs 1 --seeds 1 "
            "--n-envs 8 --horizon 32 --threads 1 --look-steps 64"
        ),
        "promote --study-name": "promote --games 10 --study-name",
    },
}
# Pages of which no block runs.
NOT_RUN = {"demo"}
# Pages that need something beside the folder, with tests of their own.
OWN_TESTS = {"freqtrade_to_paper", "worker_farm"}
# What the programs of a page import, in seconds: imported once, the forked processes have it.
# torch's first optimizer imports torch._dynamo.
LOADED = {"from_cleanrl": ["torch._dynamo"], "from_sb3": ["stable_baselines3", "torch._dynamo"]}


def test_every_tutorial_is_run() -> None:
    assert {page.stem for page in PAGES.glob("*.md")} == {*SMALLER} | NOT_RUN | OWN_TESTS


@pytest.mark.parametrize("name", SMALLER)
def test_a_tutorial_says_how_long_it_takes_and_is_short(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text()
    introduction = text.partition("\n## ")[0]
    assert re.search(r"\d+ minutes", introduction)
    assert len(text.split()) <= 1_500


@pytest.mark.slow
@pytest.mark.usefixtures("warmed_up")
@pytest.mark.timeout(900)  # processes that each import torch: minutes on a busy machine
@pytest.mark.parametrize("name", SMALLER)
def test_a_tutorial(name: str, tmp_path: Path) -> None:
    run(name, tmp_path, SMALLER[name])


@pytest.mark.extra
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", SMALLER)
def test_a_tutorial_as_printed(name: str, tmp_path: Path) -> None:
    run(name, tmp_path, {}, forked=False)


def run(name: str, folder: Path, replaced: dict[str, str], forked: bool = True) -> None:
    for module in LOADED.get(name, []):
        pytest.importorskip(module, reason=f"{module} is not installed")
    run_page(PAGES / f"{name}.md", folder, replaced, forked=forked)
