"""Networks of every description against ElegantRL's and torch's modules, in outputs and gradients.

And the bits of a member, which are the same in every slot and company.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import elegantrl.agents.net as elegantrl
import pytest
import torch
from torch import Tensor, nn

from sweepd.agents.networks.net import Net
from sweepd.agents.networks.recurrence import Memory
from sweepd.agents.networks.spec import KINDS, NetSpec
from sweepd.envs.support.errors import InputError
from tests.agents.networks.nets import (
    CPU,
    EVERY,
    FURTHER,
    PLAIN,
    random_memory,
    random_net,
    random_obs,
    spec,
)
from tests.agents.networks.plain import ACTIVATED, Plain

MEMBERS = 3


@pytest.fixture
def float64() -> Iterator[None]:
    """Run in float64, where both agree to the last digits."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def every(names: dict[str, NetSpec]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("own", names.values(), ids=names.keys())


def gradients_of(net: Net, loss: Tensor, *others: Tensor) -> tuple[Net, tuple[Tensor, ...]]:
    """Return networks whose weights are the gradients of a loss, and its gradients by others."""
    leaves = [*net.weights.values(), *others]
    found = torch.autograd.grad(loss, leaves, materialize_grads=True)
    gradients = Net(net.spec, torch.zeros_like(net.flat))
    for into, gradient in zip(gradients.weights.values(), found, strict=False):
        into.copy_(gradient)
    return gradients, found[len(net.weights) :]


def close(own: Tensor, other: Tensor, what: str = "") -> None:
    torch.testing.assert_close(own, other.detach(), rtol=1e-9, atol=1e-12, msg=what or None)


def elegantrls(own: NetSpec, tensors: dict[str, Tensor]) -> nn.Module:
    """Return a member as ElegantRL's module of that kind."""
    module: nn.Module = getattr(elegantrl, own.kind)(list(own.hidden), own.columns, own.actions)
    module.load_state_dict(tensors)
    for chain in module.children():
        if isinstance(chain, nn.Sequential):
            for index, part in enumerate(chain):
                if isinstance(part, nn.ReLU):
                    chain[index] = ACTIVATED[own.activation]()
    return module


@pytest.mark.usefixtures("float64")
@every(PLAIN)
def test_outputs_and_gradients_are_those_of_elegantrls_modules(own: NetSpec) -> None:
    net, obs = random_net(own, MEMBERS), random_obs(own, MEMBERS)
    chain, heads = KINDS[own.kind].trunk, list(own.heads)
    actions = torch.randn(*obs.shape[:2], own.actions)
    x = net.normalised(obs)
    if own.kind == "CriticTwin":
        x = torch.cat((x, actions), -1)
    x.requires_grad_()
    top = net.hidden(x)
    outputs = [net.head(head, top) for head in heads]
    output, state = net.forward(x)
    assert state is None
    assert torch.equal(output, outputs[0])
    slopes = [torch.randn_like(output) for output in outputs]
    loss = torch.stack([(a * b).sum() for a, b in zip(outputs, slopes, strict=True)]).sum()
    gradients, [by_inputs] = gradients_of(net, loss, x)
    for slot in range(MEMBERS):
        module = elegantrls(own, net.member(slot))
        seen = module.get_parameter("state_avg"), module.get_parameter("state_std")
        normalised = (obs[slot] - seen[0]) / seen[1]
        if own.clip is not None:
            normalised = normalised.clamp(-own.clip, own.clip)
            assert not torch.equal(normalised, (obs[slot] - seen[0]) / seen[1])
        columns = normalised
        if own.kind == "CriticTwin":
            columns = torch.cat((normalised, actions[slot]), 1)
        columns = columns.detach().requires_grad_()
        encoded = module.get_submodule(chain)(columns)
        theirs = [
            encoded if head.startswith(f"{chain}.") else module.get_submodule(head[:-2])(encoded)
            for head in heads
        ]
        total = torch.zeros(())
        for output, other, slope in zip(outputs, theirs, slopes, strict=True):
            close(output[slot], other)
            total = total + (other * slope[slot]).sum()
        torch.autograd.backward(total)
        assert columns.grad is not None
        close(by_inputs[slot], columns.grad)
        ours = gradients.member(slot)
        for name, parameter in module.named_parameters():
            if parameter.grad is not None:
                close(ours[name], parameter.grad, name)
            elif parameter.requires_grad:
                assert name == "action_std_log"


