"""Teams: bundles with a policy for each seat, from candidate to champion."""

from __future__ import annotations

import dataclasses
import json
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sweepd.deploy.games.panel
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member, read_members
from sweepd.commands import build_app
from sweepd.deploy.api.policy import evaluate, load_policy
from sweepd.deploy.games.advice import games_needed, hardest
from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.games.candidates import GamePromotion, GameStudy, build_bundle, read_candidate
from sweepd.deploy.games.gate import GameGate
from sweepd.deploy.games.panel import Panel, PanelGames, compare
from sweepd.deploy.games.player import Network, Team, read_player
from sweepd.deploy.games.report import game_report
from sweepd.deploy.games.rules import DEFAULT_RULES, PANEL, GameEvidence
from sweepd.deploy.games.show import Show
from sweepd.deploy.games.verify import verify_game_bundle
from sweepd.deploy.gates import load_bundle
from sweepd.deploy.promotion.documents import write_report
from sweepd.deploy.promotion.rules import deciding, judge
from sweepd.deploy.registry.bundle_files import MEMBERS_FILE, new_bundle, write_bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.games.bucket_brigade.observation import ObservationEncoder
from sweepd.envs.games.play import EpisodeResults
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import promoter_of
from tests.deploy.games.players import store, study_of

# Two houses and two agents. A member prefers one house and helps at the other if only that burns:
# two that prefer different houses are a good team, and poor alone.
ENV = {"scenario": "easy", "num_houses": 2, "num_agents": 2, "prob_house_catches_fire": 0.3}
OPTIONS = (2, 2, 2)  # house, rest or work, signal
GAMES = 400


def worker(house: int, helps: bool = True) -> Member:
    """A member that works if a house burns; if it never `helps`, it always works, at one house."""
    params = get_game("bucket-brigade").params(**ENV)
    size = ObservationEncoder(
        params.num_houses, params.num_agents, 1, scaled=True, device=torch.device("cpu")
    ).size
    weight, bias = torch.zeros(sum(OPTIONS), size), torch.zeros(sum(OPTIONS))
    bias[house], bias[3] = 1.0, -1.0 if helps else 1.0
    weight[house, 3 * house + 1] = 4.0  # the columns of a house: safe, burning, ruined
    weight[1 - house, 3 * (1 - house) + 1] = 2.0 * helps
    weight[3, [1, 4]] = 4.0
    return Member.of_tensors(
        {
            "net.0.weight": weight,
            "net.0.bias": bias,
            "action_dims": torch.tensor(OPTIONS),
            "state_avg": torch.zeros(size),
            "state_std": torch.ones(size),
        }
    )


def study(folder: Path, *houses: int, helps: bool = True) -> GameStudy:
    return study_of(
        folder,
        list(houses),
        make=partial(worker, helps=helps),
        environment="bucket-brigade",
        env=ENV,
        seeds=len(houses),
    )


def promote(found: GameStudy, registry: Registry, **changes: Any) -> GamePromotion:
    return promoter_of(GameGate, found, registry, games=GAMES, **changes).run()


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweepd.deploy.games.panel, "DRAWS", 500)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "deployments")


@pytest.fixture
def team(tmp_path: Path) -> GameBundle:
    found = study(tmp_path / "run", 0, 1)
    return build_bundle(read_candidate(found.complete[0], found, team=True), found, {})


def mean(player: Any, games: int = 200) -> float:
    game = get_game("bucket-brigade")
    rules = PanelGames(game, game.params(**ENV), games, 1)
    return float(rules.play_player(player).returns.mean())


def test_a_team_plays_every_seat_by_its_own_policy(team: GameBundle) -> None:
    assert isinstance(team.player, Team)
    game = get_game("bucket-brigade")
    with closing(game.make([team.params], 3, together=1, device="cpu")) as env:
        env.reset_member(0, 5)
        act = team.player.seated(env, 0)
        assert act(env.observe())[:, 0].tolist() == [0, 1, 0, 1, 0, 1]
    members = read_members(team.files[MEMBERS_FILE], "it")
    alone = [mean(Network(FrozenPolicy([member]))) for member in members]
    assert mean(team.player) > max(alone) + 50.0


