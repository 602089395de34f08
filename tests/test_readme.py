"""The README: its length, its program on a reader's own environment, its figures and its picture."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from scripts.result_tables.results import load, ratio_text
from scripts.study_picture import COLUMNS, IMAGE, Screen, cut, draw
from tests.tutorials.pages import blocks_of

README = Path(__file__).resolve().parents[1] / "README.md"
TEXT = README.read_text()
MY_ENV = """
import gymnasium as gym

class MyEnv(gym.wrappers.TimeLimit):
    def __init__(self):
        super().__init__(Inner(), 8)

class Inner(gym.Env):
    observation_space = gym.spaces.Box(-1.0, 1.0, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), float(action), False, False, {}
"""
# A study of a second.
TINY = (
    "n_trials=1, budget=256, rungs=1, seeds=1, episodes=2, n_envs=2, horizon=32, slots=2, threads=1"
)


def test_it_is_short_and_begins_with_the_two_commands() -> None:
    assert len(TEXT.split()) <= 450
    first = blocks_of(README)[0]
    commands = [line.split()[0] for line in first.code.splitlines()]
    assert commands == ["./start_vectorized_training.sh", "./scripts/test.sh"]
    assert all((README.parent / command).stat().st_mode & 0o100 for command in commands)


@pytest.mark.slow
def test_its_program_searches_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    smaller = {"n_trials=40": f'{TINY}, gpu="cpu", fresh_seeds=0'}
    [block] = [one for one in blocks_of(README, smaller) if one.language == "python"]
    assert sum(1 for line in block.code.splitlines() if line) <= 8
    (tmp_path / "my_env.py").write_text(MY_ENV)
    (tmp_path / "search.py").write_text(block.code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        runpy.run_path("search.py", run_name="__main__")
    finally:
        sys.modules.pop("my_env", None)
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"[0-8]\.\d+ [01]", last), last


def test_its_figures_are_those_of_the_results() -> None:
    for file, words in (
        ("train_vs_peers", "make {} to {} times the steps"),
        ("train_vs_jax", "and {} to {} times those of a jitted JAX population"),
    ):
        ratios = [
            cell["ours_over_best"]
            for cell in load(file)["speed"].values()
            if cell["cell"]["num_envs"] == 256
        ]
        low, high = (ratio_text(ratio).rstrip("×") for ratio in (min(ratios), max(ratios)))
        assert words.format(low, high) in " ".join(TEXT.split())
    chaos = load("chaos")
    killed = sum(chaos[name]["killed"] for name in ("sqlite", "postgresql"))
    trials = sum(chaos[name]["retrained"] for name in ("sqlite", "postgresql"))
    assert not any(chaos[name]["problems"] for name in ("sqlite", "postgresql"))
    assert f"killed {killed} times; each of {trials} trials" in " ".join(TEXT.split())


def test_a_terminal_is_drawn_as_rich_writes_to_one() -> None:
    screen = Screen()
    screen.feed("\x1b[?25lhead\n\x1b[36m╭─╮\x1b[0m\n1 of 2")
    screen.feed("\r\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2Kdone\n\x1b[36m╭─╮\x1b[0m\n2 of 2\n")
    rows = screen.rows()
    assert [row.plain for row in rows] == ["done", "╭─╮", "2 of 2"]
    screen.feed("x" * (COLUMNS + 1))
    assert [len(row) for row in screen.rows()[-2:]] == [COLUMNS, 1]
    picture = draw(cut([(0.0, rows[:1]), (60.0, rows[:1]), (60.01, rows)]))
    assert picture.count("<g transform") == 3
    assert re.search(r'style="fill:#[0-9a-f]{6};">╭─╮', picture)


def test_the_picture_of_a_study_is_small_and_may_stand_still() -> None:
    assert IMAGE.stat().st_size <= 2**20
    text = IMAGE.read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert "@media (prefers-reduced-motion: reduce)" in text
    assert f"docs/images/{IMAGE.name}" in TEXT
