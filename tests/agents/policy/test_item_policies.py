"""Frozen policies and stacked opponents that look items up by id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.networks.shape import Shape
from sweepd.agents.policy.bank import Bank
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member, actor_of, load_members, save_members
from sweepd.agents.policy.roster import Champion, Roster
from sweepd.envs.core.env_spec import EnvSpec
from sweepd.envs.core.items import ItemGroup, Items
from sweepd.envs.support.errors import InputError, RunError
from tests.agents.networks.plain_items import item_columns

CPU = torch.device("cpu")
SLOTS, ROWS = 3, 12
BOARD = Items(
    vocabulary=7,
    groups=(
        ItemGroup("hand", 3, ("cost",)),
        ItemGroup("row", 2, ("cost", "health")),
        ItemGroup("discard", 2),
    ),
    features=(("cost", 8.0), ("health", 5.0)),
    plain=(20.0, 3.0),
    facts=tuple((0.3 * card, float(card % 2)) for card in range(7)),
)
IDS_ONLY = Items(5, (ItemGroup("hand", 4),))


def program(items: Items = BOARD, **changes: Any) -> PPO:
    """A program whose members differ in all weights."""
    sizes: dict[str, Any] = {"net_width": 16, "num_envs": 2, "horizon": 4, "minibatch": 8}
    shape = Shape(
        state_dim=items.columns,
        action_dim=4,
        obs_dtype="uint8",
        items=items,
        slots=SLOTS,
        **{"if_discrete": True, **sizes, **changes},
    )
    ppo, scales = PPO(shape), torch.tensor(items.scales())
    for slot in range(SLOTS):
        ppo.add_member(slot, PPOParams(), slot, 1, torch.zeros(len(scales)), scales)
        for net in (ppo.population.actor, ppo.population.critic):
            for name in [name for name in net.weights if name.startswith("items.")]:
                net.weights[name].detach()[slot] += 0.1 * slot
    ppo.population.actor.weights["net.4.weight"].detach().mul_(5.0)  # probabilities differ
    return ppo


def observations(items: Items = BOARD, rows: int = SLOTS * ROWS) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    obs = torch.randint(0, 20, (rows, items.columns), generator=generator, dtype=torch.uint8)
    ids = items.id_columns()
    obs[:, ids] = torch.randint(
        0, items.vocabulary, (rows, len(ids)), generator=generator, dtype=torch.uint8
    )
    return obs


def plain_outputs(items: Items, actor: Member, obs: Tensor) -> Tensor:
    own = {name: part.double() for name, part in actor.tensors.items()}
    hidden = item_columns(items, own, (obs.double() - own["state_avg"]) / own["state_std"])
    for layer in (0, 2, 4):
        hidden = nn.functional.linear(hidden, own[f"net.{layer}.weight"], own[f"net.{layer}.bias"])
        hidden = hidden.relu() if layer < 4 else hidden
    return hidden


@pytest.mark.parametrize("items", [BOARD, replace(BOARD, facts=()), IDS_ONLY])
def test_a_frozen_policy_equals_plain_torch_and_the_program(tmp_path: Path, items: Items) -> None:
    ppo, obs = program(items), observations(items)
    acts = ppo.act_fn()(obs).view(SLOTS, ROWS)
    for slot in range(SLOTS):
        actor = actor_of(ppo, slot)
        save_members(tmp_path / "policy.safetensors", [actor])
        loaded = load_members(tmp_path / "policy.safetensors")
        policy = FrozenPolicy(loaded)
        assert (policy.state_dim, policy.sizes) == (items.columns, (4,))
        theirs = plain_outputs(items, actor, obs)
        torch.testing.assert_close(policy._outputs(obs)[0][0], theirs, rtol=1e-6, atol=1e-6)
        many = policy.act_batch(obs)
        assert torch.equal(many, theirs.argmax(1))
        assert torch.equal(many.view(SLOTS, ROWS)[slot], acts[slot])
        one_by_one = [int(policy.act(row.numpy())[0]) for row in obs[:8]]
        assert one_by_one == many[:8].tolist()
        assert loaded[0].spec.items == items


def test_continuous_actions_and_recurrent_members_read_items() -> None:
    obs = observations()
    numbers = program(if_discrete=False)
    fast = numbers.act_fn()(obs).view(SLOTS, ROWS, -1)
    for slot in range(SLOTS):
        policy = FrozenPolicy([actor_of(numbers, slot)])
        many = policy.act_batch(obs).view(SLOTS, ROWS, -1)[slot]
        torch.testing.assert_close(many.to(fast.dtype), fast[slot], rtol=0, atol=2e-6)
        first = policy.act(obs.view(SLOTS, ROWS, -1)[slot, 0].numpy())
        assert np.abs(first - many[0].numpy()).max() <= 1.0000001e-6
    recurrent = program(recurrent="gru", bptt=4)
    act, policies = recurrent.act_fn(), [actor_of(recurrent, slot) for slot in range(SLOTS)]
    frozen = [FrozenPolicy([actor]) for actor in policies]
    for step in range(4):
        seen = obs.roll(step, 0)
        together = act(seen).view(SLOTS, ROWS)
        for slot, policy in enumerate(frozen):
            own = policy.act_batch(seen.view(SLOTS, ROWS, -1)[slot])
            assert torch.equal(own, together[slot])


def test_a_stacked_actor_plays_as_it_does_alone() -> None:
    ppo, obs = program(), observations().float()
    weights = ppo.acting_weights()
    plan = ppo.actor_spec
    many, rows = Bank(plan, SLOTS, 5, CPU), obs.view(SLOTS, ROWS, -1)
    for place in range(5):
        many.put(place, {name: part.roll(place, 0) for name, part in weights.items()})
    together, _ = many.outputs(rows, None)
    for place in range(5):
        alone = Bank(plan, SLOTS, 1, CPU)
        alone.put(0, {name: part.roll(place, 0) for name, part in weights.items()})
        assert torch.equal(alone.outputs(rows, None)[0][:, 0], together[:, place])
    for slot in range(SLOTS):
        theirs = plain_outputs(BOARD, actor_of(ppo, slot), rows[slot])
        torch.testing.assert_close(together[slot, 0].double(), theirs, rtol=1e-4, atol=1e-4)


def test_members_and_champions_with_items_are_opponents() -> None:
    ppo, obs = program(), observations()
    champion = actor_of(program(), 2)
    roster = Roster(
        SLOTS,
        ROWS,
        EnvSpec(state_dim=BOARD.columns, action_dim=4, if_discrete=True),
        learners=["self", "past"],
        champions={"champion": Champion(champion)},
        past_interval=1,
        sampled=False,
    )
    roster.begin_rollout(ppo)
    uniforms = torch.rand(SLOTS * ROWS, roster.uniforms, dtype=torch.float64)
    chosen = torch.arange(SLOTS * ROWS) % 3
    made, _ = roster.act(obs, chosen, roster.begin(uniforms), uniforms)
    own, frozen = ppo.act_fn()(obs), FrozenPolicy([champion]).act_batch(obs)
    assert torch.equal(made, torch.where(chosen == 2, frozen, own))
    # With other facts, the two are not computed together.
    assert champion.spec == ppo.actor_spec
    assert champion.spec != replace(champion.spec, items=replace(BOARD, facts=()))


def test_invalid_items_are_refused_with_a_sentence() -> None:
    actor = actor_of(program(), 0)
    spec, tensors = actor
    ids = BOARD.id_columns()
    normaliser = tensors["state_std"].clone()
    normaliser[ids[1]] = 2.0
    cases: list[tuple[dict[str, Any], str]] = [
        ({"items.bias": None}, r"lack \['items\.bias'\]"),
        ({"items.weight": None}, r"lack \['items\.weight'\]"),
        ({"items.weight": tensors["items.weight"].mT}, r"not \(16, 4\)"),
        ({"items.embedding": torch.zeros(8, 16)}, r"\(8, 16\), not \(7, 16\)"),
        ({"state_std": normaliser}, "changes the ids of items"),
    ]
    for changes, words in cases:
        wrong = {name: part for name, part in {**tensors, **changes}.items() if part is not None}
        with pytest.raises(InputError, match=words):
            FrozenPolicy([Member(spec, wrong)])
    obs = observations()[0].float().numpy()
    obs[ids[0]] = 7.0
    for unknown in (7.0, -1.0):
        obs[ids[0]] = unknown
        with pytest.raises(RunError, match="not in the vocabulary of 7 ids"):
            FrozenPolicy([actor]).act(obs)
