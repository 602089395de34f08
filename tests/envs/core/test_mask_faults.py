"""Rows that an environment left without a legal choice."""

from __future__ import annotations

import pytest
import torch

from sweepd.envs.core.mask_faults import MaskLatch
from sweepd.envs.support.errors import RunError

CPU = torch.device("cpu")


def test_the_first_one_is_named_with_its_state_and_moves_with_the_rows() -> None:
    latch = MaskLatch(4, 2, ("player", "mana"), CPU)
    state = torch.tensor([[0, 1], [1, 2], [0, 3], [1, 4]])
    legal = torch.ones(4, 3, dtype=torch.bool)
    latch.record(legal, 0, state)
    latch.advance()
    latch.check()
    legal[3] = False
    latch.record(legal, 2, state)
    latch.record(legal, 1, state + 10)  # a later fault changes nothing
    legal[2] = False
    latch.advance()
    latch.record(legal, 0, state)
    assert latch.latched().tolist() == [False, False, True, True]
    words = (
        r"row 3 \(member 1\) had no legal option for choice 2 in step 2, its state: "
        r"player 1, mana 4;"
    )
    with pytest.raises(RunError, match=words):
        latch.check()

    other = MaskLatch(4, 2, ("player", "mana"), CPU)
    for _ in range(7):
        other.advance()
    other.set_state(slice(0, 2), latch.state(slice(2, 4)))
    assert other.latched().tolist() == [True, True, False, False]
    with pytest.raises(
        RunError, match=r"row 1 \(member 0\) .* choice 2 in step 7, its state: player 1, mana 4;"
    ):
        other.check()
    other.clear(slice(0, 2))
    other.check()
