"""Environments that do not keep to their own spaces, seeds or rewards are found before training."""

from __future__ import annotations

import dataclasses
import functools
import re
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from sweepd.envs.external.conformance import Conformance, check_conformance
from sweepd.envs.external.describe import describe
from sweepd.envs.external.sources import FactorySource, named_env
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.support.errors import InputError, RunError
from sweepd.optimize.cli.check_environment import _conformance
from sweepd.optimize.objectives.games.experiment import _check_conformance
from tests.envs.external.samples import Counter, Everything, Masked, Table, Tag

BOX = spaces.Box(-10.0, 10.0, (4,), np.float32)


class Odd(gymnasium.Env[Any, Any]):
    """Returns, from its third step on, the given observation or reward."""

    action_space = spaces.Discrete(2)

    def __init__(
        self, space: spaces.Space[Any] = BOX, odd: Any = None, reward: Any = 1.0, later: Any = None
    ) -> None:
        self.observation_space, self._odd, self._reward, self._later = space, odd, reward, later

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._count = 0
        self.observation_space.seed(3)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ARG002
        self._count += 1
        late = self._count >= 3
        seen = self._odd if late and self._odd is not None else self.observation_space.sample()
        reward = self._later if late and self._later is not None else self._reward
        return seen, reward, False, False, {}


class Unseeded(Counter):
    """Draws its number without a seed."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._number = float(np.random.default_rng().random())
        return self._observe(0), {}


class Drifting(Counter):
    """Its reset does not clear how often it was reset."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        seen, info = super().reset(seed=seed, options=options)
        self.resets += 1
        return seen + np.float32(self.resets), info


class ZeroSum(Tag):
    """The rewards of the first agent are taken from the second."""

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        seen, rewards, *rest = super().step(actions)
        first, second = rewards.get("ann", 0.0), rewards.get("bob", 0.0)
        own = {"ann": first - second, "bob": second - first, "cid": 0.0}
        return seen, {agent: own[agent] if len(rewards) == 3 else 0.0 for agent in rewards}, *rest


def checked(make: Any) -> Conformance:
    source = FactorySource(make)
    return check_conformance(source, {}, describe(source, {}), seconds=30.0)  # on a busy machine


def stepped(env: ExternalVecEnv, steps: int) -> None:
    for _ in range(steps):
        env.step(torch.zeros(env.num_envs, dtype=torch.int64))


@pytest.mark.parametrize(
    ("make", "subject", "said"),
    [
        (functools.partial(Odd, spaces.Discrete(4), 4), "spaces", "a choice that its space does"),
        (functools.partial(Odd, BOX, np.zeros(5, np.float32)), "spaces", "the shape (5,)"),
        (functools.partial(Odd, BOX, np.zeros((1, 4))), "spaces", "that of several observations"),
        (functools.partial(Odd, BOX, np.full(4, np.nan)), "spaces", "not finite"),
        (functools.partial(Odd, later=float("nan")), "rewards", "a reward is nan"),
        (functools.partial(Odd, later=[1.0, 2.0]), "rewards", "it must be one number"),
        (ZeroSum, "zero-sum", "always add up to 0"),
    ],
)
def test_what_training_cannot_use_is_refused(make: Any, subject: str, said: str) -> None:
    found = checked(make)
    assert said in found.problems[subject]
    env = ExternalVecEnv(make, 1, 3)
    with pytest.raises(InputError, match=re.escape(f"--env odd: {subject}: ")):
        _check_conformance("odd", env, lambda _: None)
    (finding,) = _conformance(env)
    assert (finding.ok, finding.subject) == (False, subject)


@pytest.mark.parametrize("make", [Unseeded, Drifting])
def test_an_environment_that_ignores_its_seed_is_named(make: Any) -> None:
    assert "twice does not give the same episode" in checked(make).repeatable
    said: list[str] = []
    env = ExternalVecEnv(make, 1, 2)
    _check_conformance("mine", env, said.append)  # a study may begin, with a warning
    assert said[0].startswith("warning: mine: reset(seed=0) twice")
    assert [(finding.subject, finding.ok) for finding in _conformance(env)] == [
        ("spaces", True),
        ("seed", False),
    ]


