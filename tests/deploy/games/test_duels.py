"""Promotion of players in games of two: points, both seatings, ratings, sampled play."""

from __future__ import annotations

import io
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from sweepd.agents.policy.members import Member
from sweepd.commands import build_app
from sweepd.deploy.games.candidates import GamePromotion, GameStudy, build_bundle, read_candidate
from sweepd.deploy.games.duel_panel import CANDIDATE, DuelPanel, compare_duel, points_interval
from sweepd.deploy.games.gate import DUELS, GameGate
from sweepd.deploy.games.report import game_report
from sweepd.deploy.games.rules import shown
from sweepd.deploy.games.show import Show
from sweepd.deploy.games.verify import verify_game_bundle
from sweepd.deploy.gates import load_bundle
from sweepd.deploy.promotion.documents import write_report
from sweepd.deploy.promotion.terminal import report_view
from sweepd.deploy.registry.bundle_files import write_bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import promoter_of
from tests.deploy.games.players import store, study_of
from tests.envs.games.toys import chooser

RPS, SHOWDOWN = "tests.envs.games.toys:RPS", "tests.envs.games.toys:SHOWDOWN"
SCRIPTED = "tests.envs.games.toys:RPS_SCRIPTED"
UNIFORM = ((1 / 3, 1 / 3, 1 / 3),)
# Shares of folding and betting with the lowest, the middle and the highest card.
TIMID = ((1.0, 0.0), (1.0, 0.0), (0.0, 1.0))
GOOD = ((1.0, 0.0), (0.0, 1.0), (0.0, 1.0))
WEAK = ((0.0, 1.0), (1.0, 0.0), (1.0, 0.0))
ALWAYS = ((0.0, 1.0), (0.0, 1.0), (0.0, 1.0))


def study(folder: Path, environment: str, *players: Any, **changes: Any) -> GameStudy:
    settings = {"env": {}, "objective": "points"} | changes
    trials = [[own] for own in players]
    return study_of(
        folder, *trials, make=lambda own: chooser(*own), environment=environment, **settings
    )


def promote(found: GameStudy, registry: Registry, **changes: Any) -> GamePromotion:
    return promoter_of(GameGate, found, registry, **changes).run()


def verdicts(promotion: GamePromotion) -> dict[str, str]:
    assert promotion.chosen is not None
    return {finding.name: finding.verdict for finding in promotion.chosen.findings}


def panel_of(promotion: GamePromotion) -> DuelPanel:
    assert promotion.chosen is not None
    assert isinstance(promotion.chosen.score, DuelPanel)
    return promotion.chosen.score


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "deployments")


@pytest.mark.parametrize("play", ["deterministic", "sampled"])
def test_rock_paper_scissors_is_not_promoted_for_luck(tmp_path: Path, play: Any) -> None:
    for seed in range(4):
        registry = Registry(tmp_path / f"deployments-{seed}")
        found = study(tmp_path / str(seed), RPS, UNIFORM, seed=seed)
        promotion = promote(found, registry, play=play)
        assert promotion.outcome == "none passes"
        panel = panel_of(promotion)
        assert panel.games == DUELS
        assert panel.own.mean == pytest.approx(0.5, abs=0.12)


def test_a_pure_strategy_draws_wins_and_loses_against_the_scripted_ones(
    tmp_path: Path, registry: Registry
) -> None:
    promotion = promote(study(tmp_path, SCRIPTED, ((1.0, 0.0, 0.0),)), registry)
    assert promotion.outcome == "none passes"
    rock, paper, scissors, *constant = panel_of(promotion).baselines
    assert (rock.equal, paper.behind, scissors.ahead) == (DUELS, DUELS, DUELS)
    assert [(other.name, other.behind) for other in constant] == [
        ("always 0", 0),
        ("always 1", DUELS),
        ("always 2", 0),
    ]
    # Constant players must be beaten, but count for no share of all points.
    assert panel_of(promotion).own.mean == 0.5
    assert verdicts(promotion)["beats-baselines"] == verdicts(promotion)["points"] == "fail"


