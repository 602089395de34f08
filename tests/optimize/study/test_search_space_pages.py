"""The pages about search spaces name everything that a space may contain."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from scripts.search_space_reference import GAMES, LEARNERS, meanings, search_space_reference
from sweepd.agents.algorithms.table import get_algorithm
from sweepd.envs.games.phase_files import CURRICULUM_KEYS, PhaseTable, UntilTable
from sweepd.envs.games.registry import get_game
from sweepd.optimize.study.space.parsing import ENTRY_KEYS, HEAD_KEYS, StudyDefaults, parse_space
from sweepd.optimize.study.space.subject import PRESETS, STUDY_LEVEL, Subject

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "how_to" / "search_spaces.md").read_text()
BLOCKS = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_names_every_key() -> None:
    code = " ".join(re.findall(r"`[^`\n]+`", PAGE) + BLOCKS)
    keys = {*HEAD_KEYS, *ENTRY_KEYS, *StudyDefaults.model_fields, *CURRICULUM_KEYS, "study"}
    keys |= {*PhaseTable.model_fields, *UntilTable.model_fields}
    keys |= {name for names in PRESETS.values() for name in names}
    missing = [key for key in sorted(keys) if not re.search(rf"\b{key}\b", code)]
    assert not missing
    assert {*STUDY_LEVEL} - {"held_scale"} <= set(re.findall(r"`(\w+)`", PAGE))


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.splitlines()[0])
def test_the_examples_are_valid(block: str) -> None:
    described = tomllib.loads(block)
    game = "hockey" if "phases" in described else "cartpole" if "study" in described else "crypto"
    space = parse_space(described, Subject(game), "5m")
    assert space.name == described["name"]
    if game == "crypto":
        assert space.tables["ppo"]["one_minus_gamma"].low == 1e-3


def test_every_parameter_has_a_row_with_its_default() -> None:
    page = search_space_reference()
    for environment in ("crypto", *GAMES):
        for name in Subject(environment).names("env"):
            assert f"\n| `{name}` |" in page
    for algorithm in LEARNERS:
        subject = Subject("cartpole", algorithm)
        section = page.partition(f"\n## {algorithm}\n")[2].partition("\n## ")[0]
        for table in subject.tables[:2]:
            for name in subject.names(table):
                assert f"\n| `{name}` |" in section, (algorithm, name)
    assert "| `learning_rate` | `0.001` | Adam's learning rate at the start of training. |" in page
    assert "| `trailing_stop` | `0` | Sell the whole position if" in page


def test_parameters_of_markets_and_ppo_are_explained() -> None:
    subject = Subject()
    for table, params in (("env", subject.env_params), ("ppo", subject.learner.params)):
        known = {*meanings(params), "one_minus_gamma"}
        assert set(subject.names(table)) <= known


def test_the_listed_games_and_algorithms_exist() -> None:
    assert all(get_game(name) for name in GAMES)
    assert all(get_algorithm(name) for name in LEARNERS)
