"""A gradient step of SAC and D3QN equals that of ElegantRL's agents on the same transitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from elegantrl.agents import AgentD3QN, AgentSAC
from elegantrl.agents.net import ActorSAC, CriticTwin, QNetTwinDuel
from elegantrl.train.config import Config
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sweepd.agents.algorithms.d3qn import D3QN, D3QNParams
from sweepd.agents.algorithms.off_policy import OffPolicy
from sweepd.agents.algorithms.off_policy_params import OffPolicyParams
from sweepd.agents.algorithms.sac import SAC, SACParams
from sweepd.agents.engine.replay import Batch
from sweepd.agents.networks.shape import Shape
from tests.agents.helpers import assert_same
from tests.agents.off_policy_helpers import started, train_with
from tests.agents.toy_env import ChoiceEnv, ToyEnv

MEMBERS, ROWS, STEPS = 3, 24, 4


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """torch's default type, which the engine uses; float64 shows what float32's rounding hides."""
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def close(ours: dict[str, Tensor], theirs: dict[str, Tensor], dtype: torch.dtype) -> None:
    tight = (
        {"rtol": 1e-8, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-3, "atol": 2e-5}
    )
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name].to(tensor.dtype), tensor, **tight, msg=name)


class Given:
    """A replay buffer for ElegantRL that returns one member's transitions per step."""

    def __init__(self, batches: list[Batch], member: int) -> None:
        self.batches, self.member, self.at = batches, member, 0
        self.add_size = len(batches)
        first = batches[0]
        self.add_item = (
            first.obs[member][:, None],
            first.action[member][:, None],
            first.reward[member][:, None],
            first.alive[member][:, None],
        )

    def sample(self, _: int) -> tuple[Tensor, ...]:
        batch, member = self.batches[self.at], self.member
        self.at += 1
        parts = (batch.obs, batch.action, batch.reward, batch.alive, batch.next_obs)
        return tuple(part[member] for part in parts)


def batches_for(shape: Shape) -> list[Batch]:
    generator = torch.Generator().manual_seed(5)

    def normal(*size: int) -> Tensor:
        return torch.randn(MEMBERS, ROWS, *size, generator=generator)

    def action() -> Tensor:
        if shape.if_discrete:
            return torch.randint(shape.action_dim, (MEMBERS, ROWS, 1), generator=generator).to(
                normal().dtype
            )
        return normal(shape.action_dim).tanh()

    return [
        Batch(
            normal(shape.state_dim),
            action(),
            3.0 * normal(),
            (normal() > -1.0).to(normal().dtype),
            normal(shape.state_dim),
        )
        for _ in range(STEPS)
    ]


def elegant(kind: Any, shape: Shape, params: OffPolicyParams) -> Any:
    config = Config(
        kind,
        None,
        {
            "env_name": "toy",
            "num_envs": 1,
            "max_step": 7,
            "if_discrete": shape.if_discrete,
            "state_dim": shape.state_dim,
            "action_dim": shape.action_dim,
        },
    )
    config.learning_rate, config.clip_grad_norm = params.learning_rate, params.max_grad_norm
    config.gamma, config.soft_update_tau, config.batch_size = (
        params.gamma,
        params.soft_update_tau,
        ROWS,
    )
    agent = kind(shape.net_dims, shape.state_dim, shape.action_dim, gpu_id=-1, args=config)
    for optimizer in {
        agent.act_optimizer,
        agent.cri_optimizer,
        getattr(agent, "alpha_optimizer", agent.cri_optimizer),
    }:
        optimizer.param_groups[0].update(eps=params.adam_eps, weight_decay=params.weight_decay)
    agent.last_state = torch.zeros(1, shape.state_dim)
    return agent


def run(program: OffPolicy, batches: list[Batch], noise: Tensor | None) -> None:
    running = torch.ones(MEMBERS, dtype=torch.bool)
    program._set_rates()
    with torch.no_grad():
        for step, batch in enumerate(batches):
            running, _ = program._update(batch, None if noise is None else noise[step], running)
    assert bool(running.all())