def test_a_better_player_is_promoted_and_past_champions_and_candidates_are_played(
    tmp_path: Path, registry: Registry
) -> None:
    weak = promote(study(tmp_path / "a", SHOWDOWN, WEAK), registry, rules=())
    assert weak.outcome == "promoted"
    good = study(tmp_path / "b", SHOWDOWN, GOOD, TIMID, ALWAYS)
    promotion = promote(good, registry, games=400)
    assert promotion.outcome == "promoted", promotion.reason
    panel = panel_of(promotion)
    assert [other.name for other in panel.baselines] == ["random", "always 0", "always 1"]
    assert panel.champion is not None
    assert weak.champion is not None
    assert panel.champion.name == f"{weak.slot}@1"
    assert [other.name for other in panel.candidates] == ["trial 1 (seed 0)", "trial 2 (seed 0)"]
    for other in panel.opponents:
        assert other.games == panel.games == 400
    # It gets 0, 1.5 and 1.5 from the weak player with its three cards.
    assert panel.points[panel.champion.name].mean() == pytest.approx(0.5 + 1.0 / 4.0, abs=0.05)
    rating = panel.ratings
    assert rating.names[0] == CANDIDATE
    assert dict(zip(rating.names, rating.ratings, strict=True))["random"] == 0.0
    # The next candidate meets the weak champion as a past one, and does not beat the present one.
    third = promote(study(tmp_path / "c", SHOWDOWN, ALWAYS), registry)
    assert third.outcome == "none passes"
    assert [other.name for other in panel_of(third).past] == [f"{weak.slot}@1"]
    assert promote(good, registry).outcome == "champion already"


def test_in_a_study_with_a_league_its_heaviest_player_is_the_first_candidate(
    tmp_path: Path, registry: Registry
) -> None:
    trials = [[GOOD], [WEAK, GOOD], [ALWAYS]]
    settings = {"env": {}, "objective": "points"}
    found = study_of(
        tmp_path, *trials, make=lambda own: chooser(*own), environment=SHOWDOWN, **settings
    )
    names = [read_candidate(trial, found).name for trial in found.complete]
    assert names == ["trial 0 (seed 0)", "trial 1 (seed 0)", "trial 2 (seed 0)"]
    league: dict[str, Any] = {
        "member_of_trial": {"trial 0": 0, "trial 1": 1},  # trial 2 is newer than the report
        "equilibrium": {"members": {"weights": {"trial 1": 0.9, "trial 0": 0.1}}},
    }
    report = tmp_path / "league.json"
    report.write_text(json.dumps(league))
    own = GameStudy(found)
    assert [trial.number for trial in own.complete] == [1, 0, 2]
    promotion = promote(own, registry, games=400)
    assert promotion.outcome == "promoted", promotion.reason
    assert promotion.chosen is not None
    assert promotion.chosen.candidate.name == "trial 1 (seed 1)"
    assert len(panel_of(promotion).candidates) == 2
    # The report of an unsolved equilibrium still says which members they are.
    league["equilibrium"]["members"] = {"unsolved": "no time"}
    report.write_text(json.dumps(league))
    unsolved = GameStudy(found)
    assert [trial.number for trial in unsolved.complete] == [0, 1, 2]
    assert read_candidate(unsolved.complete[1], unsolved).members == (1,)


def test_candidates_play_the_same_deals_in_both_seatings(
    tmp_path: Path, registry: Registry
) -> None:
    promotion = promote(study(tmp_path, SHOWDOWN, GOOD, GOOD), registry, games=21)
    panel = panel_of(promotion)
    assert panel.games == 22
    # The other candidate is the same player: no deal favours either.
    (same,) = panel.candidates
    assert (panel.points[same.name] == 0.5).all()
    assert same.ahead == same.behind > 0
    assert same.difference.low == pytest.approx(-same.difference.high, abs=0.02)
    assert -0.4 < same.difference.low < -0.1  # 11 deals: equal points in all of them prove little
    assert (same.share.low, same.share.high) == (0.0, 1.0)


