"""Folds: training never touches test bars, and each path cell comes from a fold that tested it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from purgedcv import CombinatorialPurgedCV as PurgedCvCombinatorial
from purgedcv import PurgedKFold, reconstruct_paths
from skfolio.model_selection import CombinatorialPurgedCV as SkfolioCombinatorial

from sweepd.envs.crypto.splits import CrossValidation, Splits, make_splits, window_of
from sweepd.envs.support.errors import InputError

DAY = 24


@st.composite
def divisions(draw: st.DrawFn) -> tuple[CrossValidation, int, dict[str, float | int]]:
    groups = draw(st.integers(2, 7))
    cv = CrossValidation(
        scheme=draw(st.sampled_from(["cpcv", "kfold", "walk-forward", "single"])),
        groups=groups,
        test_groups=draw(st.integers(1, min(3, groups - 1))),
        embargo_share=draw(st.sampled_from([0.0, 0.01, 0.05])),
    )
    memory, lookback = draw(st.integers(1, 60)), draw(st.integers(1, 10))
    where = {
        "first_bar": memory + lookback - 2,
        "holdout": draw(st.sampled_from([0.0, 0.15, 0.4])),
        "lookback": lookback,
        "memory": memory,
    }
    return cv, draw(st.integers(300, 4000)), where


def usual(bars_count: int = 12_000, **changes: object) -> Splits:
    cv = CrossValidation(**{key: changes.pop(key) for key in list(changes) if key not in WHERE})  # type: ignore[arg-type]
    return make_splits(bars_count, "1h", cv, **{**WHERE, **changes})  # type: ignore[arg-type]


WHERE = {"first_bar": 511, "holdout": 0.15, "lookback": 1, "memory": 512}


@settings(max_examples=150, deadline=None)
@given(divisions())
def test_invariants_of_all_schemes(
    division: tuple[CrossValidation, int, dict[str, float | int]],
) -> None:
    cv, count, where = division
    try:
        splits = make_splits(count, "1h", cv, **where)  # type: ignore[arg-type]
    except InputError:
        assume(False)
    start, stop = splits.holdout
    assert stop == count
    assert count - start == round(where["holdout"] * count)
    # The groups cover the bars from the first decision to the hold-out in nearly equal parts.
    assert splits.groups[0][0] == where["first_bar"] + 1
    assert splits.groups[-1][1] == start
    assert all(a[1] == b[0] for a, b in itertools.pairwise(splits.groups))
    sizes = [b - a for a, b in splits.groups]
    assert max(sizes) - min(sizes) <= 1
    assert splits.purge == where["memory"] + where["lookback"] + 1
    assert splits.embargo == max(math.ceil(cv.embargo_share * count), DAY)
    for fold in splits.folds:
        assert fold.train
        for first, last in fold.train:
            assert where["first_bar"] <= first < last < start
            for group in fold.test_groups:
                a, b = splits.groups[group]
                # Every bar decided or valued on lies more than the purge before the test, or more
                # than purge and embargo after it.
                assert last < a - splits.purge or first >= b + splits.purge + splits.embargo
                # So no feature of one side, lags included, reads a bar with a return of the other.
                reach = where["memory"] + where["lookback"] - 2
                assert last < a - 1 - reach or first - reach > b - 1
                if cv.scheme in ("walk-forward", "single"):
                    assert last < a
        # Windows are maximal runs: they do not touch, so none spans a gap.
        assert all(one[1] + 1 < other[0] for one, other in itertools.pairwise(fold.train))
        groups = [splits.groups[group] for group in fold.test_groups]
        assert splits.test_windows(fold) == [(a - 1, b - 1) for a, b in groups]
        assert all(first >= where["first_bar"] for first, _ in splits.test_windows(fold))
    # Every path cell comes from a fold that tested that group; each fold's test is used once.
    assert splits.paths.dtype == np.int64
    used = []
    for path in splits.paths:
        for fold_index, group in zip(path.tolist(), splits.path_groups, strict=True):
            assert group in splits.folds[fold_index].test_groups
            used.append((fold_index, group))
    assert sorted(used) == sorted(
        (fold.index, group) for fold in splits.folds for group in fold.test_groups
    )
    # Joined paths have each bar's value at its position in `path_bars`.
    cells = {(f, g): np.arange(*splits.groups[g]) + 1e6 * f for f, g in used}
    joined = splits.join(cells)
    assert joined.shape == (len(splits.paths), len(splits.path_bars))
    assert np.array_equal(joined % 1e6, np.tile(splits.path_bars, (len(joined), 1)))


@pytest.mark.parametrize(
    ("scheme", "folds", "paths", "covered"),
    [("cpcv", 10, 4, 5), ("kfold", 5, 1, 5), ("walk-forward", 4, 1, 4), ("single", 1, 1, 1)],
)
def test_counts(scheme: str, folds: int, paths: int, covered: int) -> None:
    splits = usual(scheme=scheme)
    assert len(splits.folds) == folds
    assert splits.paths.shape == (paths, covered)
    assert len(splits.path_groups) == covered
    assert splits.holdout == (10_200, 12_000)
    assert window_of(splits.holdout) == (10_199, 11_999)


def test_cpcv_of_six_and_two_has_fifteen_folds_and_five_paths() -> None:
    splits = usual(20_000, groups=6)
    assert len(splits.folds) == 15
    assert splits.paths.shape == (5, 6)


def trained(splits: Splits, fold: int) -> list[int]:
    """Return all bars of a fold's training windows."""
    return [bar for first, last in splits.folds[fold].train for bar in range(first, last + 1)]


