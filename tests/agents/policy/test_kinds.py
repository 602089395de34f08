"""Frozen policies of every kind of member, against ElegantRL's modules and plain Python."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from elegantrl.agents.net import (
    ActorDiscretePPO,
    ActorPPO,
    ActorSAC,
    CriticPPO,
    QNet,
    QNetDuel,
    QNetTwin,
    QNetTwinDuel,
)
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.spec import NetSpec
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member, actor_of, load_members, save_members
from sweepd.envs.support.errors import InputError, RunError
from tests.agents.toy_env import ChoiceEnv, ImageEnv

NUMBERS, VALUES = (ActorPPO, ActorSAC), (QNet, QNetDuel, QNetTwin, QNetTwinDuel)
STATE, ACTIONS = 5, 4


def module_of(kind: Any, seed: int = 0, dims: tuple[int, ...] = (8, 6)) -> Any:
    """Return a module whose outputs are far apart, with a normaliser."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        module = kind(list(dims), STATE, ACTIONS)
        module.state_avg.data, module.state_std.data = torch.randn(STATE), torch.rand(STATE) + 0.5
        for name, part in module.named_parameters():
            if name.endswith("weight"):
                part.data *= 3.0
    return module


def member_of(
    kind: Any,
    seed: int = 0,
    dims: tuple[int, ...] = (8, 6),
    further: Mapping[str, Tensor] | None = None,
    **fields: Any,
) -> Member:
    """further: tensors of what the other fields of a description say."""
    spec = NetSpec(kind=kind.__name__, columns=STATE, actions=ACTIONS, hidden=dims, **fields)
    own = module_of(kind, seed, dims).state_dict()
    return Member(spec, {name: part.clone() for name, part in {**own, **(further or {})}.items()})


def changed(member: Member, **tensors: Tensor | None) -> Member:
    """A member with other tensors, by their names with "__" for "."; None: without this one."""
    given = {name.replace("__", "."): part for name, part in tensors.items()}
    every = {**member.tensors, **given}
    return Member(member.spec, {name: part for name, part in every.items() if part is not None})


def several(seed: int = 0, dims: tuple[int, ...] = (1, 3), *, chained: bool = True) -> Member:
    """A member that makes two choices."""
    generator = torch.Generator().manual_seed(seed)
    chain = (
        {"chain.1.weight": 3.0 * torch.randn(dims[1], dims[0], generator=generator)}
        if chained
        else {}
    )
    return member_of(ActorDiscretePPO, seed, further=chain, choices=dims, autoregressive=chained)


@pytest.mark.parametrize("kind", [*NUMBERS, *VALUES, ActorDiscretePPO])
@pytest.mark.parametrize("dims", [(8,), (8, 6, 7)])
def test_one_member_acts_like_its_module(tmp_path: Path, kind: Any, dims: tuple[int, ...]) -> None:
    module = module_of(kind, 3, dims)
    save_members(tmp_path / "policy.safetensors", [member_of(kind, 3, dims=dims)])
    policy = FrozenPolicy(load_members(tmp_path / "policy.safetensors"))
    assert (policy.state_dim, policy.action_dim, policy.discrete) == (
        STATE,
        ACTIONS,
        kind not in NUMBERS,
    )
    obs = 2.0 * torch.randn(64, STATE)
    theirs = module.double()(obs.double()).detach()
    many = policy.act_batch(obs)
    if kind in NUMBERS:
        torch.testing.assert_close(many, theirs, rtol=0, atol=1e-6)
        assert many.dtype == torch.float64
    else:
        assert torch.equal(many, theirs.argmax(1) if kind in VALUES else theirs)
        assert policy.sizes == (ACTIONS,)
    one_by_one = np.array([policy.act(row.numpy()) for row in obs])
    assert np.abs(one_by_one.reshape(many.shape) - many.numpy()).max() <= 1.0000001e-6
    assert np.array_equal(policy.act_batch(obs.numpy()), many.numpy())


@pytest.mark.parametrize("kind", VALUES)
def test_value_networks_vote_with_standardised_values(kind: Any) -> None:
    """Members whose rewards were counted in other units have the same vote."""
    modules = [module_of(kind, seed).double() for seed in range(3)]
    members = [member_of(kind, seed) for seed in range(3)]
    members[1].tensors["value_std"].fill_(1000.0)
    members[1].tensors["value_avg"].fill_(-7.0)
    policy = FrozenPolicy(members)
    for row in 2.0 * torch.randn(40, STATE):
        total = torch.zeros(ACTIONS, dtype=torch.float64)
        for module in modules:
            values = module(row.double()[None])[0].detach()
            total += torch.softmax((values - values.mean()) / values.std(correction=0), 0)
        best = total.topk(2).values
        if best[0] - best[1] > 1e-5:
            assert policy.act(row.numpy()).tolist() == [float(total.argmax())]


