"""Coverage of the intervals by simulated games, and their formulas by independent references."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from sweepd.envs.support.intervals import (
    BOTH,
    EPISODES,
    EQUAL,
    GAFFKE,
    LEVEL,
    SEEDS,
    STUDENT,
    TWO_WAY,
    Interval,
    block_means,
    clopper_pearson,
    components,
    crossed,
    gaffke,
    outside,
    over_seeds,
    paired,
    ratio_of_means,
    solved_seeds,
)

Floats = NDArray[np.float64]
GAMES, REPEATS = 32, 2000


def play(rng: np.random.Generator, seeds: int, seed: float, episode: float, rest: float) -> Floats:
    """Draw (seeds, episodes) returns of mean 0 with these deviations."""
    return (
        rng.normal(0.0, seed, (seeds, 1))
        + rng.normal(0.0, episode, (1, GAMES))
        + rng.normal(0.0, rest, (seeds, GAMES))
    )


def noise(rng: np.random.Generator, seeds: int) -> Floats:
    """Nothing depends on the seed: the null game, design a."""
    return play(rng, seeds, 0.0, 1.0, 0.0)


def game(rng: np.random.Generator, seeds: int) -> Floats:
    """Seeds, episodes and their interaction matter: design b."""
    return play(rng, seeds, 1.0, 4.0, 4.0)


def coverage(draw: Callable[[], Interval], truth: float, repeats: int = REPEATS) -> float:
    found = [draw() for _ in range(repeats)]
    return float(np.mean([one.low - 1e-9 <= truth <= one.high + 1e-9 for one in found]))


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("design", [noise, game])
def test_seeds_and_common_episodes_are_covered(
    design: Callable[[np.random.Generator, int], Floats], seeds: int
) -> None:
    rng = np.random.default_rng(seeds)
    found = coverage(lambda: crossed(design(rng, seeds)), 0.0)
    assert 0.93 <= found <= 0.97


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_blocks_of_many_episodes_are_covered_as_the_episodes_are(seeds: int) -> None:
    rng = np.random.default_rng(seeds)

    def many() -> Interval:
        parts = [noise(rng, seeds) for _ in range(3)]
        return crossed(block_means(np.concatenate(parts, 1)[:, :90]))

    assert 0.93 <= coverage(many, 0.0) <= 0.97


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("seed", [0.0, 1.0])
def test_seeds_with_episodes_of_their_own_are_covered(seed: float, seeds: int) -> None:
    rng = np.random.default_rng(seeds)

    def draw() -> Interval:
        own = rng.normal(0.0, seed, (seeds, 1)) + rng.normal(0.0, 4.0, (seeds, GAMES))
        return over_seeds(own.mean(1))

    assert 0.93 <= coverage(draw, 0.0) <= 0.97


@pytest.mark.parametrize("chance", [0.5, 0.8])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_gaffkes_bounds_hold_for_seeds_that_solve_all_or_nothing(seeds: int, chance: float) -> None:
    rng = np.random.default_rng(seeds)
    found = [
        over_seeds(500.0 * (rng.random(seeds) < chance), (0.0, 500.0), draws=4000)
        for _ in range(REPEATS // 2)
    ]
    assert np.mean([one.low <= 500.0 * chance for one in found]) >= 0.97
    assert np.mean([500.0 * chance <= one.high for one in found]) >= 0.97


@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_differences_on_common_episodes_are_covered(seeds: int) -> None:
    rng = np.random.default_rng(seeds)

    def draw() -> Interval:
        episode = rng.normal(0.0, 4.0, (1, GAMES))
        first, second = (play(rng, seeds, 1.0, 0.0, 4.0) + episode for _ in range(2))
        return paired(first + 0.3, second)

    # Satterthwaite's degrees of freedom are a little low for few seeds.
    assert 0.93 <= coverage(draw, 0.3, 2 * REPEATS) <= (0.975 if seeds == 3 else 0.97)


def test_common_episodes_cancel_in_a_difference() -> None:
    rng = np.random.default_rng(0)
    episode = rng.normal(0.0, 100.0, (1, GAMES))
    first, second = (play(rng, 5, 0.1, 0.0, 0.1) + episode for _ in range(2))
    found = paired(first + 1.0, second)
    assert found.high - found.low < 0.5 < crossed(first).high - crossed(first).low


def test_one_seed_or_one_episode_says_what_was_resampled() -> None:
    returns = np.array([[1.0, 2.0, 4.0, 5.0]])
    for found, name in ((crossed(returns), EPISODES), (crossed(returns.T), SEEDS)):
        expected = stats.t.interval(LEVEL, 3, 3.0, stats.sem(returns[0]))
        assert (found.low, found.high) == pytest.approx(expected)
        assert found.resampled == name
    alone = over_seeds([2.0])
    assert (alone.low, alone.value, alone.high) == (-math.inf, 2.0, math.inf)


def test_components_are_those_of_the_simulated_game() -> None:
    rng = np.random.default_rng(1)
    own = np.array(
        [
            [found.seed, found.episode, found.interaction]
            for found in (components(game(rng, 10)) for _ in range(500))
        ]
    )
    assert own.mean(0) == pytest.approx([1.0, 16.0, 16.0], rel=0.1)


def test_episodes_add_at_most_a_third_to_the_error_of_the_seeds() -> None:
    found = components(game(np.random.default_rng(2), 8))
    episodes = found.episodes(5)
    alone = found.seed / 5
    total = alone + found.episode / episodes + found.interaction / (5 * episodes)
    assert math.sqrt(total) == pytest.approx(4 / 3 * math.sqrt(alone))
    assert components(noise(np.random.default_rng(0), 4)).episodes(4) == math.inf
    assert components(np.ones((4, 8)) * np.arange(4)[:, None]).episodes(4) == 1.0


@given(st.integers(0, 300), st.integers(0, 300), st.sampled_from([0.9, 0.95, 0.9875]))
def test_shares_have_scipys_exact_interval(wins: int, losses: int, level: float) -> None:
    found = clopper_pearson(wins, wins + losses, level)
    if wins + losses == 0:
        assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)
        return
    exact = stats.binomtest(wins, wins + losses).proportion_ci(level, "exact")
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=1e-9)


def test_two_hundred_wins_of_two_hundred_are_not_certain() -> None:
    assert clopper_pearson(200, 200).low == pytest.approx(0.982, abs=5e-4)
    assert solved_seeds([500.0, 480.0, 20.0], 475.0) == "2 of 3 solved (95% over seeds 9% … 99%)"


@given(st.integers(1, 200), st.integers(1, 4), st.integers(0, 10))
def test_blocks_keep_the_mean(episodes: int, seeds: int, draw: int) -> None:
    own = np.random.default_rng(draw).normal(100.0, 1.0, (seeds, episodes))
    found = block_means(own)
    assert found.shape == (seeds, min(32, episodes))
    assert found.mean(1) == pytest.approx(own.mean(1))
    assert episodes > 32 or found == pytest.approx(own)


def mean_squares(returns: list[list[float]]) -> tuple[float, float, float]:
    """Mean squares of seeds, episodes and interaction, one number after the other."""
    seeds, episodes = len(returns), len(returns[0])
    rows = [sum(row) / episodes for row in returns]
    columns = [sum(row[e] for row in returns) / seeds for e in range(episodes)]
    grand = sum(rows) / seeds
    between = episodes * sum((row - grand) ** 2 for row in rows) / (seeds - 1)
    luck = seeds * sum((column - grand) ** 2 for column in columns) / (episodes - 1)
    rest = sum(
        (returns[s][e] - rows[s] - columns[e] + grand) ** 2
        for s in range(seeds)
        for e in range(episodes)
    )
    return between, luck, rest / ((seeds - 1) * (episodes - 1))


def bounds(value: float, variance: float, terms: list[tuple[float, int]], least: int) -> Floats:
    """Student's bounds of a variance that is a sum of (term, degrees of freedom)."""
    freedom = variance**2 / sum(term**2 / (own + 2) for term, own in terms) - 2.0
    reach = stats.t.ppf(0.975, max(freedom, least)) * math.sqrt(variance)
    return np.array([value - reach, value + reach])


