"""Exported policies act like the canonical one, and are not written otherwise."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from elegantrl.agents.net import ActorDiscretePPO, ActorPPO, ActorSAC, QNetTwinDuel
from gymnasium import spaces
from safetensors.torch import load_file

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.networks.activation import ACTIVATIONS, RELU
from sweepd.agents.networks.shape import Shape
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member, actor_of
from sweepd.deploy.api.policy import Policy
from sweepd.deploy.export import network
from sweepd.deploy.export.network import Acting, write_onnx, write_torch
from sweepd.envs.external.codec import SpaceCodec
from sweepd.envs.support.errors import InputError, RunError
from tests.agents.policy.test_frozen import make_members
from tests.agents.policy.test_kinds import ACTIONS, STATE, member_of, several
from tests.agents.toy_env import ImageEnv
from tests.deploy.games.players import spec

WIDE = spaces.Box(np.float32([-2.0, 0.0]), np.float32([2.0, 10.0]))


def image_member() -> Member:
    env = ImageEnv(2, 4)
    shape = Shape.for_env(env, horizon=8, minibatch=16, net_width=8, net_depth=1)
    program = PPO(shape)
    program.add_member(0, PPOParams(), 3, 9, torch.zeros(env.state_dim), torch.ones(env.state_dim))
    return actor_of(program, 0)


def codec(actions: spaces.Space[Any]) -> SpaceCodec:
    return SpaceCodec(spaces.Box(-np.inf, np.inf, (STATE,), np.float32), actions)


MAKERS: dict[str, Callable[[], Acting]] = {
    "an ensemble": lambda: Acting(FrozenPolicy(make_members(3)), None, masked=False),
    "activations": lambda: Acting(FrozenPolicy(activated_members()), None, masked=False),
    "SAC": lambda: Acting(FrozenPolicy([member_of(ActorSAC)]), None, masked=False),
    "values": lambda: Acting(FrozenPolicy([member_of(QNetTwinDuel)]), None, masked=False),
    "bounds": lambda: Acting(FrozenPolicy(make_members(1)), codec(WIDE), masked=False),
    "a start": lambda: Acting(
        FrozenPolicy([member_of(ActorDiscretePPO)]),
        codec(spaces.Discrete(ACTIONS, start=-1)),
        masked=False,
    ),
    "a mask": lambda: Acting(FrozenPolicy([member_of(ActorDiscretePPO)]), None, masked=True),
    "a list of one choice": lambda: Acting(
        FrozenPolicy([several(dims=(4,), chained=False)]),
        codec(spaces.MultiDiscrete([4], start=[1])),
        masked=False,
    ),
    "several choices": lambda: Acting(FrozenPolicy([several()]), None, masked=True),
    "images": lambda: Acting(FrozenPolicy([image_member()]), None, masked=False),
}


def activated_members() -> list[Member]:
    """Members of different activations, one with clipped observations."""
    activated = [member_of(ActorPPO, activation=kind) for kind in ACTIVATIONS if kind != RELU]
    return [member_of(ActorPPO, clip=1.5), *activated]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_program_of_torch_acts_like_the_policy(kind: str, tmp_path: Path) -> None:
    module = MAKERS[kind]()
    program, weights = write_torch(module, tmp_path / "policy.pt2", kind)
    act = torch.export.load(io.BytesIO(program.read_bytes())).module()
    network.check(module, lambda inputs: act(*map(torch.from_numpy, inputs.values())).numpy(), kind)
    found = load_file(weights)
    prefix = "" if len(module.policy.members) == 1 else "m000."
    for name, tensor in module.policy.members[0].tensors.items():
        assert torch.equal(found[prefix + name], tensor)


OFTEN = ("activations", "a mask", "images")  # the others are extra


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind in OFTEN else pytest.mark.extra) for kind in MAKERS],
)
def test_an_onnx_model_acts_like_the_policy(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    module = MAKERS[kind]()
    if kind == "images":
        with pytest.raises(InputError, match="--to torch exports it"):
            write_onnx(module, tmp_path / "policy.onnx", kind)
        return
    [path] = write_onnx(module, tmp_path / "policy.onnx", kind)
    onnx = pytest.importorskip("onnx")
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    inputs = [one.name for one in model.graph.input]
    assert inputs == (["obs", "mask"] if module.masked else ["obs"])
    assert [one.name for one in model.graph.output] == ["action"]
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    session = runtime.InferenceSession(path)
    network.check(module, lambda given: session.run(["action"], given)[0], kind)


def test_actions_are_those_of_the_space() -> None:
    kinds = {name: make() for name, make in MAKERS.items()}
    obs = torch.randn(100, STATE) * 5.0
    bounded = kinds["bounds"](obs)
    assert bounded.dtype == torch.float32
    assert bool(
        (bounded >= torch.tensor(WIDE.low)).all() and (bounded <= torch.tensor(WIDE.high)).all()
    )
    assert bounded[:, 1].max() > 1.0, "not in [-1, 1]"
    assert set(kinds["a start"](obs).tolist()) <= set(range(-1, ACTIONS - 1))
    mask = torch.zeros(100, ACTIONS, dtype=torch.bool)
    mask[:, 2] = True
    assert set(kinds["a mask"](obs, mask).tolist()) == {2}


@pytest.mark.parametrize("to", [write_torch, write_onnx])
def test_a_file_that_acts_differently_is_not_written(
    to: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the traced module has other weights than the policy."""
    if to is write_onnx:
        pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    module = Acting(FrozenPolicy(make_members(1)), None, masked=False)
    other = make_members(1)[0]
    other.tensors["net.4.bias"].add_(1e-4)
    traced = network._traced
    monkeypatch.setattr(
        network, "_traced", lambda _: traced(Acting(FrozenPolicy([other]), None, masked=False))
    )
    with pytest.raises(RunError, match="was not written: for observation"):
        to(module, tmp_path / "policy.file", "a policy")
    assert not list(tmp_path.iterdir())


def policy_of(environment: str, *members: Member, **changes: Any) -> Policy:
    """A policy of a study on a game; of the environment only the spaces are looked up."""
    frozen = tuple(FrozenPolicy([member]) for member in members)
    own = spec(environment=environment, env={}, **changes)
    return Policy("study", 0, frozen, frozen[0], own, {})


@pytest.mark.parametrize(
    ("environment", "masked", "spaces_known"),
    [
        ("gym:CartPole-v1", False, True),
        ("gym:Taxi-v4", True, True),  # its mask is in info
        ("kuhn", True, False),  # players in turns, one choice
    ],
)
def test_where_options_can_be_illegal_there_is_a_mask(
    environment: str, masked: bool, spaces_known: bool
) -> None:
    module = network.acting(policy_of(environment, member_of(ActorDiscretePPO)), "study#0")
    assert (module.masked, module.codec is not None) == (masked, spaces_known)


def test_an_algorithm_without_masks_ignores_them() -> None:
    policy = policy_of("gym:Taxi-v4", member_of(QNetTwinDuel), algorithm="d3qn")
    assert not network.acting(policy, "study#0").masked


def test_what_cannot_be_exported_is_refused() -> None:
    choices = policy_of("card-duel", several())
    with pytest.raises(InputError, match="depend on the choices before it"):
        network.acting(choices, "study#0")
    plain = member_of(ActorDiscretePPO)
    team = dataclasses.replace(policy_of("kuhn", plain, plain), seats=(0, 1))
    with pytest.raises(InputError, match="name one of them: --member 0 … 1"):
        network.acting(team, "study#0")
    assert network.acting(team.member(1), "study#0").policy is team.members[1]