def test_continuous_actions_are_the_mean_of_members_of_any_kind() -> None:
    members = [member_of(ActorPPO), member_of(ActorSAC)]
    obs = torch.randn(10, STATE)
    each = [FrozenPolicy([member]).act_batch(obs) for member in members]
    torch.testing.assert_close(
        FrozenPolicy(members).act_batch(obs), (each[0] + each[1]) / 2, rtol=0, atol=1.1e-6
    )


def plain_shares(member: Member, row: Tensor, chosen: list[int], legal: list[bool]) -> list[float]:
    """The definition: softmax of a choice's logits plus the chain's rows, over legal options."""
    module = ActorDiscretePPO([8, 6], STATE, ACTIONS)
    tensors, sizes = member.tensors, member.spec.choices
    module.load_state_dict({name: tensors[name] for name in module.state_dict()})
    logits = module.double().net(module.state_norm(row.double()[None]))[0].tolist()
    start, size = sum(sizes[: len(chosen)]), sizes[len(chosen)]
    own = logits[start : start + size]
    if chosen and member.spec.autoregressive:
        added = tensors["chain.1.weight"][:, chosen[0]].tolist()
        own = [x + more for x, more in zip(own, added, strict=True)]
    weights = [math.exp(x - max(own)) if fine else 0.0 for x, fine in zip(own, legal, strict=True)]
    return [weight / sum(weights) for weight in weights]


@pytest.mark.parametrize("dims", [(2, 2), (1, 3), (3, 1)])
def test_sequential_choices_among_legal_options(dims: tuple[int, ...]) -> None:
    members = [several(seed, dims, chained=seed != 1) for seed in range(3)]
    policy = FrozenPolicy(members)
    assert policy.sizes == dims
    obs = torch.randn(30, STATE)
    masks = [torch.rand(30, size) > 0.5 for size in dims]
    for mask in masks:
        mask[torch.arange(30), torch.randint(mask.shape[1], (30,))] = True
    seen: list[Tensor] = []

    def legal(chosen: Tensor) -> Tensor:
        seen.append(chosen)
        return masks[chosen.shape[1]]

    many = policy.act_batch(obs, legal=legal)
    assert many.dtype == torch.int64
    assert many.shape == (30, 2)
    assert torch.equal(seen[1], many[:, :1])
    for index, row in enumerate(obs):
        chosen: list[int] = []
        for mask in masks:
            shares = [plain_shares(member, row, chosen, mask[index].tolist()) for member in members]
            mean = [sum(parts) for parts in zip(*shares, strict=True)]
            chosen.append(max(range(len(mean)), key=mean.__getitem__))
        assert many[index].tolist() == chosen
        one = policy.act(
            row.numpy(), lambda made, index=index: masks[made.shape[1]][index : index + 1]
        )  # type: ignore[misc]
        assert one.tolist() == [float(option) for option in chosen]


def test_images_pass_through_convolutions() -> None:
    env = ImageEnv(1, 3)
    shape = Shape.for_env(env, net_width=16, horizon=4, minibatch=4)
    ppo = PPO(shape)
    ppo.add_member(
        0,
        PPOParams(),
        1,
        1,
        torch.full((env.state_dim,), 100.0),
        torch.full((env.state_dim,), 60.0),
    )
    actor = actor_of(ppo, 0)
    policy = FrozenPolicy([actor])
    obs = torch.randint(256, (40, env.state_dim), dtype=torch.uint8)
    fast, many = ppo.act_fn()(obs), policy.act_batch(obs)
    torch.testing.assert_close(many.to(fast.dtype), fast, rtol=0, atol=2e-6)
    assert np.abs(policy.act(obs[0].numpy()).reshape(-1) - many[0].numpy()).max() <= 1.0000001e-6


