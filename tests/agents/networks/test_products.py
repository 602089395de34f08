"""bfloat16 products on cards, on a CPU that takes their place, and on the stand-in for a card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.agents.networks import products
from sweepd.agents.networks.precision import PRECISIONS
from sweepd.agents.networks.products import add_product, has_bf16, plus_product, product, rounded
from tests.agents import helpers
from tests.agents.card import DEVICE, Card, card, made_there
from tests.agents.test_card import PPO_CASES, off_policy_in, ppo_in
from tests.agents.toy_env import ChoiceEnv, ImageEnv, ItemsEnv, ToyEnv


@pytest.fixture(autouse=True)
def _full_again() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")


def begin_bf16(patch: pytest.MonkeyPatch, device: str) -> None:
    """Compute in bfloat16 on a device in place of a card. A CPU does not sum in float32 itself."""
    patch.setattr(products, "_ROUNDED_ON", device)
    torch.set_float32_matmul_precision(PRECISIONS["bf16"])
    if device == "cpu":
        full = torch.float32
        # Not torch's own products in this precision, which a processor with AMX would round again.
        patch.setattr(
            products, "_sums", lambda a, b: (a.double() @ b.double()).to(full).contiguous()
        )


def numbers(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def test_factors_are_rounded_and_sums_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, bias = numbers(3, 7, 11), numbers(3, 11, 5, seed=1), numbers(3, 1, 5, seed=2)
    begin_bf16(monkeypatch, "cpu")
    exact = a.bfloat16().double() @ b.bfloat16().double()
    assert rounded(a).dtype == torch.bfloat16
    for found in (product(a, b), product(rounded(a), rounded(b))):
        torch.testing.assert_close(found, exact.float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(plus_product(bias, a, b), (exact + bias).float(), rtol=0, atol=2e-6)
    total = numbers(3, 7, 5, seed=3)
    wanted = total + exact.float()
    add_product(total, a, b)
    torch.testing.assert_close(total, wanted, rtol=0, atol=2e-6)
    assert not torch.equal(wanted, numbers(3, 7, 5, seed=3) + a @ b)


def test_other_devices_precisions_and_numbers_keep_their_products(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(products, "_sums", lambda *_: pytest.fail("rounded"))
    a, b, bias = numbers(2, 3, 4), numbers(2, 4, 5, seed=1), numbers(2, 1, 5, seed=2)
    for name in ("fp32", "tf32"):
        torch.set_float32_matmul_precision(PRECISIONS[name])
        assert rounded(a) is a
        assert torch.equal(product(a, b), torch.bmm(a, b))
        assert torch.equal(plus_product(bias, a, b), torch.baddbmm(bias, a, b))
    torch.set_float32_matmul_precision(PRECISIONS["bf16"])
    assert rounded(a) is a  # a processor, where torch rounds
    monkeypatch.setattr(products, "_ROUNDED_ON", "cpu")
    wide = a.double(), b.double()
    assert torch.equal(product(*wide), torch.bmm(*wide))


def test_gradients_are_products_of_rounded_factors(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = numbers(2, 3, 4).requires_grad_(), numbers(2, 4, 5, seed=1).requires_grad_()
    upstream = numbers(2, 3, 5, seed=2)
    begin_bf16(monkeypatch, "cpu")
    d_a, d_b = torch.autograd.grad(product(a, b), (a, b), upstream)
    assert d_a.dtype == d_b.dtype == torch.float32
    low = [one.detach().bfloat16().double() for one in (a, b, upstream)]
    torch.testing.assert_close(d_a, (low[2] @ low[1].mT).float(), rtol=0, atol=1e-6)
    torch.testing.assert_close(d_b, (low[0].mT @ low[2]).float(), rtol=0, atol=1e-6)


@pytest.mark.skipif(
    not torch.cpu.get_capabilities().get("amx_bf16", False), reason="a processor without AMX"
)
def test_bf16_means_the_same_on_processors_with_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = numbers(3, 64, 128), numbers(3, 128, 32, seed=1)
    torch.set_float32_matmul_precision(PRECISIONS["bf16"])
    by_torch = torch.bmm(a, b)
    begin_bf16(monkeypatch, "cpu")
    torch.testing.assert_close(product(a, b), by_torch, rtol=0, atol=1e-5)
    assert (by_torch.double() - a.double() @ b.double()).abs().max() > 1e-2


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "continuous": (ToyEnv, {}),
    "discrete": (ChoiceEnv, {}),
    "images": (ImageEnv, {}),
    "items": (ItemsEnv, {}),
    "gru": (ToyEnv, {"recurrent": "gru", "bptt": 4}),
    "lstm": (ChoiceEnv, {"recurrent": "lstm", "bptt": 4}),
}


@pytest.mark.parametrize("name", CASES)
def test_members_train_with_float32_weights_near_those_of_fp32(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, changes = CASES[name]
    monkeypatch.setenv("SWEEPD_KERNELS", "torch")

    def trained(slots: dict[int, int]) -> dict[str, Tensor]:
        env = kind(3, 4)
        ppo = helpers.start(env, slots, **changes)
        ppo.train(env, 2)
        return ppo.get_member(next(slot for slot, member in slots.items() if member == 1))

    begun = helpers.start(kind(3, 4), {1: 1}, **changes).get_member(1)["weights"]
    full = trained({0: 0, 1: 1})
    begin_bf16(monkeypatch, "cpu")
    low = trained({0: 0, 1: 1})
    helpers.assert_same(low, trained({2: 1}))
    assert {name: one.dtype for name, one in low.items()} == {n: o.dtype for n, o in full.items()}
    way, off = full["weights"] - begun, low["weights"] - full["weights"]
    assert 0.0 < off.norm() < 0.4 * way.norm()


@pytest.mark.parametrize("name", ["continuous", "images", "items", "gru", "turns"])
def test_a_card_reads_nothing_on_the_host_and_gets_float32(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, changes = PPO_CASES[name]
    env = made_there(make)
    begin_bf16(monkeypatch, DEVICE.type)
    with card(env):
        ppo = ppo_in(env, **changes)
        ppo.train(env, 1)
        with Card() as seen:
            ppo.train(env, 1)
    assert seen.launches["bmm"]
    assert not seen.launches["baddbmm"]
    assert {one.dtype for one in ppo.population.flat} == {torch.float32}


@pytest.mark.parametrize("kind", [ToyEnv, ChoiceEnv])
def test_off_policy_programs_on_a_card(kind: type[ToyEnv], monkeypatch: pytest.MonkeyPatch) -> None:
    env = made_there(lambda: kind(3, 4))
    begin_bf16(monkeypatch, DEVICE.type)
    with card(env):
        program = off_policy_in(env)
        program.train(env, 1)
        with Card() as seen:
            program.train(env, 1)
    assert seen.launches["bmm"]
    assert not seen.launches["baddbmm"]


def test_builds_of_torch_without_such_products_are_recognised(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not has_bf16(torch.device("cpu"))  # torch has it for cards alone
    begin_bf16(monkeypatch, "cpu")
    assert has_bf16(torch.device("cpu"))
