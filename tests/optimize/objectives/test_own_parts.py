"""Algorithms and environments of other packages: searched, recorded, refused in one sentence."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.algorithms.table import ALGORITHMS, Algorithm, get_algorithm
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.table import check_request, objective_of
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.space.parsing import load_space, preset_text
from sweepd.optimize.study.space.subject import Subject
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.freeze import open_study
from tests.distributions import install
from tests.entry_point import run_sweepd

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
CPU = torch.device("cpu")
MORE = """
import gymnasium
from dataclasses import replace
from climbing_kit.climber import CLIMBER, SPACE, Climber

def quick(horizon=5):
    return replace(CLIMBER, horizon=horizon)

class Bigger(Climber):
    pass

NUMBER = 3

class Halved(gymnasium.RewardWrapper):
    def reward(self, reward):
        return reward / 2.0
"""


@pytest.fixture(autouse=True)
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages that has the algorithm and the game of the examples."""
    files = {
        "climbing_kit/__init__.py": "",
        "climbing_kit/climber.py": (EXAMPLES / "own_algorithm.py").read_text(),
        "climbing_kit/more.py": MORE,
        "climbing_kit/target.py": (EXAMPLES / "own_game.py").read_text(),
    }
    points = {
        "sweepd.algorithm": {
            "climber": "climbing_kit.climber:CLIMBER",
            "quick": "climbing_kit.more:quick",
            "ppo": "climbing_kit.climber:CLIMBER",
        },
        "sweepd.environment": {
            "target": "climbing_kit.target:TARGET",
            "cartpole": "climbing_kit.target:TARGET",
            "pendulum": "gymnasium.envs.classic_control.pendulum:PendulumEnv",
        },
    }
    install(tmp_path / "site", "climbing-kit", files, points)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "site"
    for name in [one for one in sys.modules if one.startswith("climbing_kit")]:
        del sys.modules[name]


def settings(**changes: Any) -> Request:
    known: dict[str, Any] = {
        "env": "target",
        "algo": "climber",
        "search_space": "game",
        "objective": "return",
        "sampler": "random",
        "pruner": "none",
        "horizon": 20,
        "n_envs": 8,
        "threads": 1,
        "episodes": 8,
        "look_steps": 32,
        "budget": 2048,
        "rungs": 2,
    }
    return Request(**(known | changes))


def study(folder: Path, said: list[str], **changes: Any) -> StudyHandle:
    storage = open_storage(storage_url(None, folder))
    return open_study(storage, "s", settings(**changes), CPU, folder, {}, said.append)[0]


def test_names_of_packages_are_found_and_those_built_in_stay() -> None:
    climber, quick = get_algorithm("climber"), get_algorithm('quick {"horizon": 7}')
    assert (climber.name, climber.program, climber.table) == ("climber",) * 3
    assert (climber.horizon, quick.horizon) == (100, 7)
    assert (climber.deployed, climber.frozen, climber.kernels) == (False, False, "")
    assert get_algorithm("climbing_kit.climber:CLIMBER").learner is climber.learner
    assert get_algorithm("ppo") is ALGORITHMS["ppo"]
    assert get_game("target").name == "target"
    assert get_game("cartpole").solved == 475.0
    assert get_game("pendulum").described is not None
    assert get_game("pendulum").name == "pendulum"


def test_an_algorithm_brings_its_search_space() -> None:
    space = load_space("game", Subject("target", "climber"))
    assert list(space.tables["climber"]) == ["step"]
    assert "[climber]" in preset_text("game", Subject("target", "climber"))
    with pytest.raises(InputError, match=r"neither a preset \(game, narrow"):
        load_space("wide", Subject("target", "climber"))


def test_a_program_that_derives_from_ours_has_its_kernels() -> None:
    class Own(PPO):
        algorithm = "own"

    own = Algorithm.of(Own, {"net_width": 8}, "[own]", discrete=True)
    assert own.kernels == "ppo"
    assert not own.continuous
    assert "entropy" in own.curves


