"""Configurations: trials with equal parameters, and which of them is selected."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, TrialState

from sweepd.envs.support.intervals import paired
from sweepd.optimize.study.record.configurations import (
    Configuration,
    Selection,
    episode_luck,
    joined,
    leading,
    unfinished,
)
from sweepd.optimize.study.record.keys import BLOCKS_KEY, blocks_key
from tests.optimize.objectives import test_outlook
from tests.optimize.objectives.test_game_study import make_spec

COMPLETE, FAIL, PRUNED = TrialState.COMPLETE, TrialState.FAIL, TrialState.PRUNED
RUNNING, WAITING = TrialState.RUNNING, TrialState.WAITING
RACE = Selection(racing=True)


def trial(
    number: int,
    value: float | None,
    x: float = 0.0,
    state: TrialState = COMPLETE,
    rungs: Mapping[int, float] | None = None,
) -> FrozenTrial:
    made = optuna.trial.create_trial(
        state=state,
        value=value,
        params={"x": x},
        distributions={"x": optuna.distributions.FloatDistribution(0.0, 1.0)},
        intermediate_values=dict(rungs or {}),
    )
    made.number = number
    return made


def numbers(selection: Selection, *trials: FrozenTrial) -> list[list[int]]:
    return [[t.number for t in one.trials] for one in selection.configurations(trials)]


def test_without_a_race_every_trial_stands_for_itself() -> None:
    trials = [trial(0, 1.0), trial(1, 3.0), trial(2, 2.0, 0.5), trial(3, 3.0, 0.5)]
    assert numbers(Selection(), *trials) == [[1], [3], [2], [0]]
    best = Selection().best(trials)
    assert best is not None
    assert (best.best_trial.number, best.value) == (1, 3.0)


def test_in_a_race_the_mean_over_seeds_decides() -> None:
    trials = [trial(0, 1.0, 0.5), trial(1, 5.0), trial(2, -1.0), trial(3, 3.5, 0.5)]
    assert numbers(RACE, *trials) == [[3, 0], [1, 2]]
    best = RACE.best(trials)
    assert best is not None
    assert (best.value, best.values) == (2.25, (3.5, 1.0))


def test_a_lucky_configuration_with_few_seeds_comes_later() -> None:
    # 8 / 3 is the variance of seeds: the errors are 1.63 of one and 0.82 of four.
    many = [trial(number, value, 0.5) for number, value in enumerate((-2.0, 0.0, 0.0, 2.0))]
    lucky = trial(9, 0.8)
    assert numbers(RACE, lucky, *many) == [[3, 1, 2, 0], [9]]
    assert numbers(RACE, trial(9, 0.9), *many) == [[9], [3, 1, 2, 0]]
    # A second seed with the same value makes the lucky one more certain.
    assert numbers(RACE, lucky, trial(10, 0.8), *many)[0] == [9, 10]
    best = RACE.best([lucky, *many])
    assert best is not None
    assert best.error == pytest.approx(math.sqrt(8.0 / 3.0 / 4.0))


@given(st.lists(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=4), min_size=1, max_size=6))
def test_the_highest_mean_minus_its_standard_error_is_selected(groups: list[list[float]]) -> None:
    made = [(value, i / 10.0) for i, group in enumerate(groups) for value in group]
    trials = [trial(number, *one) for number, one in enumerate(made)]
    several = [np.array(group) for group in groups]
    freedom = sum(len(group) - 1 for group in groups)
    squares = sum(((own - own.mean()) ** 2).sum() for own in several)
    deviation = math.sqrt(squares / freedom) if freedom else 0.0
    bounds = [own.mean() - deviation / math.sqrt(len(own)) for own in several]
    best = RACE.best(trials)
    assert best is not None
    assert best.value - best.error == pytest.approx(max(bounds), abs=1e-6)


def test_of_equal_means_the_earlier_configuration_comes_first() -> None:
    assert numbers(RACE, trial(0, 1.0, 0.5), trial(1, 1.0)) == [[0], [1]]


@pytest.mark.parametrize("state", [FAIL, PRUNED, TrialState.RUNNING])
def test_only_complete_trials_are_selected(state: TrialState) -> None:
    other = trial(0, None, state=state, rungs={1: 9.0})
    assert numbers(RACE, other, trial(1, 0.5, 0.5)) == [[1]]
    assert RACE.best([other]) is None


def test_values_are_settled_over_the_last_evaluations() -> None:
    settled = Selection(racing=True, rungs=10)
    rungs = {rung: float(rung) for rung in range(1, 11)}
    assert settled.value(trial(0, 10.0, rungs=rungs)) == 9.0
    # With four evaluations there is one in the last fifth of the training.
    assert Selection(rungs=4).value(trial(0, 4.0, rungs={1: 1.0, 2: 2.0, 3: 3.0, 4: 4.0})) == 4.0
    assert settled.value(trial(0, 7.0)) == 7.0


def test_a_pruned_trial_has_its_last_evaluation_and_a_failed_one_nothing() -> None:
    settled = Selection(racing=True, rungs=10)
    assert settled.value(trial(0, None, state=PRUNED, rungs={3: 1.0, 5: 2.0})) == 2.0
    assert settled.value(trial(0, None, state=PRUNED)) is None
    assert settled.value(trial(0, None, state=FAIL, rungs={5: 2.0})) is None
    assert Selection().value(trial(0, None, state=PRUNED, rungs={5: math.inf})) is None


@pytest.mark.parametrize("sampler", ["tpe", "race"])
def test_a_study_says_how_its_trials_are_compared(sampler: str) -> None:
    racing = sampler == "race"
    game = make_spec(sampler=sampler, rungs=10).selection
    assert game == Selection(racing, 10 if racing else None, BLOCKS_KEY)
    assert test_outlook.spec(1000, sampler=sampler).selection == Selection(racing, None)


def test_the_leading_trial_is_unfinished_and_has_the_highest_latest_evaluation() -> None:
    trials = [
        trial(0, 9.0, rungs={1: 9.0}),
        trial(1, None, state=FAIL, rungs={1: 9.0}),
        trial(2, None, state=PRUNED, rungs={1: 9.0}),
        trial(3, None, state=RUNNING, rungs={1: 8.0, 2: 1.0}),
        trial(4, None, state=WAITING, rungs={1: 2.0}),  # requeued with its checkpoint
        trial(5, None, state=RUNNING, rungs={1: math.nan}),
        trial(6, None, state=RUNNING),
        trial(7, None, state=RUNNING, rungs={1: 2.0}),
    ]
    assert [one.number for one in unfinished(trials)] == [3, 4, 7]
    ahead = leading(trials)
    assert ahead is not None
    assert ahead.number == 4
    assert leading(trials[:3]) is None


def test_luck_of_episodes_that_suit_a_configuration_is_not_reduced_by_seeds() -> None:
    """Simulated: a configuration's own episodes have variance 4, and those of a seed 9."""
    rng = np.random.default_rng(0)
    blocks, found, shares = 32, [], []
    for _ in range(200):
        common = rng.normal(0.0, 30.0, blocks)
        one = [
            common + rng.normal(0.0, 2.0, blocks) + rng.normal(0.0, 3.0, (seeds, blocks))
            for seeds in (1, 2, 3, 1, 4)
        ]
        found.append(episode_luck(one))
        shares.append(episode_luck([own - own.mean(0) + common for own in one]))
    assert np.mean(found) == pytest.approx(4.0 / blocks, rel=0.1)
    assert np.mean(shares) < 0.01
    assert episode_luck([None, None]) == episode_luck([np.ones((1, 4))]) == 0.0
    assert episode_luck([np.ones((1, 4)), np.ones((1, 4))]) == 0.0


