"""PBO: compared with an independent and a plain implementation, and on known cases."""

from __future__ import annotations

import itertools
import math

import numpy as np
import purgedcv
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sweepd.deploy.promotion.overfitting import cscv


def plain(returns: NDArray[np.float64], blocks: int, chosen: int = 1) -> list[float]:
    """The logits, computed literally from the definition."""
    parts = np.array_split(np.arange(len(returns)), blocks)
    logits = []
    for half in itertools.combinations(range(blocks), blocks // 2):
        inside = np.concatenate([parts[b] for b in half])
        outside = np.concatenate([parts[b] for b in range(blocks) if b not in half])

        def sharpe(column: NDArray[np.float64], rows: NDArray[np.int64]) -> float:
            values = column[rows]
            return 0.0 if np.ptp(column) == 0.0 else float(np.mean(values) / np.std(values, ddof=1))

        best = sorted(
            range(returns.shape[1]), key=lambda trial: -sharpe(returns[:, trial], inside)
        )[:chosen]
        scores = [sharpe(column, outside) for column in returns.T]
        ranks = [
            sum(s < scores[one] for s in scores) + (sum(s == scores[one] for s in scores) + 1) / 2
            for one in best
        ]
        w = float(np.mean(ranks)) / (len(scores) + 1)
        logits.append(math.log(w / (1 - w)))
    return logits


@pytest.mark.parametrize(
    ("bars", "trials", "blocks"), [(403, 6, 10), (1000, 40, 8), (97, 3, 8), (64, 2, 4)]
)
def test_equal_to_an_independent_implementation(bars: int, trials: int, blocks: int) -> None:
    returns = 0.01 * np.random.default_rng(bars).standard_t(4, (bars, trials)) + 1e-3
    ours, theirs = (
        cscv(returns, blocks),
        purgedcv.probability_of_backtest_overfitting(returns.T, blocks),
    )
    assert len(ours.logits) == math.comb(blocks, blocks // 2) == theirs.n_combos
    order, their_order = np.argsort(ours.inside), np.argsort(theirs.is_oos_performance[:, 0])
    np.testing.assert_allclose(
        ours.inside[order], theirs.is_oos_performance[their_order, 0], rtol=0, atol=1e-10
    )
    np.testing.assert_allclose(
        ours.outside[order], theirs.is_oos_performance[their_order, 1], rtol=0, atol=1e-10
    )
    np.testing.assert_allclose(ours.logits[order], theirs.logits[their_order], rtol=0, atol=1e-10)
    assert ours.slope == pytest.approx(theirs.slope, abs=1e-10)
    # The other implementation counts logits < 0; the paper and ours count logits ≤ 0, which
    # differs for odd numbers of trials.
    assert ours.pbo == pytest.approx(theirs.pbo + np.mean(theirs.logits == 0.0), abs=1e-10)
    assert ours.loss == np.mean(theirs.is_oos_performance[:, 1] < 0.0)


@settings(max_examples=30)
@given(
    st.integers(0, 10_000),
    st.integers(8, 60),
    st.integers(2, 6),
    st.sampled_from([2, 4]),
    st.integers(1, 6),
)
def test_equal_to_the_definition(
    seed: int, bars: int, trials: int, blocks: int, chosen: int
) -> None:
    chosen = min(chosen, trials)
    returns = np.random.default_rng(seed).normal(size=(bars, trials))
    returns[:, -1] *= seed % 2  # every other time, one trial that does nothing
    found = cscv(returns, blocks, chosen)
    np.testing.assert_allclose(found.logits, plain(returns, blocks, chosen), rtol=0, atol=1e-10)


def test_several_good_trials_are_chosen_for_their_skill_and_all_trials_for_nothing() -> None:
    """Which of several equally good trials is best is luck, so PBO is high for one of them."""
    returns = np.random.default_rng(2).normal(size=(2000, 6))
    returns[:, :3] += 0.2
    assert cscv(returns).pbo < 0.2
    assert cscv(returns, chosen=3).pbo == 0.0
    assert cscv(returns[:, :3]).pbo > 0.4
    assert cscv(returns[:, [0, 1, 3]]).pbo > 0.2
    assert cscv(returns[:, [0, 1, 3]], chosen=2).pbo == 0.0
    assert cscv(returns, chosen=6).pbo == 1.0
    with pytest.raises(ValueError, match="as many trials as are chosen"):
        cscv(returns, chosen=7)


def test_skill_is_told_from_luck() -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(size=(2000, 20))
    skill = noise.copy()
    skill[:, 7] += 0.3
    assert len(cscv(skill).logits) == math.comb(16, 8)
    assert cscv(skill).pbo == 0.0
    assert cscv(skill).loss == 0.0
    lucky = noise.copy()  # each trial is good in one block and bad in the others
    for trial, block in enumerate(np.array_split(np.arange(2000), 20)):
        lucky[block, trial] += 3.0
        lucky[:, trial] -= lucky[:, trial].mean()
    assert cscv(lucky).pbo > 0.9
    assert cscv(lucky).slope < 0.0


def test_ties_and_trials_that_do_nothing_are_no_evidence() -> None:
    found = cscv(np.zeros((64, 4)))
    assert (found.pbo, found.slope, found.loss) == (1.0, 0.0, 0.0)
    for shape in ((31, 4), (100, 1)):
        with pytest.raises(ValueError, match="CSCV needs"):
            cscv(np.zeros(shape))
