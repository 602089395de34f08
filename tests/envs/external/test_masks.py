"""Action masks of environments that raise if an illegal option is taken."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from sweepd.agents.algorithms.d3qn import D3QN
from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.networks.shape import Shape
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import actor_of
from sweepd.deploy.games.panel import PanelGames
from sweepd.deploy.games.player import Network
from sweepd.deploy.games.show import Show
from sweepd.envs.external import layouts
from sweepd.envs.external.layouts import choose_layout
from sweepd.envs.external.sharded import Layout
from sweepd.envs.external.sources import FactorySource
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games.play import random_actions
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.measurement_cache import MeasurementCache
from tests.envs.external.samples import Buffered, Masked, Table, masked_ones

KINDS: dict[str, tuple[Any, int, Layout]] = {
    "observation": (Masked, 3, Layout(2, (1, 3))),
    "two choices": (functools.partial(Masked, several=True), 3, Layout(0, (6,))),
    "info": (functools.partial(Masked, told=False), 3, Layout(2, (4,))),
    "info, two choices": (functools.partial(Masked, several=True, told=False), 3, Layout(3, (3,))),
    "several agents": (Table, 3, Layout(1, (1,))),
    "vector, same step": (
        functools.partial(masked_ones, AutoresetMode.SAME_STEP),
        2,
        Layout(1, (1,)),
    ),
    "vector, next step": (
        functools.partial(masked_ones, AutoresetMode.NEXT_STEP),
        2,
        Layout(1, (1,)),
    ),
}
every = pytest.mark.parametrize("kind", KINDS)


def masks(env: ExternalVecEnv) -> list[torch.Tensor]:
    chosen = torch.zeros(env.num_envs, 0, dtype=torch.int64)
    return [
        env.action_mask(chosen.new_zeros(env.num_envs, k))
        for k in range(len(env.spec.action_dims) or 1)
    ]


@every
def test_masks_are_the_same_in_every_layout(kind: str) -> None:
    source, rows, layout = KINDS[kind]
    alone, shared = ExternalVecEnv(source, 2, rows), ExternalVecEnv(source, 2, rows, layout=layout)
    assert alone.spec.masked
    assert alone.state_dim == 2  # the mask is not part of the observation
    assert torch.equal(alone.reset(4), shared.reset(4))
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    varied = set()
    for step in range(40):
        for one, other in zip(masks(alone), masks(shared), strict=True):
            assert torch.equal(one, other)
            varied.update(one.sum(1).tolist())
        actions = [
            random_actions(env, generator)
            for env, generator in zip((alone, shared), generators, strict=True)
        ]
        for one, other in zip(alone.step(actions[0]), shared.step(actions[1]), strict=True):
            assert torch.equal(one, other)
        if step == 20:
            for env in (alone, shared):
                env.set_member(1, env.get_member(0))
    assert len(varied) > 1
    alone.check()
    shared.close()


def test_masks_equal_those_of_the_environment() -> None:
    env = ExternalVecEnv(Masked, 1, 2)
    env.reset([3])
    theirs = Masked()
    generator = torch.Generator().manual_seed(0)
    seen, _ = theirs.reset(seed=env.last_seeds(0)[1])
    for _ in range(20):
        np.testing.assert_array_equal(masks(env)[0][1].numpy(), seen["action_mask"] == 1)
        np.testing.assert_array_equal(env.observe()[1].numpy(), seen["observation"])
        action = random_actions(env, generator)
        env.step(action)
        seen, _, over, _, _ = theirs.step(int(action[1]) - 1)
        if over:
            seen, _ = theirs.reset()


def test_all_options_of_absent_agents_and_idle_rows_are_legal() -> None:
    game = ExternalVecEnv(Table, 1, 3)
    game.reset(0)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        game.step(random_actions(game, generator))
    assert game.present().tolist() == [False, True, True]
    assert masks(game)[0][~game.present()].all()
    assert not masks(game)[0][game.present()].all(1).any()
    env = ExternalVecEnv(Masked, 2, 2)
    env.reset([None, 1])
    assert masks(env)[0][:2].all()
    env.step(random_actions(env, generator))
    env.check()


def program(env: ExternalVecEnv) -> PPO:
    shape = Shape.for_env(env, horizon=16, net_width=16, net_depth=1, minibatch=32, epochs=1)
    learner = PPO(shape, torch.device("cpu"))
    for slot in range(2):
        learner.add_member(
            slot, PPOParams(), slot, 8, torch.zeros(env.state_dim), torch.ones(env.state_dim)
        )
    return learner


@every
def test_a_learner_never_takes_masked_actions(kind: str) -> None:
    source, rows, _ = KINDS[kind]
    env = ExternalVecEnv(source, 2, rows * 2)
    env.reset([1, 2])
    learner = program(env)
    learner.begin(env.observe())
    learner.train(env, 4)
    act = learner.act_fn()
    obs = env.observe()
    for _ in range(20):
        obs = env.step(act(obs, env.action_mask)).obs  # type: ignore[call-arg]
    env.check()


@pytest.mark.parametrize("several", [False, True])
def test_a_frozen_policy_plays_legally_in_panels_and_when_watched(several: bool) -> None:
    game = get_game("gym:tests.envs.external.registering:tests/Masked-v0")
    params = game.params(several=several)
    env = ExternalVecEnv(game.name, 2, 3, several=several)
    player = Network(FrozenPolicy([actor_of(program(env), 0)]))
    rules = PanelGames(game, params, 5, seed=1)
    assert rules.play_player(player).lengths.tolist() == [[6] * 5]
    assert rules.play_baselines(player, ["random"])["random"].lengths.tolist() == [[6] * 5]
    bundle: Any = SimpleNamespace(game=game, params=params, player=player)
    shots = list(Show(bundle, seed=2, pictures=False).shots(2))
    assert [shot.step for shot in shots] == [*range(7), *range(7)]


@pytest.mark.parametrize("kind", ["observation", "info, two choices"])
def test_a_learning_member_resumes_exactly(kind: str) -> None:
    source, _, _ = KINDS[kind]
    env, other = ExternalVecEnv(source, 2, 4), ExternalVecEnv(source, 2, 4, layout=Layout(3, (5,)))
    env.reset([1, 2])
    learner, resumed = program(env), program(other)
    learner.begin(env.observe())
    learner.train(env, 3)
    other.set_member(1, env.get_member(0))
    assert not other.restarted(1)
    assert torch.equal(masks(env)[0][:4], masks(other)[0][4:])
    resumed.remove_member(0)
    resumed.set_member(1, learner.get_member(0))
    resumed.begin(other.observe(), [1])
    learner.train(env, 3)
    resumed.train(other, 3)
    for one, two in zip(learner.export_member(0), resumed.export_member(1), strict=True):
        assert all(torch.equal(one[name], two[name]) for name in one)
    other.close()


def test_a_masked_action_is_named_and_never_reaches_the_environment() -> None:
    env = ExternalVecEnv(functools.partial(Masked, several=True), 2, 2)
    env.reset(0)
    legal = [mask.long().argmax(1) for mask in masks(env)]
    action = torch.stack(legal, 1)
    first, second = (mask[3].long().argmin() for mask in masks(env))
    bad = next(k for k, option in enumerate((first, second)) if not masks(env)[k][3, option])
    action[3, bad] = (first, second)[bad]
    env.step(action)
    assert env.faults().tolist() == [False, False, False, True]
    with pytest.raises(
        RunError, match=rf"row 3 \(member 1\) .* in step 1: component {bad} .* and not masked"
    ):
        env.check()


@pytest.mark.parametrize("kind", ["observation", "info", "two choices"])
def test_a_row_without_a_legal_option_stops_the_run(kind: str) -> None:
    source = KINDS[kind][0]
    env = ExternalVecEnv(source, [{}, {"empty": 2}], 2)
    env.reset([1, 2])
    learner = program(env)
    learner.begin(env.observe())
    said = (
        r"row 2 \(member 1\) had no legal option for choice 0 in step 3, .* player 0, "
        r"observation\[0\] 2, "
    )
    with pytest.raises(RunError, match=said):
        learner.train(env, 1)
    assert env.faults().tolist() == [False, False, True, True]
    moved = ExternalVecEnv(source, 2, 2)
    moved.reset(0)
    moved.set_member(0, env.get_member(1))
    assert moved.faults().tolist() == [True, True, False, False]
    with pytest.raises(RunError, match=r"row 0 \(member 0\) had no legal option"):
        moved.check()
    env.reset_member(1, 5)
    env.check()


def test_layouts_are_measured_with_legal_actions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layouts, "QUICK", 0.0)
    file = MeasurementCache(tmp_path / "layouts.json")
    choice = choose_layout(FactorySource(Masked), [{}] * 3, cores=2, file=file)
    assert len(choice.speeds) == 2
    with pytest.raises(
        RunError, match=r"row 0 \(member 0\) had no legal option for choice 0 in step 3"
    ):
        choose_layout(FactorySource(Masked, {"empty": 2}), [{}] * 3, cores=2, file=file)


class Lopsided(gymnasium.Env[Any, Any]):
    """An environment whose mask has too few flags."""

    observation_space = spaces.Dict(
        observation=spaces.Discrete(2), action_mask=spaces.MultiBinary(3)
    )
    action_space = spaces.Discrete(4)


class OnlyMask(gymnasium.Env[Any, Any]):
    observation_space = spaces.Dict(action_mask=spaces.MultiBinary(4))
    action_space = spaces.Discrete(4)


@pytest.mark.parametrize(
    ("source", "said"),
    [(Lopsided, "3 flags in 1 parts, and actions have 4 options"), (OnlyMask, "is empty")],
)
def test_masks_that_do_not_fit_are_refused(source: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        ExternalVecEnv(source, 1, 1)


class Numbers(gymnasium.Env[Any, Any]):
    """With continuous actions, "action_mask" is an observation like others."""

    observation_space = spaces.Dict(
        observation=spaces.Discrete(2), action_mask=spaces.MultiBinary(3)
    )
    action_space = spaces.Box(-1.0, 1.0, (3,), np.float32)


def test_only_choices_have_masks() -> None:
    env = ExternalVecEnv(Numbers, 1, 1)
    assert not env.spec.masked
    assert env.state_dim == 5


class Painted(Masked):
    """An environment that observes an image and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Dict(
            observation=spaces.Box(0, 255, (40, 48, 3), np.uint8),
            action_mask=spaces.Box(0, 1, (4,), np.int64),
        )

    def _observe(self) -> tuple[Any, dict[str, Any]]:
        seen, info = super()._observe()
        picture = np.zeros((40, 48, 3), np.uint8)
        picture[..., 1] = self._count
        return {**seen, "observation": picture}, info


