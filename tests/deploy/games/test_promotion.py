"""Promotion of players: bundle, panel, gate, registry."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save as save_tensors

import sweepd.deploy.games.gate
from sweepd.agents.policy.members import chosen_members, read_members
from sweepd.deploy.games.bundle import GameBundle, game_key
from sweepd.deploy.games.candidates import GamePromotion, GameStudy, build_bundle, read_candidate
from sweepd.deploy.games.gate import GameGate
from sweepd.deploy.games.panel import (
    Interval,
    Opponent,
    Panel,
    PanelGames,
    compare,
    confidence,
    interval,
    judge_panel,
    panel_seed,
    share_interval,
)
from sweepd.deploy.games.player import HeuristicPlayer, read_player
from sweepd.deploy.games.rules import DEFAULT_RULES, PANEL, GameEvidence, shown
from sweepd.deploy.games.verify import verify_game_bundle
from sweepd.deploy.gates import bundle_types, load_bundle
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.promotion.promoter import Promoter
from sweepd.deploy.promotion.rules import judge, with_limits
from sweepd.deploy.registry.bundle_files import (
    MEMBERS_FILE,
    canonical_json,
    new_bundle,
    read_bundle,
    sha256,
    write_bundle,
)
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.registry.slots import LONGEST_SLOT, check_slot, slot_name
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.cartpole import CartPoleParams
from sweepd.envs.games.play import EpisodeResults
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import promoter_of
from tests.deploy.games.players import BAD, ENV, GOOD, SLOT, WEAK, player, study_of

GAMES = 20
BASELINES = ("random", "always 0", "always 1", "first action repeated")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "deployments")


def promote(study: GameStudy, registry: Registry, **changes: Any) -> GamePromotion:
    return promoter_of(GameGate, study, registry, games=GAMES, **changes).run()


def bundle_of(folder: Path, *players: tuple[float, ...]) -> GameBundle:
    study = study_of(folder, players or [GOOD])
    return build_bundle(read_candidate(study.complete[0], study), study, gate={})


# -- the bundle


def test_a_bundle_holds_the_best_member_alone_and_loads_as_it_was_written(tmp_path: Path) -> None:
    study = study_of(tmp_path, [GOOD, WEAK])
    study.complete[0].user_attrs["sweepd:seed_scores"] = [20.0, 50.0]
    bundle = build_bundle(read_candidate(study.complete[0], study), study, gate={})
    assert (bundle.origin.member, bundle.origin.members, bundle.origin.score) == (1, 2, 50.0)
    (held,) = read_members(bundle.files[MEMBERS_FILE], "it")
    assert held.tensors["net.0.weight"].equal(player(WEAK).tensors["net.0.weight"])
    path = write_bundle(bundle, tmp_path / "bundles")
    assert load_bundle(path, expected=bundle.hash) == bundle


def test_what_is_wrong_with_a_bundle_is_said(tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path)
    path = write_bundle(bundle, tmp_path / "bundles")
    with pytest.raises(InputError, match="expected 'sweepd-bundle'"):
        read_bundle(path, (Bundle,))
    weights = path / MEMBERS_FILE
    weights.chmod(0o644)
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(InputError, match=r"members\.safetensors has been changed"):
        load_bundle(path)
    weights.unlink()
    with pytest.raises(InputError, match=r"lacks its file members\.safetensors"):
        load_bundle(path)

    def changed(**parts: dict[str, Any]) -> None:
        manifest = bundle.manifest
        for name, fields in parts.items():
            manifest = manifest.model_copy(
                update={name: getattr(manifest, name).model_copy(update=fields)}
            )
        new_bundle(GameBundle, manifest, bundle.files)

    with pytest.raises(InputError, match="'chess' is not known"):
        changed(game={"name": "chess"})
    with pytest.raises(InputError, match="takes no parameters like"):
        changed(game={"params": {"wheels": 3}})
    with pytest.raises(InputError, match="has 1 seats, not 2"):
        changed(game={"seats": 2})
    with pytest.raises(InputError, match="maps 4 numbers to 2 actions"):
        changed(player={"state_dim": 5})


def test_a_manifest_with_an_unknown_part_or_a_wrong_hash_is_refused(tmp_path: Path) -> None:
    path = write_bundle(bundle_of(tmp_path), tmp_path / "bundles")
    manifest = path / "bundle.json"
    manifest.chmod(0o644)
    content = json.loads(manifest.read_text())
    del content["hash"]
    for changes, said in (
        ({"wheels": 3}, "wheels is not known; choose one of "),
        ({"format_version": 9}, "version 9"),
        ({"player": {**content["player"], "play": ...}}, "player.play"),
        ({"player": {**content["player"], "spaces": ...}}, "player.spaces"),
    ):
        other = content | changes
        other["player"] = {key: own for key, own in other["player"].items() if own is not ...}
        named = other | {"hash": sha256(canonical_json(other).encode())}
        manifest.write_text(canonical_json(named))
        with pytest.raises(InputError, match=said):
            load_bundle(path)


@pytest.mark.parametrize(
    ("game", "params", "key"),
    [
        ("cartpole", {}, "cartpole"),
        ("bucket-brigade", {"scenario": "rest_trap"}, "bucket-brigade-rest_trap"),
        ("gym:Pendulum-v1", {}, "gym-Pendulum-v1"),
        ("cartpole", {"length": 1.0, "gravity": 5.0}, "cartpole-gravity_5.0-length_1.0"),
    ],
)
def test_games_are_identified_by_name_and_parameters_and_slots_named_after_them(
    game: str, params: dict[str, Any], key: str
) -> None:
    assert game_key(game, params) == key
    assert slot_name(key) == key


@pytest.mark.parametrize(
    ("game", "params", "start"),
    [
        ("gym:CartPole-v1", {"map": "maps/small.txt"}, "gym-CartPole-v1-map_maps-small.txt-"),
        ("gym:CartPole-v1", {"label": "x" * 90}, "gym-CartPole-v1-label_xxx"),
        ("gym:CartPole-v1", {"label": "é" * 60, "other": "a@b"}, "gym-CartPole-v1-label_éé"),
        ("gym:CartPole-v1", {"scenario": "two\nlines"}, "gym-CartPole-v1-twolines-"),
        ("gym:CartPole-v1", {"label": "x" * 63 + " y"}, "gym-CartPole-v1-label_xxx"),
    ],
)
def test_every_default_slot_is_a_valid_name_and_different_games_have_different_ones(
    tmp_path: Path, registry: Registry, game: str, params: dict[str, Any], start: str
) -> None:
    def promoter(own: dict[str, Any]) -> Promoter[Any, Any, Any, Any]:
        return promoter_of(
            GameGate, study_of(tmp_path, [GOOD], environment=game, env=own), registry
        )

    made, other = promoter(params), promoter(params | {"scenario": "another"})
    assert made.slot.startswith(start)
    assert check_slot(made.slot) == made.slot != other.slot
    assert made.gate.game == game_key(game, params)


def test_a_game_with_many_parameters_is_promoted_and_its_looks_are_counted_under_all_of_them(
    tmp_path: Path, registry: Registry
) -> None:
    env = {name: value for name, value in vars(CartPoleParams(**ENV)).items() if value is not None}
    promotion = promote(study_of(tmp_path, [GOOD], env=env), registry)
    key = game_key("cartpole", env)
    assert len(key) > LONGEST_SLOT
    assert (promotion.outcome, promotion.looks, registry.evaluations.count_panel(key)) == (
        "promoted",
        1,
        1,
    )
    assert registry.require(None).name == promotion.slot == slot_name(key)


# -- the panel


def test_players_play_the_same_games_and_none_of_the_search(tmp_path: Path) -> None:
    rules = PanelGames(
        get_game("cartpole"), get_game("cartpole").params(**ENV), GAMES, panel_seed(3, 1)
    )
    own = bundle_of(tmp_path).player
    panel = judge_panel(rules, 1, own)
    assert (panel.episodes.returns[0] == rules.play_player(own).returns[0]).all()
    assert tuple(other.name for other in panel.baselines) == BASELINES
    assert panel.own.mean > 40.0 > 30.0 > max(other.own.mean for other in panel.baselines)
    used = {derive_seed(3, "evaluation"), panel_seed(3, 1), panel_seed(3, 2), panel_seed(4, 1)}
    assert len(used) == 4


def test_differences_are_paired_and_intervals_stricter_with_every_look() -> None:
    rng = np.random.default_rng(0)
    games = rng.normal(0.0, 50.0, 100)
    ours, theirs = (
        EpisodeResults(values[None], np.ones((1, 100), np.int64)) for values in (games + 1.0, games)
    )
    found = compare("other", ours, theirs, 1, 0)
    assert (found.ahead, found.equal, found.behind) == (100, 0, 0)
    assert [found.difference.low, found.difference.high] == pytest.approx([1.0, 1.0], abs=1e-12)
    assert [confidence(look) for look in (1, 2, 3)] == [0.95, 0.975, 0.9875]
    values = rng.normal(1.0, 2.0, 100)
    narrow, wide = interval(values, confidence(1), 0), interval(values, confidence(4), 0)
    assert wide.low < narrow.low < narrow.mean < narrow.high < wide.high
    half = 1.96 * values.std() / 10.0
    assert narrow.low == pytest.approx(values.mean() - half, abs=0.04)
    assert narrow.high == pytest.approx(values.mean() + half, abs=0.04)


def versus(ours: Any, theirs: Any) -> dict[str, str]:
    """Verdicts of the comparing rules, against random play and a champion."""
    lengths = np.ones((1, len(ours)), np.int64)
    played = [
        EpisodeResults(np.asarray(values, np.float64)[None], lengths) for values in (ours, theirs)
    ]
    own = interval(played[0].returns[0], 0.95, 0)
    other = compare("random", *played, 1, 0)
    panel = Panel(seed=0, look=1, episodes=played[0], own=own, baselines=(other,), champion=other)
    return {
        finding.name: finding.verdict
        for finding in judge(DEFAULT_RULES, GameEvidence((), panel), PANEL)
    }


def test_better_means_a_higher_mean_and_ahead_in_most_games() -> None:
    rng = np.random.default_rng(1)
    lander = rng.normal(-143.0, 40.0, 100)
    random = lander + np.repeat([20.0, -80.0], [51, 49])  # a mean of -172, and ahead in 51 games
    assert versus(lander, random) == {
        "beats-baselines": "pass",
        "ahead-of-baselines": "fail",
        "beats-champion": "pass",
        "ahead-of-champion": "fail",
    }
    games = rng.normal(5000.0, 400.0, 100)
    for ours, theirs, verdict in (
        (games + rng.normal(45.0, 90.0, 100), games, "pass"),  # a lead of half a deviation
        ([500.0] * 100, [500.0] * 88 + [400.0] * 12, "pass"),  # equal games say nothing
        ([500.0] * 100, [500.0] * 100, "fail"),
        ([1.0] * 30 + [0.0] * 70, [0.0] * 100, "pass"),  # a rare payoff that only this player gets
        (games + np.repeat([300.0, -10.0], [20, 80]), games, "fail"),  # a few games decide the mean
        (
            games + np.repeat([20.0, -200.0], [90, 10]),
            games,
            "fail",
        ),  # usually ahead, and worse on the whole
    ):
        found = versus(ours, theirs)
        assert ("pass" if set(found.values()) == {"pass"} else "fail") == verdict, found


def test_the_share_of_games_ahead_is_an_exact_interval() -> None:
    assert share_interval(0, 0, 0.95) == Interval(0.5, 0.0, 1.0, 0.95)
    assert share_interval(100, 0, 0.95).low == pytest.approx(0.025 ** (1 / 100))
    assert share_interval(0, 100, 0.95).high == pytest.approx(1 - 0.025 ** (1 / 100))
    for ahead in range(30):  # a sign test, summed by hand
        chance = sum(math.comb(30, more) for more in range(ahead, 31)) / 2**30
        assert (share_interval(ahead, 30 - ahead, 0.95).low > 0.5) == (chance < 0.025)


def test_what_a_panel_showed_is_said_plainly() -> None:
    def opponent(name: str, mean: float) -> Opponent:
        at = Interval(mean, mean, mean, 0.95)
        return Opponent(name, at, at, 49, 2, 49, share_interval(49, 49, 0.95))

    episodes, own = (
        EpisodeResults(np.zeros((1, 100)), np.ones((1, 100), np.int64)),
        Interval(-143.0, -150.0, -136.0, 0.95),
    )
    panel = Panel(
        seed=0, look=1, episodes=episodes, own=own, baselines=(opponent("random", -171.0),)
    )
    said = shown(panel, 200.0)
    assert said.startswith(
        "Mean return of a game -143; -171 by random (ahead in 49 of 100 games, equal in 2)."
    )
    assert "counts as solved from a mean of 200: it is not solved." in said
    assert "The only other players were random and constant play" in said
    more = dataclasses.replace(panel, champion=opponent("abc", -150.0))
    assert "; -150 by champion abc (ahead in 49" in shown(more, None)
    assert "only other" not in shown(more, None)
    assert get_game("gym:MountainCar-v0").solved == -110.0  # as Gymnasium registers it


def test_every_baseline_player_of_a_game_must_be_beaten() -> None:
    game = get_game("bucket-brigade")
    rules = PanelGames(game, game.params(scenario="rest_trap"), 4, 1)
    heuristics = {"m000.theta": torch.full((4,), 0.5, dtype=torch.float64)}
    player = read_player(save_tensors(heuristics))
    played = rules.play_baselines(player)
    assert set(played) == set(rules.baselines) >= {"random", "specialist", "firefighter"}
    assert set(played) >= {"always first", "always middle", "always last", "first action repeated"}
    again = rules.play_baselines(player)
    assert all((played[name].returns == again[name].returns).all() for name in played)


def test_heuristic_players_play_bucket_brigade_and_nothing_else() -> None:
    thetas = {
        f"m{index:03d}.theta": torch.full((4,), 0.5 * index, dtype=torch.float64)
        for index in range(3)
    }
    content = chosen_members(save_tensors(thetas), [1], "it")
    always = read_player(content)
    assert isinstance(always, HeuristicPlayer)
    assert always.theta == (0.5, 0.5, 0.5, 0.5)
    game = get_game("bucket-brigade")
    played = [
        PanelGames(game, game.params(scenario="rest_trap"), 4, 1).play_player(always).returns
        for _ in range(2)
    ]
    assert (played[0] == played[1]).all()
    with pytest.raises(InputError, match="plays Bucket Brigade, not"):
        PanelGames(get_game("cartpole"), get_game("cartpole").params(), 4, 1).play_player(always)
    with pytest.raises(InputError, match="not the four probabilities"):
        read_player(save_tensors({"m000.theta": torch.tensor([2.0, 0.0, 0.0, 0.0])}))
    with pytest.raises(InputError, match="holds 3 members; expected 2"):
        read_player(save_tensors(thetas), seats=(0, 1))
    with pytest.raises(InputError, match="it holds 3 members, none numbered 3"):
        chosen_members(save_tensors(thetas), [3], "it")


# -- promotion


def test_a_player_becomes_champion_and_gives_way_to_a_better_one_only(
    tmp_path: Path, registry: Registry
) -> None:
    first = promote(study_of(tmp_path / "a", [WEAK]), registry)
    assert (first.outcome, first.slot, first.version) == ("promoted", SLOT, 1)
    names = [finding.name for finding in first.chosen.findings]
    assert names == ["training-faults", "beats-baselines", "ahead-of-baselines", "solved"]
    assert (
        first.chosen.findings[-1].verdict == "told"
    )  # no player solves it in 60 steps; that rule only informs
    again = promote(study_of(tmp_path / "a", [WEAK]), registry)
    assert again.outcome == "champion already"
    worse = promote(study_of(tmp_path / "b", [BAD]), registry)
    assert worse.outcome == "none passes"
    assert "beats-champion" in worse.reason
    assert worse.champion == first.champion
    better = promote(study_of(tmp_path / "c", [GOOD]), registry)
    assert (better.outcome, better.looks) == ("promoted", 3)
    assert registry.slot(SLOT).previous == first.champion
    champion = registry.bundle(better.champion, GameBundle)
    panel = champion.manifest.gate["panel"]
    assert (panel["look"], panel["champion"]["difference"]["confidence"]) == (3, confidence(3))
    assert registry.untraded_slots() == {SLOT: "game"}
    assert registry.rollback(SLOT, "", *bundle_types()) == (better.champion, first.champion)
    with pytest.raises(InputError, match=r"is a game bundle \(cartpole\); a market bundle"):
        registry.bundle(better.champion, Bundle)


def test_as_good_is_not_better(tmp_path: Path, registry: Registry) -> None:
    promote(study_of(tmp_path / "a", [GOOD]), registry)
    twice = tuple(2.0 * value for value in GOOD)  # other weights, the same actions
    equal = promote(study_of(tmp_path / "b", [twice]), registry)
    assert equal.outcome == "none passes"
    assert equal.chosen.score.champion.difference.mean == 0.0
    assert "equal in all games" in equal.how_far


def test_the_same_weights_are_the_same_look_and_other_games_another(
    tmp_path: Path, registry: Registry
) -> None:
    study = study_of(tmp_path, [BAD])
    for games, look, repeated in ((GAMES, 1, False), (GAMES, 1, True), (GAMES + 1, 2, False)):
        found = promoter_of(GameGate, study, registry, games=games, dry_run=True).run()
        assert (found.chosen.look.number, found.chosen.look.repeated) == (look, repeated)
    assert registry.slot(SLOT).champion is None
    elsewhere = promoter_of(
        GameGate, study, registry, games=GAMES, slot="other", dry_run=True
    ).run()
    assert elsewhere.looks == 2  # another slot's name earns no new look


def test_the_next_candidate_asks_where_looks_are_left_and_faults_cost_none(
    tmp_path: Path, registry: Registry
) -> None:
    study = study_of(tmp_path, [GOOD], [BAD], [WEAK])
    (tmp_path / "trial-00000" / "members.safetensors").write_bytes(b"other")
    found = promote(study, registry)
    assert (found.outcome, found.looks, found.chosen.candidate.trial.number) == (
        "none passes",
        1,
        1,
    )
    assert "not the bytes that were scored" in found.candidates[0].findings[0].explanation
    assert promote(study, registry, looks=2).chosen.candidate.trial.number == 2
    only = promoter_of(GameGate, study, registry, games=GAMES).run(trial=2)
    assert only.outcome == "champion already"
    with pytest.raises(InputError, match="--trial 9 is not a COMPLETE trial"):
        promoter_of(GameGate, study, registry).run(trial=9)


def test_limits_are_margins(tmp_path: Path, registry: Registry) -> None:
    rules = with_limits(DEFAULT_RULES, {"beats-baselines": 1000.0})
    found = promote(study_of(tmp_path, [GOOD]), registry, rules=rules)
    assert found.outcome == "none passes"
    refused = registry.events(SLOT)[-1]
    assert (refused.kind, refused.reason) == ("refused", found.reason)
    easy = with_limits(DEFAULT_RULES, {"beats-baselines": -1000.0})
    found = promote(study_of(tmp_path, [GOOD]), registry, rules=easy)
    assert found.outcome == "promoted"
    assert (
        "met every rule, 1 of them loosened (beats-baselines > -1000 instead of 0)" in found.reason
    )
    assert registry.bundle(found.champion, *bundle_types()).manifest.gate["findings"][1]["loosened"]


@pytest.mark.parametrize(("rival", "outcome"), [(WEAK, "promoted"), (GOOD, "champion already")])
def test_of_two_promoters_that_race_one_compares_again(
    tmp_path: Path,
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    rival: tuple[float, ...],
    outcome: str,
) -> None:
    judge: Callable[..., Any] = sweepd.deploy.games.gate.judge_panel
    raced: list[GamePromotion] = []

    def while_another_is_faster(*arguments: Any) -> Any:
        panel = judge(*arguments)
        if not raced:
            raced.append(panel)
            raced.append(promote(study_of(tmp_path / "rival", [rival]), registry))
        return panel

    monkeypatch.setattr(sweepd.deploy.games.gate, "judge_panel", while_another_is_faster)
    found = promote(study_of(tmp_path / "own", [GOOD]), registry)
    assert raced[1].outcome == "promoted"
    assert found.outcome == outcome
    assert registry.slot(SLOT).revision == (2 if outcome == "promoted" else 1)


def test_a_slot_of_another_game_is_refused(tmp_path: Path, registry: Registry) -> None:
    promote(study_of(tmp_path / "a", [GOOD]), registry)
    other = study_of(tmp_path / "b", [GOOD], env={"max_steps": 30})
    with pytest.raises(InputError, match="use the slot cartpole-max_steps_30"):
        promote(other, registry, slot=SLOT)


# -- verification


def test_verify_plays_the_panel_again(tmp_path: Path, registry: Registry) -> None:
    found = promote(study_of(tmp_path, [GOOD]), registry)
    bundle = found.chosen.bundle
    assert bundle is not None
    result = verify_game_bundle(bundle)
    assert result.agrees
    assert result.content["games"] == GAMES
    assert tuple(result.content["baselines"]) == BASELINES
    gate = json.loads(json.dumps(bundle.manifest.gate))
    gate["panel"]["returns"][3] += 1.0
    gate["panel"]["baselines"]["random"]["own"]["mean"] += 1e-12
    forged = dataclasses.replace(bundle, manifest=bundle.manifest.model_copy(update={"gate": gate}))
    differing = verify_game_bundle(forged).content["differing"]
    assert len(differing) == 2
    assert differing[0].startswith("game 4: ")
    with pytest.raises(InputError, match="never evaluated on a panel"):
        verify_game_bundle(bundle_of(tmp_path))


def test_a_network_that_nobody_else_knows_is_not_deployed(
    tmp_path: Path, registry: Registry
) -> None:
    study = study_of(tmp_path / "run", [GOOD], algorithm="tests.agents.own_agents:SmoothAgent")
    promotion = promoter_of(GameGate, study, registry, games=GAMES).run()
    assert promotion.outcome == "none passes"
    assert "has its own network, which can be searched but not deployed" in promotion.how_far
    assert registry.slot(SLOT).champion is None