@pytest.mark.parametrize(
    ("groups", "tested", "size"), [(5, 2, 400), (6, 2, 240), (6, 3, 350), (4, 2, 77)]
)
def test_equal_to_skfolio(groups: int, tested: int, size: int) -> None:
    """Same folds, same training bars, same paths.

    Different conventions: skfolio puts a remainder into the last group (so the count here is a
    multiple) and has no bar before the first group, where decisions are possible here (first_bar);
    training runs too short for an episode are left out here.
    """
    purge, embargo, first_bar = 12, 24, 10
    count = first_bar + 1 + groups * size
    cv = CrossValidation(groups=groups, test_groups=tested, embargo_share=0.0)
    splits = make_splits(
        count, "1h", cv, first_bar=first_bar, holdout=0.0, lookback=2, memory=purge - 3
    )
    assert (splits.purge, splits.embargo) == (purge, embargo)
    theirs = SkfolioCombinatorial(
        n_folds=groups, n_test_folds=tested, purged_size=purge, embargo_size=embargo
    )
    assert theirs.n_splits == len(splits.folds)
    assert np.array_equal(theirs.recombined_paths.T, splits.paths)
    for fold, (train, tests) in enumerate(theirs.split(np.zeros((groups * size, 1)))):
        bars = (train + first_bar + 1).tolist()
        if 0 not in splits.folds[fold].test_groups:
            bars = [first_bar, *bars]
        assert trained(splits, fold) == bars
        windows = splits.test_windows(splits.folds[fold])
        expected = [(t[0] + first_bar, t[-1] + first_bar + 1) for t in sorted(tests, key=min)]
        assert windows == expected


@pytest.mark.parametrize(("groups", "tested"), [(5, 2), (6, 2), (5, 1)])
def test_equal_to_purgedcv(groups: int, tested: int) -> None:
    """Same folds, training bars and joined paths, also with groups of different lengths.

    Different conventions: purgedcv counts the embargo from the end of the test group, so that it
    overlaps the purge (here it follows, so purgedcv gets the sum), and its purge of h drops what
    is less than h away in time.
    """
    purge, embargo, first_bar, count = 12, 24, 0, 1203
    cv = CrossValidation(
        scheme="cpcv" if tested > 1 else "kfold",
        groups=groups,
        test_groups=tested,
        embargo_share=0.0,
    )
    splits = make_splits(
        count + 1, "1h", cv, first_bar=first_bar, holdout=0.0, lookback=2, memory=purge - 3
    )
    times = pd.Series(pd.date_range("2024-01-01", periods=count, freq="h"))
    settings_ = {
        "prediction_times": times,
        "evaluation_times": times + pd.Timedelta(hours=1),
        "purge_horizon": pd.Timedelta(hours=purge),
        "embargo_observations": purge + embargo,
    }
    if tested > 1:
        theirs = PurgedCvCombinatorial(groups, tested, **settings_)
    else:
        theirs = PurgedKFold(groups, **settings_)
    made, positions = [], []
    for fold, (train, test) in enumerate(theirs.split(np.zeros((count, 1)))):
        bars = (np.asarray(train) + 1).tolist()
        if 0 not in splits.folds[fold].test_groups:
            bars = [0, *bars]
        assert trained(splits, fold) == bars
        made.append(fold * 1e6 + test)
        positions.append(test)
    expected = reconstruct_paths(made, positions, groups, tested, count)
    cells = {
        (fold.index, group): fold.index * 1e6 + np.arange(*splits.groups[group]) - 1
        for fold in splits.folds
        for group in fold.test_groups
    }
    assert np.array_equal(splits.join(cells), expected)


