"""PPO's update against ElegantRL's, GAE against a scalar reference, effect of hyperparameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from elegantrl.agents.AgentPPO import AgentDiscretePPO, AgentPPO
from elegantrl.agents.net import ActorDiscretePPO
from elegantrl.train.config import Config
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.envs.core.streams import Streams
from sweepd.envs.core.vec_env import Step
from sweepd.envs.support.errors import InputError
from tests.agents.helpers import assert_same, shape_for, start
from tests.agents.toy_env import (
    AbsentEnv,
    ChoiceEnv,
    ChoicesEnv,
    ImageEnv,
    MaskedEnv,
    Rematching,
    ToyEnv,
)


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """torch's default type, which the engine uses; float64 shows what float32's rounding hides."""
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


class Recording(ToyEnv):
    """Record the observations returned and the actions received."""

    def reset(self, seed: Any = None) -> Tensor:
        obs = super().reset(seed)
        self.seen, self.steps, self.finals = [obs.clone()], [], []
        return obs

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        step = super().step(action, out)
        self.seen.append(step.obs.clone())
        self.steps.append(Step(*(tensor.clone() for tensor in step)))
        self.finals.append(self._final.clone())
        return step


class RecordingChoice(Recording, ChoiceEnv):
    """`Recording` with discrete actions."""


class RecordingChoices(Recording, ChoicesEnv):
    """`Recording` with several choices per action."""


class RecordingMasked(Recording, MaskedEnv):
    """`Recording` with illegal options."""


class SeveralChoices(ActorDiscretePPO):  # type: ignore[misc]  # ElegantRL is untyped
    """ElegantRL's discrete actor with outputs read as the logits of several choices.

    Where `chained`, the first choice adds to the second's logits. Illegal options are left out.
    """

    def get_logprob_entropy(self, state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """action: (rows, 2), or (rows, 2 + action_dim) with the masks."""
        first, second = self.net(self.state_norm(state)).split(ChoicesEnv.action_dims, -1)
        if hasattr(self, "chain"):
            second = second + self.chain["1"](
                torch.nn.functional.one_hot(action[:, 0].long(), 3).to(second.dtype)
            )
            masks = action[:, 2:].bool().split(ChoicesEnv.action_dims, -1)
            first, second = (
                torch.where(mask, logits, -1e20)
                for mask, logits in zip(masks, (first, second), strict=True)
            )
        choices = [torch.distributions.Categorical(logits=logits) for logits in (first, second)]
        log_probs = [
            choice.log_prob(index)
            for choice, index in zip(choices, action.unbind(-1), strict=False)
        ]
        return sum(log_probs), sum(choice.entropy() for choice in choices)


def elegant_agent(ppo: PPO, slot: int, params: PPOParams) -> AgentPPO:
    """ElegantRL's agent with the member's weights, and its AdamW with the member's numbers."""
    shape = ppo.shape
    kind = AgentDiscretePPO if shape.if_discrete else AgentPPO
    config = Config(
        kind,
        None,
        {
            "env_name": "toy",
            "num_envs": shape.num_envs,
            "max_step": 7,
            "if_discrete": shape.if_discrete,
            "state_dim": shape.state_dim,
            "action_dim": shape.action_dim,
        },
    )
    config.learning_rate, config.clip_grad_norm = params.learning_rate, params.max_grad_norm
    config.gamma, config.lambda_gae_adv = params.gamma, params.gae_lambda
    agent = kind(shape.net_dims, shape.state_dim, shape.action_dim, gpu_id=-1, args=config)
    agent.ratio_clip, agent.lambda_entropy = params.clip, params.entropy_coef
    if shape.action_dims:
        agent.act.__class__ = SeveralChoices
    if shape.autoregressive:
        chain = torch.nn.Linear(3, 5, bias=False)
        agent.act.chain = torch.nn.ModuleDict({"1": chain})
        agent.act_optimizer.param_groups[0]["params"].append(chain.weight)
    for module, state in zip((agent.act, agent.cri), ppo.export_member(slot), strict=True):
        module.load_state_dict(
            {name: tensor for name, tensor in state.items() if name != "action_dims"}
        )
    for optimizer in (agent.act_optimizer, agent.cri_optimizer):
        optimizer.param_groups[0].update(eps=params.adam_eps, weight_decay=params.weight_decay)
    return agent