DESIGNS = st.tuples(
    st.integers(2, 7), st.integers(2, 9), st.sampled_from([0.0, 0.1, 1.0]), st.integers(0, 10**6)
)


@given(DESIGNS, st.sampled_from([0.0, 0.1, 4.0]))
def test_the_two_way_interval_is_that_of_the_scalar_formula(
    design: tuple[int, int, float, int], episode: float
) -> None:
    seeds, games, seed, draw = design
    rng = np.random.default_rng(draw)
    own = play(rng, seeds, seed, episode, 1.0)[:, :games]
    between, luck, rest = mean_squares(own.tolist())
    # No component is below zero.
    total = rest + max(0.0, between - rest) + max(0.0, luck - rest)
    count = seeds * games
    terms = [(between, seeds - 1), (luck, games - 1), (rest, (seeds - 1) * (games - 1))]
    expected = bounds(
        float(own.mean()),
        total / count,
        [(term / count, freedom) for term, freedom in terms],
        min(seeds, games) - 1,
    )
    found = crossed(own)
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(DESIGNS, st.integers(2, 7))
def test_the_paired_interval_is_that_of_the_scalar_formula(
    design: tuple[int, int, float, int], others: int
) -> None:
    seeds, games, seed, draw = design
    rng = np.random.default_rng(draw)
    common = rng.normal(0.0, 9.0, (1, games))
    sides = [play(rng, n, seed, 0.0, 1.0)[:, :games] + common for n in (seeds, others)]
    own: list[tuple[float, int]] = []
    inner: list[tuple[float, int]] = []
    for side in sides:
        between, _, rest = mean_squares(side.tolist())
        own.append((between / side.size, len(side) - 1))
        inner.append((rest / side.size, (len(side) - 1) * (games - 1)))
    gap = (sides[0].mean(0) - sides[1].mean(0)).tolist()
    value = sum(gap) / games
    luck = sum((one - value) ** 2 for one in gap) / (games - 1) / games
    # Both the errors of the seeds and that of the difference contain the interaction, and no
    # component is below zero.
    rest = sum(term for term, _ in inner)
    total = rest + max(0.0, luck - rest)
    total += sum(max(0.0, term - least) for (term, _), (least, _) in zip(own, inner, strict=True))
    least = min(seeds - 1, others - 1, games - 1)
    expected = bounds(value, total, [*own, (luck, games - 1), *inner], least)
    found = paired(*sides)
    assert (found.low, found.high) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_differences_of_one_episode_or_one_seed_say_what_was_resampled() -> None:
    ours, theirs = np.array([[1.0], [2.0], [6.0]]), np.array([[0.0], [4.0]])
    found = paired(ours, theirs)
    errors = [float(stats.sem(side)[0]) ** 2 for side in (ours, theirs)]
    expected = bounds(1.0, sum(errors), [(errors[0], 2), (errors[1], 1)], 1)
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.resampled == SEEDS
    alone = paired(np.array([[1.0, 2.0, 6.0]]), np.array([[0.0, 4.0, 2.0], [0.0, 2.0, 2.0]]))
    gaps = stats.t.interval(LEVEL, 2, 4 / 3, stats.sem([1.0, -1.0, 4.0]))
    assert (alone.low, alone.high) == pytest.approx(gaps)
    assert alone.resampled == EPISODES
    assert not paired(np.ones((1, 1)), np.zeros((3, 1))).known