@pytest.mark.parametrize("cell", [torch.nn.GRUCell, torch.nn.LSTMCell])
@pytest.mark.parametrize("kind", [ActorPPO, ActorDiscretePPO])
def test_recurrent_members_take_each_call_as_the_next_step(kind: Any, cell: Any) -> None:
    module, own = module_of(kind, 2).double(), cell(6, 6)
    recurrent = {f"rnn.{name}": part for name, part in own.state_dict().items()}
    member = member_of(kind, 2, further=recurrent, cell=cell.__name__.removesuffix("Cell").lower())
    policy, own = FrozenPolicy([member]), own.double()
    assert policy.recurrent
    steps = torch.randn(7, 3, STATE)
    first = torch.tensor([False, False, True, False, False, False, False])

    def plain(row: int, over: bool) -> list[Tensor]:
        """Step by step; over: an episode ends after the third step."""
        memory, found = None, []
        for at, states in enumerate(steps[:, row : row + 1].double()):
            memory = own(module.net[:-1](module.state_norm(states)), memory)
            output = module.net[-1](memory[0] if isinstance(memory, tuple) else memory)
            found.append(output.argmax(1) if kind is ActorDiscretePPO else output.tanh())
            memory = None if over and first[at] else memory
        return found

    many = []
    for at, states in enumerate(steps):
        many.append(policy.act_batch(states))
        policy.done(torch.tensor([False, bool(first[at]), False]))
    for row in range(3):
        for ours, theirs in zip(many, plain(row, over=row == 1), strict=True):
            torch.testing.assert_close(ours[row : row + 1], theirs.detach(), rtol=0, atol=1e-6)
    for _ in range(2):
        policy.reset()
        for states, theirs in zip(steps[:, 0], plain(0, over=False), strict=True):
            assert (
                np.abs(policy.act(states.numpy()) - theirs.detach().numpy().reshape(-1)).max()
                <= 1.0000001e-6
            )


@pytest.mark.parametrize("recurrent", ["gru", "lstm"])
def test_exported_recurrent_members_act_like_the_program(recurrent: str) -> None:
    env = ChoiceEnv(1, 3)
    ppo = PPO(Shape.for_env(env, net_width=16, horizon=4, minibatch=4, recurrent=recurrent, bptt=4))
    ppo.add_member(0, PPOParams(), 1, 1, env.state_avg, env.state_std)
    policy, act = FrozenPolicy([actor_of(ppo, 0)]), ppo.act_fn()
    for at in range(6):
        obs, ended = 9.0 * torch.randn(3, env.state_dim), torch.tensor([False, at == 2, False])
        assert torch.equal(policy.act_batch(obs), act(obs))
        policy.done(ended)
        act.done(ended)


@pytest.mark.parametrize(
    ("member", "words"),
    [
        (changed(member_of(ActorSAC), net_a__0__bias=None), r"lack \['net_a.0.bias'\]"),
        (
            changed(member_of(QNetTwinDuel), net_adv2__0__weight=None),
            r"lack \['net_adv2.0.weight'\]",
        ),
        (
            changed(member_of(QNetTwinDuel), net_val2__0__weight=torch.zeros(3, 6)),
            r"net_val2.0.weight has the shape \(3, 6\), not \(4, 6\)",
        ),
        (changed(member_of(QNetDuel), value_std=torch.zeros(2)), r"value_std has the shape \(2,\)"),
        (changed(member_of(QNet), value_std=None), r"lack \['value_std'\]"),
        (changed(several(), chain__1__weight=torch.zeros(3, 2)), r"\(3, 2\), not \(3, 1\)"),
        (changed(several(), chain__2__weight=torch.zeros(3, 2)), r"\['chain.2.weight'\] do not"),
        (
            changed(member_of(ActorPPO), net__0__weight=torch.zeros(8, 5).double()),
            "net.0.weight as torch.float64, not float32",
        ),
        (member_of(CriticPPO), "is a CriticPPO, which does not act"),
    ],
)
def test_invalid_members_are_refused_with_a_sentence(member: Member, words: str) -> None:
    with pytest.raises(InputError, match=words):
        FrozenPolicy([member])


def test_members_of_different_actions_or_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"member 1 makes choices of \(2, 2\), but member 0 of \(1, 3\)"
    ):
        save_members(tmp_path / "x", [several(), several(dims=(2, 2))])
    with pytest.raises(InputError, match="member 1 gives numbers, but member 0 chooses among"):
        FrozenPolicy([member_of(QNet), member_of(ActorSAC)])
    save_members(tmp_path / "mixed.safetensors", [several(), several(1, chained=False)])
    assert load_members(tmp_path / "mixed.safetensors")[0].spec.choices == (1, 3)
    with pytest.raises(RunError, match=r"\(rows, 5\), and got \(3, 4\)"):
        FrozenPolicy([member_of(QNet)]).act_batch(torch.zeros(3, 4))
