"""`--sampler auto`: chosen when a study is created, and kept when it is joined."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sweepd.envs.games.phase_files import read_opponents
from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli.study_request import make_request
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.table import check_request
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.specs import GameSpec, StudySpec
from sweepd.optimize.study.sampling.samplers import AUTO
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.worker.freeze import choose_search, open_study, resolve_space

CPU = torch.device("cpu")


def chosen(given: tuple[str, ...] = (), **changes: Any) -> Request:
    settings = {"env": "cartpole", "search_space": "game", "objective": "return", **changes}
    asked = Request(given=frozenset(given), **settings)
    check_request(asked)
    space = resolve_space(None, "game", asked.subject, None)  # type: ignore[arg-type]
    return choose_search(asked, space)


def flags(request: Request) -> tuple[str, str, int, int]:
    return request.sampler, request.pruner, request.seeds, request.rungs


def test_auto_is_the_default_of_train_and_of_requests() -> None:
    assert make_request(StudySettings(), frozenset()).sampler == Request().sampler == AUTO


def test_games_of_one_player_race_with_the_flags_it_was_measured_with() -> None:
    assert flags(chosen()) == ("race", "none", 1, 10)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("pruner", "median", ("race", "median", 1, 10)),
        ("seeds", 3, ("race", "none", 3, 10)),
        ("rungs", 5, ("race", "none", 1, 5)),
    ],
)
def test_given_flags_are_kept(name: str, value: Any, wanted: tuple[str, str, int, int]) -> None:
    assert flags(chosen((name,), **{name: value})) == wanted


def test_a_small_budget_keeps_its_rungs() -> None:
    assert chosen(budget=10 * 16 * 64, n_envs=16).rungs == 10
    assert chosen(budget=10 * 16 * 64 - 1, n_envs=16).rungs == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"env": "bucket-brigade", "algo": "heuristic"},  # nothing is trained
        {"env": "bucket-brigade"},  # members play with each other
        {"env": "kuhn", "objective": "points"},  # and a member with itself
        {"env": "hockey", "objective": "points", "curriculum": read_opponents("self=0.5,past=0.5")},
    ],
)
def test_other_studies_use_tpe(changes: dict[str, Any]) -> None:
    assert flags(chosen(**changes)) == ("tpe", "hyperband", 4, 4)


def test_a_study_records_the_choice_and_can_be_joined_with_auto(tmp_path: Path) -> None:
    storage = open_storage(storage_url(None, tmp_path))

    def spec(sampler: str, given: frozenset[str] = frozenset({"sampler"})) -> StudySpec:
        asked = Request(
            env="cartpole",
            search_space="game",
            objective="return",
            budget=20_480,
            n_envs=8,
            threads=1,
            sampler=sampler,
            given=given,
        )
        lines: list[str] = []
        handle, _ = open_study(storage, "s", asked, CPU, tmp_path, {}, lines.append)
        if lines:
            said.extend(lines)
        return handle.spec

    said: list[str] = []
    made = spec("auto")
    assert isinstance(made, GameSpec)
    assert (made.sampler, made.seeds, made.rungs, made.pruner) == ("race", 1, 10, "none")
    printed = " ".join(said)
    assert "--sampler race" in printed
    assert "--seeds 1" in printed
    assert spec("auto") == spec("race") == made
    assert spec("tpe", given=frozenset()) == made  # a default is no wish
    with pytest.raises(InputError, match='sampler = "race"'):
        spec("tpe")


def test_markets_use_tpe() -> None:
    asked = Request()
    check_request(asked)
    space = resolve_space(None, "wide", asked.subject, "1h")  # type: ignore[arg-type]
    assert choose_search(asked, space).sampler == "tpe"
