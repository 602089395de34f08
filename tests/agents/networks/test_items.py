"""The layers over items: against torch's modules, finite differences, and each other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from sweepd.agents.networks.mlp import Activations, Backward, forward
from sweepd.agents.networks.weights import Leaves, new_gradients
from torch import Tensor, nn

from sweepd.agents.algorithms.d3qn import D3QN
from sweepd.agents.algorithms.sac import SAC
from sweepd.agents.engine.population import Population
from sweepd.agents.networks.items import Lookup, add_rows
from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.items import ItemGroup, Items
from sweepd.envs.support.errors import InputError, RunError
from tests.agents.helpers import assert_same, start
from tests.agents.networks.plain_items import item_columns
from tests.agents.toy_env import ItemsEnv

CPU = torch.device("cpu")
SLOTS, ROWS, WIDTH = 3, 11, 5
FEATURES = (("cost", 8.0), ("attack", 4.0), ("health", 5.0))
BOARD = Items(
    vocabulary=9,
    groups=(
        ItemGroup("hand", 4, ("cost",)),
        ItemGroup("front", 2, ("attack", "health")),
        ItemGroup("back", 3, ("cost", "health")),
        ItemGroup("enemy", 1, ("cost", "attack", "health")),
        ItemGroup("discard", 2),
    ),
    features=FEATURES,
    plain=(20.0, 8.0, 300.0),
    facts=tuple((0.1 * card, float(card % 2)) for card in range(9)),
)
KINDS = {
    "board": BOARD,
    "without facts": replace(BOARD, facts=()),
    "without features": Items(
        5, (ItemGroup("hand", 3), ItemGroup("row", 1)), plain=(2.0,), facts=((1.0,),) * 5
    ),
    "ids only": Items(256, (ItemGroup("hand", 6),)),
}


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def shape_of(items: Items, **changes: Any) -> Shape:
    sizes: dict[str, Any] = {"net_width": 7, "num_envs": 2, "horizon": 8, "minibatch": ROWS}
    return Shape(
        state_dim=items.columns,
        action_dim=4,
        if_discrete=True,
        obs_dtype="uint8",
        items=items,
        item_width=WIDTH,
        slots=SLOTS,
        **{**sizes, **changes},
    )


def population_of(shape: Shape) -> Population:
    assert shape.items is not None
    population = Population(shape, CPU)
    for slot in range(shape.slots):
        scales = torch.tensor(shape.items.scales())
        population.new_member(slot, slot, 0.0, torch.zeros(len(scales)), scales)
    return population


def observations(items: Items, rows: int = ROWS, seed: int = 0) -> Tensor:
    """(SLOTS, rows, columns) uint8; a third of the places are empty, with features all the same."""
    generator = torch.Generator().manual_seed(seed)
    size = SLOTS, rows, items.columns
    obs = torch.randint(0, 30, size, generator=generator, dtype=torch.uint8)
    ids = items.id_columns()
    obs[..., ids] = torch.randint(
        0, items.vocabulary, (*size[:2], len(ids)), generator=generator, dtype=torch.uint8
    )
    empty = torch.rand(*size[:2], len(ids), generator=generator) < 1 / 3
    obs[..., ids] = obs[..., ids].masked_fill(empty, 0)
    return obs


def run(
    population: Population, obs: Tensor, d_output: Tensor, d_value: Tensor
) -> tuple[Activations, Leaves]:
    """A forward and a backward pass."""
    shape = population.shape
    acts, grads = Activations(shape, obs.shape[1], CPU), new_gradients(shape, CPU)
    inputs = population.inputs(obs)
    forward(population.weights, inputs, acts)
    Backward(shape, obs.shape[1], CPU)(population.weights, inputs, acts, d_output, d_value, grads)
    return acts, grads


def torch_output(items: Items, weights: dict[str, Tensor], obs: Tensor) -> Tensor:
    hidden = item_columns(items, weights, (obs - weights["state_avg"]) / weights["state_std"])
    for layer in (0, 2, 4):
        hidden = nn.functional.linear(
            hidden, weights[f"net.{layer}.weight"], weights[f"net.{layer}.bias"]
        )
        hidden = hidden.relu() if layer < 4 else hidden
    return hidden


@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_backward_equal_autograd(kind: str) -> None:
    items = KINDS[kind]
    shape = shape_of(items)
    population, gradients = population_of(shape), Population(shape, CPU)
    obs = observations(items)
    d_output, d_value = torch.randn(SLOTS, ROWS, 4), torch.randn(SLOTS, ROWS, 1)
    acts, grads = run(population, obs, d_output, d_value)
    for target, source in zip(gradients.weights.every(), grads.every(), strict=True):
        target.copy_(source)
    for slot in range(SLOTS):
        networks = population.export_member(slot)
        every = (acts.output[slot], d_output[slot]), (acts.value[slot], d_value[slot])
        for network, (ours, d_out), own in zip(
            networks, every, gradients.export_member(slot), strict=True
        ):
            for part in network.values():
                part.requires_grad_(part.is_floating_point())
            theirs = torch_output(items, network, obs[slot])
            torch.testing.assert_close(ours, theirs.detach(), rtol=1e-10, atol=1e-12)
            theirs.backward(d_out)
            for name in network:
                if name.startswith(("net.", "items.")) and name not in {
                    "items.facts",
                    "items.groups",
                }:
                    torch.testing.assert_close(own[name], network[name].grad, msg=name)


def test_gradients_equal_finite_differences() -> None:
    shape = shape_of(BOARD)
    population, obs = population_of(shape), observations(BOARD)
    d_output, d_value = torch.randn(SLOTS, ROWS, 4), torch.randn(SLOTS, ROWS, 1)
    _, grads = run(population, obs, d_output, d_value)
    inputs, acts = population.inputs(obs), Activations(shape, ROWS, CPU)

    def loss() -> Tensor:
        forward(population.weights, inputs, acts)
        return (acts.output * d_output).sum() + (acts.value * d_value).sum()

    generator = torch.Generator().manual_seed(4)
    for leaf, grad in (
        *zip(population.weights.items, grads.items, strict=True),
        (population.weights.actor_in, grads.actor_in),
        (population.weights.critic_in, grads.critic_in),
    ):
        for flat in torch.randint(leaf.numel(), (12,), generator=generator).tolist():
            at = tuple(int(index) for index in torch.unravel_index(torch.tensor(flat), leaf.shape))
            before = leaf[at].clone()
            leaf[at] = before + 1e-6
            above = loss()
            leaf[at] = before - 1e-6
            slope = (above - loss()) / 2e-6
            leaf[at] = before
            torch.testing.assert_close(slope, grad[at], rtol=1e-5, atol=1e-7)


def test_a_place_without_an_item_contributes_nothing() -> None:
    """Whatever its features, and whatever the embedding's row 0."""
    lookup, population = Lookup(BOARD, torch.float64, CPU), population_of(shape_of(BOARD))
    obs, leaves = observations(BOARD), [leaf[:SLOTS] for leaf in population.weights.items]
    leaves[0][:, 0] = 7.0
    before = lookup.inputs(population.inputs(obs), leaves)
    vectors = before[..., : BOARD.places * WIDTH].unflatten(-1, (BOARD.places, WIDTH))
    empty = obs[..., BOARD.id_columns()] == 0
    assert empty.any()
    assert (vectors[empty] == 0.0).all()
    # Of full places, only those are 0 where ReLU is.
    assert (vectors[~empty] > 0.0).any(-1).float().mean() > 0.9
    # Their features have no effect.
    first_empty = obs[..., 0] == 0
    obs[..., 1] = torch.where(first_empty, 200, obs[..., 1])
    assert torch.equal(lookup.inputs(population.inputs(obs), leaves), before)
    # Nor do they have a gradient.
    _, grads = run(population, obs, torch.randn(SLOTS, ROWS, 4), torch.randn(SLOTS, ROWS, 1))
    assert (grads.items[0][:, 0] == 0.0).all()
    assert (grads.items[0][:, 1:] != 0.0).any()


