"""Steps on a GPU, from the text of those on CPUs: compiled for the CPU, torch's to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sweepd.envs.crypto import env as crypto_env
from sweepd.envs.crypto.native import choice, self_test
from sweepd.envs.crypto.native.choice import SIZES, kernels_of
from sweepd.envs.crypto.native.step import Kernels as CryptoKernels
from sweepd.envs.crypto.native.step import _torch_log1p
from sweepd.envs.games.cartpole import CartPole, CartPoleParams
from sweepd.envs.games.native import cartpole
from sweepd.envs.native.build import VARIABLE
from sweepd.envs.native.gpu import GpuKernels, KernelSource
from tests.envs.crypto.test_native_step import RULES, assert_steps_are_equal
from tests.envs.games.test_native_cartpole import MEMBERS
from tests.envs.gpu_on_cpu import on_cpu

CPU = torch.device("cpu")
Compiled = Callable[[KernelSource], GpuKernels]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    made: dict[KernelSource, GpuKernels] = {}

    def of(source: KernelSource) -> GpuKernels:
        if source not in made:
            made[source] = on_cpu(source, tmp_path_factory.mktemp("kernels"))
        return made[source]

    return of


class PoleKernels(cartpole.Kernels):
    """Kernels whose sines and cosines are torch's, which are other ones on the CPU."""

    def step(self, state: Tensor, move: cartpole.Move, angle: Tensor, trigonometry: Tensor) -> None:
        torch.sin(angle, out=trigonometry[0])
        torch.cos(angle, out=trigonometry[1])
        self.move(state, move)