@pytest.mark.usefixtures("float64")
def test_values_have_the_units_of_elegantrls() -> None:
    for kind in ("CriticPPO", "QNet"):
        own = spec(kind)
        net, obs = random_net(own, MEMBERS), random_obs(own, MEMBERS)
        values = net.value(net.forward(net.normalised(obs))[0])
        for slot in range(MEMBERS):
            theirs = elegantrls(own, net.member(slot))(obs[slot])
            close(values[slot].view(theirs.shape), theirs)


@pytest.mark.usefixtures("float64")
@every(FURTHER)
def test_outputs_and_gradients_are_those_of_torchs_modules(own: NetSpec) -> None:
    net, obs = random_net(own, MEMBERS), random_obs(own, MEMBERS)
    memory = random_memory(own, MEMBERS)
    x = net.normalised(obs)
    learns_inputs = own.items is None
    x.requires_grad_(learns_inputs)
    output, state = net.forward(x, memory)
    slope = torch.randn_like(output)
    loss = (output * slope).sum()
    if state is not None:
        last = torch.randn_like(state)
        loss = loss + (state * last).sum()
    gradients, by_inputs = gradients_of(net, loss, *([x] if learns_inputs else []))
    for slot in range(MEMBERS):
        plain = Plain.of(own, net.member(slot))
        seen = plain.normalised(obs[slot]).requires_grad_(learns_inputs)
        theirs, after = plain(seen, None if memory is None else of_member(memory, slot))
        close(output[slot], theirs)
        total = (theirs * slope[slot]).sum()
        if after is not None:
            assert state is not None
            close(state[slot], after)
            total = total + (after * last[slot]).sum()
        torch.autograd.backward(total)
        for found in by_inputs:
            assert seen.grad is not None
            close(found[slot], seen.grad)
        ours = gradients.member(slot)
        for name, parameter in plain.named_parameters():
            if parameter.grad is None:
                assert "chain" in name or name == "action_std_log"
                assert not ours[name].any()
            else:
                assert parameter.grad.any(), name
                close(ours[name], parameter.grad, name)


def of_member(memory: Memory, slot: int) -> Memory:
    starts, live = memory.starts, memory.live
    assert starts is not None
    assert live is not None
    return Memory(memory.state[slot], starts[slot], live[slot])


@every(EVERY)
def test_a_members_bits_depend_on_neither_slot_nor_company(own: NetSpec) -> None:
    """Outputs, recurrent states and gradients; also where another member has diverged."""
    alone, crowd = random_net(own, 5), random_net(own, 5, seed=7)
    obs, others = random_obs(own, 5), random_obs(own, 5, seed=8)
    memory, other_memory = random_memory(own, 5), random_memory(own, 5, seed=9)
    crowd.put(3, alone.member(1))
    others[3] = obs[1]
    if memory is not None and other_memory is not None:
        for into, part in zip(other_memory, memory, strict=True):
            assert into is not None
            assert part is not None
            into[3] = part[1]
    with torch.no_grad():
        crowd.flat[0] = torch.nan
    found = []
    for net, seen, slot, given in ((alone, obs, 1, memory), (crowd, others, 3, other_memory)):
        x = net.normalised(seen)
        if own.kind == "CriticTwin":
            x = torch.cat((x, torch.full((*x.shape[:2], own.actions), 0.5)), -1)
        output, state = net.forward(x, given)
        with torch.no_grad():
            again, _ = net.forward(x, given)
        assert torch.equal(output.detach()[slot], again[slot]), "depends on autograd"
        slope = torch.linspace(-1, 1, output[slot].numel()).view_as(output[slot])
        gradients, _ = gradients_of(net, (output * slope).sum())
        found.append(
            [output[slot], gradients.flat[slot], *(() if state is None else [state[slot]])]
        )
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert found[0][1].any()


