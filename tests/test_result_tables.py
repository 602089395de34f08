"""Tables of measured figures in the docs, and what results files say of their origin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.result_tables.__main__ import TABLES, filled, pages
from scripts.result_tables.results import RESULTS, load, origin


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.name)
def test_tables_are_those_of_the_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert filled(text) == text, "run python -m scripts.result_tables"


def test_every_table_is_on_a_page() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in pages())
    assert [name for name in TABLES if f"<!-- table {name} -->" not in text] == []


def test_a_changed_figure_changes_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = load("roofline")
    changed["results"][0]["share_of_peak"] = 0.123
    before = TABLES["roofline"]()
    monkeypatch.setattr("scripts.result_tables.speed.load", lambda _: changed)
    assert "12.3%" in TABLES["roofline"]()
    assert "12.3%" not in before


def test_learning_against_a_peer_shows_finished_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = {"processor": "AMD EPYC", "cores": 2, "torch": "2", "load": 0.5}
    side = {"seeds": 8, "median": -84.0, "worst": -500.0, "best": -80.5}
    both = {
        "ours": side | {"solved": 7, "share_low": 0.473, "share_high": 0.997},
        "sb3": side,
        "p": 0.004,
        "verdict": "behind",
    }
    row = {"environment": "gym:Acrobot-v1", "algorithm": "ppo", "steps": 40960, "solved": -100.0}
    finished = {
        "row": row | {"name": ""},
        "sides": {"ours": {"machine": machine}, "sb3": {"runs": {"0": {"machine": machine}}}},
        "comparison": {"deterministic": both, "sampled": both | {"p": 0.25, "verdict": "level"}},
    }
    begun = {"row": row | {"name": "Begun"}, "sides": {}}
    rows = {"acrobot-ppo": finished, "begun-ppo": begun}
    monkeypatch.setattr("scripts.result_tables.learning.load", lambda _: {"rows": rows})
    lines = TABLES["learning-vs-sb3"]().splitlines()
    assert lines[2] == (
        "| Acrobot-v1, `ppo` | 40,960 | −100 | 7 of 8 (47% to 100%) |  | "
        "−84 (−500 to −80) | −84 (−500 to −80) | 0.004 | behind |"
    )
    assert lines[3].startswith("| Acrobot-v1, `ppo`, sampled |")
    assert lines[3].endswith("| 0.25 | level |")
    assert "Begun" not in "".join(lines)


def _machines(content: Any) -> list[dict[str, Any]]:
    """Return all descriptions of machines in a results file."""
    if isinstance(content, list):
        return [machine for one in content for machine in _machines(one)]
    if not isinstance(content, dict):
        return []
    own = [content] if "processor" in content and "torch" in content else []
    return own + [machine for one in content.values() for machine in _machines(one)]


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_results_say_how_they_were_made(path: Path) -> None:
    machines = _machines(json.loads(path.read_text(encoding="utf-8")))
    named = {"commit", "dirty", "version", "date", "command", "peers"}
    complete = bool(machines) and all(named <= set(one.get("source", {})) for one in machines)
    assert complete


def test_the_line_below_a_table_says_what_is_not_recorded() -> None:
    machine = {"processor": "AMD EPYC", "family": "25/17", "cores": 2, "torch": "2", "load": 0.5}
    assert "Zen 4" in origin("file", machine)
    assert "commit and date not recorded" in origin("file", machine)
    source = {"commit": "a" * 40, "dirty": True, "date": "2026-11-24", "peers": {"jax": "1"}}
    later = source | {"commit": "b" * 40, "dirty": False}
    line = origin("file", machine | {"source": source}, machine | {"load": 1.0, "source": later})
    assert (
        "commit aaaaaaaaaa with changes and commit bbbbbbbbbb, 2026-11-24, jax 1; load 0.5 to 1.0"
        in line
    )