@pytest.fixture
def on_gpu(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environments made here step by kernels."""

    def crypto(assets: int, _: torch.device, *, shorts: bool) -> CryptoKernels:
        return CryptoKernels(compiled(kernels_of(assets, shorts=shorts)), CPU)

    monkeypatch.setattr(crypto_env, "code_for", crypto)
    pole = PoleKernels(compiled(cartpole.KERNELS), CPU)
    monkeypatch.setattr(CartPole, "native_code", (lambda _: pole, cartpole.CartPoleStep.of))


log1p_is_known = pytest.mark.skipif(
    _torch_log1p() is None, reason="torch's logarithm for these processors is not known"
)


@log1p_is_known
@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("increments", "holes"), RULES)
@pytest.mark.parametrize(("assets", "per_member"), [(1, 3), (3, 13), (7, 40), (9, 5)])
def test_steps_of_crypto_are_torchs(
    assets: int, per_member: int, increments: bool, holes: float
) -> None:
    assert_steps_are_equal(assets, per_member, increments=increments, holes=holes)


@log1p_is_known
@pytest.mark.usefixtures("on_gpu")
@pytest.mark.parametrize(("increments", "holes"), [*RULES, (True, 0.1)])
@pytest.mark.parametrize(("assets", "per_member"), [(1, 3), (7, 13)])
def test_steps_of_crypto_with_shorts_are_torchs(
    assets: int, per_member: int, increments: bool, holes: float
) -> None:
    ends = assert_steps_are_equal(
        assets, per_member, increments=increments, holes=holes, shorts=True
    )
    assert ends["liquidated"] > 0
    assert ends["bankrupt"] > 0 or assets == 1


@pytest.mark.usefixtures("on_gpu")
def test_steps_of_cartpole_are_torchs() -> None:
    """Terminations, truncations, refills, illegal actions, and a member that is replaced."""
    envs = [CartPole(MEMBERS, 30, native=native) for native in (True, False)]
    assert [env.native_step is not None for env in envs] == [True, False]
    for env in envs:
        env.reset(1)
    torch.manual_seed(3)
    ended = torch.zeros(2)
    for t in range(200):
        if t == 100:
            for env in envs:
                env.configure_member(1, MEMBERS[0])
                env.reset_member(1, 7)
        # Slowly changing choices: some poles stay up until the limit.
        action = (torch.randn(90) > envs[0].state["angle"] * -50).long()
        if t in (37, 50):
            action[t % 37] = 2**40 if t == 37 else -1
        ended += assert_same_step(envs, action, f"step {t}")
    assert bool((ended > 0).all()), ended
    assert envs[0].faults().nonzero().flatten().tolist() == [0, 13]


def assert_same_step(envs: list[CartPole], action: Tensor, at: str) -> Tensor:
    """Step both environments. Returns how many episodes terminated and were truncated."""
    steps = [env.step(action) for env in envs]
    for name, one, two in zip(steps[0]._fields, *steps, strict=True):
        assert torch.equal(one, two), f"{name}, {at}"
    for part in ("state", "final"):
        for name, tensor in getattr(envs[0], part).items():
            assert torch.equal(tensor, getattr(envs[1], part)[name]), f"{part} {name}, {at}"
    assert torch.equal(envs[0].age.long(), envs[1].age), f"age, {at}"
    for name, tensor in envs[0]._faults.state(slice(None)).items():
        assert torch.equal(tensor, envs[1]._faults.state(slice(None))[name]), f"{name}, {at}"
    return torch.stack((steps[0].terminated.sum(), steps[0].truncated.sum()))


ROWS = 8
number = st.floats(-1e3, 1e3, allow_subnormal=True)
row = st.tuples(number, number, number, number, st.integers(0, 60), st.integers(-1, 2))


@pytest.mark.usefixtures("on_gpu")
def test_any_state_of_cartpole_steps_as_torchs() -> None:
    @settings(max_examples=200, deadline=None)
    @given(st.lists(row, min_size=ROWS, max_size=ROWS))
    def check(rows: list[tuple[float, ...]]) -> None:
        params = CartPoleParams(max_steps=50, theta_threshold=2.0, x_threshold=5.0)
        envs = [CartPole(params, ROWS, native=native) for native in (True, False)]
        numbers = torch.tensor(rows, dtype=torch.float64)
        for env in envs:
            env.reset(1)
            for name, column in zip(env.state, numbers.unbind(1), strict=False):
                env.state[name].copy_(column)
            env.age.copy_(numbers[:, 4])
        assert_same_step(envs, numbers[:, 5].long(), "any state")
        assert_same_step(envs, numbers[:, 5].abs().clamp_max(1).long(), "the next one")

    check()


@log1p_is_known
@pytest.mark.usefixtures("on_gpu")
def test_any_market_steps_as_torchs() -> None:
    @settings(max_examples=8, deadline=None)
    @given(
        st.integers(1, 9),
        st.integers(1, 9),
        st.booleans(),
        st.sampled_from([0.0, 0.1]),
        st.booleans(),
        st.integers(0, 2**31),
    )
    def check(
        assets: int, rows: int, increments: bool, holes: float, shorts: bool, seed: int
    ) -> None:
        torch.manual_seed(seed)
        assert_steps_are_equal(assets, rows, increments=increments, holes=holes, shorts=shorts)

    check()


def test_the_self_tests_accept_the_kernels(compiled: Compiled) -> None:
    assert cartpole.KERNELS.agrees(compiled(cartpole.KERNELS), CPU)


@log1p_is_known
@pytest.mark.parametrize("shorts", [False, True])
@pytest.mark.parametrize("assets", SIZES)
def test_the_self_test_accepts_the_markets_kernels(
    assets: int, shorts: bool, compiled: Compiled
) -> None:
    source = kernels_of(assets, shorts=shorts)
    assert source.agrees(compiled(source), CPU)


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("orders.h", "buy / open * buy_rate", "buy * buy_rate / open"),
        ("lanes.h", "return x > y ? all(1.0)", "return x >= y ? all(1.0)"),
        ("crypto.cu", "turn[r] += ended[r]", "turn[r] += 0"),
        ("crypto.cu", "truncated[r] = ended[r]", "truncated[r] = 1"),
        ("cartpole.h", "numerator / denominator", "numerator * (1.0 / denominator)"),
        ("cartpole.h", "return fma(y.x, z.x, x.x)", "return y.x * z.x + x.x"),
        ("cartpole.cu", "legal[r] = action == 0", "legal[r] = action == 2"),
        ("cartpole.cu", "cos(angle)", "cos(1.001 * angle)"),
    ],
)
def test_the_self_tests_find_a_changed_step(
    file: str, before: str, after: str, tmp_path: Path
) -> None:
    source: Any = cartpole.KERNELS if file.startswith("cart") else kernels_of(3, shorts=True)
    changed = tmp_path / "src"
    changed.mkdir()
    for folder in source.folders:
        for own in folder.iterdir():
            text = own.read_text()
            assert own.name != file or before in text
            (changed / own.name).write_text(
                text.replace(before, after) if own.name == file else text
            )
    other = replace(source, file=changed / source.file.name, folders=(changed,))
    assert not other.agrees(on_cpu(other, tmp_path), CPU)


def test_markets_of_a_size_share_their_kernels() -> None:
    assert kernels_of(3, shorts=False) == kernels_of(8, shorts=False)
    assert kernels_of(3, shorts=False) != kernels_of(9, shorts=False)
    assert kernels_of(3, shorts=False) != kernels_of(3, shorts=True)
    assert SIZES[0] >= self_test._ASSETS


def test_the_variable_turns_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[KernelSource] = []
    monkeypatch.setattr(KernelSource, "on", lambda source, _: seen.append(source))
    card = torch.device("cuda")
    assert choice.code_for(3, card) is None
    assert cartpole.code_for(card) is None
    assert len(seen) == 2
    monkeypatch.setenv(VARIABLE, "torch")
    assert choice.code_for(3, card) is None
    assert cartpole.code_for(card) is None
    assert len(seen) == 2
