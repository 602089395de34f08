"""Masks are stored in bits and come back as they were."""

from __future__ import annotations

import pytest
import torch

from sweepd.agents.engine.bits import pack, packed_size, unpack
from sweepd.agents.engine.transitions import Transitions
from tests.agents.helpers import start
from tests.agents.toy_env import MaskedEnv


@pytest.mark.parametrize("shape", [(8,), (3, 16), (2, 0, 8), (2, 5, 7, 32)])
def test_bools_come_back(shape: tuple[int, ...]) -> None:
    bools = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.5
    packed = pack(bools)
    assert packed.shape == (*shape[:-1], shape[-1] // 8)
    assert packed.dtype == torch.uint8
    assert torch.equal(unpack(packed), bools)


def test_all_bytes_are_different() -> None:
    every = torch.cartesian_prod(*[torch.tensor([False, True])] * 8)
    assert len(pack(every).unique()) == 256
    assert torch.equal(unpack(pack(every)), every)
    assert [packed_size(bools) for bools in (0, 1, 8, 9, 31)] == [0, 1, 1, 2, 4]


@torch.no_grad()
def test_a_rollout_keeps_the_masks_of_every_step() -> None:
    env = MaskedEnv(2, 4)
    ppo = start(env, {0: 0, 1: 1})
    shape = ppo.shape
    assert shape.masked
    given: list[torch.Tensor] = []
    mask = env.action_mask

    def kept(chosen: torch.Tensor) -> torch.Tensor:
        given.append(mask(chosen).clone())
        return given[-1]

    env.action_mask = kept  # type: ignore[method-assign]
    ppo.rollout.collect(env, ppo.streams)
    choices = len(shape.choices)
    steps = [torch.cat(given[k : k + choices], 1) for k in range(0, len(given), choices)]
    wanted = torch.stack(steps).view(shape.horizon, 2, 4, -1).transpose(0, 1)
    stored = ppo.rollout.transitions.masks
    assert stored is not None
    assert torch.equal(stored[:, :-1], wanted)
    assert not bool(wanted.all())
    # A minibatch gathers the same.
    rows = torch.tensor([5, 0, 13 * 4 + 7, 13 * 4 + 2])
    batch = Transitions.empty(shape, (2, 2), 2, torch.device("cpu"))
    ppo.rollout.index.gather(ppo.rollout.transitions, rows, batch)
    found = batch.masks
    assert found is not None
    assert torch.equal(found.flatten(0, 1), stored.flatten(0, 2)[rows])