SAME = np.full((5, 8), -0.1)  # its mean is not -0.1 to the last bit
ROUNDED = SAME * (1.0 + 1e-8 * np.arange(8.0))  # as sums of float32 are


@pytest.mark.parametrize(
    ("found", "resampled"),
    [
        (crossed(SAME), BOTH),
        (crossed(SAME[:1]), EPISODES),
        (crossed(SAME[:, :1]), SEEDS),
        (crossed(ROUNDED), BOTH),
        (crossed(np.zeros((3, 2))), BOTH),
        (over_seeds(SAME[:, 0]), SEEDS),
        (over_seeds(SAME[:, 0], (0.0, 1.0)), SEEDS),  # outside of the range
        (crossed(SAME, (0.0, 1.0)), BOTH),
        (paired(SAME + np.arange(8.0), SAME[:3] + np.arange(8.0) + 2.0), BOTH),
        (paired(SAME[:, :1], SAME[:2, :1]), SEEDS),
        (paired(SAME[:1], SAME), EPISODES),
        # The seeds of one differ, but their mean does not by episode.
        (paired(SAME[:1], SAME + np.arange(5.0)[:, None]), EPISODES),
        # Differences near zero are rounded like the returns, not like themselves.
        (paired(ROUNDED, SAME), BOTH),
        (paired(ROUNDED[:1], SAME + np.arange(-2.0, 3.0)[:, None]), EPISODES),
    ],
)
def test_equal_values_have_no_bounds_without_a_range(found: Interval, resampled: str) -> None:
    assert (found.method, found.resampled, found.known) == (EQUAL, resampled, False)
    assert found.between() == f"equal in all {resampled}"
    assert found.bounds() == "none, all equal"
    assert not found.empty
    kept = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert (kept["low"], kept["high"]) == (None, None)
    assert Interval.from_dict(kept) == found
    # Of few seeds, the seeds are shown; of one, that its episodes are equal.
    assert found.trusted(5)
    assert found.trusted(4) == (resampled == EPISODES)


