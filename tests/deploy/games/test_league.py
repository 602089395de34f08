"""`sweepd league`: players of several studies in all pairs, and what is kept of them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sweepd.deploy.games.league as leagues
from sweepd.agents.policy.duels import Duels, FrozenEntrant
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.league import Players, play_matches
from sweepd.deploy.games.candidates import build_bundle, read_candidate
from sweepd.deploy.games.league import Results, play_league, play_table
from sweepd.deploy.games.league_players import (
    NamedPlayer,
    ScriptedPlayer,
    TrainedPlayer,
    common_params,
    find_players,
    game_with,
)
from sweepd.deploy.games.panel import PanelGames
from sweepd.deploy.gates import named_bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.players import ScriptedPolicy
from sweepd.envs.games.pairings import play_pairs
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError
from tests.deploy.games.players import Run, study_of
from tests.deploy.games.test_teams import ENV
from tests.envs.games.toys import RPS_SCRIPTED, SHOWDOWN, chooser

BRIGADE = get_game("bucket-brigade")


def named(studies: Path, *words: str) -> list[NamedPlayer]:
    return find(studies, Registry(studies / "deployments"), *words)  # there is none


def find(studies: Path, registry: Registry, *words: str) -> list[NamedPlayer]:
    url = f"sqlite:///{studies / 'studies.db'}"
    found = {word: named_bundle(word, registry, url) for word in words}
    bundles = {word: bundle for word, bundle in found.items() if bundle is not None}
    return find_players(words, None, bundles)[1]


def few_players(params: Any, seed: int) -> dict[str, Any]:
    every = BRIGADE.players(params, seed)
    return {name: every[name] for name in ("random", "rest")}


def brigade(tmp_path: Path, games: int = 6) -> Results:
    """Results of Bucket Brigade with two scripted players."""
    game = dataclasses.replace(BRIGADE, players=few_players)
    return Results(tmp_path / "results", game, games, 3)


def play(results: Results, players: Sequence[NamedPlayer], **changes: Any) -> dict[str, Any]:
    """Play short games."""
    return play_league(results, players, ENV | {"max_nights": 3} | changes).report


def test_players_are_found_by_trial_team_slot_hash_and_name(studies: Path, tmp_path: Path) -> None:
    registry = Registry(tmp_path / "deployments")
    [trained, team] = named(studies, "often#0", "often#0@team")
    assert isinstance(trained, TrainedPlayer)
    assert isinstance(team, TrainedPlayer)
    assert team.bundle.manifest.seats == (0, 1)
    registry.promote("brigade", trained.bundle, expected=None, reason="")
    prefix = f"bundle:{trained.bundle.hash[:8]}"
    for word in ("brigade", "brigade@1", prefix):
        [found, scripted] = find(studies, registry, word, "hero")
        assert (found.name, found.identity) == (word, trained.identity)
        assert scripted == ScriptedPlayer("hero")
    with pytest.raises(InputError, match="brigade and often#0 are the same player"):
        find(studies, registry, "brigade", "often#0")


def test_a_pair_has_the_points_of_its_games_alone(tmp_path: Path) -> None:
    """The order of names and the other players change nothing."""
    game = SHOWDOWN
    shares = {"timid": (0.0, 0.2, 0.9), "bold": (0.5, 0.7, 1.0), "reckless": (1.0, 1.0, 1.0)}
    make = partial(study_of, environment="tests.envs.games.toys:SHOWDOWN", env={}, play="sampled")
    players = []
    for name, bets in shares.items():
        study = make(
            tmp_path / name,
            [[(1.0 - bet, bet) for bet in bets]],
            make=lambda own: chooser(*own),
            objective="points",
        )
        candidate = read_candidate(study.complete[0], study)
        players.append(TrainedPlayer(name, build_bundle(candidate, study, {})))
    params = game.params()
    found = play_league(Results(tmp_path / "a", game, 40, 7), players, {})
    assert found.report["players"] == ["timid", "bold", "reckless", "random"]
    backwards = play_league(Results(tmp_path / "b", game, 40, 7), players[::-1], {})
    for one, other in itertools.permutations(range(3), 2):
        first, second = players[one], players[other]
        if first.identity > second.identity:
            continue
        entrants = [
            FrozenEntrant(
                own.identity, FrozenPolicy([chooser(*_shares(shares[own.name]))]), sampled=True
            )
            for own in (first, second)
        ]
        alone = play_pairs(game, params, entrants, [(0, 1)], 20, 7).points[0]
        assert isinstance(found.found, Duels)
        assert isinstance(backwards.found, Duels)
        assert found.found.results[one, other].tolist() == alone.tolist()
        assert found.found.results[other, one].tolist() == (1.0 - alone[:, ::-1]).tolist()
        assert backwards.found.results[2 - one, 2 - other].tolist() == alone.tolist()


def _shares(bets: Sequence[float]) -> list[tuple[float, float]]:
    return [(1.0 - bet, bet) for bet in bets]


def test_ratings_are_anchored_at_the_first_scripted_player(studies: Path, tmp_path: Path) -> None:
    players = named(studies, "stone#0", "sheet#0")
    found = play_league(Results(tmp_path / "r", RPS_SCRIPTED, 20, 0), players, {})
    assert found.anchor == "rock"
    rated = found.report["ratings"]["players"]
    assert (rated["rock"]["rating"], rated["rock"]["low"], rated["rock"]["high"]) == (0, 0, 0)
    # The same player under another name, within half a win of prior; a pair of them has drawn.
    assert rated["stone#0"]["rating"] == pytest.approx(0.0, abs=1.0)
    everybody = found.report["equilibrium"]["all"]["weights"]
    by_choice = {
        "rock": everybody.get("stone#0", 0.0) + everybody.get("rock", 0.0),
        "paper": everybody.get("sheet#0", 0.0) + everybody.get("paper", 0.0),
        "scissors": everybody["scissors"],
    }
    assert by_choice == pytest.approx(dict.fromkeys(by_choice, 1 / 3), abs=1e-3)
    own = found.report["equilibrium"]["members"]
    assert own["weights"] == {"sheet#0": 1.0}
    assert own["exploitability"]["by"] == "scissors"
    assert own["exploitability"]["gain"] == pytest.approx(1.0)


def test_a_table_is_that_of_one_batch_with_all_players() -> None:
    """`play_matches` plays all pairs of deterministic players at once."""
    params, names = BRIGADE.params("positional_default", max_nights=8), ("rest", "specialist")
    alone = dataclasses.replace(BRIGADE, players=lambda _params, _seed: {})
    seen = BucketBrigade(params, 4).encoder
    acts = [Players((name,), ScriptedPolicy(name, seen, 0)) for name in names]
    matches = play_matches(alone, params, acts, 8, 3)
    for (row, one), (column, other) in itertools.product(enumerate(names), repeat=2):
        found = play_table(BRIGADE, params, ScriptedPlayer(one), ScriptedPlayer(other), 8, 3)
        assert found["own"].tolist() == matches.own[row, column].tolist()
        assert found["others"].tolist() == matches.others[row, column].tolist()


def test_a_team_has_its_seats_on_its_own_table(studies: Path) -> None:
    [team, single] = named(studies, "often#0@team", "often#0")
    params = BRIGADE.params(**ENV)
    found = play_table(BRIGADE, params, team, team, 40, 3)
    rules = PanelGames(BRIGADE, params, 40, derive_seed(3, "games"))
    returns = rules.play(lambda env: team.seated(BRIGADE, params, env, 0)).returns[0]
    assert (found["own"] + found["others"]).tolist() == pytest.approx(returns.tolist())
    # At the first seat of others' tables it prefers the first house, as `single` does.
    against = play_table(BRIGADE, params, team, single, 40, 3)
    own = play_table(BRIGADE, params, single, single, 40, 3)
    assert against["own"][::2].tolist() == own["own"][::2].tolist()
    assert against["own"][1::2].tolist() != own["own"][1::2].tolist()


def test_results_are_kept_and_only_what_is_missing_is_played(studies: Path, tmp_path: Path) -> None:
    [one, other, rest] = named(studies, "often#0", "rare#0", "rest")
    first = brigade(tmp_path)
    report = play(first, [one, rest])
    count = len(report["players"])
    assert len(first.played) == count**2
    again = brigade(tmp_path)
    assert play(again, [one, rest]) == report
    assert again.played == []
    # Another order of the players, and one more.
    more = brigade(tmp_path)
    larger = play(more, [rest, other, one])
    assert len(more.played) == 2 * count + 1
    place = larger["players"].index
    for row, column in itertools.product(report["players"], repeat=2):
        old = report["own"]["mean"][report["players"].index(row)]
        assert (
            larger["own"]["mean"][place(row)][place(column)] == old[report["players"].index(column)]
        )
    # Other parameters, games and seeds are other results.
    for results, changes in (
        (brigade(tmp_path), {"min_nights": 2}),
        (brigade(tmp_path, games=8), {}),
        (dataclasses.replace(brigade(tmp_path), seed=4), {}),
    ):
        play(results, [one], **changes)
        assert len(results.played) == count**2


def test_an_interrupted_league_goes_on_with_the_same_results(
    studies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    players = named(studies, "often#0", "rare#0")
    whole = play(brigade(tmp_path / "whole"), players)
    play_table, played = leagues.play_table, itertools.count(1)

    def interrupted(*given: Any) -> Any:
        if next(played) > 5:
            raise KeyboardInterrupt
        return play_table(*given)

    monkeypatch.setattr(leagues, "play_table", interrupted)
    with pytest.raises(KeyboardInterrupt):
        play(brigade(tmp_path), players)
    monkeypatch.setattr(leagues, "play_table", play_table)
    # A file that is cut off is played again.
    [first, *_] = sorted((tmp_path / "results").iterdir())
    first.write_text(first.read_text()[:100])
    rest = brigade(tmp_path)
    assert play(rest, players) == whole
    assert len(rest.played) == len(whole["players"]) ** 2 - 4


def test_the_game_is_that_of_the_players_or_as_given(studies: Path) -> None:
    one, other, hero = named(studies, "often#0", "rare#0", "hero")
    assert common_params([one, hero], {}) == ENV
    assert common_params([one], {"min_nights": 2}) == {**ENV, "min_nights": 2}
    chance = {"prob_house_catches_fire": 0.2}
    assert common_params([one, other], chance) == ENV | chance
    rest = {name: value for name, value in ENV.items() if name not in chance}
    assert common_params([one, other], {}, over="prob_house_catches_fire") == rest
    with pytest.raises(
        InputError, match=r"often#0 was trained with prob_house_catches_fire 0\.3, a"
    ):
        common_params([one, other], {})
    with pytest.raises(InputError, match="has no parameter 'nope'"):
        game_with(BRIGADE, {"nope": 1}, "--env-param")
    assert common_params([hero], {}) == {}


def test_the_command_prints_and_writes_a_league(league: Run, tmp_path: Path) -> None:
    printed = league("stone#0", "sheet#0", "--games", 20)
    assert (
        "equilibrium of the named players: sheet#0 100%; it pays 0.00; exploitable: sci" in printed
    )
    assert "rating" in printed
    out = tmp_path / "deployments" / "leagues"
    [own] = out.iterdir()
    assert {path.name for path in own.iterdir()} == {
        *("league.json", "league.png", "ratings.png", "results")
    }
    report = json.loads((own / "league.json").read_text())
    assert json.loads(league("stone#0", "sheet#0", "--games", 20, "--json")) == report
    fire = ("--env-param", "prob_house_catches_fire=0.1", "--games", 6, "--out", tmp_path / "b")
    printed = league("often#0", "rare#0", *fire)
    assert "the best response" in printed
    assert (tmp_path / "b" / "league.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nothing#1"], "'nothing' is not in"),
        (["often#9"], "trial 9 is not a COMPLETE trial of study 'often'"),
        (["often#0@best"], "must be STUDY#N"),
        (["stone#0@team"], "do not play together as a team"),
        (["bundle:beef"], "neither a slot nor the beginning of exactly one bundle's hash"),
        (["often#0", "nobody"], "'nobody' is no slot of .*, STUDY#TRIAL or bundle:HASH, and no"),
        (["often#0", "stone#0"], "stone#0 plays .*RPS_SCRIPTED, and often#0 plays bucket-brigade"),
        (["often#0", "--env", "kuhn"], "often#0 plays bucket-brigade, and --env kuhn plays kuhn"),
        (["rest", "hero"], "name the game of scripted players: --env"),
        (["random", "--env", "cartpole"], "cartpole has one seat and no league"),
        (["often#0", "rare#0"], "choose with --env-param prob_house_catches_fire=VALUE"),
        (["often#0", "--env-param", "num_houses=3"], "often#0 cannot play here: the player maps"),
        (["often#0@team", "--env-param", "num_agents=3"], "is a team for 2 seats, and the game"),
        (["often#0", "--env-param", "nope"], "give NAME=VALUE"),
    ],
)
def test_wrong_players_are_one_sentence(league: Run, words: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        league(*words)


def test_means_are_finite_and_games_are_whole_rounds(studies: Path, tmp_path: Path) -> None:
    [one] = named(studies, "often#0")
    report = play(brigade(tmp_path, games=5), [one])  # rounded up to two seats
    assert report["games"] == 6
    assert np.isfinite(report["own"]["mean"]).all()