@pytest.mark.parametrize("max_grad_norm", [0.05, 3.0])
@pytest.mark.parametrize("kind", [Recording, RecordingChoice, RecordingChoices, RecordingMasked])
def test_whole_update_equals_elegantrl(
    dtype: torch.dtype, kind: type[Recording], max_grad_norm: float
) -> None:
    """Six minibatches through ElegantRL's modules give the same weights and moments."""
    members, envs = 3, 4
    env = kind(members, envs)
    shape = shape_for(env)  # 2 epochs of 3 minibatches of 16
    ppo = PPO(shape)
    for slot in range(members):
        params = PPOParams(
            learning_rate=1e-3 * (slot + 1),
            clip=0.1 * (slot + 1),
            entropy_coef=0.02 * slot,
            initial_log_std=-0.5,
            value_coef=1.0,
            max_grad_norm=max_grad_norm,
            weight_decay=0.01,
            adam_eps=1e-6,
        )
        ppo.add_member(slot, params, slot, 10, env.state_avg, env.state_std)
    ppo.begin(env.reset([1, 2, 3]))
    agents = [elegant_agent(ppo, slot, ppo._member(slot).params) for slot in range(members)]
    orders = Streams(members)
    with torch.no_grad():
        ppo.rollout.collect(env, ppo.streams)
        explained = ppo.rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"])
        for slot in range(members):
            orders.set_state(slot, ppo.streams.state(slot))
        orders_of = orders.permutations(shape.epochs, shape.samples)
        ppo._update(explained)

    seen = torch.stack(env.seen[:-1])  # (horizon, rows, state_dim), as the environment gave them
    for slot, agent in enumerate(agents):
        rows = slice(slot * envs, (slot + 1) * envs)
        states = seen[:, rows].reshape(-1, shape.state_dim)
        side = ppo.rollout.transitions.side[slot, :-1].flatten(0, 1)
        actions, (old, advantages, returns) = side[:, :-3], side[:, -3:].unbind(1)
        if shape.masked:
            masks = ppo.rollout.transitions.masks
            assert masks is not None
            actions = torch.cat((actions, masks[slot, :-1].flatten(0, 1).to(actions.dtype)), 1)
        with torch.no_grad():
            log_prob, entropy = agent.act.get_logprob_entropy(states, actions)
        tight = (
            {"rtol": 1e-10, "atol": 1e-12}
            if dtype == torch.float64
            else {"rtol": 1e-4, "atol": 2e-5}
        )
        torch.testing.assert_close(log_prob, old, **tight)
        for ids in orders_of[slot].reshape(-1, shape.minibatch):
            value = agent.cri(states[ids])
            agent.optimizer_update(agent.cri_optimizer, agent.criterion(value, returns[ids]))
            log_prob, entropy = agent.act.get_logprob_entropy(states[ids], actions[ids])
            ratio = (log_prob - old[ids]).exp()
            surrogate = torch.min(
                advantages[ids] * ratio,
                advantages[ids] * ratio.clamp(1 - agent.ratio_clip, 1 + agent.ratio_clip),
            )
            agent.optimizer_update(
                agent.act_optimizer, -(surrogate.mean() + entropy.mean() * agent.lambda_entropy)
            )
        for module, ours in zip((agent.act, agent.cri), ppo.export_member(slot), strict=True):
            for name, tensor in module.state_dict().items():
                tight = (
                    {"rtol": 1e-9, "atol": 1e-11}
                    if dtype == torch.float64
                    else {"rtol": 1e-4, "atol": 2e-5}
                )
                torch.testing.assert_close(
                    ours[name].to(tensor.dtype), tensor, **tight, msg=f"{slot} {name}"
                )
        first = next(iter(agent.act_optimizer.state.values()))
        assert int(first["step"]) == int(ppo.optimizer.step[slot]) == 6