def test_pictures_may_have_masks() -> None:
    env = ExternalVecEnv(Painted, 1, 2)
    env.reset(0)
    assert env.spec.image_shape == (3, 40, 48)
    generator = torch.Generator().manual_seed(0)
    for count in range(1, 4):
        obs = env.step(random_actions(env, generator)).obs
        assert obs.dtype == torch.uint8
        assert obs.view(2, 3, -1)[:, 1].eq(count).all()
        assert not obs.view(2, 3, -1)[:, 0].any()


def test_algorithms_without_masks_refuse_masked_environments() -> None:
    env = ExternalVecEnv(Masked, 1, 2)
    shape = Shape.for_env(
        env,
        horizon=4,
        net_width=8,
        net_depth=1,
        minibatch=8,
        epochs=1,
        algorithm="d3qn",
        updates=1,
        buffer=64,
    )
    with pytest.raises(InputError, match="use ppo"):
        D3QN(shape, "cpu").train(env, 1)


def test_masks_in_info_are_ignored_by_algorithms_without_masks() -> None:
    env = ExternalVecEnv("Taxi-v4", 1, 2)
    env.reset(0)
    legal = masks(env)[0]
    assert 0 < legal.sum() < legal.numel()
    env.ignore_advice()
    assert not env.spec.masked
    env.step(legal.long().argmin(1))
    env.check()
    strict = ExternalVecEnv(Masked, 1, 2)
    strict.ignore_advice()
    assert strict.spec.masked


class Boxed(Buffered):
    single_observation_space = spaces.Dict(
        observation=spaces.Discrete(2), action_mask=spaces.MultiBinary(3)
    )


def test_buffered_environments_must_have_one_array() -> None:
    with pytest.raises(
        InputError, match=r"Boxed: its single_observation_space is .* must be a Box"
    ):
        ExternalVecEnv(Boxed, 1, 2)