@pytest.mark.parametrize(
    "make",
    [
        Counter,
        Everything,
        Masked,
        functools.partial(Masked, told=False),
        functools.partial(Masked, several=True),
        Tag,
        Table,
        functools.partial(gymnasium.make, "CartPole-v1"),
    ],
)
def test_sound_environments_pass(make: Any) -> None:
    found = checked(make)
    assert dataclasses.replace(found, apart="") == Conformance(steps=256)
    assert bool(found.apart) == (make in (Tag, Table))


def test_rewards_of_ones_own_are_told_with_the_flag() -> None:
    told = checked(Tag).apart
    assert "its agents have rewards of their own (such as ann " in told
    assert "--roles 'ann=ann;bob=bob;cid=cid' trains one policy per role" in told


def test_an_observation_of_another_type_is_only_noted() -> None:
    found = checked(functools.partial(Odd, BOX, np.zeros(4, np.float64)))
    assert not found.problems
    assert "which training does not need" in found.notes[0]


def test_rewards_that_are_arrays_of_one_number_are_taken() -> None:
    for reward in (np.array([2.5]), [2.5], np.array([[2.5]]), np.float32(2.5), 2.5):
        env = ExternalVecEnv(functools.partial(Odd, reward=reward), 1, 3)
        env.reset(0)
        assert env.step(torch.zeros(3, dtype=torch.int64)).reward.tolist() == [2.5] * 3
    with pytest.raises(InputError, match=r"the reward is \[1.0, 2.0\]; it must be one number"):
        ExternalVecEnv(functools.partial(Odd, reward=[1.0, 2.0]), 1, 3)
    env = ExternalVecEnv(functools.partial(Odd, later=[1.0, 2.0]), 1, 3)
    env.reset(0)
    with pytest.raises(RunError, match=r"the reward is \[1.0, 2.0\]; it must be one number"):
        stepped(env, 3)


def test_a_reward_that_is_not_finite_names_environment_and_step() -> None:
    env = ExternalVecEnv(Odd, [{}, {"later": float("nan")}], 2)
    env.reset([0, 1])
    for _ in range(4):
        env.step(torch.zeros(4, dtype=torch.int64))
    assert env.reward_fault(0) == ""
    assert re.search(
        r"environment 2 of .*Odd returned the reward nan in its step 3", env.reward_fault(1)
    )
    env.configure_member(1, {})
    assert env.reward_fault(1) == ""


def test_messages_give_shapes_and_not_numbers() -> None:
    # As many numbers as all rows have together, so that they would move into other rows.
    env = ExternalVecEnv(functools.partial(Odd, BOX, np.zeros(400, np.float32)), 1, 16)
    env.reset(0)
    with pytest.raises(RunError) as failed:
        stepped(env, 3)
    last = str(failed.value).splitlines()[-1]
    assert "of 16 observations" in last
    assert "16 with shape (400,) float32" in last
    assert len(last) < 300


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (2,)), "is too wide"),
        (spaces.Box(-np.inf, np.inf, (2,)), "TransformAction"),
    ],
)
def test_actions_without_usable_bounds_are_refused(space: spaces.Box, said: str) -> None:
    class Wide(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = space

    with pytest.raises(InputError, match=said):
        ExternalVecEnv(Wide, 1, 1)
    # What the message advises works.
    bounded = spaces.Box(-1, 1, space.shape)
    advised = lambda: gymnasium.wrappers.TransformAction(Wide(), lambda action: action, bounded)  # noqa: E731
    assert ExternalVecEnv(advised, 1, 1).action_dim == 2


def test_any_single_environment_takes_a_limit_of_steps() -> None:
    named = named_env(f"{__name__}:Odd").source
    env = ExternalVecEnv(named, [{"max_episode_steps": 3}], 2)
    assert env.max_step == 3
    env.reset(0)
    ends = [env.step(torch.zeros(2, dtype=torch.int64)).truncated.tolist() for _ in range(6)]
    assert ends == [[step % 3 == 2] * 2 for step in range(6)]
    with pytest.raises(InputError, match="limits single environments, and it made one of the kind"):
        ExternalVecEnv(Tag, [{"max_episode_steps": 3}], 3)


def test_sources_of_the_same_name_have_identities_of_their_own() -> None:
    gymnasium.register("Same-v0", Odd)
    first = named_env("gym:Same-v0").source.identity
    assert first == named_env("gym:Same-v0").source.identity
    with pytest.warns(UserWarning, match="Same-v0"):
        gymnasium.register("Same-v0", Counter)
    assert named_env("gym:Same-v0").source.identity != first
