"""Ratings: known strengths are recovered, intervals cover them, and the order does not matter."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sweepd.agents.policy.ratings import ELO, PRIOR, Ratings, draw_ratings, rate, separation_words
from sweepd.envs.support.errors import InputError

Floats = NDArray[np.float64]
NAMES = ("a", "b", "c", "d")


def sampled(elo: Floats, deals: int, rng: np.random.Generator, draws: float = 0.0) -> Floats:
    """Return (P, P, deals) points of games of players with these ratings."""
    count = len(elo)
    points = np.full((count, count, deals), np.nan)
    for i, j in itertools.combinations(range(count), 2):
        share = 1.0 / (1.0 + 10.0 ** ((elo[j] - elo[i]) / 400.0))
        won = (rng.random(deals) < share).astype(np.float64)
        # A draw replaces a win and a loss equally often in the mean only if shares are equal;
        # the tests use draws between equal players.
        won[rng.random(deals) < draws] = 0.5
        points[i, j], points[j, i] = won, 1.0 - won
    return points


def test_two_players_have_the_log_odds_of_their_shares() -> None:
    own = np.array([1.0] * 6 + [0.0, 0.5, 0.5, 0.0])  # 7 of 10 points
    points = np.full((2, 2, 10), np.nan)
    points[0, 1], points[1, 0] = own, 1.0 - own
    found = rate(["a", "b"], points, anchor="b")
    # Half a win is added to both, in the estimate as in its interval.
    odds = (7 + PRIOR) / (3 + PRIOR)
    assert found.ratings.tolist() == pytest.approx([400.0 * math.log10(odds), 0.0])
    assert rate(["a", "b"], points).ratings.tolist() == pytest.approx(
        [200.0 * math.log10(odds), -200.0 * math.log10(odds)]
    )
    assert found.low[1] == found.high[1] == 0.0
    assert found.low[0] < found.ratings[0] < found.high[0]


@pytest.mark.parametrize("lost", [0, 1, 2, 5])
def test_an_interval_is_that_of_its_estimate(lost: int) -> None:
    """The estimate is near the middle of its resampled values, also of a player that hardly loses."""
    own = np.array([1.0] * (40 - lost) + [0.0] * lost)
    points = np.full((2, 2, 40), np.nan)
    points[0, 1], points[1, 0] = own, 1.0 - own
    found = rate(["a", "b"], points, anchor="b")
    assert found.ratings[0] == pytest.approx(400.0 * math.log10((40.5 - lost) / (lost + 0.5)))
    below, above = found.ratings[0] - found.low[0], found.high[0] - found.ratings[0]
    assert 0.0 < below < 1.1 * above


def test_known_ratings_are_recovered_from_many_games() -> None:
    elo = np.array([250.0, 50.0, -100.0, -200.0])
    points = sampled(elo, 20_000, np.random.default_rng(1))
    found = rate(NAMES, points)
    assert np.abs(found.ratings - elo).max() < 8.0
    assert found.groups == (NAMES,) or sorted(found.groups[0]) == list(NAMES)
    # A star of games suffices: everybody played only against the first.
    points[1:, 1:] = np.nan
    assert np.abs(rate(NAMES, points).ratings - elo).max() < 15.0


@pytest.mark.parametrize("gap", [0.0, 200.0, 500.0])
def test_intervals_cover_the_true_ratings(gap: float) -> None:
    elo, rng = np.array([gap, 0.0, -gap / 2.0]), np.random.default_rng(7)
    elo -= elo.mean()
    covered = []
    for _ in range(60):
        found = rate(NAMES[:3], sampled(elo, 40, rng, 0.2 * (gap == 0.0)))
        covered += ((found.low <= elo) & (elo <= found.high)).tolist()
    # 180 intervals of 95%, three of one table being dependent: below 0.88 is unlikely by luck.
    assert np.mean(covered) > 0.88


@settings(max_examples=25, deadline=None)
@given(st.permutations(range(4)), st.integers(0, 1000))
def test_the_order_of_players_does_not_matter(order: list[int], seed: int) -> None:
    elo = np.array([100.0, 0.0, 0.0, -100.0])
    points = sampled(elo, 30, np.random.default_rng(seed))
    one = rate(NAMES, points)
    other = rate([NAMES[index] for index in order], points[np.ix_(order, order)])
    assert other.ratings.tolist() == pytest.approx(one.ratings[order].tolist(), abs=1e-5)
    assert {frozenset(group) for group in one.groups} == {
        frozenset(group) for group in other.groups
    }


def test_the_order_of_deals_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    points = sampled(np.array([100.0, 0.0, 0.0, -100.0]), 30, rng)
    mixed = points[..., rng.permutation(30)]
    assert rate(NAMES, mixed).ratings.tolist() == pytest.approx(
        rate(NAMES, points).ratings.tolist(), abs=1e-6
    )


def test_deals_in_common_are_resampled_together() -> None:
    # c's results equal b's in every deal: their difference has no variance but the prior's.
    rng = np.random.default_rng(5)
    won = (rng.random(200) < 0.5).astype(np.float64)
    points = np.full((3, 3, 200), np.nan)
    points[0, 1] = points[0, 2] = won
    points[1, 0] = points[2, 0] = 1.0 - won
    points[1, 2] = points[2, 1] = 0.5
    found = rate(NAMES[:3], points, anchor="b")
    assert found.ratings[2] == pytest.approx(0.0, abs=1e-6)
    assert found.high[2] - found.low[2] < 0.4 * (found.high[0] - found.low[0])


def test_a_player_who_won_every_game_has_a_finite_rating_and_a_wide_interval() -> None:
    points = sampled(np.zeros(3), 24, np.random.default_rng(0))
    points[0, 1:], points[1:, 0] = 1.0, 0.0
    found = rate(NAMES[:3], points, anchor="c")
    assert [set(group) for group in found.groups] == [{"a"}, {"b", "c"}]
    assert np.isfinite([found.ratings, found.low, found.high]).all()
    assert found.low[0] > found.ratings[1]
    assert found.high[0] - found.low[0] > 400.0
    assert separation_words(found.groups).startswith("a won every game against b, c")
    assert separation_words(found.groups[:1]) == ""


def test_opponents_that_lose_every_game_are_rated() -> None:
    # A star of pairs with all games won, all lost, and one apart: nothing but the prior is finite.
    points = np.full((4, 4, 100), np.nan)
    for other, won in ((1, 0.5), (2, 0.0), (3, 1.0)):
        points[0, other], points[other, 0] = won, 1.0 - won
    found = rate(NAMES, points, anchor="b")
    assert found.ratings[2] > 400.0
    assert found.ratings[3] < -400.0
    assert found.ratings[0] == pytest.approx(0.0, abs=1e-3)
    assert [set(group) for group in found.groups] == [{"c"}, {"a", "b"}, {"d"}]


def test_a_draw_is_half_a_win() -> None:
    points = np.full((2, 2, 8), np.nan)
    points[0, 1] = points[1, 0] = 0.5
    assert rate(["a", "b"], points).ratings.tolist() == pytest.approx([0.0, 0.0])
    mixed = np.array([1.0, 0.0] * 4)
    points[0, 1], points[1, 0] = mixed, 1.0 - mixed
    assert rate(["a", "b"], points).ratings.tolist() == pytest.approx([0.0, 0.0])


def test_wrong_input_is_refused() -> None:
    points = sampled(np.zeros(4), 6, np.random.default_rng(0))
    with pytest.raises(InputError, match="anchor 'e'"):
        rate(NAMES, points, anchor="e")
    with pytest.raises(InputError, match="shape"):
        rate(NAMES[:3], points)
    parted = points.copy()
    parted[:2, 2:] = parted[2:, :2] = np.nan
    with pytest.raises(InputError, match="connect the players a, b with c, d"):
        rate(NAMES, parted)
    wrong = points.copy()
    wrong[0, 1] = 1.0 - points[1, 0] + 0.25
    with pytest.raises(InputError, match="sum to 1"):
        rate(NAMES, wrong)


def test_ratings_are_drawn_and_described() -> None:
    found = rate(NAMES, sampled(np.array([50.0, 0.0, 0.0, -50.0]), 30, np.random.default_rng(0)))
    told = found.to_dict()
    values = [own["rating"] for own in told["players"].values()]
    assert values == sorted(values, reverse=True)
    (axes,) = draw_ratings(found, "league").axes
    assert [label.get_text() for label in axes.get_yticklabels()][::-1] == list(told["players"])
    assert math.isclose(ELO * math.log(10.0), 400.0)
    assert isinstance(found, Ratings)


def test_the_table_has_a_player_per_line_best_first() -> None:
    found = Ratings(
        ("a", "matcher"),
        np.array([-40.2, 40.2]),
        np.array([-61.0, 18.6]),
        np.array([-18.6, 61.0]),
        0.95,
        (("a", "matcher"),),
    )
    assert found.table().splitlines() == [
        "         rating  95% over deals",
        "matcher     +40  +19 … +61",
        "a           -40  -61 … -19",
    ]