def race_of(*blocks: list[list[float]], rungs: int = 1) -> list[Configuration]:
    """The configurations of a race, one per (seeds, episodes) returns, one trial per seed."""
    trials = []
    for x, own in enumerate(blocks):
        for row in own:
            mean = sum(row) / len(row)
            one = trial(len(trials), mean, x / 10.0, rungs=dict.fromkeys(range(1, rungs + 1), mean))
            one.user_attrs.update({blocks_key(rung): [row] for rung in range(1, rungs + 1)})
            trials.append(one)
    return Selection(racing=True, rungs=rungs, blocks_key=BLOCKS_KEY).configurations(trials)


def test_the_selected_configuration_knows_how_far_it_is_ahead_of_the_second() -> None:
    rng = np.random.default_rng(0)
    common = rng.normal(0.0, 50.0, 8)
    sides = [rng.normal(0.0, 0.1, (5, 8)) + common + add for add in (0.0, 3.0, 2.0)]
    first, second, third = race_of(*(side.tolist() for side in sides))
    assert (first.second, second.second, third.second) == (second, None, None)
    ahead = first.ahead_of(second)
    assert ahead is not None
    expected = paired(sides[1], sides[2])
    assert (ahead.low, ahead.high) == pytest.approx((expected.low, expected.high))
    assert ahead.value == pytest.approx(first.value - second.value) == pytest.approx(1.0, abs=0.2)
    assert 0.5 < ahead.low < ahead.high < 1.5  # common episodes cancel out
    behind = second.ahead_of(first)
    assert behind is not None
    assert (behind.low, behind.high) == pytest.approx((-ahead.high, -ahead.low))
    assert first.lead_words(second) == f"{ahead.value:+.4f} ({ahead.between()})"
    found = first.to_dict()["second"]
    assert found["trials"] == [10, 11, 12, 13, 14]
    assert found["between"] == first.lead_words(second)


