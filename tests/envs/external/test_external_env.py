"""External environments as `VecEnv`: same numbers as Gymnasium, and independent members."""

from __future__ import annotations

import gc
import itertools
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from safetensors.torch import load, save
from torch import Tensor

from sweepd.envs.external import vec_env
from sweepd.envs.external.describe import describe
from sweepd.envs.external.sharded import Layout
from sweepd.envs.external.sources import FactorySource
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.support.errors import InputError, RunError
from tests.envs.external.samples import Counter


def actions_for(env: ExternalVecEnv, generator: torch.Generator) -> Tensor:
    """Return random actions for every row."""
    if env.spec.action_dims:
        return torch.stack(
            [
                torch.randint(0, n, (env.num_envs,), generator=generator)
                for n in env.spec.action_dims
            ],
            1,
        )
    if env.if_discrete:
        return torch.randint(0, env.action_dim, (env.num_envs,), generator=generator)
    return torch.rand(env.num_envs, env.action_dim, generator=generator) * 2.0 - 1.0


@pytest.mark.parametrize(
    ("name", "steps"), [("CartPole-v1", 60), ("Pendulum-v1", 210), ("FrozenLake-v1", 110)]
)
def test_results_equal_those_of_gymnasium(name: str, steps: int) -> None:
    """Compare observations, rewards, ends, step limits and final observations, by seed."""
    env = ExternalVecEnv(name, 1, 4)
    first = env.reset(3)
    seeds = env.last_seeds(0)
    theirs = SyncVectorEnv(
        [lambda: gymnasium.make(name)] * 4, autoreset_mode=AutoresetMode.SAME_STEP
    )
    obs, _ = theirs.reset(seed=seeds)
    one_hot = np.eye(env.state_dim, dtype=np.float32)
    expected = (lambda raw: one_hot[raw]) if obs.dtype == np.int64 else (lambda raw: raw)
    np.testing.assert_array_equal(first.numpy(), expected(obs))
    generator, ends = torch.Generator().manual_seed(0), 0
    for _ in range(steps):
        action = actions_for(env, generator)
        made = env.step(action)
        obs, reward, terminated, truncated, infos = theirs.step(
            (action if env.if_discrete else action * 2.0).numpy()
        )
        np.testing.assert_array_equal(made.obs.numpy(), expected(obs))
        np.testing.assert_array_equal(made.reward.numpy(), reward.astype(np.float32))
        np.testing.assert_array_equal(made.terminated.numpy(), terminated)
        np.testing.assert_array_equal(made.truncated.numpy(), truncated)
        for row in np.flatnonzero(terminated | truncated):
            np.testing.assert_array_equal(
                env.final_obs()[row].numpy(), expected(infos["final_obs"][row])
            )
            ends += 1
    assert ends >= 4


def test_a_slot_that_was_never_seeded_is_idle() -> None:
    env = ExternalVecEnv("CartPole-v1", 2, 2)
    env.reset([None, 4])
    made = env.step(torch.ones(4, dtype=torch.int64))
    assert not made.obs[:2].any()
    assert made.obs[2:].all()
    assert made.reward.tolist() == [0.0, 0.0, 1.0, 1.0]


@pytest.mark.parametrize("layout", [None, Layout(2, (1, 3))], ids=str)
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "FrozenLake-v1"])
def test_a_restored_member_continues_exactly(name: str, layout: Layout | None) -> None:
    """In any slot, batch and layout, twice in a row, and at the step limit of an episode."""
    kwargs: dict[str, Any] = {"max_episode_steps": 23}
    env, other = (
        ExternalVecEnv(name, 1, 3, **kwargs),
        ExternalVecEnv(name, 2, 3, layout=layout, **kwargs),
    )
    env.reset(1)
    other.reset(2)
    generator = torch.Generator().manual_seed(0)
    for rounds in (0, 17, 30, 3):
        for _ in range(rounds):
            env.step(actions_for(env, generator))
        # Through a file as a checkpoint does, then saved and restored once more.
        other.set_member(0, load(save(env.get_member(0))))
        other.set_member(1, other.get_member(0))
        assert torch.equal(env.final_obs(), other.final_obs()[3:])
        assert not other.restarted(0)
        for _ in range(30):
            action = actions_for(env, generator)
            made, there = env.step(action), other.step(torch.cat([action, action]))
            for mine, theirs in zip(made, there, strict=True):
                assert torch.equal(mine, theirs[:3])
                assert torch.equal(mine, theirs[3:])
    other.close()


class Forgetful(Counter):
    """An environment whose random numbers do not come from `np_random`."""

    numbers = itertools.count()

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._number = float(next(self.numbers))
        return self._observe(0), {}