def test_one_value_alone_is_not_called_equal() -> None:
    for found in (crossed([[2.0]]), over_seeds([2.0]), paired([[1.0]], [[2.0]])):
        assert found.empty
        assert not found.trusted(9)


def least(count: int) -> float:
    """Gaffke's lower bound, in shares of the range, of scores at its upper end."""
    return 0.025 ** (1 / count)


@pytest.mark.parametrize(
    ("found", "count", "resampled"),
    [
        # A seed's episodes are independent; seeds that play the same episodes are only together
        # with an episode of their own.
        (crossed(np.full((1, 32), 500.0), (0.0, 500.0)), 32, EPISODES),
        (crossed(np.full((4, 1), 500.0), (0.0, 500.0)), 4, SEEDS),
        (crossed(np.full((5, 32), 500.0), (0.0, 500.0)), 5, BOTH),
        (crossed(np.full((7, 3), 500.0), (0.0, 500.0)), 3, BOTH),
        (crossed(np.full((7, 3), 500.0 + 1e-5), (0.0, 500.0)), 3, BOTH),
        (over_seeds(np.full(4, 500.0), (0.0, 500.0)), 4, SEEDS),
    ],
)
def test_equal_values_in_a_known_range_have_gaffkes_bounds(
    found: Interval, count: int, resampled: str
) -> None:
    assert (found.method, found.resampled) == (GAFFKE, resampled)
    assert found.low == pytest.approx(500.0 * least(count), abs=5.0)
    assert found.high == pytest.approx(500.0)
    assert found.trusted(2)
    assert Interval.from_dict(found.to_dict()) == found


def test_equal_differences_have_gaffkes_bounds_of_the_differences_range() -> None:
    found = paired(np.full((5, 32), 500.0), np.zeros((4, 32)), (0.0, 500.0))
    assert (found.method, found.resampled) == (GAFFKE, BOTH)
    # From -500 to 500, and four pairs of seeds have an episode of their own.
    assert found.low == pytest.approx(-500.0 + 1000.0 * least(4), abs=10.0)
    assert (found.value, found.high) == pytest.approx((500.0, 500.0))


def test_partly_equal_values_have_an_interval() -> None:
    rows = np.arange(5.0)[:, None] * np.ones((1, 8))
    by_seed, by_episode = crossed(rows), crossed(rows.T)
    both = stats.t.interval(LEVEL, 4, 2.0, stats.sem(np.arange(5.0)))
    for found in (by_seed, by_episode):  # the variance of one component alone is known
        assert found.method == TWO_WAY
        assert (found.low, found.high) == pytest.approx(both)
    # Seeds have equal means, and so have episodes: what is left is their interaction.
    mixed = np.array([[1.0, 0.0], [0.0, 1.0]])
    for found in (crossed(mixed), paired(mixed, 1.0 - mixed), paired(mixed, np.zeros((3, 2)))):
        assert found.method == TWO_WAY
        assert found.low < found.value < found.high
    # A range does not change the interval of values that differ.
    assert crossed(mixed, (0.0, 1.0)) == crossed(mixed)
    assert paired(mixed, mixed, (0.0, 1.0)) == paired(mixed, mixed)