def test_the_order_of_items_in_a_group_changes_only_the_part_of_the_places() -> None:
    lookup, population = Lookup(BOARD, torch.float64, CPU), population_of(shape_of(BOARD))
    leaves = [leaf[:SLOTS] for leaf in population.weights.items]
    obs = observations(BOARD)
    swapped = obs.clone()
    # The cards at places 1 and 2 of the hand, an id and a feature each.
    swapped[..., 2:4], swapped[..., 4:6] = obs[..., 4:6], obs[..., 2:4]
    one, other = (lookup.inputs(population.inputs(part), leaves) for part in (obs, swapped))
    places = BOARD.places * WIDTH
    by_place = one[..., :places].unflatten(-1, (BOARD.places, WIDTH))
    by_place = by_place[:, :, [0, 2, 1, *range(3, BOARD.places)]]
    assert torch.equal(other[..., :places], by_place.flatten(2))
    torch.testing.assert_close(other[..., places:], one[..., places:], rtol=1e-12, atol=1e-12)
    # Without weights of the places, networks see no order: with those of the sums only.
    shape, weights = population.shape, population.weights
    for matrix in (weights.actor_in, weights.critic_in):
        matrix[:, :places] = 0.0
    outputs = []
    for part in (obs, swapped):
        acts = Activations(shape, ROWS, CPU)
        forward(weights, population.inputs(part), acts)
        outputs.append((acts.output, acts.value))
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-10, atol=1e-12)
    assert outputs[0][0].std() > 0.0