@pytest.mark.parametrize(("horizon", "interval"), [(12, 7), (12, 3), (20, 7)])
@pytest.mark.parametrize("cliff", [10.0, 0.4])
@torch.no_grad()
def test_advantages_equal_a_scalar_reference(horizon: int, interval: int, cliff: float) -> None:
    """GAE equals plain float64 loops; truncation is bootstrapped, termination is not."""
    env = Recording(2, 3, cliff=cliff)
    env.bootstrap_interval = min(interval, env.bootstrap_interval)
    ppo = start(env, {0: 0, 1: 3}, horizon=horizon, minibatch=12)
    gamma, lam = ppo.numbers["gamma"], ppo.numbers["gae_lambda"]
    for _ in range(2):
        seen_before, steps_before = len(env.seen) - 1, len(env.steps)
        ppo.rollout.collect(env, ppo.streams)
        ppo.rollout.estimate(gamma, lam)
    truncations = terminations = 0
    for member in range(2):
        weights = {name: tensor.double() for name, tensor in ppo.export_member(member)[1].items()}

        def value(obs: Tensor, weights: dict[str, Tensor] = weights) -> float:
            hidden = (obs.double() - weights["state_avg"]) / weights["state_std"]
            for layer in (0, 2):
                hidden = torch.relu(
                    weights[f"net.{layer}.weight"] @ hidden + weights[f"net.{layer}.bias"]
                )
            return float(weights["net.4.weight"] @ hidden + weights["net.4.bias"])

        g, la = float(gamma[member]), float(lam[member])
        expected = torch.zeros(horizon, 3, dtype=torch.float64)
        returns = torch.zeros(horizon, 3, dtype=torch.float64)
        for lane in range(3):
            row, advantage = member * 3 + lane, 0.0
            for t in reversed(range(horizon)):
                step = env.steps[steps_before + t]
                here = value(env.seen[seen_before + t][row])
                if bool(step.terminated[row]):
                    following, carry = 0.0, 0.0
                    terminations += 1
                elif bool(step.truncated[row]):
                    following, carry = value(env.finals[steps_before + t][row]), 0.0
                    truncations += 1
                else:
                    following, carry = value(env.seen[seen_before + t + 1][row]), 1.0
                advantage = (
                    float(step.reward[row]) + g * following - here + g * la * carry * advantage
                )
                expected[t, lane], returns[t, lane] = advantage, advantage + here
        side = ppo.rollout.transitions.side[member, :-1]
        torch.testing.assert_close(side[..., 4].double(), returns, rtol=1e-5, atol=1e-5)
        normal = (expected - expected.mean()) / (expected.std() + 1e-4)
        torch.testing.assert_close(side[..., 3].double(), normal, rtol=1e-4, atol=1e-4)
    assert truncations > 0
    assert (terminations > 0) == (cliff < 10.0)


CHANGES: dict[str, Any] = {
    "learning_rate": 2e-3,
    "gamma": 0.8,
    "gae_lambda": 0.5,
    "clip": 0.01,
    "entropy_coef": 0.1,
    "initial_log_std": -0.3,
    "value_coef": 1.5,
    "max_grad_norm": 0.05,
    "target_kl": 1e-6,
    "adam_eps": 1e-3,
    "weight_decay": 0.1,
    "lr_schedule": "linear",
    "popart_beta": 0.1,
}


def train_with(params: PPOParams, kind: type[ToyEnv] = ToyEnv) -> dict[str, Tensor]:
    env = kind(1, 4)
    ppo = PPO(shape_for(env))
    ppo.add_member(0, params, 1, 4, env.state_avg, env.state_std)
    ppo.begin(env.reset(5))
    ppo.train(env, 2)
    return ppo.get_member(0)


# The running mean of the weights does not take part in training.
LEARNED = {*PPOParams.numeric(), "lr_schedule"} - {"weight_average"}


@pytest.mark.parametrize("name", sorted(LEARNED))
def test_every_hyperparameter_changes_the_update(name: str) -> None:
    base = train_with(PPOParams())
    moved = train_with(PPOParams(**{name: CHANGES[name]}))
    assert not torch.equal(base["weights"], moved["weights"])
    assert_same(base, train_with(PPOParams()))


@pytest.mark.parametrize("name", sorted(LEARNED - {"initial_log_std"}))
def test_every_hyperparameter_changes_a_discrete_update(name: str) -> None:
    base = train_with(PPOParams(), ChoiceEnv)
    moved = train_with(PPOParams(**{name: CHANGES[name]}), ChoiceEnv)
    assert not torch.equal(base["weights"], moved["weights"])
    assert_same(base, train_with(PPOParams(), ChoiceEnv))


def test_the_running_mean_of_the_weights_acts_and_is_exported() -> None:
    share, env = 0.5, ToyEnv(2, 4)
    ppo = PPO(shape_for(env))
    for slot, weight_average in enumerate((share, 0.0)):
        params = PPOParams(weight_average=weight_average)
        ppo.add_member(slot, params, 1, 8, env.state_avg, env.state_std)
        env.streams.seed(slot, 2)
    ppo.begin(env.reset())
    obs = torch.randn(2 * 4, env.state_dim)
    obs[4:] = obs[:4]
    mean = torch.zeros_like(ppo.population.flat[0, 0])
    for number in range(1, 7):
        ppo.train(env, 1)
        # Both members train alike, with their present weights.
        assert torch.equal(ppo.population.flat[:, 0], ppo.population.flat[:, 1])
        mean += (ppo.population.flat[0, 0] - mean) / max(1.0, share * number)
        acting = ppo.population.acting().flat
        torch.testing.assert_close(acting[0], mean, rtol=1e-5, atol=1e-7)
        assert torch.equal(acting[1], ppo.population.flat[0, 1])
    averaged, present = ppo.export_member(0)[0], ppo.export_member(1)[0]
    other = PPO(shape_for(env))
    for slot, actor in enumerate((averaged, present)):
        other.add_member(slot, PPOParams(), 1, 8, env.state_avg, env.state_std)
        other.import_actor(slot, actor)
    actions = ppo.act_fn()(obs)
    assert torch.equal(actions, other.act_fn()(obs))
    assert not torch.equal(actions[:4], actions[4:])
    assert_same({"a": ppo.acting_weights()["net.0.weight"][0]}, {"a": present["net.0.weight"]})


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


