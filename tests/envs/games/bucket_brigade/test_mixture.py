"""Mixtures of scenarios: every game has the rules of its scenario, in the shares that were asked for."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.heuristic_games import run_heuristic_episode
from sweepd.envs.games.bucket_brigade.mixture import ScenarioMixture, read_scenario
from sweepd.envs.games.bucket_brigade.scenarios import scenario
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError
from tests.envs.games.bucket_brigade.test_game import DEFAULT, actions, run, same
from tests.envs.games.bucket_brigade.test_heuristic_games import (
    EPISODES,
    SEED,
    scalar_returns,
    some_players,
)

SHORT = {"min_nights": 2, "max_nights": 9}
CONTINUOUS = ScenarioMixture({"hard": 0.5, "default_continuous": 0.3, "easy": 0.2}, SHORT)
SPARKS = ScenarioMixture(
    {"hard": 0.4, "rest_trap": 0.6}, {"prob_house_catches_fire": 0.2, "max_nights": 20}
)


def play(mixture: Any, seed: int = 3, *, native: bool = True, steps: int = 25) -> list[Tensor]:
    env = BucketBrigade(mixture, 40, native=native)
    env.reset([seed] * env.num_members)
    return run(env, actions(1, steps, env.num_envs))


def test_names_with_or_without_shares_are_a_mixture() -> None:
    mixed = read_scenario("easy=0.25, hard=0.75", min_nights=2)
    assert isinstance(mixed, ScenarioMixture)
    assert asdict(mixed) == {
        "scenarios": {"easy": 0.25, "hard": 0.75},
        "changes": {"min_nights": 2},
    }
    assert mixed.parts == (scenario("easy", min_nights=2), scenario("hard", min_nights=2))
    equal = read_scenario("easy,hard,default")
    assert isinstance(equal, ScenarioMixture)
    assert [*equal.scenarios.values()] == pytest.approx([1 / 3] * 3)
    assert read_scenario("easy") == scenario("easy")
    game = get_game("bucket-brigade")
    assert game.params("easy=0.25,hard=0.75", min_nights=2) == mixed
    assert game.seats(mixed) == 4


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("easy,nope", "the scenario 'nope' is not known"),
        ("easy,easy", "name each scenario once"),
        ("easy=0.5,hard", "give every scenario a share, like easy=0.5,hard=0.5, or none"),
        ("easy=a,hard=0.5", "shares must be numbers"),
        ("easy=0.5,hard=0.6", r"add up to 1, not to 1\.1"),
        ("easy=1,hard=0", "above 0"),
        ("easy=nan,hard=0.5", "above 0 and add up to 1"),
        ("easy,v2_minimal", "the same num_houses and num_agents"),
        ("easy,", "the scenario '' is not known"),
    ],
)
def test_wrong_mixtures_are_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read_scenario(text)


def test_games_have_the_shares_and_one_game_has_their_chances() -> None:
    for seed in range(20):
        counts = torch.bincount(CONTINUOUS.deal(33, seed), minlength=3) / 33
        assert (counts - torch.tensor([0.5, 0.3, 0.2])).abs().max() < 1 / 33
    places = torch.stack([CONTINUOUS.deal(5, seed) for seed in range(4000)])
    for place in range(5):  # each, not only the first
        found = Counter(places[:, place].tolist())
        shares = [found[part] / 4000 for part in range(3)]
        assert shares == pytest.approx([0.5, 0.3, 0.2], abs=0.03)
    alone = Counter(int(CONTINUOUS.deal(1, seed)) for seed in range(4000))
    assert [alone[part] / 4000 for part in range(3)] == pytest.approx([0.5, 0.3, 0.2], abs=0.03)


def test_every_game_has_the_rules_of_its_scenario(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against plain Python, with the uniform numbers of each scenario's games."""
    drawn: list[Tensor] = []
    make = BucketBrigade._uniform_of

    def recorded(env: BucketBrigade, member: int, games: int) -> Any:
        uniform = make(env, member, games)
        return lambda nights: drawn.append(uniform(nights)) or drawn[-1].clone()

    monkeypatch.setattr(BucketBrigade, "_uniform_of", recorded)
    [player] = some_players(1)
    found = run_heuristic_episode([player], SPARKS, EPISODES, SEED)[0]
    dealt = SPARKS.deal(EPISODES, derive_seed("scenarios", derive_seed(SEED, "games")))
    counts = torch.bincount(dealt, minlength=2).tolist()
    assert min(counts) > 0
    at = next(index for index, one in enumerate(drawn) if len(one) >= 20)
    starts = drawn[at - 2 : at]
    nights = [one for one in drawn[at:] if len(one) >= 20][:2]
    assert [one.shape[-1] for one in (*starts, *nights)] == counts * 2
    for part, params in enumerate(SPARKS.parts):
        games = (dealt == part).nonzero().view(-1).tolist()
        seated = np.broadcast_to(player, (len(games), params.num_agents, 10))
        returns = scalar_returns(seated, params, (starts[part][0], nights[part]), games)
        assert found[games].tolist() == pytest.approx(returns.sum(1).tolist(), abs=1e-3)


def test_native_code_plays_a_mixture_as_torch_does() -> None:
    assert same(play(CONTINUOUS), play(CONTINUOUS, native=False))


def test_a_member_is_the_same_beside_others_and_after_a_restart() -> None:
    alone = play(CONTINUOUS, seed=3)
    mixed = [DEFAULT, CONTINUOUS, SPARKS]
    env = BucketBrigade(mixed, 40)
    env.reset([5, 3, 4])
    taken = torch.cat([actions(0, 25, 40), actions(1, 25, 40), actions(2, 25, 40)], 1)
    together = run(env, taken)
    assert same(together, alone, slice(40, 80))

    env = BucketBrigade(mixed, 40)
    env.reset([5, 3, 4])
    run(env, taken[:11])
    state = env.get_member(1)
    other = BucketBrigade([CONTINUOUS, DEFAULT], 40)  # in another slot, with other scenarios
    other.reset([8, 9])
    other.set_member(0, state)
    rest = run(other, torch.cat([actions(1, 25, 40), actions(2, 25, 40)], 1)[11:])
    assert same(rest, alone[11:], slice(40))


def test_a_slot_can_get_other_rules() -> None:
    env = BucketBrigade([CONTINUOUS, SPARKS], 40)
    env.reset([1, 2])
    taken = torch.cat([actions(1, 25, 40)] * 2, 1)
    size = env.state_dim + 3  # without the last observations of games before the reset
    for params in (DEFAULT, CONTINUOUS, SPARKS, CONTINUOUS):
        for member in range(2):
            env.configure_member(member, params)
        env.reset([3, 3])
        assert env.rules.continuous == (params is CONTINUOUS)
        played = [one[:40, :size] for one in run(env, taken)]
        assert same(played, [one[:, :size] for one in play(params)])
