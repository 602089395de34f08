"""Random streams: one per member, restorable, independent of the rest of the batch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.streams import Streams


def draws(streams: Streams) -> list[torch.Tensor]:
    return [
        streams.uniform(3, 5),
        streams.normal(2, 5, 4),
        streams.permutations(2, 16),
        streams.normal(1, 5, 3),
    ]


def of_member(tensors: list[torch.Tensor], member: int, n: int = 5) -> list[torch.Tensor]:
    columns = slice(member * n, (member + 1) * n)
    return [
        tensors[0][:, columns],
        tensors[1][:, columns],
        tensors[2][member],
        tensors[3][:, columns],
    ]


def test_a_member_draws_the_same_alone_in_company_and_in_another_slot() -> None:
    alone = Streams(1)
    alone.seed(0, 42)
    expected = of_member(draws(alone), 0)
    for members, slot in ((4, 0), (4, 3), (7, 2)):
        company = Streams(members)
        for member in range(members):
            company.seed(member, 42 if member == slot else 1000 + member)
        for one, other in zip(expected, of_member(draws(company), slot), strict=True):
            assert torch.equal(one, other)


def test_empty_slots_draw_zeros_and_disturb_nobody() -> None:
    with_gap, without = Streams(3), Streams(3)
    for streams in (with_gap, without):
        streams.seed(0, 1)
        streams.seed(2, 2)
    without.seed(1, 3)
    without.seed(1, None)
    for one, other in zip(draws(with_gap), draws(without), strict=True):
        assert torch.equal(one, other)
    assert all(not bool(part.any()) for part in of_member(draws(with_gap), 1))
    assert not with_gap.seeded(1)
    assert not bool(with_gap.member_uniform(1, 4).any())


def test_a_stream_goes_on_where_its_state_was_taken() -> None:
    streams = Streams(2)
    streams.seed(0, 5)
    streams.seed(1, 6)
    draws(streams)
    state = streams.state(1)
    expected = of_member(draws(streams), 1)
    other = Streams(4)
    other.set_state(3, state)
    for one, two in zip(expected, of_member(draws(other), 3), strict=True):
        assert torch.equal(one, two)
    other.set_state(3, Streams(1).state(0))
    assert not other.seeded(3)


def test_draws_have_their_distributions() -> None:
    streams = Streams(2)
    streams.seed(0, 1)
    streams.seed(1, 2)
    uniform, normal = streams.uniform(200, 50), streams.normal(200, 50, 2)
    assert uniform.shape == (200, 100)
    assert 0 <= float(uniform.min()) < float(uniform.max()) < 1
    assert float(uniform.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(normal.mean()) == pytest.approx(0.0, abs=0.02)
    assert float(normal.std()) == pytest.approx(1.0, abs=0.02)
    assert not torch.equal(uniform[:, :50], uniform[:, 50:])
    permutations = streams.permutations(3, 100)
    assert torch.equal(permutations.sort(dim=-1).values, torch.arange(100).expand(2, 3, 100))
    assert not torch.equal(permutations[0], permutations[1])


@given(st.lists(st.one_of(st.integers(-5, 10**18), st.text("ab:;0é", max_size=8)), max_size=5))
def test_seeds_have_63_bits_and_repeat(parts: list[int | str]) -> None:
    seed = derive_seed(*parts)
    assert 0 <= seed < 2**63
    assert seed == derive_seed(*parts)


def test_seeds_tell_parts_apart() -> None:
    seeds = [
        derive_seed(*p)
        for p in (("a", "b"), ("ab",), ("a", "b", ""), (1, 2), (12,), ("1", 2), (2, 1), ("1:a",))
    ]
    assert len(set(seeds)) == len(seeds)
    assert (
        derive_seed("env", 7, 3) == 7885728277551556547
    )  # frozen: a change would change every study's numbers
