"""`sweepd league --over`: every cell is an evaluation of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sweepd.agents.policy.league_pictures import cell_words, draw_transfer
from sweepd.deploy.games.candidates import build_bundle, read_candidate
from sweepd.deploy.games.league import Results
from sweepd.deploy.games.league_players import (
    NamedPlayer,
    ScriptedPlayer,
    TrainedPlayer,
    common_params,
)
from sweepd.deploy.games.panel import PanelGames
from sweepd.deploy.games.transfer import play_transfer, read_over
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.pairings import play_pairs, scripted_entrants
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError
from tests.deploy.games.players import Run, study_of
from tests.deploy.games.test_league import BRIGADE, named
from tests.deploy.games.test_teams import ENV, worker

GAMES, SEED = 12, 5
CHANCES = (0.05, 0.3)


def play(path: Path, players: list[NamedPlayer], text: str, given: Any = ENV) -> dict[str, Any]:
    own = {name: value for name, value in given.items() if name != text.partition("=")[0]}
    results = Results(path, BRIGADE, GAMES, SEED)
    return play_transfer(results, players, read_over(text, BRIGADE, own))


def test_cells_are_single_evaluations(studies: Path, tmp_path: Path) -> None:
    players = named(studies, "often#0", "often#0@team", "hero")
    report = play(tmp_path / "r", players, "prob_house_catches_fire=0.05,0.3")
    assert [row["value"] for row in report["rows"]] == [*CHANCES]
    for chance, row in zip(CHANCES, report["rows"], strict=True):
        params = BRIGADE.params(**ENV | {"prob_house_catches_fire": chance})
        rules = PanelGames(BRIGADE, params, GAMES, derive_seed(SEED, "score"))
        for player in players[:2]:
            assert isinstance(player, TrainedPlayer)
            alone = rules.play_player(player.bundle.player).returns[0]
            cell = row["players"][player.name]
            assert cell["mean"] == alone.mean()
            reach = 2.200985 * alone.std(ddof=1) / np.sqrt(GAMES)  # Student's, 11 degrees
            assert cell["high"] - cell["mean"] == pytest.approx(reach, rel=1e-5)
        assert row["random"]["mean"] == score(rules, "random").mean()
        assert row["best"]["mean"] == score(rules, row["best"]["name"]).mean()
        choosing = PanelGames(BRIGADE, params, GAMES, derive_seed(SEED, "choice"))
        names = [name for name in BRIGADE.players(params, 0) if name != "random"]
        assert row["best"]["name"] == max(names, key=lambda name: score(choosing, name).mean())


def score(rules: PanelGames, name: str) -> np.ndarray:
    player, game, params = ScriptedPlayer(name), rules.game, rules.params
    seed = derive_seed(rules.seed, "player")
    return rules.play(lambda env: player.seated(game, params, env, seed)).returns[0]


def test_random_play_is_0_and_the_best_scripted_player_1(tmp_path: Path) -> None:
    players: list[NamedPlayer] = [ScriptedPlayer(name) for name in ("random", "hero", "rest")]
    own = {"scenario": "hard"}
    report = play(tmp_path, players, "min_nights=8,15", own)
    for row in report["rows"]:
        assert row["best"]["name"] == "hero"
        cells = row["players"]
        assert cells["random"]["normalised"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
        assert cells["hero"]["normalised"] == pytest.approx({"mean": 1.0, "low": 1.0, "high": 1.0})
        assert cells["rest"]["normalised"]["high"] < 0.6


def test_a_player_has_no_cell_where_it_does_not_fit(studies: Path, tmp_path: Path) -> None:
    players = named(studies, "often#0", "rest")
    report = play(tmp_path / "r", players, "num_houses=2,3")
    fits, not_fits = (row["players"]["often#0"] for row in report["rows"])
    assert fits["low"] < fits["mean"]
    assert not_fits["misfit"].startswith("the player maps")
    assert report["rows"][1]["players"]["rest"]["mean"]
    draw_transfer(tmp_path / "it.png", report, "two players")
    assert (tmp_path / "it.png").stat().st_size > 1000
    with pytest.raises(InputError, match="often#0 cannot play here: the player maps"):
        play(tmp_path / "s", players, "num_houses=3,4")


def test_points_of_a_game_of_two_are_against_the_scripted_players(tmp_path: Path) -> None:
    game = get_game("hockey")
    players: list[NamedPlayer] = [ScriptedPlayer("weak"), ScriptedPlayer("random")]
    over = read_over("max_timesteps=60", game, {})
    report = play_transfer(Results(tmp_path / "r", game, GAMES, SEED), players, over)
    [row] = report["rows"]
    params = game.params(max_timesteps=60)
    entrants = [players[0].entrant(game, params, "candidate"), *scripted_entrants(game, params)]
    seed = derive_seed(SEED, "score")
    alone = play_pairs(game, params, entrants, [(0, 1), (0, 2)], GAMES // 2, seed).points
    cell = row["players"]["weak"]
    assert cell["mean"] == pytest.approx(alone.mean())
    assert 0.0 <= cell["low"] < cell["mean"] < cell["high"] <= 1.0
    assert row["best"]["name"] in ("weak", "strong")
    assert row["random"]["mean"] == row["players"]["random"]["mean"]
    assert report["score"] == "points against scripted players"


def test_the_player_of_a_mixture_is_scored_in_each_scenario(tmp_path: Path) -> None:
    mixed = {**ENV, "scenario": "easy=0.5,hard=0.5"}
    settings: dict[str, Any] = {"environment": "bucket-brigade", "env": mixed, "seeds": 1}
    study = study_of(tmp_path / "run", [0], make=worker, **settings)
    bundle = build_bundle(read_candidate(study.complete[0], study), study, {})
    bundle.check()
    player = TrainedPlayer("mixed", bundle)
    assert common_params([player], {}) == mixed
    report = play(tmp_path / "r", [player], "scenario=easy,hard", mixed)
    for row, name in zip(report["rows"], ("easy", "hard"), strict=True):
        alone = PanelGames(
            BRIGADE,
            BRIGADE.params(**{**mixed, "scenario": name}),
            GAMES,
            derive_seed(SEED, "score"),
        )
        assert row["players"]["mixed"]["mean"] == alone.play_player(bundle.player).returns.mean()
    together = PanelGames(BRIGADE, bundle.params, 200, 0).play_player(bundle.player).returns
    assert np.isfinite(together).all()


def test_results_of_a_transfer_matrix_are_kept(studies: Path, tmp_path: Path) -> None:
    players = named(studies, "often#0")
    over = read_over("prob_house_catches_fire=0.05", BRIGADE, {"scenario": "easy"} | ENV)
    first, again = (Results(tmp_path / "r", BRIGADE, GAMES, SEED) for _ in range(2))
    told: list[tuple[int, int]] = []
    report = play_transfer(first, players, over, lambda *now: told.append(now))
    assert told == [(done, len(first.played)) for done in range(len(first.played))]
    assert play_transfer(again, players, over) == report
    assert again.played == []


def test_all_scenarios_are_compared(league: Run, tmp_path: Path) -> None:
    few = ("--games", 4, "--env-param", "max_nights=6", "--env", "bucket-brigade")
    printed = league("hero", "--over", "scenario=all", *few)
    for scenario in BRIGADE.scenarios:
        assert scenario in printed
    own = tmp_path / "deployments" / "leagues" / "bucket-brigade"
    report = json.loads((own / "over-scenario.json").read_text())
    assert [row["value"] for row in report["rows"]] == [*BRIGADE.scenarios]
    assert (own / "over-scenario.png").stat().st_size > 1000


def test_games_without_scripted_players_show_means(league: Run) -> None:
    few = ("--games", 4, "--env", "cartpole")
    printed = league("random", "--over", "max_steps=1,50", *few)
    assert "mean return of a game; 95% intervals over 4 games" in printed
    assert "1.00 (all equal)" in printed


def test_cells_in_words() -> None:
    raw = {"mean": 1234.5, "low": 1200.0, "high": 1300.0, "normalised": None}
    assert cell_words(raw, scaled=False) == "1234 (1200 … 1300)"
    assert cell_words(raw, scaled=True) == "mean 1234 (1200 … 1300)"
    share = {"mean": 0.5, "low": 0.25, "high": 0.75}
    assert cell_words(raw | {"normalised": share}, scaled=True) == "0.50 (0.25 … 0.75)"
    assert cell_words({"misfit": "it is too small"}, scaled=True) == "does not fit"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--over", "scenario"], "--over 'scenario' must be NAME=VALUES, like scenario=all"),
        (["--over", "=1,2"], "must be NAME=VALUES"),
        (["--over", "scenario=easy,nope"], "the scenario 'nope' is not known"),
        (["--over", "scenario=easy,easy"], "easy is there twice"),
        (["--over", "nope=1"], "has no parameter 'nope'"),
        (["--over", "min_nights=-1"], "min_nights is -1; it must be a whole number"),
        (
            ["--over", "min_nights=2", "--env-param", "min_nights=3"],
            "--env-param also sets min_nights; leave one of them out",
        ),
    ],
)
def test_wrong_values_are_one_sentence(league: Run, words: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        league("often#0", *words)


def test_a_game_without_scenarios_says_so(league: Run) -> None:
    with pytest.raises(InputError, match="--over scenario=all: cartpole has no scenarios"):
        league("random", "--env", "cartpole", "--over", "scenario=all")