def test_scores_outside_the_range_have_students_interval() -> None:
    for scores in ([0.2, 0.5, 1.5], [-0.5, 0.5, 0.5]):
        found = over_seeds(scores, (0.0, 1.0))
        assert found == over_seeds(scores)
        assert found.method == STUDENT
        assert outside(scores, (0.0, 1.0)) == max(scores, key=lambda one: abs(one - 0.5))
    assert over_seeds([0.2, 0.5, 1.0], (0.0, 1.0)).method == GAFFKE
    # Sums of float32 rewards are rounded.
    assert outside([1.0 + 1e-7], (0.0, 1.0)) is None
    assert over_seeds(np.full(3, 1.0 + 1e-7), (0.0, 1.0)).high <= 1.0 + 1e-12
    assert over_seeds(np.full(3, -1e-7), (0.0, 1.0)).low >= -1e-12


def test_bounds_are_known_if_both_are() -> None:
    assert Interval(0.0, -1.0, 1.0, SEEDS).known
    assert not Interval(0.0, -1.0, math.inf, SEEDS).known
    assert not Interval(0.0, -math.inf, 1.0, SEEDS).known
    assert not Interval(0.0, -math.inf, math.inf, EPISODES).trusted(1)


def test_gaffkes_bounds_have_half_of_the_rest_on_each_side() -> None:
    # All scores at one limit: the weight of the other is beta distributed.
    low, high = gaffke(np.ones(4), (0.0, 1.0))
    assert low == pytest.approx(0.025 ** (1 / 4), abs=0.01)
    assert high == pytest.approx(1.0)
    low, high = gaffke(np.zeros(4), (0.0, 1.0))
    assert high == pytest.approx(1.0 - 0.025 ** (1 / 4), abs=0.01)
    assert low == pytest.approx(0.0)


def test_components_that_are_not_seen_are_zero() -> None:
    rng = np.random.default_rng(3)
    found = [components(play(rng, 4, 0.0, 0.0, 1.0)) for _ in range(50)]
    assert min(own.seed for own in found) == 0.0
    assert min(own.episode for own in found) == 0.0


def test_a_block_has_every_32nd_episode() -> None:
    own = np.zeros((1, 64))
    own[0, [3, 35]] = 70.0, 50.0
    found = block_means(own)[0]
    assert found[3] == pytest.approx(60.0)
    assert np.delete(found, 3) == pytest.approx(0.0)


@pytest.mark.parametrize("ratio", [-0.5, 0.0, 0.4, 1.0, 1.3])
@pytest.mark.parametrize("together", [0.0, 0.8])
def test_ratios_of_means_are_covered(ratio: float, together: float) -> None:
    """Also if numerator and denominator have the luck of the episodes in common."""
    rng = np.random.default_rng(0)

    def draw() -> Interval:
        luck = rng.normal(0.0, together, GAMES)
        span = 1.0 + luck + rng.normal(0.0, 1.0, GAMES)
        return ratio_of_means(ratio + luck + rng.normal(0.0, 0.7, GAMES), span)

    assert coverage(draw, ratio) == pytest.approx(LEVEL, abs=0.015)


def test_a_ratio_has_no_bounds_if_its_denominator_may_be_zero() -> None:
    around_zero = np.array([-1.0, 2.0, -3.0, 4.0])
    for span in (around_zero, -np.ones(4), np.zeros(4)):
        assert not ratio_of_means(np.ones(4), span).known
    assert not ratio_of_means([1.0], [2.0]).known


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.5, 1.5)), min_size=3, max_size=30))
def test_bounds_of_a_ratio_are_where_students_interval_begins_to_have_zero(
    pairs: list[tuple[float, float]],
) -> None:
    above, span = np.array(pairs).T
    found = ratio_of_means(above, span)
    if found.known:
        for bound in (found.low, found.high):
            values = above - bound * span
            error = values.std(ddof=1) / math.sqrt(len(values))
            reach = stats.t.ppf(0.975, len(values) - 1) * error
            assert abs(values.mean()) == pytest.approx(reach, abs=1e-6)
        assert found.low - 1e-9 <= found.value <= found.high + 1e-9
    assert ratio_of_means(span, span).value == 1.0