def test_walk_forward_trains_on_a_growing_past() -> None:
    splits = usual(scheme="walk-forward")
    for fold, group in zip(splits.folds, (1, 2, 3, 4), strict=True):
        assert fold.test_groups == (group,)
        assert fold.train == ((511, splits.groups[group][0] - splits.purge - 1),)


def test_single_tests_the_last_group() -> None:
    splits = usual(scheme="single")
    assert splits.folds[0].test_groups == (4,)
    assert splits.folds[0].train == ((511, splits.groups[4][0] - splits.purge - 1),)


def test_training_windows_shorter_than_an_episode_are_left_out() -> None:
    """A few bars between two tested groups may survive both purges; such a run is left out."""
    splits = usual(7800)
    lengths = [last - first for fold in splits.folds for first, last in fold.train]
    assert min(lengths) >= min(168, (splits.groups[0][1] - splits.groups[0][0]) // 4)
    a, b = splits.groups[1]
    assert 0 < b - a - 2 * splits.purge - splits.embargo < 168
    between = next(fold for fold in splits.folds if fold.test_groups == (0, 2))
    assert between.train[0][0] > splits.groups[2][1]


def test_too_few_bars_name_how_many_are_needed() -> None:
    with pytest.raises(
        InputError, match="2,000 bars of 1h are too few for cpcv with 5 groups"
    ) as caught:
        usual(2000)
    needed = int(str(caught.value).split("at least ")[1].split(" ")[0].replace(",", ""))
    usual(needed)
    with pytest.raises(InputError, match="too few"):
        usual(int(needed * 0.97))
    for count in (0, 1, 100, 511):
        with pytest.raises(InputError, match="too few"):
            usual(count)


def test_no_number_of_bars_is_enough() -> None:
    """Two groups, both tested, leave one fold each; an embargo of half the bars leaves none."""
    with pytest.raises(InputError, match="no number of bars would be enough"):
        usual(5000, groups=2, test_groups=1, embargo_share=0.9)


@pytest.mark.parametrize(
    ("settings_", "said"),
    [
        ({"scheme": "loo"}, "'loo' is not known; choose one of cpcv, kfold, walk-forward, single"),
        ({"groups": 1}, "at least 2 groups, not 1"),
        ({"groups": 4, "test_groups": 4}, "can test 1 to 3"),
        ({"test_groups": 0}, "can test 1 to 4"),
        ({"embargo_share": 1.0}, "not 1.0"),
        ({"holdout": 1.0}, "hold-out is a fraction"),
        ({"holdout": -0.1}, "hold-out is a fraction"),
    ],
)
def test_bad_settings(settings_: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        usual(**settings_)


def test_no_holdout() -> None:
    assert usual(holdout=0.0).holdout == (12_000, 12_000)


def test_joining_refuses_missing_and_misshapen_cells() -> None:
    splits = usual(scheme="kfold")
    cells = {(group, group): np.zeros(b - a) for group, (a, b) in enumerate(splits.groups)}
    assert splits.join(cells).shape == (1, 10_200 - 512)
    with pytest.raises(ValueError, match="fold 2, group 2"):
        splits.join({**cells, (2, 2): np.zeros(5)})
    del cells[3, 3]
    with pytest.raises(KeyError):
        splits.join(cells)