def test_deals_and_not_games_are_counted() -> None:
    points = np.array([[1.0, 0.0], [1.0, 1.0], [1.0, 0.5], [0.0, 0.0]])
    found = compare_duel("other", points, 1)
    assert (found.ahead, found.equal, found.behind) == (4, 1, 3)
    assert found.share.mean == pytest.approx(2 / 3)
    assert found.own.mean == pytest.approx(1.0 - points.mean())
    assert found.difference.mean == pytest.approx(2.0 * points.mean() - 1.0)


def test_a_player_that_won_every_game_has_an_interval_with_a_width() -> None:
    found = compare_duel("other", np.ones((200, 2)), 1)
    points = (1.0 + found.difference.low) / 2.0, (1.0 + found.difference.high) / 2.0
    assert points == pytest.approx((0.025 ** (1 / 200), 1.0), abs=1e-3)  # 98.2%, not 100%
    assert found.own.high == pytest.approx(1.0 - 0.025 ** (1 / 200), abs=1e-3)


@pytest.mark.parametrize("shares", [(0.0, 0.05, 0.95), (0.3, 0.4, 0.3), (0.02, 0.0, 0.98)])
def test_intervals_of_points_cover_the_truth(shares: tuple[float, ...]) -> None:
    """95% intervals of 100 deals with points 0, 1/2 and 1 cover their mean in at least 94%."""
    rng, values = np.random.default_rng(1), np.array([0.0, 0.5, 1.0])
    truth, replicates, covered = float(values @ shares), 300, 0
    for _ in range(replicates):
        found = points_interval(rng.choice(values, 100, p=shares), 0.95)
        covered += found.low <= truth <= found.high
    assert covered / replicates >= 0.94


def test_sampled_play_is_recorded_verified_and_another_player(
    tmp_path: Path, registry: Registry
) -> None:
    found = study(tmp_path, SHOWDOWN, ((0.9, 0.1), (0.2, 0.8), (0.0, 1.0)))
    sampled = promote(found, registry, play="sampled", games=400)
    assert sampled.outcome == "promoted", sampled.reason
    assert sampled.chosen is not None
    assert sampled.chosen.bundle is not None
    path = write_bundle(sampled.chosen.bundle, tmp_path / "bundles")
    bundle: Any = load_bundle(path)
    assert bundle.manifest.player.play == "sampled"
    verified = verify_game_bundle(bundle)
    assert verified.agrees
    assert verified.content["games"] == 1200
    assert verified.content["baselines"] == ["random", "always 0", "always 1"]
    # The same weights played deterministically are another player, and another evaluation.
    plain = build_bundle(read_candidate(found.complete[0], found), found, bundle.manifest.gate)
    assert not verify_game_bundle(plain).agrees
    assert plain.identity != bundle.identity
    assert promote(found, registry, play="sampled").outcome == "champion already"
    assert (sampled.looks, promote(found, registry, games=400).looks) == (1, 2)


def test_promotion_plays_as_the_study_judged(tmp_path: Path, registry: Registry) -> None:
    mixed = ((0.9, 0.1), (0.2, 0.8), (0.0, 1.0))
    found = study(tmp_path, SHOWDOWN, mixed, play="sampled")
    said: list[str] = []
    promotion = promote(found, registry, games=400, progress=said.append)
    assert promotion.chosen is not None
    assert promotion.chosen.bundle is not None
    assert promotion.chosen.bundle.manifest.player.play == "sampled"
    assert any(line.endswith("400 games against each opponent, sampled play") for line in said)
    page, _ = write_report(game_report(found, promotion), tmp_path / "gate")
    assert "draws its actions from its policy" in page.read_text()
    plain = promote(found, registry, games=400, play="deterministic")
    assert plain.chosen is not None
    assert plain.chosen.candidate.play == "deterministic"
    assert plain.looks == 2  # another player


def test_values_cannot_be_promoted_with_sampled_play(tmp_path: Path, registry: Registry) -> None:
    values = {"value_avg": torch.zeros(1), "value_std": torch.ones(1)}
    found = study_of(
        tmp_path,
        [GOOD],
        make=lambda own: Member.of_tensors({**chooser(*own).tensors, **values}),
        environment=SHOWDOWN,
        env={},
        objective="points",
    )
    with pytest.raises(InputError, match="plays deterministically"):
        promote(found, registry, play="sampled")


