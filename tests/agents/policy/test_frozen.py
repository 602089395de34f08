"""The canonical policy against plain Python, and the file that it lives in."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from elegantrl.agents.net import ActorDiscretePPO, ActorPPO
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO, PPOParams, Shape
from sweepd.agents.networks.spec import NetSpec
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import METADATA, Member, actor_of, load_members, save_members
from sweepd.envs.support.errors import InputError, RunError


def make_members(
    count: int = 3, state: int = 5, actions: int = 2, dims: tuple[int, ...] = (8, 8)
) -> list[Member]:
    spec = NetSpec(kind="ActorPPO", columns=state, actions=actions, hidden=dims)
    generator = torch.Generator().manual_seed(count)
    members = []
    for index in range(count):
        with torch.random.fork_rng():
            torch.manual_seed(index)
            actor = ActorPPO(list(dims), state, actions)
        actor.state_avg.data = torch.randn(state, generator=generator)
        actor.state_std.data = torch.rand(state, generator=generator) + 0.5
        actor.net[-1].weight.data *= 20.0  # so that actions are not all near zero
        state_dict = actor.state_dict()
        members.append(Member(spec, {name: part.clone() for name, part in state_dict.items()}))
    return members


def plain_action(members: list[Member], obs: list[float]) -> list[float]:
    """The definition, in loops over Python floats."""
    total: list[float] = []
    for _, member in members:
        avg, std = member["state_avg"].tolist(), member["state_std"].tolist()
        values = [(x - a) / s for x, a, s in zip(obs, avg, std, strict=True)]
        layers = sorted(int(name.split(".")[1]) for name in member if name.endswith(".weight"))
        for layer in layers:
            weight, bias = (
                member[f"net.{layer}.weight"].tolist(),
                member[f"net.{layer}.bias"].tolist(),
            )
            values = [
                b + math.fsum(w * v for w, v in zip(row, values, strict=True))
                for row, b in zip(weight, bias, strict=True)
            ]
            values = [math.tanh(v) if layer == layers[-1] else max(v, 0.0) for v in values]
        total = [t + v for t, v in zip(total or [0.0] * len(values), values, strict=True)]
    return [round(t / len(members), 6) for t in total]


@given(st.integers(1, 4), st.lists(st.floats(-20, 20, width=32), min_size=5, max_size=5))
def test_actions_are_the_mean_of_the_members(count: int, obs: list[float]) -> None:
    members = make_members(count, dims=(6,) * count)
    action = FrozenPolicy(members).act(np.array(obs, dtype=np.float32))
    assert action.dtype == np.float64
    # A tie at the last digit may fall either way.
    assert np.abs(action - plain_action(members, obs)).max() <= 1.0000001e-6
    assert (np.abs(action * 1e6 - np.round(action * 1e6)) < 1e-6).all()
    assert not np.signbit(action[action == 0.0]).any()


def test_the_fast_batch_agrees_with_the_canonical_policy() -> None:
    shape = Shape(
        state_dim=5,
        action_dim=2,
        privileged_dim=1,
        slots=3,
        net_width=32,
        num_envs=2,
        horizon=2,
        minibatch=4,
    )
    ppo = PPO(shape)
    for slot in range(3):
        ppo.add_member(slot, PPOParams(), slot, 1, torch.randn(5), torch.rand(5) + 0.5)
    obs = torch.randn(3, 7, 6)
    fast = ppo.act_fn()(obs.view(21, 6)).view(3, 7, 2)
    for slot in range(3):
        policy = FrozenPolicy([actor_of(ppo, slot)])
        for row in range(7):
            assert (
                np.abs(policy.act(obs[slot, row, :5].numpy()) - fast[slot, row].numpy()).max()
                < 2e-6
            )


def test_discrete_members_choose_the_highest_mean_probability(tmp_path: Path) -> None:
    shape = Shape(
        state_dim=5,
        action_dim=4,
        if_discrete=True,
        slots=3,
        net_width=32,
        num_envs=2,
        horizon=2,
        minibatch=4,
    )
    ppo = PPO(shape)
    for slot in range(3):
        ppo.add_member(slot, PPOParams(), slot, 1, torch.randn(5), torch.rand(5) + 0.5)
    obs = 3.0 * torch.randn(3, 20, 5)
    fast = ppo.act_fn()(obs.view(60, 5))
    assert fast.dtype == torch.int64
    fast = fast.view(3, 20)
    actors = [actor_of(ppo, slot) for slot in range(3)]
    for slot in range(3):
        policy = FrozenPolicy([actors[slot]])
        assert [policy.act(row.numpy()).tolist() for row in obs[slot]] == [
            [float(choice)] for choice in fast[slot]
        ]
    save_members(tmp_path / "policy.safetensors", actors)
    ensemble = FrozenPolicy(load_members(tmp_path / "policy.safetensors"))
    assert ensemble.discrete
    assert ensemble.action_dim == 4
    for row in obs[0]:
        probabilities = torch.zeros(4, dtype=torch.float64)
        for actor in actors:
            module = ActorDiscretePPO([32, 32], 5, 4)
            module.load_state_dict(dict(actor.tensors))
            probabilities += (
                module.double().net(module.state_norm(row.double())).softmax(-1).detach()
            )
        assert ensemble.act(row.numpy()).tolist() == [float(probabilities.argmax())]
    with pytest.raises(
        InputError, match="member 1 chooses among actions, but member 0 gives numbers"
    ):
        FrozenPolicy([*make_members(1, actions=4), actors[0]])


def test_a_tiny_negative_action_is_zero() -> None:
    member = make_members(1)[0]
    member.tensors["net.4.weight"].zero_()
    member.tensors["net.4.bias"].fill_(-1e-8)
    action = FrozenPolicy([member]).act(np.ones(5, dtype=np.float32))
    assert action.tolist() == [0.0, 0.0]
    assert not np.signbit(action).any()


def test_invalid_observations_are_refused() -> None:
    policy = FrozenPolicy(make_members())
    with pytest.raises(RunError, match=r"shape \(5,\), and was given \(4,\)"):
        policy.act(np.zeros(4, dtype=np.float32))
    with pytest.raises(RunError, match="column 3 is nan"):
        policy.act(np.array([0, 0, 0, np.nan, np.inf], dtype=np.float32))


def test_saved_members_load_bit_identically_and_equal_members_give_equal_files(
    tmp_path: Path,
) -> None:
    members = make_members(12)
    save_members(tmp_path / "a.safetensors", members)
    other = [Member(spec, dict(reversed(list(tensors.items())))) for spec, tensors in members]
    save_members(tmp_path / "b.safetensors", other)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    loaded = load_members(tmp_path / "a.safetensors")
    assert len(loaded) == 12
    for ours, theirs in zip(members, loaded, strict=True):
        assert ours.spec == theirs.spec
        assert ours.tensors.keys() == theirs.tensors.keys()
        assert all(torch.equal(part, theirs.tensors[name]) for name, part in ours.tensors.items())
    obs = np.linspace(-1, 1, 5, dtype=np.float32)
    assert np.array_equal(
        FrozenPolicy(members).act(obs),
        FrozenPolicy(load_members(tmp_path / "a.safetensors")).act(obs),
    )
    ActorPPO([8, 8], 5, 2).load_state_dict(dict(loaded[0].tensors))


def rewritten(path: Path, **changes: Tensor | None) -> None:
    """Change tensors of a file; its description stays."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    named = load_file(path)
    for name, tensor in changes.items():
        key = name.replace("__", ".")
        if tensor is None:
            del named[key]
        else:
            named[key] = tensor
    save_file(named, path, metadata)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"m001__net__2__bias": None},
            r"member 1 is not as it is described: .* lack \['net.2.bias'\]",
        ),
        (
            {"m001__net__9__bias": torch.zeros(2)},
            r"member 1 .* lack \[\], and \['net.9.bias'\] do not belong",
        ),
        (
            {"m001__net__0__weight": torch.zeros(8, 6)},
            r"member 1 .* net.0.weight has the shape \(8, 6\), not \(8, 5\)",
        ),
        ({"m002__net__4__bias": torch.zeros(3)}, r"member 2 .* net.4.bias has the shape \(3,\)"),
        (
            {"m000__state_std": torch.zeros(5)},
            "member 0 has values in state_std that are not above zero",
        ),
        (
            {"m000__net__0__bias": torch.full((8,), torch.nan)},
            "member 0 has values in net.0.bias that are not finite",
        ),
        (
            {"m000__net__0__bias": torch.zeros(8, dtype=torch.float16)},
            "as torch.float16, not float32",
        ),
        ({"m003__net__0__bias": torch.zeros(8)}, "do not describe its 4 members"),
        ({"m007__net__0__bias": torch.zeros(8)}, r"numbered \[0, 1, 2, 7\]"),
        ({"weights": torch.zeros(8)}, "'weights' is not a member's tensor"),
        ({"m000__action_std_log": torch.zeros(1, 3)}, "action_std_log"),
    ],
)
def test_malformed_files_are_refused_with_a_sentence(
    tmp_path: Path, changes: dict[str, Tensor | None], words: str
) -> None:
    path = tmp_path / "members.safetensors"
    save_members(path, make_members())
    rewritten(path, **changes)
    with pytest.raises(InputError, match=words) as caught:
        load_members(path)
    assert "members.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ("[{}]", "a network's description is not valid"),
        ("{}", "do not describe its 1 members"),
        ('["net"]', "description is not valid"),
        ("[", "is damaged"),
        (
            '[{"kind": "QNet", "columns": 5, "actions": 2, "hidden": [8], "norm": true}]',
            r"has \['norm'\], which this version lacks",
        ),
    ],
)
def test_files_with_a_wrong_description_are_refused(
    tmp_path: Path, described: str, words: str
) -> None:
    path = tmp_path / "members.safetensors"
    save_members(path, make_members(1))
    save_file(load_file(path), path, {METADATA: described})
    with pytest.raises(InputError, match=words) as caught:
        load_members(path)
    assert "members.safetensors" in str(caught.value)