def test_what_a_study_uses_is_recorded_and_a_change_is_said(site: Path, tmp_path: Path) -> None:
    said: list[str] = []
    recorded = study(tmp_path, said).flags["plugins"]
    assert recorded.keys() == {"algorithm", "environment"}
    for kind, module in (("algorithm", "climber"), ("environment", "target")):
        assert recorded[kind]["module"] == f"climbing_kit.{module}"
        assert (recorded[kind]["package"], recorded[kind]["version"]) == ("climbing-kit", "1.2.3")
    study(tmp_path, said)
    assert not [line for line in said if line.startswith("note:")]
    with (site / "climbing_kit" / "climber.py").open("a") as file:
        file.write("# changed\n")
    study(tmp_path, said)
    [note] = [line for line in said if line.startswith("note:")]
    assert note.startswith("note: --algo climber has changed since study s was created")


def test_wrappers_of_others_are_recorded_each(site: Path, tmp_path: Path) -> None:
    own, said = "climbing_kit.more:Halved", list[str]()
    flags: dict[str, Any] = {"env": "gym:CartPole-v1", "algo": "ppo", "wrappers": ["flatten", own]}
    recorded = study(tmp_path, said, **flags).flags["plugins"]
    assert recorded.keys() == {"environment", f"wrapper {own}"}
    assert recorded[f"wrapper {own}"]["version"] == "1.2.3"
    with (site / "climbing_kit" / "more.py").open("a") as file:
        file.write("# changed\n")
    study(tmp_path, said, **flags)
    [note] = [line for line in said if line.startswith("note:")]
    assert note.startswith(f"note: --wrapper {own} has changed since study s was created")


def test_a_study_is_trained_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SWEEPD_STORAGE", raising=False)
    words = "--env target --algo climber --n-trials 2 --budget 2000 --rungs 1 --n-envs 8 --seeds 2"
    words += " --sampler random --fresh-seeds 0 --threads 1 --gpu cpu --no-auto-deploy --episodes 8"
    output = run_sweepd(["train", "--study-name", "s", *words.split()], tmp_path / "out")
    assert "algorithm climber" in output
    assert "--algo climber" in output  # the flags that reproduce the study
    status = run_sweepd(["status", "--study-name", "s"], tmp_path / "out")
    assert "2 of 2" in status
    assert re.search(r"algorithm +climber, climbing-kit 1.2.3, sha256 \w{12}", status)
    assert re.search(r"environment +target, climbing-kit 1.2.3, sha256 \w{12}", status)
    storage = open_storage(storage_url(None, Path("runs")))
    trials = StudyHandle(storage, "s").trials()
    assert all(trial.value is not None and trial.value > -1000.0 for trial in trials)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"algo": "nobody"}, "--algo 'nobody' is not known; choose one of ppo, sac, d3qn, heur"),
        ({"algo": "climbing_kit.more:Bigger"}, r"name what Algorithm.of\(Bigger, …\) returns"),
        ({"algo": "climbing_kit.more:NUMBER"}, "3 is neither an Algorithm"),
        ({"algo": "climbing_kit.more:Nobody"}, "has nothing called 'Nobody'"),
        ({"algo": "no_such_kit:CLIMBER"}, "No module named 'no_such_kit'"),
        ({"algo": 'climber {"horizon": 7}'}, "only a function takes arguments"),
        ({"algo": 'quick {"no": 7}'}, "unexpected keyword argument 'no'"),
        ({"algo": "quick {horizon"}, "the arguments are not JSON"),
        ({"env": "nobody"}, "--env 'nobody' is not known; choose one of crypto, cartpole"),
        ({"env": 'target {"gust": 1}'}, "its arguments are given with --env-param"),
        ({"env": "climbing_kit.target:Target"}, "name what Target.game"),
    ],
)
def test_what_cannot_be_used_is_refused(flags: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said) as refused:
        check_request(settings(**flags))
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("shape", "space", "fields", "said"),
    [
        ({}, "", {}, "needs discrete=True, continuous=True or both"),
        ({"width": 3}, "", {"discrete": True}, "'width' is not one of the sizes buffer, epochs"),
        ({}, "[climber", {"discrete": True}, "Expected"),
    ],
)
def test_a_wrong_algorithm_is_refused_when_it_is_defined(
    shape: dict[str, int], space: str, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Algorithm.of(PPO, shape, space, **fields)


def test_the_kind_of_a_study_does_not_depend_on_who_provides_the_game() -> None:
    assert objective_of("target").title == "games"
