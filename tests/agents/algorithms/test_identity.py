"""A member's bits do not depend on its slot or other members, nor on saving and restoring it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.engine.description import DESCRIPTION, packed, unpacked
from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.entities import Entities
from sweepd.envs.core.items import ItemGroup, Items
from sweepd.envs.support.errors import InputError, RunError
from tests.agents.helpers import assert_same, member_params, shape_for, start
from tests.agents.toy_env import (
    AbsentEnv,
    ChoiceEnv,
    ImageEnv,
    ItemsEnv,
    MaskedEnv,
    Rematching,
    ToyEnv,
)

SLOTS = 5
ROLLOUTS = 4


def made(kind: type[ToyEnv], actions: int = 0) -> ToyEnv:
    """Return an environment, with privileged columns where its kind supports them.

    actions: numbers of an action, or options of a choice; 0: the kind's default.
    """
    size = (
        {} if not actions else {"choices": actions} if kind.if_discrete else {"action_dim": actions}
    )
    if kind in {ImageEnv, ItemsEnv}:
        return kind(SLOTS, 4)
    return kind(SLOTS, 4, privileged=True, **size)


def trained(
    members: dict[int, int],
    rollouts: int = ROLLOUTS,
    kind: type[ToyEnv] = ToyEnv,
    actions: int = 0,
    **changes: Any,
) -> tuple[PPO, ToyEnv]:
    env = made(kind, actions)
    ppo = start(env, members, **changes)
    ppo.train(env, rollouts)
    return ppo, env


def some_legal(chosen: Tensor) -> Tensor:
    """Legal options of `MaskedEnv`'s two choices; other environments do not use it."""
    size = MaskedEnv.action_dims[chosen.shape[1]]
    return torch.arange(size) != chosen.sum(1, keepdim=True) % size


def some_obs(ppo: PPO, rows: int, generator: torch.Generator) -> Tensor:
    """Random observations, (SLOTS, rows, obs_dim)."""
    size = SLOTS, rows, ppo.shape.obs_dim
    if ppo.shape.items is not None:
        ids = ppo.shape.items.vocabulary
        return torch.randint(0, ids, size, generator=generator, dtype=torch.uint8)
    return torch.randn(size, generator=generator).to(ppo.rollout.obs.dtype)


CASES = [
    (0, 16, 16, 1),
    (1, 16, 16, 1),
    (2, 16, 16, 1),
    (0, 64, 48, 1),
    (1, 64, 48, 2),
    (2, 128, 33, 1),
]


@pytest.mark.parametrize(
    ("kind", "member", "width", "minibatch", "threads", "recurrent"),
    [
        *((ToyEnv, *case, "") for case in CASES),
        *((ChoiceEnv, *case, "") for case in (CASES[2], CASES[4])),
        *((kind, *CASES[1], "") for kind in (Rematching, MaskedEnv, AbsentEnv, ImageEnv)),
        *((ItemsEnv, *case, "") for case in (CASES[2], CASES[4])),
        *(
            (kind, *CASES[1], recurrent)
            for kind, recurrent in ((AbsentEnv, "gru"), (ToyEnv, "lstm"), (ItemsEnv, "gru"))
        ),
    ],
)
def test_the_same_bits_alone_with_others_and_in_another_slot(
    kind: type[ToyEnv], member: int, width: int, minibatch: int, threads: int, recurrent: str
) -> None:
    torch.set_num_threads(threads)
    size = {"net_width": width, "minibatch": minibatch, "recurrent": recurrent, "bptt": 4}
    same_in_any_company(kind, member, size)


@pytest.mark.parametrize("kind", [ToyEnv, ChoiceEnv])
@pytest.mark.parametrize(
    ("actions", "width", "minibatch"), [(5, 64, 17), (7, 33, 13), (10, 128, 48)]
)
def test_products_with_few_columns_are_the_same_in_every_slot(
    kind: type[ToyEnv], actions: int, width: int, minibatch: int
) -> None:
    """On AMD processors, these sizes depend on the slot without MKL's reproducible mode."""
    same_in_any_company(kind, 1, {"net_width": width, "minibatch": minibatch}, actions)