class Nested(Counter):
    """An environment whose seeded generator is not of Gymnasium's type."""

    def reset(
        self, *, seed: int | None = None, options: Any = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._np_random = np.random.Generator(np.random.MT19937(seed or 0))  # type: ignore[assignment]
        return self._observe(0), {}


@pytest.mark.parametrize("kind", [Forgetful, Nested])
def test_a_member_that_cannot_be_restored_begins_new_episodes(
    kind: type[Counter], caplog: pytest.LogCaptureFixture
) -> None:
    env = ExternalVecEnv(kind, 1, 3, length=4)
    env.reset([7])
    for step in range(6):
        env.step(torch.full((3,), step % 2))
    state = env.get_member(0)
    assert env.observe()[:, 0].tolist() == [2.0] * 3
    seeds = []
    for _ in range(2):
        env.set_member(0, state)
        assert "member 0 begins new episodes" in caplog.text
        assert env.observe()[:, 0].tolist() == [0.0] * 3
        assert env.restarted(0)
        seeds.append(env.last_seeds(0))
    assert seeds[0] == seeds[1]


def test_members_may_have_different_arguments() -> None:
    env = ExternalVecEnv("Pendulum-v1", [{"g": 10.0}, {"g": 2.0}], 2)
    env.reset([1, 1])
    obs = env.step(torch.zeros(4, 1)).obs
    assert not torch.equal(obs[:2], obs[2:])
    env.configure_member(1, {"g": 10.0})
    env.reset([1, 1])
    obs = env.step(torch.zeros(4, 1)).obs
    assert torch.equal(obs[:2], obs[2:])


def test_illegal_actions_are_named_and_never_reach_the_environment() -> None:
    env = ExternalVecEnv("CartPole-v1", 2, 2)
    env.reset(0)
    env.step(torch.tensor([0, 1, 0, 1]))
    env.step(torch.tensor([0, 1, 0, 7]))
    assert env.faults().tolist() == [False, False, False, True]
    with pytest.raises(
        RunError, match=r"row 3 \(member 1\) got an illegal action in step 2: component 0 was 7"
    ):
        env.check()
    moved = ExternalVecEnv("CartPole-v1", 1, 2)
    moved.set_member(0, env.get_member(1))
    assert moved.faults().tolist() == [False, True]
    env.reset_member(1)
    env.check()
    pendulum = ExternalVecEnv("Pendulum-v1", 1, 2, debug=True)
    pendulum.reset(0)
    with pytest.raises(RunError, match="component 0 was nan"):
        pendulum.step(torch.tensor([[0.0], [float("nan")]]))


@pytest.mark.parametrize(
    ("name", "kwargs", "said"),
    [
        (
            "NoSuchGame-v0",
            {},
            "gym:NoSuchGame-v0: Gymnasium knows no such environment .* gym:MODULE:ID imports",
        ),
        ("CartPole-v9", {}, r"CartPole-v9: Gymnasium knows no such environment \([^;]*\)$"),
        (
            "nowhere.to_be_found:Game-v0",
            {},
            "gym:nowhere.to_be_found:Game-v0: No module named 'nowhere'; install",
        ),
        ("tests.envs.external.registering:Nope-v0", {}, "knows no such environment"),
        (
            "tests.envs.external.spoilt:Game-v0",
            {},
            r"spoilt:Game-v0: importing tests.envs.external.spoilt fails: ZeroDivisionError: .*\.py:\d+\)",
        ),
        ("CartPole-v1", {"wind": 3}, "with {'wind': 3} cannot"),
    ],
)
def test_environments_that_cannot_be_made_are_refused(
    name: str, kwargs: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        ExternalVecEnv(name, 1, 1, **kwargs)


def test_an_id_may_name_the_module_that_registers_it() -> None:
    env = ExternalVecEnv(
        "gym:tests.envs.external.registering:tests/Counter-v0", 1, 3, layout=Layout(1, (2,))
    )
    env.reset(0)
    assert env.step(torch.ones(3, dtype=torch.int64)).reward.tolist() == [1.0] * 3
    env.close()


def test_buffers_that_a_gpu_reads_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned: dict[int, int] = {}

    class Runtime:
        def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: ARG002 - CUDA's name
            pinned[address] = size
            return 0

        def cudaHostUnregister(self, address: int) -> None:
            del pinned[address]

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    env = ExternalVecEnv("CartPole-v1", 1, 4)
    rows = env._envs.buffers.obs
    vec_env._pin(env, rows)
    assert pinned == {rows.ctypes.data: rows.nbytes}
    env.close()
    del env
    gc.collect()
    assert not pinned


def test_call_order_and_shapes_are_checked() -> None:
    env = ExternalVecEnv("CartPole-v1", 1, 2)
    with pytest.raises(RuntimeError, match="before reset"):
        env.step(torch.zeros(2, dtype=torch.int64))
    env.reset(0)
    with pytest.raises(ValueError, match=r"shape \(2, 1\)"):
        env.step(torch.zeros(2, 1, dtype=torch.int64))


class Bounded(Counter):
    def __init__(self, score_range: Any = (0.0, 5.0)) -> None:
        super().__init__()
        self.score_range = score_range


def test_the_range_of_scores_is_the_environments_own() -> None:
    source = FactorySource(Bounded)
    env = ExternalVecEnv(source, [{}], 2)
    assert env.score_range == (0.0, 5.0)
    env.close()
    env = ExternalVecEnv(FactorySource(Counter), [{}], 2)
    assert env.score_range is None
    env.close()
    for wrong in ((5.0, 0.0), 3.0, (0.0, float("inf")), ("a", "b")):
        with pytest.raises(InputError, match=r"score_range is .* such as"):
            describe(source, {"score_range": wrong})
