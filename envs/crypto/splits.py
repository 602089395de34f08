"""Training and test bars: purged cross-validation with embargo, hold-out, back-test paths.

Bars and windows. A window `(first, last)` makes its first decision at the close of bar `first` and
is valued for the last time at the close of bar `last`: `last - first` steps, whose returns belong
to bars `first + 1 … last`. A test group is a half-open range of bars `[a, b)`. It is traded as the
window `(a - 1, b - 1)`, so each of its bars has exactly one return.

For a fold that tests the group [a, b):

    … train │ purge │ test [a, b) │ purge │ embargo │ train …    purge = memory + lookback + 1

With this purge, no bar that a test decision can read (features and their lags) is valued in
training, and vice versa. The embargo follows the purge and does not overlap it (López de Prado
2018, *Advances in Financial Machine Learning*, chapters 7 and 12).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sweepd.envs.crypto.data.timeframe import bars_per_day, bars_per_week
from sweepd.envs.support.errors import InputError

Window = tuple[int, int]
BarRange = tuple[int, int]
SCHEMES = ("cpcv", "kfold", "walk-forward", "single")


class TooFewBars(InputError):
    """There are too few bars for the folds.

    Attributes:
        needed: about the fewest bars that are enough; 0 if no number would be.
    """

    def __init__(self, message: str, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


@dataclass(frozen=True)
class CrossValidation:
    """How the bars before the hold-out are divided.

    Attributes:
        scheme: `cpcv` tests every combination of `test_groups` groups; `kfold` tests each group
            once; `walk-forward` tests each group but the first, after training on earlier bars;
            `single` tests the last group.
        groups: number of contiguous groups of (nearly) equal length.
        test_groups: groups tested per fold; only for `cpcv`.
        embargo_share: bars left out after the purge behind a test group, as a fraction of all bars;
            at least one day.
    """

    scheme: str = "cpcv"
    groups: int = 5
    test_groups: int = 2
    embargo_share: float = 0.01

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise InputError(
                f"cross-validation {self.scheme!r} is not known; choose one of {', '.join(SCHEMES)}"
            )
        if self.groups < 2:
            raise InputError(f"cross-validation needs at least 2 groups, not {self.groups}")
        if self.scheme == "cpcv" and not 1 <= self.test_groups < self.groups:
            raise InputError(
                f"cpcv with {self.groups} groups can test 1 to {self.groups - 1} of them in a "
                f"fold, not {self.test_groups}"
            )
        if not 0.0 <= self.embargo_share < 1.0:
            raise InputError(
                f"the embargo is a fraction of the bars from 0 to under 1, not {self.embargo_share}"
            )

    def tested(self) -> tuple[tuple[int, ...], ...]:
        """Return the groups tested by each fold, in fold order (lexicographic)."""
        if self.scheme == "cpcv":
            # With n groups of which k are tested, each group is tested by C(n - 1, k - 1) folds:
            # as many complete back-test paths can be joined (López de Prado 2018, section 12.4).
            return tuple(itertools.combinations(range(self.groups), self.test_groups))
        if self.scheme == "kfold":
            return tuple((group,) for group in range(self.groups))
        if self.scheme == "walk-forward":
            # Group 0 has no earlier bars to train on.
            return tuple((group,) for group in range(1, self.groups))
        return ((self.groups - 1,),)

    @property
    def folds(self) -> int:
        """Return the number of folds, without listing them."""
        if self.scheme == "cpcv":
            return math.comb(self.groups, self.test_groups)
        return {"kfold": self.groups, "walk-forward": self.groups - 1, "single": 1}[self.scheme]


@dataclass(frozen=True)
class Fold:
    """A training set and the groups it is tested on.

    Attributes:
        index: position in the order of folds.
        train: windows in ascending order, without purged or embargoed bars.
        test_groups: indices of groups.
    """

    index: int
    train: tuple[Window, ...]
    test_groups: tuple[int, ...]


@dataclass(frozen=True)
class Splits:
    """All folds, the paths that they form, and the hold-out.

    Attributes:
        groups: bar ranges [a, b), contiguous.
        folds: in the order of `CrossValidation.tested`.
        paths: (φ, len(path_groups)) int64; fold `paths[p, j]` supplies group `path_groups[j]` of
            path p.
        path_groups: groups that are tested, ascending.
        holdout: bar range [a, b); empty (a == b) without a hold-out.
        purge: in bars.
        embargo: in bars.
    """

    groups: tuple[BarRange, ...]
    folds: tuple[Fold, ...]
    paths: NDArray[np.int64]
    path_groups: tuple[int, ...]
    holdout: BarRange
    purge: int
    embargo: int

    def test_windows(self, fold: Fold) -> list[Window]:
        """Return one window per test group of the fold, in the order of `fold.test_groups`."""
        return [window_of(self.groups[group]) for group in fold.test_groups]

    @property
    def path_bars(self) -> NDArray[np.int64]:
        """Return the bar of each column of a joined path: (T,)."""
        return np.concatenate(
            [np.arange(*self.groups[group], dtype=np.int64) for group in self.path_groups]
        )

    def join(self, per_group: Mapping[tuple[int, int], NDArray[np.float64]]) -> NDArray[np.float64]:
        """Join per-bar values of separately traded groups into paths.

        Args:
            per_group: by (fold, test group), an array with one value per bar of the group.

        Returns:
            (φ, T) float64, with columns as in `path_bars`.

        Raises:
            KeyError: a cell is missing.
            ValueError: a cell has the wrong length.
        """
        rows = []
        for path in self.paths:
            cells = []
            for fold, group in zip(path.tolist(), self.path_groups, strict=True):
                cell = np.asarray(per_group[fold, group], dtype=np.float64)
                a, b = self.groups[group]
                if cell.shape != (b - a,):
                    raise ValueError(
                        f"fold {fold}, group {group}: {cell.shape} values for a group of "
                        f"{b - a} bars"
                    )
                cells.append(cell)
            rows.append(np.concatenate(cells))
        return np.stack(rows)


def window_of(bars: BarRange) -> Window:
    """Return the window that trades a range of bars [a, b).

    The first decision is made at the close before bar a, so that every bar of the range has a
    return.
    """
    a, b = bars
    return a - 1, b - 1


def first_decision(memory: int, lookback: int) -> int:
    """Return the first bar at which decisions are possible.

    Features need `memory` bars, and the oldest lag of an observation must have them too.
    """
    return memory - 1 + lookback - 1


def make_splits(
    bars_count: int,
    timeframe: str,
    cv: CrossValidation,
    *,
    first_bar: int,
    holdout: float,
    lookback: int,
    memory: int,
) -> Splits:
    """Divide `bars_count` bars into folds and a hold-out.

    Training windows shorter than a quarter of a group (or than a week, if that is less) are left
    out, because the shortest window limits the length of episodes.

    Args:
        bars_count: number of bars.
        timeframe: of the bars.
        cv: the cross-validation scheme.
        first_bar: the first bar at which decisions are possible, since features and all lags exist
            from there. The groups cover the bars from `first_bar + 1` to the hold-out.
        holdout: fraction of all bars, the newest, that are set aside first; 0 for none. No purge
            precedes it: it is traded strictly later, as in live trading, and all training labels
            are older than its first return.
        lookback: lags of the observation (the study's maximum).
        memory: bars on which a row of features may depend.

    Raises:
        TooFewBars: a fold has no training bars; the message says how many bars are needed.
    """
    if not 0.0 <= holdout < 1.0:
        raise InputError(f"the hold-out is a fraction of the bars from 0 to under 1, not {holdout}")
    # A decision at bar t reads features of bars t - lookback + 1 … t, each of which depends on
    # `memory` bars; its reward is the return of bar t + 1.
    purge = memory + lookback + 1
    divide = partial(
        _divide, timeframe=timeframe, cv=cv, first_bar=first_bar, holdout=holdout, purge=purge
    )
    splits = divide(bars_count)
    if splits is None:
        needed = _bars_needed(divide, bars_count, first_bar)
        enough = (
            f"at least {needed:,} are needed" if needed else "no number of bars would be enough"
        )
        raise TooFewBars(
            f"{bars_count:,} bars of {timeframe} are too few for {cv.scheme} with {cv.groups} "
            f"groups, a purge of {purge} bars, an embargo of "
            f"{cv.embargo_share:.1%} and a hold-out of {holdout:.0%}: {enough}"
            " (or use fewer groups, --cv single, or shorter bars)",
            needed,
        )
    return splits


def _divide(
    bars_count: int,
    *,
    timeframe: str,
    cv: CrossValidation,
    first_bar: int,
    holdout: float,
    purge: int,
) -> Splits | None:
    """Return the splits, or None if a group would be empty or a fold have no training bars."""
    # Returns and volatility stay correlated after the last bar that features can read, so training
    # resumes only after an embargo. A day is the longest cycle of a market that never closes.
    embargo = max(math.ceil(cv.embargo_share * bars_count), bars_per_day(timeframe))
    # The hold-out is the newest data: it is never trained on, tested or selected with.
    end = bars_count - round(holdout * bars_count)
    # The first return belongs to the bar after the first decision.
    begin = first_bar + 1
    # A group needs two bars to be traded as a window.
    if end - begin < 2 * cv.groups:
        return None
    size, rest = divmod(end - begin, cv.groups)
    edges = [begin]
    # The first `rest` groups get one bar more.
    for group in range(cv.groups):
        edges.append(edges[-1] + size + (group < rest))
    groups = tuple(itertools.pairwise(edges))
    # The shortest training window caps the length of episodes, so short remnants between two test
    # groups are left out.
    shortest = max(1, min(bars_per_week(timeframe), size // 4))
    # These schemes train only on bars before the test, as in live trading.
    forward_only = cv.scheme in ("walk-forward", "single")
    folds = []
    for index, tested in enumerate(cv.tested()):
        free = np.zeros(bars_count, dtype=bool)
        free[first_bar:end] = True
        for group in tested:
            a, b = groups[group]
            # Before the test only the purge: its bars cannot see the test. After it also the
            # embargo, since bars that follow the test still carry its effects.
            free[max(0, a - purge) : b + purge + embargo] = False
            if forward_only:
                free[b:] = False
        train = tuple(window for window in _runs(free) if window[1] - window[0] >= shortest)
        if not train:
            return None
        folds.append(Fold(index=index, train=train, test_groups=tested))
    path_groups = tuple(sorted({group for fold in folds for group in fold.test_groups}))
    # Path p takes group g from the p-th fold that tests g (López de Prado 2018, figure 12.2).
    suppliers = [
        [fold.index for fold in folds if group in fold.test_groups] for group in path_groups
    ]
    paths = np.array(suppliers, dtype=np.int64).T
    return Splits(groups, tuple(folds), paths, path_groups, (end, bars_count), purge, embargo)


def _runs(free: NDArray[np.bool_]) -> list[Window]:
    """Return the maximal runs of free bars as windows within them."""
    # Starts and ends of runs are the changes of the mask, padded with False on both sides.
    change = np.flatnonzero(np.diff(free.astype(np.int8), prepend=0, append=0))
    return [(int(start), int(stop) - 1) for start, stop in change.reshape(-1, 2)]


def _bars_needed(divide: Callable[[int], Splits | None], bars_count: int, first_bar: int) -> int:
    """Return about the fewest bars that can be divided (to 1%).

    0 if a hundred times as many bars are still too few.
    """
    # Double until the division succeeds, then bisect. Success is nearly monotonic in the number of
    # bars (rounding of groups can break it by a few bars), which is enough for a message.
    low, high = bars_count, max(bars_count, 2 * (first_bar + 1))
    limit = 100 * high
    while divide(high) is None:
        low, high = high, 2 * high
        if high > limit:
            return 0
    while high - low > max(1, high // 100):
        middle = (low + high) // 2
        if divide(middle) is None:
            low = middle
        else:
            high = middle
    return high
