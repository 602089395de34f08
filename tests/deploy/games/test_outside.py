"""`action` outside a study: the same games as the study's own evaluation plays, in every space."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.networks.shape import Shape
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import actor_of
from sweepd.agents.policy.outside import SpacePolicy
from sweepd.deploy.games.candidates import build_bundle, read_candidate
from sweepd.deploy.games.player import Network
from sweepd.envs.external.codec import SpaceCodec
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games.play import play_episodes
from sweepd.envs.games.registry import get_game
from sweepd.envs.gymnasium_view import codec_of
from sweepd.envs.support.errors import InputError, RunError
from tests.deploy.games.players import BAD, GOOD, study_of
from tests.envs.external.samples import Counter, Everything, Masked, Pixels
from tests.envs.external.test_spaces import CHOICES, LEAVES, NUMBERS, nested

GAMES, STEPS = 3, 12


class Told(gymnasium.Env[Any, Any]):
    """Rewards that encode the action that arrived, in any action space."""

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)
        self.action_space = action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        return self.np_random.normal(size=3), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        flat = spaces.flatten(self.action_space, action)
        reward = float(flat @ np.arange(1.0, 1.0 + flat.size))
        return self.np_random.normal(size=3), reward, False, False, {}


def limited(make: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.wrappers.TimeLimit(make(), STEPS)


BOX = spaces.Box(np.array([-2.0, 0.0]), np.array([2.0, 10.0]), dtype=np.float64)
MAKERS: dict[str, Any] = {
    "Pendulum": functools.partial(gymnasium.make, "Pendulum-v1"),
    "Taxi, whose mask is in info": functools.partial(gymnasium.make, "Taxi-v4"),
    "images, channels last": Pixels,
    "Dict and Tuple": Everything,
    "mask": Masked,
    "mask in info": functools.partial(Masked, told=False),
    "masks of two choices": functools.partial(Masked, several=True),
    "Discrete": Counter,
    "Box": functools.partial(Told, BOX),
    "MultiDiscrete": functools.partial(Told, spaces.MultiDiscrete([3, 4], start=[1, -2])),
    "MultiBinary": functools.partial(Told, spaces.MultiBinary(3)),
    "Dict of Box": functools.partial(Told, spaces.Dict(a=BOX, b=spaces.Tuple((BOX,)))),
}


def player(make: Any, **shape: Any) -> tuple[ExternalVecEnv, FrozenPolicy, SpacePolicy]:
    """Return an environment, random weights for it, and the same as a policy of the spaces."""
    env = ExternalVecEnv(functools.partial(limited, make), 1, GAMES)
    program = PPO(
        Shape.for_env(env, horizon=8, net_width=16, minibatch=8, epochs=1, **shape),
        torch.device("cpu"),
    )
    scale = 255.0 if env.spec.image_shape else 1.0
    program.add_member(
        0, PPOParams(), 5, 8, torch.zeros(env.state_dim), torch.full((env.state_dim,), scale)
    )
    actor = actor_of(program, 0)
    # The last layer of new actors is close to zero: without this, all would act alike.
    [head] = actor.spec.heads
    actor.tensors[f"{head}.weight"].mul_(300.0)
    policy = FrozenPolicy([actor])
    return env, policy, SpacePolicy(policy, SpaceCodec.of(env._what), "ppo")


def check_type(action: Any, space: spaces.Space[Any], batch: tuple[int, ...]) -> None:
    """Check that an action is of the type that environments use without converting it."""
    if isinstance(space, spaces.Discrete) and not batch:
        assert type(action) is int
    elif isinstance(space, spaces.Box | spaces.Discrete):
        assert action.shape == (*batch, *(space.shape or ()))
        assert np.issubdtype(action.dtype, np.integer if space.shape == () else space.dtype)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        *((name, {"net_depth": 1}) for name in MAKERS),
        ("Pendulum", {"net_depth": 1, "recurrent": "gru", "bptt": 8}),
    ],
)
def test_actions_in_a_plain_environment_score_as_the_evaluation(
    name: str, shape: dict[str, Any]
) -> None:
    env, policy, outside = player(MAKERS[name], **shape)
    env.reset_member(0, 7)
    act = Network(policy).seated(env, 0)
    judged = play_episodes(env, act, ended=act.ended)
    seeds = env.last_seeds(0)
    # One game after the other, and all of them in Gymnasium's own vector environment.
    make = functools.partial(limited, MAKERS[name])
    plain = make()
    for game, seed in enumerate(seeds):
        policy.reset()
        (observation, info), total, steps, over = plain.reset(seed=seed), 0.0, 0, False
        while not over:
            action = outside.action(observation, info)
            assert plain.action_space.contains(action), action
            check_type(action, plain.action_space, ())
            observation, reward, terminated, truncated, info = plain.step(action)
            total, steps, over = total + reward, steps + 1, terminated or truncated
        assert steps == judged.lengths[0, game]
        assert total == pytest.approx(judged.returns[0, game], rel=1e-5, abs=1e-4)

    policy.reset()
    vector = SyncVectorEnv([make] * GAMES, autoreset_mode=AutoresetMode.SAME_STEP)
    observations, infos = vector.reset(seed=seeds)
    totals, alive = np.zeros(GAMES), np.ones(GAMES, bool)
    for _ in range(STEPS):
        actions = outside.action(observations, infos)
        check_type(actions, plain.action_space, (GAMES,))
        observations, rewards, terminated, truncated, infos = vector.step(actions)
        totals += np.where(alive, rewards, 0.0)
        alive &= ~(terminated | truncated)
    assert totals == pytest.approx(judged.returns[0], rel=1e-5, abs=1e-4)


@settings(max_examples=40)
@given(observation=nested(LEAVES), action=nested(CHOICES) | nested(NUMBERS), flag=st.booleans())
def test_spaces_survive_json(
    observation: spaces.Space[Any], action: spaces.Space[Any], flag: bool
) -> None:
    codec = SpaceCodec(observation, action, flag)
    again = SpaceCodec.from_dict(json.loads(json.dumps(codec.to_dict(), allow_nan=False)))
    assert again == codec
    assert again.observations.dtype == codec.observations.dtype


def test_infinite_bounds_survive_json() -> None:
    space = spaces.Box(np.array([-np.inf, 0.0]), np.array([1.0, np.inf]), dtype=np.float64)
    codec = SpaceCodec(space, spaces.Discrete(2))
    assert SpaceCodec.from_dict(json.loads(json.dumps(codec.to_dict(), allow_nan=False))) == codec
    with pytest.raises(InputError, match="description of the spaces is damaged"):
        SpaceCodec.from_dict({"observation": {"kind": "Text"}, "action": {}, "masks_in_info": 0})


@pytest.mark.parametrize(
    ("space", "value", "said"),
    [
        (spaces.Box(-1, 1, (3,)), np.zeros(4), "has the shape (4,); the space has (3,)"),
        (spaces.Box(-1, 1, (2,)), np.array([0.0, np.nan]), "not finite"),
        (spaces.Discrete(4), 4, "a choice that its space does not have"),
        (spaces.Discrete(4, start=1), np.array([1, 0]), "a choice that its space does not have"),
        (spaces.Box(0, 255, (2, 2), np.uint8), np.full((2, 2), 0.5), "cannot be converted"),
        (spaces.Dict(a=spaces.Discrete(2), b=spaces.Discrete(2)), {"a": 1}, "has no part b"),
    ],
)
def test_observations_of_another_space_are_refused(
    space: spaces.Space[Any], value: Any, said: str
) -> None:
    with pytest.raises(RunError) as refused:
        SpaceCodec(space, spaces.Discrete(2)).read(value)
    assert said in str(refused.value)


def test_a_batch_of_one_stays_a_batch_and_parts_have_equal_rows() -> None:
    _, _, outside = player(MAKERS["Box"], net_depth=1)
    alone, batch = outside.action(np.ones(3)), outside.action(np.ones((1, 3)))
    assert (alone.shape, batch.shape) == ((2,), (1, 2))
    assert batch[0] == pytest.approx(alone)
    codec = SpaceCodec(
        spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Box(-1, 1, (2,))), spaces.Discrete(2)
    )
    for other in (np.zeros((3, 2)), np.zeros(2)):
        with pytest.raises(RunError, match="different numbers of rows"):
            codec.read({"a": np.zeros((2, 2)), "b": other})


def test_a_mask_in_info_must_be_given_and_other_spaces_are_refused() -> None:
    env, policy, outside = player(functools.partial(Masked, told=False), net_depth=1)
    with pytest.raises(RunError, match=r"action\(observation, info\)"):
        outside.action(np.zeros(2, np.float32))
    for flags in (3, 5, 8):
        with pytest.raises(RunError, match="expected 4 flags"):
            outside.action(np.zeros(2, np.float32), {"action_mask": np.ones(flags)})
    # An algorithm without masks ignored them in training.
    ignoring = SpacePolicy(policy, SpaceCodec.of(env._what), "d3qn")
    assert ignoring.action(np.zeros(2, np.float32)) in range(-1, 3)
    other = SpaceCodec(spaces.Box(-1, 1, (2,)), spaces.Discrete(5))
    with pytest.raises(InputError, match="the environment has changed since"):
        SpacePolicy(policy, other, "ppo")
    with pytest.raises(InputError, match="in turns in every row"):
        codec_of(get_game("kuhn"), get_game("kuhn").params())


def test_bundles_hold_the_spaces_if_there_are_some(tmp_path: Path) -> None:
    study = study_of(tmp_path, (GOOD, BAD))
    bundle = build_bundle(read_candidate(study.complete[0], study), study, {})
    player = bundle.manifest.player
    assert player.spaces is not None
    assert player.spaces["action"] == {"kind": "Discrete", "n": 2, "start": 0}
    observation, _ = gymnasium.make("CartPole-v1").reset(seed=0)
    assert bundle.policy.action(observation) == int(observation[2] + observation[3] > 0)
    none = bundle.manifest.model_copy(update={"player": player.model_copy(update={"spaces": None})})
    with pytest.raises(
        InputError, match=r"has no spaces .*players are in turns, or choices depend"
    ):
        _ = dataclasses.replace(bundle, manifest=none).policy
