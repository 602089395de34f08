"""A check that, on this machine, a member's numbers do not depend on slot or threads.

`sweepd doctor` runs it; it takes about a second.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import conv2d

from sweepd.agents.algorithms.ppo import PPO, PPOParams, Shape
from sweepd.envs.games.cartpole import CartPole, CartPoleParams
from sweepd.envs.support.mkl import current_mode

SLOTS = 5
# Rows and columns of matrices, among them some whose products depend on the slot on AMD processors
# in MKL's default mode.
SIZES = (
    (17, 33),
    (64, 5),
    (64, 7),
    (16, 6),
    (128, 10),
    (2, 7),
    (5, 3),
    (33, 17),
    (48, 10),
    (64, 1),
    (128, 64),
)
_ROWS = (1, 2, 3, 13)
_MOVED = torch.tensor([3, 0, 4, 1, 2])  # the slots in another order


@dataclass(frozen=True)
class Finding:
    """The result of one part of the check.

    Attributes:
        name: of the part.
        holds: whether it holds.
        found: the result in words.
    """

    name: str
    holds: bool
    found: str


def processor_kind(device: torch.device | str = "cpu") -> str:
    """Return what decides the last bits of results on a device.

    For a graphics card its name; for a processor MKL's mode and whether torch has AVX2, such as
    "x86_64, MKL AUTO,STRICT, AVX2". (AVX-512 gives the same bits as AVX2 in all that sweepd uses;
    measured with torch 2.13.)
    """
    if torch.device(device).type == "cuda":
        return str(torch.cuda.get_device_name(device))
    mode = current_mode()
    products = f"MKL {mode}" if mode else "no MKL"
    vectors = torch.backends.cpu.get_cpu_capability()
    return f"{platform.machine()}, {products}, {'AVX2' if vectors == 'AVX512' else vectors}"


def prove() -> Iterator[Finding]:
    """Yield the result of each part, computed with small tensors. Restores torch's thread count."""
    total, wrong = products_by_slot()
    found = f"{total} small batched products are the same in every slot"
    if wrong:
        found = (
            f"{len(wrong)} of {total} small batched products depend on the slot: "
            f"{', '.join(wrong[:3])}, …"
        )
    yield Finding("products", not wrong, found)
    holds = convolutions_hold()
    yield Finding(
        "convolutions",
        holds,
        f"a member's images give {'the same' if holds else 'other'} numbers in every slot",
    )
    # The same member: by itself, in another slot with others, and with other threads.
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = _trained({1: 7})
        company = _trained({0: 5, 1: 6, 3: 7, 4: 8})
        torch.set_num_threads(2)
        threaded = _trained({1: 7})
    finally:
        torch.set_num_threads(before)
    for name, other, sentence in (
        ("slots and other members", company, "in another slot among other members"),
        ("threads", threaded, "with 2 threads instead of 1"),
    ):
        holds = all(torch.equal(tensor, other[key]) for key, tensor in alone.items())
        yield Finding(
            name, holds, f"a member trains to {'the same' if holds else 'other'} weights {sentence}"
        )


def products_by_slot() -> tuple[int, list[str]]:
    """Return how many kinds of batched products were tried, and those that depend on the slot."""
    generator = torch.Generator().manual_seed(0)
    total, wrong = 0, []
    # Forward products, gradients of weights and inputs, and sums over rows, as in training.
    for inner, columns in SIZES:
        for rows in _ROWS:
            sizes = (rows, inner), (inner, columns), (rows, columns)
            x, weight, delta = (torch.randn(SLOTS, *size, generator=generator) for size in sizes)
            for name, product, left, right in (
                ("rows times matrix", torch.bmm, x, weight),
                ("transpose times matrix", lambda a, b: torch.bmm(a.mT, b), x, delta),
                ("matrix times transpose", lambda a, b: torch.bmm(a, b.mT), delta, weight),
                ("ones times matrix", torch.bmm, torch.ones(SLOTS, 1, rows), delta),
            ):
                total += 1
                if not torch.equal(
                    product(left, right)[_MOVED], product(left[_MOVED], right[_MOVED])
                ):
                    wrong.append(f"{name} ({rows} x {inner} x {columns})")
    return total, wrong


def convolutions_hold() -> bool:
    """Return whether grouped convolutions give the same numbers in every slot (group)."""
    generator = torch.Generator().manual_seed(0)

    def numbers(images: Tensor, filters: Tensor) -> list[Tensor]:
        images, filters = (tensor.detach().requires_grad_() for tensor in (images, filters))
        out = conv2d(images.flatten(1, 2), filters.flatten(0, 1), groups=SLOTS)
        # Grouped convolutions put groups into channels: (rows, slots * channels, height, width).
        by_slot = out.view(len(out), SLOTS, -1)
        d_images, d_filters = torch.autograd.grad(by_slot.square().sum(), (images, filters))
        return [by_slot.transpose(0, 1), d_images.transpose(0, 1), d_filters]

    for channels, side in ((1, 9), (3, 12)):
        images = torch.randn(4, SLOTS, channels, side, side + 1, generator=generator)
        filters = torch.randn(SLOTS, 16, channels, 3, 3, generator=generator)
        here, there = numbers(images, filters), numbers(images[:, _MOVED], filters[_MOVED])
        if not all(torch.equal(one[_MOVED], other) for one, other in zip(here, there, strict=True)):
            return False
    return True


def _trained(members: dict[int, int]) -> dict[str, Tensor]:
    """Return the state of member 7 after two rollouts of PPO on CartPole.

    The program is large enough for torch to split its operations between threads.

    Args:
        members: member in each slot, among them 7.
    """
    env = CartPole([CartPoleParams()] * SLOTS, 32)
    shape = Shape.for_env(env, net_width=64, horizon=8, minibatch=128, epochs=2)
    program = PPO(shape)
    for slot, member in members.items():
        program.add_member(slot, PPOParams(), member, 2, torch.zeros(4), torch.ones(4))
    program.begin(env.reset([members.get(slot) for slot in range(SLOTS)]))
    program.train(env, 2)
    slot = next(slot for slot, member in members.items() if member == 7)
    return program.get_member(slot)