def test_a_team_is_the_best_members_in_order_and_again_from_the_first(tmp_path: Path) -> None:
    found = study(tmp_path, 0, 1, 0)
    found.complete[0].user_attrs["sweepd:seed_scores"] = [20.0, 10.0, 50.0]
    best = read_candidate(found.complete[0], found, team=True)
    assert (best.members, best.seats, best.scores) == ((0, 2), (0, 1), (20.0, 50.0))
    assert best.name == "trial 0 (team of seeds 0, 2)"
    assert read_candidate(found.complete[0], found).name == "trial 0 (seed 2)"
    found.spec = dataclasses.replace(found.spec, env={"scenario": "hard"})  # a game of four
    weights = read_candidate(found.complete[0], found, team=True)
    assert weights.seats == (0, 1, 2, 0)


def test_the_team_is_promoted_where_its_members_fail_alone(
    tmp_path: Path, registry: Registry
) -> None:
    found = study(tmp_path / "run", 0, 1)
    assert found.teams
    alone = promoter_of(GameGate, found, Registry(tmp_path / "alone"), games=GAMES)
    single = alone._promote_first([lambda: read_candidate(found.complete[0], found)])
    assert single.outcome == "none passes"
    promotion = promote(found, registry)
    assert promotion.outcome == "promoted", promotion.reason
    assert promotion.chosen is not None
    assert promotion.chosen.candidate.name == "trial 0 (team of seeds 0, 1)"
    assert promotion.looks == 1
    told = promotion.to_dict()["candidates"][0]
    assert (told["team"], told["scores"]) == ([0, 1], [50.0, 49.0])
    bundle = promotion.chosen.bundle
    assert bundle is not None
    assert verify_game_bundle(bundle).agrees
    assert promote(found, registry).outcome == "champion already"
    page, _ = write_report(game_report(found, promotion), tmp_path / "gate")
    assert "several of its members as a team" in page.read_text()


def test_both_candidates_are_judged_and_each_one_s_failure_is_named(
    tmp_path: Path, registry: Registry
) -> None:
    found = study(tmp_path / "run", 0, 0, helps=False)  # constant players
    promotion = promote(found, registry)
    names = [result.candidate.name for result in promotion.candidates]
    assert names == ["trial 0 (team of seeds 0, 1)", "trial 0 (seed 0)"]
    assert [result.look.number for result in promotion.candidates if result.look] == [1, 2]
    assert promotion.outcome == "none passes"
    assert ", the closest of 2 candidates, does not meet beats-baselines" in promotion.reason
    assert promote(found, registry, looks=1).candidates[0].candidate.seats == (0, 1)


def test_games_of_one_player_and_of_two_have_no_teams(tmp_path: Path) -> None:
    assert not study_of(tmp_path / "a", [(0.0, 0.0, 1.0, 1.0)]).teams
    assert not study_of(tmp_path / "b", [(0.0,) * 4], environment="card-duel", env={}).teams
    assert not study(tmp_path / "c", 0).teams  # one member


def test_a_team_is_written_read_shown_and_played(tmp_path: Path) -> None:
    database = tmp_path / "studies.db"
    store(study(tmp_path / "run", 0, 1), f"sqlite:///{database}")
    app = build_app()

    def sweepd(*words: str) -> str:
        given = [*words, "--deployments", str(tmp_path / "deployments")]
        variables = {"COLUMNS": "200", "SWEEPD_STORAGE": str(database)}
        result = CliRunner().invoke(app, given, env=variables)
        assert result.exit_code == 0, (result.output, result.exception)
        return result.output

    printed = sweepd("promote", "--games", str(GAMES))
    assert "PROMOTED" in printed
    assert "team 0, 1" in printed
    shown = sweepd("registry", "show")
    assert "seeds 0, 1 of 2 as a team" in shown
    assert "the seats are played by the seeds 0, 1" in shown
    facts = json.loads(sweepd("registry", "show", "--json"))
    assert (facts["origin"]["team"], facts["player"]["seats"]) == ([0, 1], [0, 1])
    assert "is verified" in sweepd("registry", "verify")
    assert "return " in sweepd("play", "--seed", "3")
    sweepd("play", "--out", str(tmp_path / "game.gif"))
    assert (tmp_path / "game.gif").stat().st_size > 1000