@given(st.data())
def test_damaged_files_are_refused_or_pass_every_check(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A damaged file raises InputError or passes every check; there is no other error."""
    path = tmp_path_factory.getbasetemp() / "damaged.safetensors"
    save_members(path, make_members(1))
    content = bytearray(path.read_bytes())
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    else:
        start = data.draw(st.integers(0, 1500))
        content[start : start + 8] = data.draw(st.binary(min_size=8, max_size=8))
    path.write_bytes(bytes(content))
    sentence = None
    try:
        FrozenPolicy(load_members(path))
    except InputError as error:
        sentence = str(error)
    assert sentence is None or "damaged.safetensors" in sentence


def test_missing_and_empty_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nothing.safetensors cannot be read: No such file"):
        load_members(tmp_path / "nothing.safetensors")
    with pytest.raises(InputError, match="has no members"):
        save_members(tmp_path / "none.safetensors", [])
    save_file({}, tmp_path / "empty.safetensors")
    with pytest.raises(InputError, match="has no members"):
        load_members(tmp_path / "empty.safetensors")
    with pytest.raises(
        InputError, match="member 1 maps 4 inputs to 2 actions, but member 0 maps 5 to 2"
    ):
        FrozenPolicy([*make_members(1), *make_members(1, state=4)])
    assert [path.name for path in tmp_path.iterdir()] == ["empty.safetensors"]
