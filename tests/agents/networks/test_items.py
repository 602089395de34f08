"""The layer over items: empty places, the order of items, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.d3qn import D3QN
from sweepd.agents.algorithms.sac import SAC
from sweepd.agents.engine.population import Population
from sweepd.agents.networks.items import ItemEncoder
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.items import ItemGroup
from sweepd.envs.support.errors import InputError, RunError
from tests.agents.helpers import assert_same, start
from tests.agents.networks.nets import BOARD, CPU, FURTHER, random_net, random_obs
from tests.agents.toy_env import ItemsEnv

WIDTH, PLACES = 5, BOARD.places


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def shape_of(**changes: Any) -> Shape:
    sizes: dict[str, Any] = {"net_width": 7, "num_envs": 2, "horizon": 8, "minibatch": 11}
    return Shape(
        **{"state_dim": BOARD.columns, **sizes, **changes},
        action_dim=4,
        if_discrete=True,
        obs_dtype="uint8",
        items=BOARD,
        item_width=WIDTH,
        slots=3,
    )


def board() -> tuple[Net, Tensor]:
    """Return networks, and observations of theirs."""
    return random_net(FURTHER["items"], 3), random_obs(FURTHER["items"], 3)


def encoded(net: Net, obs: Tensor) -> Tensor:
    with torch.no_grad():
        return ItemEncoder(BOARD, torch.float64, CPU)(net.weights, net.normalised(obs))


def test_a_place_without_an_item_contributes_nothing() -> None:
    """Whatever its features, and whatever the embedding's row 0."""
    net, obs = board()
    with torch.no_grad():
        net.weights["items.embedding"][:, 0] = 7.0
    before = encoded(net, obs)
    vectors = before[..., : PLACES * WIDTH].unflatten(-1, (PLACES, WIDTH))
    empty = obs[..., BOARD.id_columns()] == 0
    assert empty.any()
    assert (vectors[empty] == 0.0).all()
    # Of full places, only those are 0 where ReLU is.
    assert (vectors[~empty] > 0.0).any(-1).float().mean() > 0.9
    # Their features have no effect.
    obs[..., 1] = torch.where(obs[..., 0] == 0, 200, obs[..., 1])
    assert torch.equal(encoded(net, obs), before)
    # Nor do they have a gradient.
    output, _ = net.forward(net.normalised(obs))
    [slope] = torch.autograd.grad(output.sum(), net.weights["items.embedding"])
    assert (slope[:, 0] == 0.0).all()
    assert (slope[:, 1:] != 0.0).any()


def test_the_order_of_items_in_a_group_changes_only_the_part_of_the_places() -> None:
    net, obs = board()
    swapped = obs.clone()
    # The cards at places 1 and 2 of the hand, an id and a feature each.
    swapped[..., 2:4], swapped[..., 4:6] = obs[..., 4:6], obs[..., 2:4]
    one, other = encoded(net, obs), encoded(net, swapped)
    count = PLACES * WIDTH
    by_place = one[..., :count].unflatten(-1, (PLACES, WIDTH))
    by_place = by_place[:, :, [0, 2, 1, *range(3, PLACES)]]
    assert torch.equal(other[..., :count], by_place.flatten(2))
    assert torch.equal(other[..., count:], one[..., count:])
    outputs = [net.forward(net.normalised(part))[0] for part in (obs, swapped)]
    assert (outputs[0] - outputs[1]).abs().max() > 0.01
    # Without weights of the places, networks see no order: with those of the sums only.
    with torch.no_grad():
        net.weights["net.0.weight"][:, :count] = 0.0
    outputs = [net.forward(net.normalised(part))[0] for part in (obs, swapped)]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-10, atol=1e-12)
    assert outputs[0].std() > 0.0


def test_an_unknown_id_stops_the_rollout() -> None:
    torch.set_default_dtype(torch.float32)
    env = ItemsEnv(1, 4)
    ppo = start(env, {0: 0})
    items = replace(env.items, vocabulary=4, facts=env.items.facts[:4])
    env.spec = replace(env.spec, items=items)
    net = ppo.population.actor
    small = ItemEncoder(items, torch.float32, CPU)
    with pytest.raises(RunError, match="not in the vocabulary of 4 ids"):
        small(net.weights, torch.full((net.flat.shape[0], 1, env.state_dim), 4.0))
    with pytest.raises(ValueError, match="are not the shape's"):
        ppo.train(env, 1)


def test_items_stay_bytes_in_the_rollout_and_in_minibatches() -> None:
    torch.set_default_dtype(torch.float32)
    ppo = start(ItemsEnv(2, 4), {0: 0})
    stored = ppo.rollout.obs, ppo.rollout.transitions.obs, ppo._batch.obs
    assert {tensor.dtype for tensor in stored} == {torch.uint8}


def test_a_member_survives_export_and_import() -> None:
    torch.set_default_dtype(torch.float32)
    env = ItemsEnv(3, 4)
    ppo, other = start(env, {1: 2}), start(ItemsEnv(3, 4), {0: 1})
    ppo.train(env, 2)
    other.population.import_member(2, *ppo.export_member(1))
    for ours, theirs in zip(ppo.export_member(1), other.population.export_member(2), strict=True):
        assert_same(ours, theirs)
    actor, _ = ppo.export_member(1)
    assert actor["items.embedding"].shape == (6, 16)
    assert actor["items.weight"].shape == (16, 2 + 2)
    assert not actor["items.embedding"][0].any()


def test_what_does_not_fit_is_refused() -> None:
    torch.set_default_dtype(torch.float32)
    hand = ItemGroup("hand", 2, ("cost",))
    cases: list[tuple[dict[str, Any], str]] = [
        ({"vocabulary": 257}, "2 to 256 ids"),
        ({"groups": ()}, "different names"),
        ({"groups": (hand, hand)}, "different names"),
        ({"groups": (ItemGroup("hand", 0),)}, "0 places"),
        ({"groups": (ItemGroup("hand", 1, ("health", "cost")),)}, "in that order"),
        ({"groups": (ItemGroup("hand", 1, ("speed",)),)}, "in that order"),
        ({"plain": (1.0, 0.0)}, "above 0"),
        ({"facts": ((1.0,),) * 3}, "one row for each of the 9 ids"),
        ({"facts": ((1.0,),) * 8 + ((1.0, 2.0),)}, "of equal lengths"),
        ({"facts": ((float("nan"),),) * 9}, "finite"),
    ]
    for changes, message in cases:
        with pytest.raises(InputError, match=message):
            replace(BOARD, **changes)
    with pytest.raises(InputError, match="a state_dim of 32"):
        shape_of(state_dim=BOARD.columns + 1)
    population = Population(shape_of(), CPU)
    scales = torch.tensor(BOARD.scales())
    with pytest.raises(InputError, match="0 and 1 in the columns of items' ids"):
        population.new_member(0, 0, 0.0, torch.zeros(len(scales)), 2.0 * scales)
    for program in (D3QN, SAC):
        with pytest.raises(
            InputError, match="has observations of bytes, items that are looked up by id: use ppo"
        ):
            program.supports.check_env(program.algorithm, ItemsEnv(2, 4))