@every(EVERY)
def test_export_and_import_keep_every_bit_and_other_slots(own: NetSpec) -> None:
    net, other = random_net(own, 3, learns=False), Net.zeros(own, 3, CPU)
    exported = net.member(2)
    assert {name: tuple(part.shape) for name, part in exported.items()} == own.shapes()
    other.put(0, exported)
    for name, part in other.member(0).items():
        assert torch.equal(part, exported[name]), name
    assert torch.equal(other.flat[0], net.flat[2])
    assert not other.flat[1:].any()
    other.clear(0)
    assert not other.flat.any()
    assert all(torch.equal(part[0], part[1]) for part in other.normalisers.values())


@every(EVERY)
def test_weights_are_views_of_the_flat_tensor_without_overlap(own: NetSpec) -> None:
    net = Net.zeros(own, 2, CPU)
    for weight in net.weights.values():
        assert not weight.any()  # no two overlap
        weight.fill_(1.0)
        assert (weight.data_ptr() - net.flat.data_ptr()) % 64 == 0  # bytes: a cache line
    sizes = (torch.Size(shape).numel() for shape in own.shapes().values())
    assert int(net.flat[0].sum()) == sum(sizes) - sum(own.normalisers.values())


def test_members_that_do_not_fit_are_refused_and_leave_the_slot_unchanged() -> None:
    net = random_net(spec(), 2, learns=False)
    before, given = net.flat.clone(), net.member(0)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({name: part for name, part in given.items() if name != "net.0.bias"}, "lack.*net.0.bias"),
        (given | {"action_std_log": torch.zeros(1, 4)}, "action_std_log.*do not belong"),
        (given | {"net.0.weight": torch.zeros(8, 6)}, r"net.0.weight has the shape \(8, 6\), not"),
    ]
    for tensors, words in wrong:
        with pytest.raises(InputError, match=words):
            net.put(0, tensors)
        assert torch.equal(net.flat, before)


def test_actors_do_not_read_privileged_columns() -> None:
    net = random_net(spec("ActorPPO"), 2, learns=False)
    obs = torch.randn(2, 6, 7)
    seen = net.normalised(obs)
    assert torch.equal(seen, net.normalised(obs[..., :5]))
    assert torch.equal(net.forward(seen)[0], net.forward(torch.cat((seen, obs), -1))[0])


def test_recurrent_networks_need_a_memory() -> None:
    net = random_net(spec(cell="gru"), 1, learns=False)
    with pytest.raises(ValueError, match="need a memory"):
        net.forward(torch.zeros(1, 2, 5))


def test_followers_move_by_tau_where_they_are_active() -> None:
    one, other = (random_net(spec("QNet"), 3, learns=False, seed=seed) for seed in (1, 2))
    tau, before = torch.tensor([[0.5], [1.0], [0.25]]), one.flat.clone()
    other.flat[2] = torch.nan
    one.follow(other, tau, torch.tensor([True, True, False]))
    torch.testing.assert_close(one.flat[0], (before[0] + other.flat[0]) / 2)
    assert torch.equal(one.flat[1], other.flat[1])
    assert torch.equal(one.flat[2], before[2])


def test_copies_do_not_change_and_do_not_learn() -> None:
    net = random_net(spec("CriticPPO"), 2)
    copy = net.copy()
    with torch.no_grad():
        net.flat += 1.0
        net.normalisers["value_avg"] += 1.0
    assert not torch.equal(net.flat, copy.flat)
    assert not torch.equal(net.normalisers["value_avg"], copy.normalisers["value_avg"])
    assert not copy.forward(torch.zeros(2, 1, 5))[0].requires_grad
