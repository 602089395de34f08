"""The latch for faults: what it names, and that faults move with the rows."""

from __future__ import annotations

import pytest
import torch

from sweepd.envs.core.faults import Fault, FaultLatch, illegal_choice, illegal_number
from sweepd.envs.support.errors import RunError

CPU = torch.device("cpu")


def latch_of(rows: int) -> FaultLatch:
    return FaultLatch(rows, 2, lambda fault: f"{fault}", CPU)


def test_the_first_fault_is_named_and_moves_with_its_row() -> None:
    latch = latch_of(4)
    values = torch.arange(8.0).view(2, 4)
    legal = torch.tensor([True, True, False, True])
    for step in range(5):
        latch.count()
        if step < 2:
            latch.all_legal()
        else:
            # A later fault of a row, and later values, change nothing.
            latch.record(legal, values + 10 * step)
            legal[3] = False
    assert latch.latched().tolist() == [False, False, True, True]
    assert latch.state(slice(2, 4))["fault_age"].tolist() == [3.0, 2.0]
    with pytest.raises(RunError, match=r"row=2, step=3, values=\[22.0, 26.0\]"):
        latch.check()

    other = latch_of(4)
    for _ in range(7):
        other.count()
        other.all_legal()
    other.set_state(slice(0, 2), latch.state(slice(2, 4)))
    other.count()
    other.record(torch.ones(4, dtype=torch.bool), values)
    assert other.latched().tolist() == [True, True, False, False]
    with pytest.raises(RunError, match=r"row=0, step=5, values=\[22.0, 26.0\]"):
        other.check()
    other.clear(slice(0, 1))
    with pytest.raises(RunError, match=r"row=1, step=6, values=\[33.0, 37.0\]"):
        other.check()
    other.clear(slice(1, 2))
    other.check()


def test_sizes_that_are_not_finite_or_too_large() -> None:
    for bad in (1.5, torch.inf, torch.nan):
        latch = latch_of(3)
        for step in range(4):
            numbers = torch.full((2, 3), -1.0, dtype=torch.float64)
            numbers[1, 2] = bad if step == 2 else 0.5
            latch.count()
            latch.record_sizes(numbers)
        assert latch.latched().tolist() == [False, False, True]
        with pytest.raises(RunError, match=rf"row=2, step=3, values=\[1.0, {bad}\]"):
            latch.check()


def test_messages_name_component_and_choice() -> None:
    assert illegal_number(Fault(5, 3, [0.5, torch.nan]), 4, ["A", "B"]) == (
        "row 5 (member 1) got illegal actions from step 3 on: component 1 (B) had the size nan; "
        "actions must be finite and in [-1, 1]"
    )
    assert illegal_choice(5, 4, 3, "-7", 2) == (
        "row 5 (member 1) got an illegal action in step 3: -7; actions must be whole numbers from 0 "
        "to 1"
    )
    assert "in step 3 for choice 1: 9 or more; actions must be whole numbers from 0 to 8" in (
        illegal_choice(5, 4, 3, "9 or more", 9, 1)
    )