def test_rows_are_added_in_order_at_any_number_of_threads() -> None:
    """In float32, where every other order would give other bits."""
    generator = torch.Generator().manual_seed(1)
    for count in (7, 60_000):
        at = torch.randint(0, 20, (count,), generator=generator)
        rows = torch.randn(count, 16, generator=generator, dtype=torch.float32)
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            into = torch.zeros(20, 16, dtype=torch.float32)
            add_rows(into, at, rows)
            # The same rows among those of another member.
            both = torch.zeros(40, 16, dtype=torch.float32)
            add_rows(both, torch.cat((at[:999], at + 20)), torch.cat((rows[:999], rows)))
            found += [into, both[20:]]
        for other in found[1:]:
            assert torch.equal(found[0], other)
    torch.set_num_threads(1)


def test_an_unknown_id_stops_the_rollout() -> None:
    torch.set_default_dtype(torch.float32)
    env = ItemsEnv(1, 4)
    ppo = start(env, {0: 0})
    items = replace(env.items, vocabulary=4, facts=env.items.facts[:4])
    env.spec = replace(env.spec, items=items)
    small = Lookup(items, torch.float32, CPU)
    with pytest.raises(RunError, match="not in the vocabulary of 4 ids"):
        small.read(torch.full((2, 1, env.state_dim), 4.0))
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
    actor, critic = ppo.export_member(1)
    assert actor["items.embedding"].shape == (6, 16)
    assert actor["items.weight"].shape == (16, 2 + 2)
    assert actor["items.groups"].tolist() == [[3, 1, 0], [2, 1, 1]]
    assert not actor["items.embedding"][0].any()
    with pytest.raises(InputError, match=r"items\.facts is"):
        other.population.import_member(2, actor | {"items.facts": torch.zeros(6, 2)}, critic)


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
    population = population_of(shape_of(BOARD))
    scales = torch.tensor(BOARD.scales())
    with pytest.raises(InputError, match="0 and 1 in the columns of items' ids"):
        population.new_member(0, 0, 0.0, torch.zeros(len(scales)), 2.0 * scales)
    for program in (D3QN, SAC):
        with pytest.raises(
            InputError, match="has observations of bytes, items that are looked up by id: use ppo"
        ):
            program.supports.check_env(program.algorithm, ItemsEnv(2, 4))
