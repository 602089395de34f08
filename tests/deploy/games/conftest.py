"""A database with studies of several games, and the command that compares their players."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweepd.commands import build_app
from tests.deploy.games.players import Run, store, study_of
from tests.deploy.games.test_teams import ENV, worker
from tests.envs.games.toys import chooser

ROCK, PAPER = ((1.0, 0.0, 0.0),), ((0.0, 1.0, 0.0),)


@pytest.fixture(scope="session")
def studies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with two studies of Bucket Brigade, and two of rock, paper, scissors."""
    folder = tmp_path_factory.mktemp("league")
    url = f"sqlite:///{folder / 'studies.db'}"
    brigade = {"make": worker, "environment": "bucket-brigade", "seeds": 2}
    choices: dict[str, Any] = {
        "make": lambda own: chooser(*own),
        "environment": "tests.envs.games.toys:RPS_SCRIPTED",
        "env": {},
        "objective": "points",
    }
    store(study_of(folder / "a", [0, 1], env=ENV, **brigade), url, "often")
    rare = {**ENV, "prob_house_catches_fire": 0.05}
    store(study_of(folder / "b", [1, 0], env=rare, **brigade), url, "rare")
    store(study_of(folder / "c", [ROCK], **choices), url, "stone")
    store(study_of(folder / "d", [PAPER], **choices), url, "sheet")
    return folder


@pytest.fixture
def league(studies: Path, tmp_path: Path) -> Run:
    """Run `sweepd league`, and return what it prints; wrong input is raised."""

    def run(*words: object) -> str:
        given = ["league", *map(str, words), "--deployments", str(tmp_path / "deployments")]
        variables = {"COLUMNS": "160", "SWEEPD_STORAGE": str(studies / "studies.db")}
        result = CliRunner().invoke(build_app(), given, env=variables)
        if isinstance(result.exception, Exception):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return run
