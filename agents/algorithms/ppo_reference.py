"""PPO for one member in plain torch: what `sweepd.agents.algorithms.ppo` computes, as short as it is.

Sources: Schulman et al., 2017, arXiv:1707.06347 (PPO); Schulman et al., 2016, arXiv:1506.02438
(advantages); van Hasselt et al., 2016, arXiv:1602.07714 (return scaling).

The program in `ppo.py` trains many members as one batch, in native code, in torch or on GPUs. From
the same rollout and the same order of minibatches, it makes the weights of `update` here, up to
rounding: `tests/agents/algorithms/test_ppo_reference.py`. To learn how PPO works, start here; then
`docs/explanation/ppo.md` follows the same steps through the batched code.

Masks, images, memory, absent agents, several choices and averages of weights are in `ppo.py` alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal
from torch.nn.functional import smooth_l1_loss
from torch.nn.utils import clip_grad_norm_

from sweepd.agents.algorithms.ppo_params import PPOParams
from sweepd.envs.core.vec_env import VecEnv


class Rollout(NamedTuple):
    """Transitions of T steps in N environments.

    Attributes:
        obs: (T + 1, N, state_dim), s_t; the last is the one after the rollout.
        actions: (T, N, action_dim) before tanh, or (T, N) choices.
        rewards: (T, N), r_t.
        terminated: (T, N) bool, whether the episode has ended in a final state.
        truncated: (T, N) bool, whether it was ended by a time limit.
        final_obs: (T, N, state_dim), the last observation of truncated episodes.
    """

    obs: Tensor
    actions: Tensor
    rewards: Tensor
    terminated: Tensor
    truncated: Tensor
    final_obs: Tensor


class Network(nn.Module):
    """Linear layers of these sizes, ReLU between them, on normalised observations.

    Names and first weights are those of ElegantRL's `ActorPPO` and `CriticPPO`.
    """

    def __init__(self, sizes: tuple[int, ...], gain: float) -> None:
        super().__init__()
        self.state_avg: Tensor = nn.Buffer(torch.zeros(sizes[0]))
        self.state_std: Tensor = nn.Buffer(torch.ones(sizes[0]))
        layers = [nn.Linear(*pair) for pair in pairwise(sizes)]
        self.net = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])
        nn.init.orthogonal_(layers[-1].weight, gain)
        nn.init.constant_(layers[-1].bias, 1e-6)

    def forward(self, obs: Tensor) -> Tensor:
        """Return the outputs (…, sizes[-1]) of observations (…, sizes[0])."""
        output: Tensor = self.net((obs - self.state_avg) / self.state_std)
        return output


class Policy:
    """An actor, a critic, and their optimizers.

    Args:
        env: the environment; its actions and the size of its observations.
        net_dims: widths of the hidden layers.
        params: hyperparameters.
    """

    def __init__(self, env: VecEnv, net_dims: tuple[int, ...], params: PPOParams) -> None:
        self.params, self.discrete = params, env.if_discrete
        self.actor = Network((env.state_dim, *net_dims, env.action_dim), 0.1)
        self.critic = Network((env.state_dim, *net_dims, 1), 0.5)
        if not self.discrete:
            self.log_std = nn.Parameter(torch.full((1, env.action_dim), params.initial_log_std))
            self.actor.register_parameter("action_std_log", self.log_std)
        # Moments of the returns; the deviation is 0 while no returns are known.
        self.avg = self.critic.value_avg = nn.Buffer(torch.zeros(1))
        self.std = self.critic.value_std = nn.Buffer(torch.ones(1) * (params.popart_beta == 0))
        self.networks = (self.actor, self.critic)
        self.optimizers = [torch.optim.AdamW(network.parameters()) for network in self.networks]
        self.rollouts = 0  # learned from

    def distribution(self, obs: Tensor) -> Distribution:
        """Return π(·|s): a categorical distribution, or Gaussians (of samples before tanh)."""
        output = self.actor(obs)
        if self.discrete:
            return Categorical(logits=output)
        normal = Normal(output, self.log_std.exp())
        return Independent(normal, 1)  # log π of an action is the sum of its numbers'

    def value(self, obs: Tensor) -> Tensor:
        """Return V(s) = σ v + μ of the critic's output v, with the moments of the returns."""
        return torch.addcmul(self.avg, self.critic(obs).squeeze(-1), self.std)


@torch.no_grad()
def collect(env: VecEnv, obs: Tensor, policy: Policy, horizon: int) -> Rollout:
    """Step the environment with sampled actions.

    Args:
        env: the environment, which starts an episode in the step in which the last one ended.
        obs: (N, state_dim), its observations.
        policy: acts.
        horizon: number of steps.
    """
    steps = []
    for _ in range(horizon):
        action = policy.distribution(obs).sample()
        step = env.step(action if policy.discrete else action.tanh())
        steps.append(
            (obs, action, step.reward, step.terminated, step.truncated, env.final_obs().clone())
        )
        obs = step.obs.clone()
    before, *others = (torch.stack(parts) for parts in zip(*steps, strict=True))
    return Rollout(torch.cat((before, obs.unsqueeze(0))), *others)