def test_a_team_s_bundle_keeps_its_bytes_and_what_is_wrong_is_said(
    team: GameBundle, tmp_path: Path
) -> None:
    path = write_bundle(team, tmp_path / "bundles")
    assert load_bundle(path, expected=team.hash) == team
    content = json.loads((path / "bundle.json").read_text())
    assert (content["format"], content["format_version"]) == ("sweepd-game", 2)
    swapped = team.manifest.player.model_copy(update={"seats": (1, 0)})
    other = new_bundle(GameBundle, team.manifest.model_copy(update={"player": swapped}), team.files)
    assert other.identity != team.identity  # the same weights at other seats are another player
    assert other.members_sha256 == team.members_sha256
    wrong = team.manifest.player.model_copy(update={"seats": (0, 0)})
    with pytest.raises(InputError, match="expected 1"):
        new_bundle(GameBundle, team.manifest.model_copy(update={"player": wrong}), team.files)
    fields = team.manifest.model_dump(mode="json")
    fields["player"]["seats"] = [0, 1, 0]
    with pytest.raises(ValueError, match="must name one of 2 members for each of the 2 seats"):
        type(team.manifest).model_validate_json(json.dumps(fields))
    with pytest.raises(InputError, match="each must have one"):
        read_player(team.files[MEMBERS_FILE], seats=(1, 1))
    with pytest.raises(InputError, match="is a team, which plays no games of two players"):
        team.player.entrant("champion")


def test_a_single_player_s_bundle_has_format_version_1(tmp_path: Path) -> None:
    found = study(tmp_path, 0, 1)
    single = build_bundle(read_candidate(found.complete[0], found), found, {})
    content = single.manifest.model_dump(mode="json")
    assert content["format_version"] == 1
    assert {"member", "score"} < set(content["origin"])
    assert not {"team", "scores"} & set(content["origin"])
    assert "seats" not in content["player"]
    assert single.identity == single.members_sha256


def test_a_game_of_a_team_is_shown(team: GameBundle) -> None:
    with closing(Show(team, seed=1, pictures=False)) as show:
        assert [shot.final for shot in show.shots(1)][-1]


@dataclasses.dataclass(frozen=True)
class Opened:
    name: str
    storage: str
    runs_dir: Path | None = None


def test_in_python_the_policy_is_the_team(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path / 'studies.db'}"
    store(study(tmp_path / "run", 0, 1), database)
    policy = load_policy(Opened("short", database))
    assert policy.seats == (0, 1)
    seen = np.zeros(policy.state_dim, np.float32)
    assert [int(policy.act(seen, seat=seat)[0]) for seat in (0, 1)] == [0, 1]
    for seat in (None, 2):
        with pytest.raises(InputError, match="the seats of this policy are 0 to 1"):
            policy.act(seen, seat=seat)
    alone = policy.member(0)
    assert int(alone.act(seen)[0]) == 0
    with pytest.raises(InputError, match="a team acts by seat"):
        policy.action(seen)
    means = [float(evaluate(one, games=60)["mean"][0]) for one in (policy, alone)]
    assert means[0] > means[1]


# -- advice


def panel_of(lead: float, noise: float, games: int = 100) -> Panel:
    luck = np.random.default_rng(0).normal(size=games)
    luck -= luck.mean()
    lengths = np.ones((1, games), np.int64)
    own, other = (
        EpisodeResults(values[None], lengths) for values in (lead + noise * luck, np.zeros(games))
    )
    compared = compare("hero", own, other, 1, 0)
    return Panel(0, 1, own, compared.own, (compared,))


def needed(panel: Panel) -> int | None:
    findings = judge(DEFAULT_RULES, GameEvidence((), panel), PANEL)
    decides = deciding(findings)
    assert decides is not None
    rival = hardest(decides, panel)
    assert rival is not None
    return games_needed(rival, panel.games)


def test_more_games_are_advised_for_a_lead_that_they_would_decide() -> None:
    count = needed(panel_of(0.25, 2.0))
    assert count is not None
    assert 150 <= count <= 1000
    decided = judge(DEFAULT_RULES, GameEvidence((), panel_of(0.25, 2.0, games=count)), PANEL)
    assert decided[0].verdict == "pass"
    assert needed(panel_of(-3.0, 1.0)) is None  # it is behind
    assert needed(panel_of(0.0, 0.0)) is None  # it is as good in every game
    assert needed(panel_of(3.0, 1.0)) is None  # its lead is beyond doubt


def test_a_rule_that_only_informs_never_decides() -> None:
    findings = judge(DEFAULT_RULES, GameEvidence((), panel_of(3.0, 1.0), solved=0.0), PANEL)
    assert findings[-1].name == "solved"
    assert findings[-1].verdict == "pass"
    decides = deciding(findings)
    assert decides is not None
    assert decides.name == "ahead-of-baselines"
