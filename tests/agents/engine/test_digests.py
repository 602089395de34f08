"""Trained weights: the same bits in any slot and at any thread count, and the stored digests."""

from __future__ import annotations

import pytest

from sweepd.agents.networks.shape import FEWEST_SLOTS
from sweepd.envs.native.build import TORCH, VARIABLE
from tests.agents.digests import ALONE, CROWD, MEMBER, PROGRAMS, Program, digest, kind, known, toy
from tests.agents.toy_env import AbsentChoicesEnv, ImageEnv, ItemsEnv, ToyEnv


@pytest.mark.parametrize("name", PROGRAMS)
def test_weights_are_the_same_in_any_slot_and_equal_the_stored_digests(name: str) -> None:
    program = PROGRAMS[name]
    alone = digest(program.train(ALONE, 1))
    assert digest(program.train(CROWD, 1)) == alone, "depends on slot or company"
    assert digest(program.train(ALONE, 2)) == alone, "depends on threads"
    kept = known().get(kind(), {})
    if name not in kept:
        pytest.skip(
            f"no digest is stored for {kind()}; slots, other members and threads agree "
            "(python -m tests.agents.digests)"
        )
    assert alone == kept[name], (
        "other numbers than before; on purpose? python -m tests.agents.digests --write"
    )


@pytest.mark.parametrize("name", ["ppo, images", "ppo, gru", "ppo, masked choices"])
def test_weights_that_torch_trains_are_the_same_in_any_slot(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, TORCH)
    alone = digest(PROGRAMS[name].train(ALONE, 1))
    assert not kind().startswith("native")
    assert digest(PROGRAMS[name].train(CROWD, 1)) == alone, "depends on slot or company"
    assert digest(PROGRAMS[name].train(ALONE, 2)) == alone, "depends on threads"


# Enough samples, or weights, for torch to split a sum between threads.
MANY_ROWS = {"horizon": 1024, "minibatch": 40_000, "net_width": 8, "epochs": 1}
MANY_DRAWS = {"buffer": 40_000, "minibatch": 40_000, "net_width": 8, "updates": 2}


@pytest.mark.parametrize(
    "program",
    [
        Program(toy(ToyEnv, 64, action_dim=5), MANY_ROWS, 2),
        pytest.param(Program(toy(AbsentChoicesEnv, 64), MANY_ROWS, 2), marks=pytest.mark.extra),
        Program(toy(ImageEnv), {"net_width": 192, "horizon": 64}, 1),
        pytest.param(Program(toy(ItemsEnv, 64), MANY_ROWS, 2), marks=pytest.mark.extra),
        Program(toy(ToyEnv), MANY_DRAWS, 2, off_policy=True),
        Program(toy(ToyEnv), {"net_width": 192}, 2, off_policy=True),
    ],
    ids=["ppo", "absent agents", "images", "items", "sac", "sac, wide"],
)
def test_the_smallest_program_is_bit_identical_at_any_thread_count(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.agents.digests.SLOTS", FEWEST_SLOTS)
    one, two = (digest(program.train({1: MEMBER}, threads)) for threads in (1, 2))
    assert one == two