@pytest.mark.parametrize("max_grad_norm", [0.05, 3.0])
def test_sac_updates_equal_elegantrl(
    dtype: torch.dtype, max_grad_norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = Shape(
        state_dim=5,
        action_dim=2,
        slots=MEMBERS,
        net_width=16,
        num_envs=2,
        horizon=4,
        minibatch=ROWS,
        buffer=64,
        updates=STEPS,
        algorithm="sac",
    )
    program = SAC(shape)
    agents = []
    for slot in range(MEMBERS):
        params = SACParams(
            learning_rate=1e-3 * (slot + 1),
            gamma=0.9 + 0.03 * slot,
            soft_update_tau=0.01 * (slot + 1),
            max_grad_norm=max_grad_norm,
            weight_decay=0.01,
            adam_eps=1e-6,
            target_entropy=-1.0 + 0.3 * slot,
            initial_alpha=0.2 * (slot + 1),
        )
        program.add_member(slot, params, slot, 10, torch.full((5,), 0.3), torch.full((5,), 1.7))
        agent = elegant(AgentSAC, shape, params)
        actor, critic = program.export_member(slot)
        for module, state in ((agent.act, actor), (agent.cri, critic), (agent.cri_target, critic)):
            module.load_state_dict(state)
        agent.alpha_log.data = torch.log(torch.tensor([params.initial_alpha]))
        agent.target_entropy = -params.target_entropy * shape.action_dim
        agents.append(agent)
    noise = torch.randn(STEPS, 2, MEMBERS, ROWS, 2, generator=torch.Generator().manual_seed(6))
    batches = batches_for(shape)
    run(program, batches, noise)
    for slot, agent in enumerate(agents):
        draws = iter(noise[:, :, slot].flatten(0, 1))
        monkeypatch.setattr(
            "torch.distributions.normal._standard_normal",
            lambda *_, **__: next(draws),  # noqa: B023
        )
        monkeypatch.setattr(agent, "get_cumulative_rewards", lambda rewards, **_: rewards)
        agent.update_net(Given(batches, slot))
        actor, critic = program.export_member(slot)
        close(actor, agent.act.state_dict(), dtype)
        close(critic, agent.cri.state_dict(), dtype)
        close(program.target.member(slot), agent.cri_target.state_dict(), dtype)
        close({"alpha": program.alpha_log[0, slot]}, {"alpha": agent.alpha_log.detach()}, dtype)


@pytest.mark.parametrize("max_grad_norm", [0.05, 3.0])
def test_d3qn_updates_equal_elegantrl(dtype: torch.dtype, max_grad_norm: float) -> None:
    shape = Shape(
        state_dim=5,
        action_dim=3,
        if_discrete=True,
        slots=MEMBERS,
        net_width=16,
        num_envs=2,
        horizon=4,
        minibatch=ROWS,
        buffer=64,
        updates=STEPS,
        algorithm="d3qn",
    )
    program = D3QN(shape)
    batches = batches_for(shape)
    agents = []
    for slot in range(MEMBERS):
        params = D3QNParams(
            learning_rate=1e-3 * (slot + 1),
            gamma=0.9 + 0.03 * slot,
            soft_update_tau=0.01 * (slot + 1),
            max_grad_norm=max_grad_norm,
            weight_decay=0.01,
            adam_eps=1e-6,
        )
        program.add_member(slot, params, slot, 10, torch.full((5,), 0.3), torch.full((5,), 1.7))
        agent = elegant(AgentD3QN, shape, params)
        net, target = program.export_member(slot)
        agent.act.load_state_dict(net)
        agent.cri_target.load_state_dict(target)
        agents.append(agent)
    run(program, batches, None)
    for slot, agent in enumerate(agents):
        agent.update_net(Given(batches, slot))
        net, target = program.export_member(slot)
        close(net, agent.act.state_dict(), dtype)
        close(target, agent.cri_target.state_dict(), dtype)


def test_forward_equals_elegantrl() -> None:
    """Deterministic actions, with normalisers that the updates do not exercise."""
    program, env = started(ToyEnv(MEMBERS, 2), {0: 0, 2: 1})
    rows = torch.randn(MEMBERS * 4, env.state_dim)
    acts = program.act_fn()(rows).view(MEMBERS, 4, -1)
    for slot in (0, 2):
        actor = ActorSAC(program.shape.net_dims, env.state_dim, env.action_dim)
        critic = CriticTwin(program.shape.net_dims, env.state_dim, env.action_dim)
        for module, state in zip((actor, critic), program.export_member(slot), strict=True):
            module.load_state_dict(state)
        torch.testing.assert_close(acts[slot], actor(rows.view(MEMBERS, 4, -1)[slot]))
    choices, choice_env = started(ChoiceEnv(MEMBERS, 2), {1: 1})
    rows = torch.randn(MEMBERS * 4, choice_env.state_dim)
    net = QNetTwinDuel(choices.shape.net_dims, choice_env.state_dim, choice_env.action_dim)
    net.load_state_dict(choices.export_member(1)[0])
    chosen = choices.act_fn()(rows)
    assert chosen.dtype == torch.int64
    assert torch.equal(chosen.view(MEMBERS, 4)[1], net(rows.view(MEMBERS, 4, -1)[1]).argmax(1))


class NoHostReads(TorchDispatchMode):
    """Raises where an operation would make the host wait for a device's value."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in {
            torch.ops.aten._local_scalar_dense,
            torch.ops.aten.nonzero,
            torch.ops.aten.equal,
        }:
            raise AssertionError(f"{func} reads a value on the host")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [ToyEnv, ChoiceEnv])
def test_neither_rollout_nor_update_reads_a_value_on_the_host(kind: type[ToyEnv]) -> None:
    program, env = started(kind(MEMBERS, 4), {0: 0, 1: 1, 2: 2})
    program.train(env, 3)
    with NoHostReads(), torch.no_grad():
        program._collect(env)
        stats = program._learn()
    assert float(stats.updates.min()) > 0


CHANGES: dict[str, Any] = {
    "learning_rate": 2e-3,
    "gamma": 0.8,
    "soft_update_tau": 0.05,
    "reward_scale": 2.0,
    "max_grad_norm": 0.01,
    "adam_eps": 1e-3,
    "weight_decay": 0.1,
    "warmup": 60,
    "lr_schedule": "linear",
    "target_entropy": 0.5,
    "initial_alpha": 1.5,
    "explore_start": 0.2,
    "explore_end": 0.9,
    "explore_share": 1.0,
    "explore_hold": 1,
}


@pytest.mark.parametrize("kind", [ToyEnv, ChoiceEnv])
def test_every_hyperparameter_changes_the_update(kind: type[ToyEnv]) -> None:
    params = D3QNParams if kind is ChoiceEnv else SACParams
    network = "net" if kind is ChoiceEnv else "actor"
    base = train_with(kind, params(warmup=10))
    assert_same(base, train_with(kind, params(warmup=10)))
    for name in params.model_fields:
        moved = train_with(kind, params(**{"warmup": 10, name: CHANGES[name]}))
        assert not torch.equal(base[f"{network}.weights"], moved[f"{network}.weights"]), name