def test_results_are_shown_in_words_tables_and_the_report(
    tmp_path: Path, registry: Registry
) -> None:
    found = study(tmp_path, SHOWDOWN, GOOD, TIMID)
    promotion = promote(found, registry)
    panel = panel_of(promotion)
    told = json.loads(json.dumps(promotion.to_dict()))
    assert set(told["candidates"][0]["panel"]["ratings"]["players"]) == {
        CANDIDATE,
        "random",
        "always 0",
        "always 1",
        "trial 1 (seed 0)",
    }
    assert "of all points" in shown(panel, None)
    assert "won" in shown(panel, None)
    text = io.StringIO()
    Console(file=text, width=160).print(report_view(game_report(found, promotion)))
    for word in ("won", "drawn", "lost", "rating", "both seats", "trial 1 (seed 0)", "points"):
        assert word in text.getvalue()
    path, _ = write_report(game_report(found, promotion), tmp_path / "gate")
    page = path.read_text()
    assert "exchanged seats" in page
    assert "games won, drawn and lost" in page.lower()


def shot_captions(bundle: Any, opponent: str | None, episodes: int = 3) -> list[str]:
    with closing(Show(bundle, seed=1, pictures=False, opponent=opponent)) as show:
        return [shot.caption for shot in show.shots(episodes) if shot.final]


def test_games_are_shown_against_an_opponent(tmp_path: Path) -> None:
    found = study(tmp_path, SCRIPTED, ((0.0, 1.0, 0.0),))
    paper = build_bundle(read_candidate(found.complete[0], found), found, {})
    assert shot_captions(paper, None, 2) == [
        "game 1, step 1, against scissors, lost",
        "game 2, step 1, against scissors, lost",
    ]
    assert shot_captions(paper, "rock", 1) == ["game 1, step 1, against rock, won"]
    assert shot_captions(paper, "self", 1) == ["game 1, step 1, against self, drawn"]
    with pytest.raises(InputError, match="choose one of self, rock, paper, scissors"):
        shot_captions(paper, "well")
    uniform = study(tmp_path / "uniform", SCRIPTED, UNIFORM)
    sampled = build_bundle(read_candidate(uniform.complete[0], uniform, "sampled"), uniform, {})
    shown_results = [caption.rpartition(", ")[2] for caption in shot_captions(sampled, "rock", 40)]
    assert set(shown_results) == {"won", "drawn", "lost"}
    assert shot_captions(sampled, "rock", 40) == shot_captions(sampled, "rock", 40)


def test_commands_promote_show_verify_and_play_a_sampled_player(tmp_path: Path) -> None:
    mixed = ((0.9, 0.1), (0.2, 0.8), (0.0, 1.0))
    database = f"sqlite:///{tmp_path / 'studies.db'}"
    store(study(tmp_path / "run", SHOWDOWN, mixed, TIMID), database)
    app = build_app()

    def sweepd(*words: str) -> str:
        given = [*words, "--deployments", str(tmp_path / "deployments")]
        result = CliRunner().invoke(
            app,
            given,
            env={"COLUMNS": "180", "SWEEPD_STORAGE": database.removeprefix("sqlite:///")},
        )
        assert result.exception is None or isinstance(result.exception, SystemExit), result
        assert result.exit_code == 0, result.output
        return result.output

    promoted = sweepd("promote", "--play", "sampled", "--games", "400")
    assert "PROMOTED" in promoted
    assert "trial 1 (seed 0)" in promoted
    shown_bundle = sweepd("registry", "show")
    assert "actions drawn from the policy" in shown_bundle
    assert "both seats alike" in shown_bundle
    told = json.loads(sweepd("registry", "show", "--json"))
    assert told["player"]["play"] == "sampled"
    assert told["panel"]["points"]["low"] > 0.5
    assert "is verified" in sweepd("registry", "verify")
    assert "against self" in sweepd("play", "--episodes", "3")
