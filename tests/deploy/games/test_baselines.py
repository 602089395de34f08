"""Baseline players of panels: constant ones, those of a user, and the level of the test."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

import sweepd.deploy.games.panel
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member
from sweepd.deploy.games.baselines import FIRST_ACTION, OwnBaseline, load_baselines
from sweepd.deploy.games.duel_panel import DuelGames
from sweepd.deploy.games.gate import GameGate
from sweepd.deploy.games.panel import Panel, PanelGames, compare, judge_panel
from sweepd.deploy.games.player import Network
from sweepd.deploy.games.rules import DEFAULT_RULES, PANEL, GameEvidence
from sweepd.deploy.games.verify import verify_game_bundle
from sweepd.deploy.promotion.documents import write_report
from sweepd.deploy.promotion.promoter import Promoter
from sweepd.deploy.promotion.rules import judge
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.core.env_spec import EnvSpec
from sweepd.envs.external.actions import ActionLayout
from sweepd.envs.external.observations import ObservationLayout
from sweepd.envs.games.constant_players import constant_actions, preferred
from sweepd.envs.games.play import EpisodeResults
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import promoter_of
from tests.deploy.games.players import GOOD, player, study_of
from tests.envs.games.toys import chooser

HERE = "tests.deploy.games.test_baselines"


class Tracking(gymnasium.Env[Any, Any]):
    """Four steps: a sign is shown, and the reward is action * sign - action² / 2."""

    observation_space = spaces.Dict({"sign": spaces.Box(-1.0, 1.0, (1,), np.float64)})
    action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._step, self._sign = 0, self._draw()
        return {"sign": np.array([self._sign])}, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        (at,) = action.tolist()
        reward, self._sign = at * self._sign - at * at / 2.0, self._draw()
        self._step += 1
        return {"sign": np.array([self._sign])}, reward, self._step == 4, False, {}

    def _draw(self) -> float:
        return float(self.np_random.integers(2)) * 2.0 - 1.0


def follow(observation: dict[str, Any]) -> Any:
    """The best player of `Tracking`."""
    return observation["sign"].astype(np.float32)


def broken(observation: Any) -> Any:
    raise KeyError(list(observation))


def too_far(observation: Any) -> Any:
    del observation
    return [3.0]


def last(observation: Any) -> int:
    """Take the last of two options."""
    assert observation.dtype == np.float32
    return 1


def actor(weights: tuple[float, float]) -> Member:
    """A player whose action is 2 * tanh(weight * sign + bias)."""
    weight, bias = weights
    return Member.of_tensors(
        {
            "net.0.weight": torch.tensor([[weight]]),
            "net.0.bias": torch.tensor([bias]),
            "action_std_log": torch.zeros(1, 1),
            "state_avg": torch.zeros(1),
            "state_std": torch.ones(1),
        }
    )


FEEBLE, ALIKE = (0.01, 0.3), (0.0, 0.5)  # a little worse than doing nothing; the same always
SKILLED = (0.4, 0.0)


def promoter(
    folder: Path, weights: tuple[float, float], *baselines: str
) -> Promoter[Any, Any, Any, Any]:
    study = study_of(folder, [weights], make=actor, environment=f"{HERE}:Tracking", env={})
    return promoter_of(
        GameGate, study, Registry(folder / "deployments"), games=40, baseline=baselines
    )


def test_a_player_that_loses_more_than_doing_nothing_is_refused(tmp_path: Path) -> None:
    promotion = promoter(tmp_path, FEEBLE).run()
    assert promotion.outcome == "none passes"
    assert promotion.chosen is not None
    panel = promotion.chosen.score
    assert panel is not None
    players = {other.name: other for other in panel.baselines}
    assert list(players) == [
        "random",
        "always low",
        "always middle",
        "always high",
        "first action repeated",
    ]
    # It beats random play, which was the only other player before.
    assert players["random"].difference.low > 0.0
    assert players["random"].share.low > 0.5
    assert players["always middle"].own.mean == 0.0 > panel.own.mean
    assert "the baseline player always middle 0 in the same 40 games" in promotion.how_far


def test_the_same_action_always_is_no_skill_and_following_the_sign_is(tmp_path: Path) -> None:
    alike = promoter(tmp_path / "a", ALIKE).run()
    assert alike.chosen is not None
    assert alike.chosen.score is not None
    same = alike.chosen.score.baselines[-1]
    assert (same.name, same.equal) == (FIRST_ACTION, 40)
    assert alike.outcome == "none passes"
    skilled = promoter(tmp_path / "b", SKILLED).run()
    assert skilled.outcome == "promoted", skilled.reason


def test_a_baseline_of_ones_own_must_be_beaten_and_is_recorded(tmp_path: Path) -> None:
    name = f"{HERE}:follow"
    worse = promoter(tmp_path / "a", SKILLED, name)
    promotion = worse.run()
    assert promotion.outcome == "none passes"
    assert f"the baseline player {name} 2 in the same 40 games" in promotion.how_far
    page, _ = write_report(worse.gate.report(promotion), tmp_path / "gate")
    assert "hardest of 6 baseline players" in page.read_text()
    with pytest.raises(InputError, match=r"too_far gave no action: \[3\.0\] is outside"):
        promoter(tmp_path / "b", SKILLED, f"{HERE}:too_far").run()
    bundle = promotion.chosen.bundle if promotion.chosen else None
    assert bundle is not None
    stored = bundle.manifest.gate["panel"]["baselines"]
    assert stored[name]["own"]["mean"] == 2.0
    assert name in verify_game_bundle(bundle).content["baselines"]
    assert verify_game_bundle(bundle).agrees
    stored[f"{HERE}:nothing"] = stored.pop(name)
    with pytest.raises(InputError, match="has nothing called 'nothing'"):
        verify_game_bundle(bundle)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["follow"], "--baseline follow must be MODULE:NAME"),
        ([f"{HERE}:follow"] * 2, "is there more than once"),
        ([f"{HERE}:nothing"], "has nothing called 'nothing'"),
        (["no_such_module:follow"], "No module named 'no_such_module'"),
        ([f"{HERE}:HERE"], "is a str; it must be a function"),
    ],
)
def test_wrong_baselines_are_refused_in_a_sentence(names: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        load_baselines(names)


def test_a_baseline_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"broken failed on an observation: KeyError: \['sign'\]"):
        promoter(tmp_path, SKILLED, f"{HERE}:broken").run()


def test_own_players_play_sweepds_games_too() -> None:
    game = get_game("cartpole")
    rules = PanelGames(game, game.params(max_steps=40), 5, 1, (f"{HERE}:last",))
    played = rules.play_baselines(Network(FrozenPolicy([player(GOOD)])))
    assert (played[f"{HERE}:last"].returns == played["always 1"].returns).all()
    env = game.make([game.params()], 1, together=1, device="cpu")
    for answer in (2, 0.5, [0, 1], "left", float("nan")):
        wrong = OwnBaseline("m:f", lambda _, answer=answer: answer)
        with pytest.raises(InputError, match="--baseline m:f gave no action"):
            wrong.answer(env, np.zeros(4))
    duel = get_game("tests.envs.games.toys:SHOWDOWN")
    own = Network(FrozenPolicy([chooser((1.0, 0.0), (0.0, 1.0), (0.0, 1.0))]))
    names, found = DuelGames(duel, duel.params(), 20, 1, (f"{HERE}:last",)).play_baselines(own)
    assert names == ("random", "always 0", "always 1", f"{HERE}:last")
    assert (found.points[2] == found.points[3]).all()


def test_bundles_that_were_compared_with_fewer_players_stay_verified(tmp_path: Path) -> None:
    promotion = promoter(tmp_path, SKILLED).run()
    assert promotion.chosen is not None
    bundle = promotion.chosen.bundle
    assert bundle is not None
    gate = json.loads(json.dumps(bundle.manifest.gate))
    gate["panel"]["baselines"] = {"random": gate["panel"]["baselines"]["random"]}
    old = dataclasses.replace(bundle, manifest=bundle.manifest.model_copy(update={"gate": gate}))
    assert verify_game_bundle(old).content["baselines"] == ["random"]
    assert verify_game_bundle(old).agrees


@pytest.mark.parametrize(
    ("dims", "names"),
    [
        ((), ["always 0", "always 1", "always 2"]),
        ((2, 2), ["always 0,0", "always 0,1", "always 1,0", "always 1,1"]),
        ((10, 2, 2), ["always first", "always middle", "always last"]),
    ],
)
def test_constant_players_are_all_actions_or_three(dims: tuple[int, ...], names: list[str]) -> None:
    class Env:
        if_discrete = True
        spec = EnvSpec(state_dim=1, action_dim=sum(dims) or 3, if_discrete=True, action_dims=dims)

    found = constant_actions(Env())  # type: ignore[arg-type]
    assert list(found) == names
    assert found[names[-1]] == tuple(size - 1 for size in dims or (3,))


def test_an_illegal_choice_of_a_constant_player_is_a_random_legal_one() -> None:
    rows, sizes = 4000, (3, 4)

    def legal(chosen: Tensor) -> Tensor:
        if not chosen.shape[1]:
            return torch.tensor([[True, False, True]]).expand(rows, 3)
        return torch.arange(4) >= chosen[:, :1] + 1  # options after the first choice

    wanted = torch.tensor([[1, 2]]).expand(rows, 2)
    made = preferred(wanted, sizes, legal, torch.rand(rows, 7))
    first, second = made.unbind(1)
    assert (first == 0).float().mean() == pytest.approx(0.5, abs=0.05)
    assert set(first.tolist()) == {0, 2}
    assert (second[first == 0] == 2).all()  # legal there, so it is taken
    assert (second[first == 2] == 3).all()


def test_first_actions_are_repeated_seat_by_seat() -> None:
    game = get_game("bucket-brigade")
    rules = PanelGames(game, game.params(scenario="easy"), 3, 1)
    seen: list[Tensor] = []

    class Seats:
        """Every seat works at the house of its own number."""

        def seated(self, env: Any, seed: int) -> Any:
            del seed
            house = torch.arange(env.num_envs) % 4
            return lambda _: torch.stack((house, house * 0 + 1, house * 0), 1)

    first = rules._first_action(Seats())  # type: ignore[arg-type]
    assert first[:, 0].tolist() == [0, 1, 2, 3]

    def watched(env: Any) -> Any:
        act = rules._baseline(FIRST_ACTION, first, env)
        return lambda obs: seen.append(act(obs)) or seen[-1]

    rules.play(watched)
    assert all((made[:, 0] == torch.arange(12) % 4).all() for made in seen)


def test_the_level_holds_however_many_baselines_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A candidate as good as the best of several baselines passes in at most 2.5%."""
    monkeypatch.setattr(sweepd.deploy.games.panel, "DRAWS", 400)
    rng, games, replicates = np.random.default_rng(7), 100, 1000
    means = (0.0, 0.0, 0.0, -0.5)  # of the baselines; three are as good as the candidate
    passes = naive = 0
    for seed in range(replicates):
        luck = rng.normal(size=games)

        def results(mean: float, luck: Any = luck) -> EpisodeResults:
            returns = luck + mean + rng.normal(size=games)
            return EpisodeResults(returns[None], np.ones((1, games), np.int64))

        own = results(0.0)
        others = tuple(
            compare(str(index), own, results(mean), 1, seed) for index, mean in enumerate(means)
        )
        panel = Panel(seed, 1, own, others[0].own, others)
        found = {
            one.name: one.verdict for one in judge(DEFAULT_RULES, GameEvidence((), panel), PANEL)
        }
        passes += found["beats-baselines"] == "pass"
        naive += others[0].difference.low > 0.0
    # One baseline alone: the level of one side of a 95% interval (400 draws: a little more).
    assert 0.01 < naive / replicates < 0.045
    assert passes / replicates <= 0.01


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(5, start=2),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary(3),
        spaces.Box(np.array([-1.0, 0.0]), np.array([4.0, 0.5]), dtype=np.float32),
        spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))),
        spaces.Dict(a=spaces.Box(0.0, 9.0, (2, 2), np.float32), b=spaces.Box(-1, 1, (1,))),
    ],
)
def test_actions_and_observations_of_a_space_come_back_from_their_rows(space: Any) -> None:
    space.seed(0)
    for _ in range(20):
        value = space.sample()
        layout = ActionLayout(space)
        (decoded,) = layout.decode(layout.encode(value)[None])
        _close(decoded, value)
        rows = np.zeros(1, ObservationLayout(space).dtype)
        seen = ObservationLayout(space)
        seen.writer(rows).one(0, value)
        (restored,) = seen.restore(rows)
        assert space.contains(restored)
        _close(restored, value)


def _close(one: Any, other: Any) -> None:
    if isinstance(other, dict):
        assert list(one) == list(other)
        one, other = list(one.values()), list(other.values())
    if isinstance(other, list | tuple):
        for own, its in zip(one, other, strict=True):
            _close(own, its)
        return
    assert np.allclose(one, other, atol=1e-5)


def test_judging_a_panel_plays_every_baseline_once() -> None:
    game = get_game("cartpole")
    rules = PanelGames(game, game.params(max_steps=30), 4, 1)
    panel = judge_panel(rules, 1, Network(FrozenPolicy([player(GOOD)])))
    assert tuple(other.name for other in panel.baselines) == rules.baselines
