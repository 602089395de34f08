"""PPO's programs against the reference in plain torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.algorithms.ppo_params import PPOParams
from sweepd.agents.algorithms.ppo_reference import Policy, Rollout, train, update
from sweepd.envs.core.streams import Streams
from sweepd.envs.games.registry import get_game
from tests.agents.algorithms.test_update import Recording, RecordingChoice
from tests.agents.helpers import member_params, shape_for

MEMBERS, ENVS, HORIZON, ROLLOUTS = 3, 4, 12, 3
TOLERANCES = {torch.float64: (1e-9, 1e-11), torch.float32: (1e-3, 5e-5)}


@pytest.fixture(params=["native", "torch", "float64"])
def dtype(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.dtype]:
    """torch's default type: with native kernels, and with torch in two precisions."""
    if request.param == "torch":
        monkeypatch.setenv("SWEEPD_KERNELS", "torch")
    chosen = torch.float64 if request.param == "float64" else torch.float32
    torch.set_default_dtype(chosen)
    yield chosen
    torch.set_default_dtype(torch.float32)


def recorded(env: Recording, ppo: PPO, slot: int, steps: int) -> Rollout:
    """Return what a member saw and did since a number of steps."""
    rows = slice(slot * ENVS, (slot + 1) * ENVS)
    actions = ppo.rollout.transitions.actions[slot, :-1]
    return Rollout(
        torch.stack(env.seen[steps:])[:, rows],
        actions[..., 0].long() if env.if_discrete else actions.clone(),
        *(
            torch.stack([getattr(step, name)[rows] for step in env.steps[steps:]])
            for name in ("reward", "terminated", "truncated")
        ),
        torch.stack(env.finals[steps:])[:, rows].nan_to_num(),
    )


CHANGES: list[dict[str, Any]] = [{}, {"popart_beta": 0.2}, {"target_kl": 1e-4, "epochs": 4}]


@pytest.mark.parametrize("changes", CHANGES, ids=["plain", "scaled returns", "early stop"])
@pytest.mark.parametrize("kind", [Recording, RecordingChoice])
def test_programs_make_the_weights_of_the_reference(
    dtype: torch.dtype, kind: type[Recording], changes: dict[str, Any]
) -> None:
    env = kind(MEMBERS, ENVS, cliff=0.9)
    own = dict(changes)
    ppo = PPO(shape_for(env, horizon=HORIZON, epochs=own.pop("epochs", 2)))
    policies = []
    for slot in range(MEMBERS):
        params = member_params(slot, **{"target_kl": 0.0, "weight_average": 0.0, **own})
        ppo.add_member(slot, params, 100 + slot, ROLLOUTS, env.state_avg, env.state_std)
        policy = Policy(env, ppo.shape.net_dims, params)
        for network, state in zip(policy.networks, ppo.export_member(slot), strict=True):
            network.load_state_dict(state)
        policies.append(policy)
    ppo.begin(env.reset([1, 2, 3]))
    stopped = 0
    steps = ppo.shape.epochs * ppo.shape.samples // ppo.shape.minibatch
    for iteration in range(ROLLOUTS):
        before = len(env.steps)
        with torch.no_grad():
            ppo.rollout.collect(env, ppo.streams)
        rollouts = [recorded(env, ppo, slot, before) for slot in range(MEMBERS)]
        order = Streams(MEMBERS)
        for slot in range(MEMBERS):
            order.set_state(slot, ppo.streams.state(slot))
        orders = order.permutations(ppo.shape.epochs, ppo.shape.samples)
        with torch.no_grad():
            stopped += int((ppo._learn().updates < steps).sum())
        for slot, policy in enumerate(policies):
            rollout = rollouts[slot]
            with torch.no_grad():
                expected = policy.distribution(rollout.obs[:-1]).log_prob(rollout.actions)
            assert_close(ppo.rollout.transitions.log_probs[slot, :-1], expected, dtype, "log π")
            rate = policy.params.learning_rate_at(iteration, ROLLOUTS)
            update(policy, rollout, orders[slot].reshape(-1, ppo.shape.minibatch), rate)
            made = max(one["step"] for one in policy.optimizers[0].state_dict()["state"].values())
            assert int(made) == int(ppo.optimizer.step[slot])
            for network, state in zip(policy.networks, ppo.export_member(slot), strict=True):
                for name, tensor in network.state_dict().items():
                    assert_close(state[name], tensor, dtype, f"member {slot}: {name}")
            member = ppo.members[slot]
            assert member is not None
            member.rollouts += 1
        ppo.optimizer.lr = ppo._learning_rates()
    assert (stopped > 0) == ("target_kl" in changes)


def assert_close(own: Tensor, other: Tensor, dtype: torch.dtype, what: str) -> None:
    relative, absolute = TOLERANCES[dtype]
    torch.testing.assert_close(
        own.to(dtype).view(other.shape), other.detach(), rtol=relative, atol=absolute, msg=what
    )


@pytest.mark.extra  # programs make its weights, and learn
def test_the_reference_learns() -> None:
    torch.manual_seed(0)
    game = get_game("cartpole")
    env = game.make([game.params()], 16, together=1, device="cpu")
    env.reset(1)
    params = PPOParams(learning_rate=3e-3, gamma=0.98, entropy_coef=0.0, clip=0.2, popart_beta=0.01)
    policy = Policy(env, (32, 32), params)
    train(env, policy, iterations=25, horizon=64, epochs=4, minibatch=128)
    lengths, obs, age = [], env.reset(), torch.zeros(16)
    for _ in range(500):
        with torch.no_grad():
            step = env.step(policy.distribution(obs).sample())
        age += 1
        done = step.terminated | step.truncated
        lengths += age[done].tolist()
        age[done] = 0
        obs = step.obs.clone()
    lengths += age.tolist()
    assert sum(lengths) / len(lengths) > 100.0