def same_in_any_company(
    kind: type[ToyEnv], member: int, size: dict[str, Any], actions: int = 0
) -> None:
    """Training and evaluation give a member the same bits alone, in company and in another slot."""
    alone, env = trained({1: member}, kind=kind, actions=actions, **size)
    alone_stats = alone.train(env, 1)[-1]
    companies = ({1: member, 0: 5, 2: 6, 3: 7, 4: 8}, {4: member}, {0: member, 4: 7, 3: 9})
    for company in companies:
        slot = next(slot for slot, who in company.items() if who == member)
        ppo, other_env = trained(company, kind=kind, actions=actions, **size)
        stats = ppo.train(other_env, 1)[-1]
        assert_same(alone.get_member(1), ppo.get_member(slot))
        assert_same(env.get_member(1), other_env.get_member(slot))
        for name, value in stats._asdict().items():
            assert torch.equal(value[slot], getattr(alone_stats, name)[1]), name
        acts, others, generator = alone.act_fn(), ppo.act_fn(), torch.Generator().manual_seed(slot)
        for count in (1, 2, 3) * 4:  # a last bit that depends on the slot shows now and then only
            rows = some_obs(alone, count, generator)
            swapped = rows.clone()
            swapped[slot] = rows[1]
            ours = acts(rows.view(-1, alone.shape.obs_dim), some_legal).view(SLOTS, count, -1)[1]
            theirs = others(swapped.view(-1, alone.shape.obs_dim), some_legal).view(
                SLOTS, count, -1
            )[slot]
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("kind", "recurrent"),
    [*((kind, "") for kind in (ToyEnv, ChoiceEnv, Rematching, MaskedEnv)), (ToyEnv, "gru")],
)
def test_a_diverged_member_is_reported_and_does_not_affect_others(
    kind: type[ToyEnv], recurrent: str
) -> None:
    memory = {"recurrent": recurrent, "bptt": 4}
    calm, calm_env = trained({0: 1, 3: 2}, 3, kind, **memory)
    env = made(kind)
    ppo = start(env, {0: 1, 1: 3, 2: 4, 3: 2}, **memory)
    env.poison = 1  # member 1's rewards become NaN
    ppo.population.actor.flat[2, 0] = torch.nan
    ppo.train(env, 3)
    assert ppo.diverged == [False, True, True, False, False]
    for slot in (0, 3):
        assert_same(calm.get_member(slot), ppo.get_member(slot))
        assert_same(calm_env.get_member(slot), env.get_member(slot))
    assert not env.faults().any()  # its actions stayed legal
    env.poison = None
    ppo.add_member(1, PPOParams(), 7, 4, env.state_avg, env.state_std)  # the slot can be used again
    ppo.begin(env.reset(), [1])
    ppo.train(env, 1)
    assert ppo.diverged == [False, False, True, False, False]
    assert bool(torch.isfinite(ppo.get_member(1)["weights"]).all())
    still = {ToyEnv: [0.0, 0.0], ChoiceEnv: 0, Rematching: [0, 0], MaskedEnv: [1, 0]}[kind]
    acts = ppo.act_fn()(torch.zeros(SLOTS, env.state_dim + 1), some_legal)
    assert acts[2].tolist() == still
    ppo.set_member(4, ppo.get_member(2))
    assert ppo.diverged == [False, False, True, False, True]  # also after a checkpoint


def test_a_member_that_stopped_early_learns_from_the_next_rollout() -> None:
    """target_kl in one member and weight decay in another change no bit of a third."""
    alone, _ = trained({2: 0})  # member 0 has neither
    company, _ = trained({2: 0, 0: 1, 1: 2})  # 1: decay and KL, 2: KL
    assert_same(alone.get_member(2), company.get_member(2))


def test_an_empty_mask_stops_the_run_before_anything_is_learned_from_it() -> None:
    ppo, env = trained({1: 2, 3: 1}, 1, MaskedEnv)
    assert isinstance(env, MaskedEnv)
    before = ppo.get_member(1)
    env.empty = 5
    with pytest.raises(RunError, match=r"row 5 had no legal option in step 13, at age \d"):
        ppo.train(env, 1)
    assert torch.equal(ppo.get_member(1)["weights"], before["weights"])
    assert ppo.rollout.transitions.side.isfinite().all()


def test_every_field_of_a_shape_tells_states_apart() -> None:
    shape = Shape(state_dim=4, action_dim=4, if_discrete=True)
    changes: dict[str, dict[str, Any]] = {
        "if_discrete": {"if_discrete": False},
        "action_dims": {"action_dims": (2, 2)},
        "masked": {"masked": True},
        "autoregressive": {"action_dims": (2, 2), "autoregressive": True},
        "has_absent_agents": {"has_absent_agents": True},
        "recurrent": {"recurrent": "gru"},
        "running_scale": {"running_scale": True},
        "activation": {"activation": "tanh"},
        "obs_dtype": {"obs_dtype": "uint8"},
        "items": {"obs_dtype": "uint8", "items": Items(2, (ItemGroup("row", 4),))},
        "policies": {"players": 2, "seat_column": 2, "policies": "per-seat"},
        "seat_column": {"seat_column": 2},
        "entities": {"entities": Entities(2, ((0, 2),)), "entity_width": 16},
        "entity_width": {"entities": Entities(2, ((0, 2),)), "entity_width": 16},
        "image_shape": {"state_dim": 25, "obs_dtype": "uint8", "image_shape": (1, 5, 5)},
    }
    ppo = PPO(replace(shape, slots=1))
    ppo.add_member(0, PPOParams(), 1, 1, torch.zeros(4), torch.ones(4))
    state = ppo.get_member(0)
    for field in fields(Shape):
        # A program has one algorithm, and a member does not depend on the slots.
        if field.name not in {"slots", "algorithm"}:
            change = changes.get(field.name) or {field.name: getattr(shape, field.name) * 2 or 1}
            with pytest.raises(InputError, match=rf"of another shape: .*\b{field.name}\b"):
                PPO(replace(shape, slots=1, **change)).set_member(0, state)
    PPO(replace(shape, slots=3)).set_member(2, state)


def test_a_member_says_what_it_is() -> None:
    ppo, _ = trained({1: 2}, 1)
    described = unpacked(ppo.get_member(1))
    assert described["params"] == dict(member_params(2))
    assert (described["rollouts"], described["has_obs"]) == (1, True)
    assert described["shape"]["algorithm"] == "ppo"


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    ppo, env = trained({1: 2}, 1)
    state = ppo.get_member(1)
    described = unpacked(state)
    for changes, words in (
        ({"obs": None}, "must hold"),
        ({DESCRIPTION: packed(described | {"params": {"clip": -1.0}})}, "clip must be above 0"),
        ({DESCRIPTION: packed(described | {"params": {"clap": 1.0}})}, "clap is not known"),
        ({"adam_m": state["adam_m"][:, :-1]}, "adam_m is"),
    ):
        wrong = {
            name: tensor for name, tensor in {**state, **changes}.items() if tensor is not None
        }
        with pytest.raises(InputError, match=words):
            ppo.set_member(1, wrong)
        assert_same(state, ppo.get_member(1))
    other = PPO(shape_for(env, net_width=32))
    with pytest.raises(InputError, match=r"another shape: net_width is 16, not 32\.$"):
        other.set_member(0, state)
