"""Random streams: one per member, restorable, independent of the rest of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import NormalDist

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sweepd.envs.core import gpu, philox
from sweepd.envs.core.native import RANDOM, Library
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.streams import Streams
from sweepd.envs.native.gpu import GpuKernels
from sweepd.envs.support.errors import InputError
from tests.envs.gpu_on_cpu import on_cpu

WORD = st.integers(0, 2**32 - 1)
KEY = st.integers(-(2**63), 2**63 - 1)


def native_numbers() -> Library:
    library = RANDOM.loaded()
    if library is None:
        pytest.skip("there is no compiler for native code")
    return library


@contextmanager
def set_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def draws(streams: Streams) -> list[Tensor]:
    return [
        streams.uniform(3, 5),
        streams.uniform(2, 40, dtype=torch.float64),
        streams.normal(2, 20),
        streams.permutations(2, 16).transpose(0, 1),
        streams.normal(1, 15),
    ]


def of_member(tensors: list[Tensor], member: int) -> list[Tensor]:
    return [tensor[:, member] for tensor in tensors]


# The numbers themselves.


def scalar_block(counter: list[int], key: list[int]) -> list[int]:
    """Philox 4x32-10 in Python's integers, as the paper has it."""
    for _ in range(10):
        products = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            products[1] >> 32 ^ counter[1] ^ key[0],
            products[1] % 2**32,
            products[0] >> 32 ^ counter[3] ^ key[1],
            products[0] % 2**32,
        ]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers that come with the authors' library, Random123
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([2**32 - 1] * 4, [2**32 - 1] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_the_reference_gives_the_known_answers(
    counter: list[int], key: list[int], expected: list[int]
) -> None:
    assert scalar_block(counter, key) == expected


@given(KEY, st.integers(0, 2**58), st.integers(1, 3))
def test_words_are_those_of_the_reference(key: int, first: int, groups: int) -> None:
    [found] = philox.words(torch.tensor([key]), torch.tensor([first]), groups)
    for group in range(groups):
        for lane in (0, 7, 15):
            block = 16 * (first + group) + lane
            counter = [block % 2**32, block >> 32, 0, 0]
            expected = scalar_block(counter, [key % 2**32, key % 2**64 >> 32])
            assert found[group, :, lane].tolist() == expected


@given(
    st.lists(st.tuples(KEY, st.integers(0, 2**58), st.booleans()), min_size=1, max_size=3),
    st.integers(1, 70),
    st.integers(1, 150),
    st.integers(1, 3),
)
def test_native_numbers_are_those_of_torch(
    streams: list[tuple[int, int, bool]], steps: int, columns: int, threads: int
) -> None:
    with set_threads(threads):
        assert gpu.same(native_numbers(), torch.tensor(streams), steps, columns)


@pytest.mark.parametrize("size", [1, 2, 40_000, 2**17 + 1])
def test_large_native_permutations_are_those_of_torch(size: int) -> None:
    library, streams = native_numbers(), torch.tensor([[11, 5, 1]])
    one, two = torch.empty(2, 1, 1, size, dtype=torch.int64)
    library.permutations(streams, one)
    philox.permutations(streams, two)
    assert torch.equal(one, two)
    assert torch.equal(one.sort().values, torch.arange(size).view(1, 1, -1))


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> GpuKernels:
    return on_cpu(gpu.KERNELS, tmp_path_factory.mktemp("kernels"))


@given(
    st.lists(st.tuples(KEY, st.integers(0, 2**58), st.booleans()), min_size=1, max_size=3),
    st.integers(1, 20),
    st.integers(1, 150),
)
def test_numbers_of_gpus_are_those_of_torch(
    kernels: GpuKernels, streams: list[tuple[int, int, bool]], steps: int, columns: int
) -> None:
    assert gpu.same(gpu.GpuNumbers(kernels), torch.tensor(streams), steps, columns)


def test_kernels_with_other_numbers_are_not_used(kernels: GpuKernels) -> None:
    assert gpu.agrees(kernels, torch.device("cpu"))
    for name in gpu.KERNELS.names:
        nothing = GpuKernels({**kernels._launches, name: lambda *_: None}, kernels.threads)
        assert not gpu.agrees(nothing, torch.device("cpu"))


def test_of_equal_keys_the_first_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(philox, "_keys", lambda drawn: torch.zeros_like(drawn).flatten(1))
    order = torch.empty(1, 1, 8, dtype=torch.int64)
    philox.permutations(torch.tensor([[1, 0, 1]]), order)
    assert order.flatten().tolist() == [*range(8)]


@given(st.lists(WORD, min_size=64, max_size=64))
def test_normal_numbers_are_the_quantiles_of_their_words(words: list[int]) -> None:
    words[:4] = [0, 2**31 - 1, 2**31, 2**32 - 1]
    found = philox._normals(torch.tensor(words).view(1, 1, 4, 16)).flatten().tolist()
    for word, number in zip(words, found, strict=True):
        assert number == pytest.approx(NormalDist().inv_cdf((word + 0.5) / 2**32), abs=6e-7)
    assert found[0] == -found[3]
    assert found[3] == pytest.approx(6.338, abs=1e-3)


@given(st.integers(0, 2**31 - 1))
def test_normal_numbers_rise_with_their_words(word: int) -> None:
    words = torch.arange(64) + min(max(0, word - 32), 2**31 - 64)
    found = philox._normals(words.view(1, 1, 4, 16)).flatten().double()
    # Polynomials of neighbouring intervals meet to rounding.
    assert float(found.diff().min()) > -6e-7


# Their distributions.


def test_draws_have_their_distributions() -> None:
    streams = Streams(2)
    streams.seed(0, 1)
    streams.seed(1, 2)
    for dtype in (torch.float32, torch.float64):
        uniform = streams.uniform(200, 500, dtype=dtype)
        assert uniform.shape == (200, 2, 500)
        assert 0 <= float(uniform.min()) < float(uniform.max()) < 1
        assert scipy.stats.kstest(uniform.flatten().numpy(), "uniform").pvalue > 1e-3
        assert abs(np.corrcoef(uniform[:, 0].flatten(), uniform[:, 1].flatten())[0, 1]) < 0.01
    normal = streams.normal(200, 500)
    assert scipy.stats.kstest(normal.flatten().numpy(), "norm").pvalue > 1e-3
    lagged = np.corrcoef(normal[:, 0].flatten()[:-1], normal[:, 0].flatten()[1:])[0, 1]
    assert abs(lagged) < 0.01


def test_all_permutations_are_equally_likely() -> None:
    streams = Streams(1)
    streams.seed(0, 3)
    orders = streams.permutations(24_000, 4)[0]
    _, counts = orders.unique(dim=0, return_counts=True)
    assert len(counts) == 24
    assert scipy.stats.chisquare(counts.numpy()).pvalue > 1e-3


# Streams of members.


@pytest.mark.parametrize("native", [True, False])
def test_a_member_draws_the_same_alone_in_company_and_in_another_slot(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setenv("SWEEPD_KERNELS", "torch")
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
    streams.seed(1, 2**64 - 6)  # the same key as -6
    draws(streams)
    state = streams.state(1)
    expected = of_member(draws(streams), 1)
    other = Streams(4)
    other.set_state(3, state)
    for one, two in zip(expected, of_member(draws(other), 3), strict=True):
        assert torch.equal(one, two)
    other.set_state(3, Streams(1).state(0))
    assert not other.seeded(3)
    with pytest.raises(InputError, match="earlier version"):
        other.set_state(3, torch.Generator().get_state())


def test_no_draw_repeats_numbers_of_another() -> None:
    streams = Streams(1)
    streams.seed(0, 5)
    drawn = torch.cat(
        [streams.uniform(steps, 7, dtype=torch.float64).flatten() for steps in range(1, 40)]
    )
    assert len(drawn.unique()) == len(drawn)


def test_members_take_as_many_steps_as_they_need() -> None:
    together, alone = Streams(3), Streams(1)
    for member in range(3):
        together.seed(member, 10 + member)
    alone.seed(0, 12)
    drawn = together.uniform(60, 4, members=slice(1, 3), used=[3, 25])
    assert drawn.shape == (60, 2, 4)
    assert torch.equal(drawn[:25, 1], alone.uniform(25, 4)[:, 0])
    assert torch.equal(together.uniform(2, 9)[:, 2], alone.uniform(2, 9)[:, 0])
    untouched = Streams(1)
    untouched.seed(0, 10)
    untouched.uniform(2, 9)
    assert torch.equal(together.state(0), untouched.state(0))


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