def estimate(
    rollout: Rollout, values: Tensor, final_values: Tensor, params: PPOParams
) -> tuple[Tensor, Tensor]:
    """Return advantages A_t and returns R_t, (T, N) each.

        δ_t = r_t + γ V'_t - V(s_t)
        A_t = δ_t + γ λ A_{t+1}, with the second term 0 where an episode ends
        R_t = A_t + V(s_t)

    V'_t is V(s_{t+1}); where the episode terminated 0, where it was truncated the value of its last
    observation: a time limit is no property of the state.

    Args:
        rollout: the transitions.
        values: (T + 1, N), V(s_t).
        final_values: (T, N), of `Rollout.final_obs`.
        params: γ and λ.
    """
    done = rollout.terminated | rollout.truncated
    end = torch.where(rollout.terminated, 0.0, final_values)
    following = torch.where(done, end, values[1:])
    advantages = torch.zeros_like(values)
    for t in reversed(range(len(rollout.rewards))):
        error = rollout.rewards[t] + params.gamma * following[t] - values[t]
        carried = torch.where(done[t], 0.0, params.gamma * params.gae_lambda)
        advantages[t] = error + carried * advantages[t + 1]
    return advantages[:-1], advantages[:-1] + values[:-1]


def actor_loss(
    log_ratio: Tensor, advantages: Tensor, entropies: Tensor, params: PPOParams
) -> Tensor:
    """Return PPO's clipped objective with an entropy bonus (eq. 7 and 9), to be minimised.

    L = -mean[ min(A r, A clip(r, 1 - ε, 1 + ε)) + c_H H ], with r = π(a|s) / π_old(a|s)
    """
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - params.clip, 1.0 + params.clip)
    surrogate = torch.minimum(advantages * ratio, advantages * clipped)
    return -(surrogate.mean() + params.entropy_coef * entropies.mean())


def update(policy: Policy, rollout: Rollout, batches: Iterable[Tensor], rate: float) -> None:
    """Learn from a rollout.

    Args:
        policy: changed.
        rollout: collected with it.
        batches: of each gradient step, indices of transitions (t * N + n).
        rate: learning rate.
    """
    params = policy.params
    with torch.no_grad():
        values = policy.value(rollout.obs), policy.value(rollout.final_obs)
        advantages, returns = map(torch.flatten, estimate(rollout, *values, params))
        obs, actions = rollout.obs[:-1].flatten(0, 1), rollout.actions.flatten(0, 1)
        old = policy.distribution(obs).log_prob(actions)
        # In units of returns, so that learning does not depend on the rewards' scale.
        scaled = params.popart_beta > 0
        least = max(1e-4 * float(policy.std), 1e-30) if scaled else 1e-4
        advantages = (advantages - advantages.mean()) / (advantages.std() + least)
        policy.rollouts += 1
        if scaled:
            scale_values(policy, returns)
    numbers = {"lr": rate, "eps": params.adam_eps, "weight_decay": params.weight_decay}
    for optimizer in policy.optimizers:
        optimizer.param_groups[0].update(numbers)
    for rows in batches:
        now = policy.distribution(obs[rows])
        log_ratio = now.log_prob(actions[rows]) - old[rows]
        # Schulman's estimate of KL(old || new), http://joschu.net/blog/kl-approx.html
        divergence = (log_ratio.exp() - 1.0 - log_ratio).mean()
        if params.target_kl > 0 and divergence > params.target_kl:
            break
        errors = (policy.value(obs[rows]) - returns[rows]) / (policy.std if scaled else 1.0)
        losses = (
            actor_loss(log_ratio, advantages[rows], now.entropy(), params),
            params.value_coef * smooth_l1_loss(errors, torch.zeros_like(errors)),
        )
        for network, optimizer, loss in zip(
            policy.networks, policy.optimizers, losses, strict=True
        ):
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            clip_grad_norm_(network.parameters(), params.max_grad_norm)
            optimizer.step()
        if not policy.discrete:
            # A larger deviation would push the samples into the flat ends of tanh.
            policy.log_std.data.clamp_(max=max(params.initial_log_std, 0.0))


def scale_values(policy: Policy, returns: Tensor) -> None:
    """Move the returns' mean μ and deviation σ towards those of a rollout, and keep V (PopArt).

    μ' = μ + β (m - μ),   σ'² = (1 - β) (σ² + β (m - μ)²) + β s²
    """
    avg, std, last = policy.avg, policy.std, policy.critic.net[-1]
    assert isinstance(last, nn.Linear)
    known = bool(std > 0)
    rate = max(policy.params.popart_beta, 1.0 / policy.rollouts) if known else 1.0
    shift = returns.mean() - avg
    new_avg = avg + rate * shift
    new_std = ((1.0 - rate) * (std**2 + rate * shift**2) + rate * returns.var()).sqrt()
    if known:  # the same V from other moments
        last.weight.data *= std / new_std
        last.bias.data.copy_((std * last.bias + avg - new_avg) / new_std)
    avg.copy_(new_avg)
    std.copy_(new_std)


def train(
    env: VecEnv, policy: Policy, iterations: int, horizon: int, epochs: int, minibatch: int
) -> None:
    """Alternate between rollouts and updates; every epoch uses each transition once."""
    obs = env.reset()
    for iteration in range(iterations):
        rollout = collect(env, obs, policy, horizon)
        obs = rollout.obs[-1]
        orders = [torch.randperm(horizon * env.num_envs) for _ in range(epochs)]
        batches = [rows for order in orders for rows in torch.split(order, minibatch)]
        rate = policy.params.learning_rate_at(iteration, iterations)
        update(policy, rollout, batches, rate)