KINDS = [
    *((kind, "") for kind in (ToyEnv, ChoiceEnv, Rematching, MaskedEnv, AbsentEnv, ImageEnv)),
    (ToyEnv, "lstm"),
]


@pytest.mark.parametrize(("kind", "recurrent"), KINDS)
@torch.no_grad()
def test_neither_rollout_nor_update_reads_a_value_on_the_host(
    kind: type[ToyEnv], recurrent: str
) -> None:
    env = kind(3, 4)
    ppo = start(
        env, {0: 0, 1: 1, 2: 2}, recurrent=recurrent, bptt=4
    )  # with and without target-KL and weight decay
    with NoHostReads():
        ppo.rollout.collect(env, ppo.streams)
        ppo._update(ppo.rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"]))
        with pytest.raises(AssertionError, match="on the host"):
            ppo._diverged.any().item()


def test_target_kl_skips_the_rest_of_the_rollout() -> None:
    env = ToyEnv(2, 4)
    ppo = PPO(shape_for(env, epochs=6))
    for slot, target in enumerate((0.0, 1e-3)):
        ppo.add_member(
            slot,
            PPOParams(target_kl=target, learning_rate=5e-3),
            1,
            4,
            env.state_avg,
            env.state_std,
        )
    ppo.begin(env.reset([5, 5]))
    stats = ppo.train(env, 1)[0]
    assert float(stats.updates[0]) == 18
    assert 1 <= float(stats.updates[1]) < 18
    assert ppo.optimizer.step.tolist() == stats.updates.tolist()


def test_an_inactive_member_keeps_every_bit() -> None:
    """An update without a member changes neither its weights nor its moments nor its step."""
    env = ToyEnv(2, 4)
    ppo = start(env, {0: 1, 1: 3})
    ppo.train(env, 1)
    before, other = ppo.get_member(0), ppo.get_member(1)
    ppo.optimizer.grad[:, 0], ppo.optimizer.grad[:, 1] = torch.nan, 1.0
    norms = torch.linalg.vector_norm(ppo.optimizer.grad, dim=2)
    with torch.no_grad():
        ppo.optimizer.apply(norms, torch.ones(2), torch.tensor([False, True]))
    assert_same(before, ppo.get_member(0))
    assert not torch.equal(other["weights"], ppo.get_member(1)["weights"])


def test_schedules_decay_but_stay_above_zero() -> None:
    linear, cosine, constant = (
        PPOParams(lr_schedule=name) for name in ("linear", "cosine", "constant")
    )
    assert [linear.learning_rate_at(r, 4) for r in range(4)] == pytest.approx(
        [1e-3, 7.5e-4, 5e-4, 2.5e-4]
    )
    assert cosine.learning_rate_at(2, 4) == pytest.approx(5e-4)
    assert cosine.learning_rate_at(3, 4) == cosine.learning_rate_at(9, 4) > 0
    assert constant.learning_rate_at(3, 4) == 1e-3


@pytest.mark.parametrize("start", [-0.01, 0.5])
def test_log_std_is_capped_and_entropy_is_that_of_the_gaussian(start: float) -> None:
    """At 0, or where it started above."""
    env = ToyEnv(1, 4)
    ppo = PPO(shape_for(env))
    params = PPOParams(initial_log_std=start, entropy_coef=5.0)
    ppo.add_member(0, params, 1, 4, env.state_avg, env.state_std)
    ppo.begin(env.reset(5))
    stats = ppo.train(env, 3)[-1]
    log_std = ppo.export_member(0)[0]["action_std_log"][0]
    assert log_std.unique().tolist() == [max(start, 0.0)]
    normal = torch.distributions.Normal(torch.zeros(2), log_std.exp())
    assert float(stats.entropy[0]) == pytest.approx(float(normal.entropy().sum()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"gamma": 1.2}, "gamma must be at most 1, not 1.2"),
        ({"entropy_coef": -0.1}, "entropy_coef must be at least 0"),
        ({"initial_log_std": float("nan")}, "initial_log_std must be a finite number"),
        ({"lr_schedule": "step"}, "'constant', 'linear' or 'cosine', not 'step'"),
    ],
)
def test_params_out_of_range_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        PPOParams(**changes)