def test_other_episodes_or_none_have_no_paired_difference() -> None:
    first, second = race_of([[4.0, 6.0], [5.0, 5.0]], [[1.0, 1.0, 4.0], [3.0, 1.0, 2.0]])
    assert first.ahead_of(second) is None
    assert first.lead_words(second) == "+3.0000"
    plain = RACE.configurations([trial(0, 2.0), trial(1, 1.0, 0.5)])
    assert plain[0].ahead_of(plain[1]) is None
    assert plain[0].to_dict()["second"]["between"] == "+1.0000"
    one = race_of([[1.0], [2.0]], [[3.0]])
    assert one[0].ahead_of(one[1]) is None  # nothing says how much luck there is
    # Four seeds are too few to show it.
    few = [[1.0, 2.0], [2.0, 1.0], [1.0, 1.0], [2.0, 2.0]]
    first, second = race_of([[9.0, 9.0]] * 5, few)
    assert first.ahead_of(second) is not None
    assert first.lead_words(second) == "+7.5000 (too few seeds for an interval)"
    assert RACE.best([trial(0, 2.0)]).second is None  # type: ignore[union-attr]
    assert Selection().best([trial(0, 2.0), trial(1, 1.0)]).second is None  # type: ignore[union-attr]


def test_scores_are_those_of_seeds_and_intervals_need_all_episodes() -> None:
    [one] = race_of([[1.0, 3.0], [4.0, 6.0]])
    assert one.scores == (5.0, 2.0)  # the best trial first
    pair = trial(0, 3.5, rungs={1: 3.5})
    pair.user_attrs[blocks_key(1)] = [[1.0, 3.0], [4.0, 6.0]]  # a trial with two seeds
    selection = Selection(racing=True, rungs=1, blocks_key=BLOCKS_KEY)
    best = selection.best([pair])
    assert best is not None
    assert (best.values, best.scores) == ((3.5,), (2.0, 5.0))
    # A trial, or a rung, without episodes leaves no interval.
    bare = trial(1, 2.0, rungs={1: 2.0})
    best = selection.best([pair, bare])
    assert best is not None
    assert (best.interval, best.scores) == (None, (3.5, 2.0))
    late = Selection(racing=True, rungs=10, blocks_key=BLOCKS_KEY)
    pair = trial(0, 5.0, rungs={8: 5.0, 9: 5.0, 10: 5.0})
    pair.user_attrs.update({blocks_key(8): [[1.0, 2.0]], blocks_key(10): [[3.0, 6.0]]})
    assert late.blocks(pair) is None
    pair.user_attrs[blocks_key(9)] = [[2.0, 1.0]]
    found = late.blocks(pair)
    assert found is not None
    assert found.tolist() == [[2.0, 3.0]]
    # One seed with one episode has no bounds.
    [alone] = race_of([[1.0]])
    assert alone.interval is None


def test_the_error_of_a_configuration_contains_the_luck_of_its_episodes() -> None:
    # Episodes suit one configuration or the other, whatever the seed is.
    sides = [[[9.0, 0.0, 9.0, 0.0]] * 2, [[0.0, 8.0, 0.0, 8.0]] * 2]
    first, second = race_of(*sides)
    luck = episode_luck([np.array(own) for own in sides])
    assert luck > 1.0
    assert first.error == second.error == pytest.approx(math.sqrt(luck))


def test_trials_with_other_numbers_of_blocks_are_not_joined() -> None:
    assert joined([np.ones((1, 4)), np.ones((2, 3))]) is None
    assert joined([np.ones((1, 4)), None]) is None
    assert joined([]) is None
    both = joined([np.ones((1, 4)), np.zeros((2, 4))])
    assert both is not None
    assert both.tolist() == [[1.0] * 4, [0.0] * 4, [0.0] * 4]
