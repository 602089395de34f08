"""A PPO in CleanRL's style, for comparisons: one module, autograd, shuffled minibatches.

After Huang et al. 2022. It steps our environments' tensors directly, preallocates its rollout and
uses torch's fused Adam, so it is as fast as this style allows without compilation. It trains one
member at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Normal

from sweepd.agents.algorithms.ppo_params import PPOParams
from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.vec_env import VecEnv


def _mlp(inputs: int, outputs: int, shape: Shape, gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in shape.net_dims:
        layers += [_orthogonal(nn.Linear(inputs, width), 2.0**0.5), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, _orthogonal(nn.Linear(inputs, outputs), gain))


def _orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class PlainPPO:
    """One member on all rows of `env`, with the sizes of a `Shape` and a `PPOParams`."""

    def __init__(
        self, env: VecEnv, shape: Shape, params: PPOParams, state_avg: Tensor, state_std: Tensor
    ) -> None:
        self.env, self.shape, self.params = env, shape, params
        self.avg, self.std = state_avg, state_std
        self.actor = _mlp(shape.state_dim, shape.action_dim, shape, 0.01)
        self.critic = _mlp(shape.state_dim, 1, shape, 1.0)
        self.log_std = nn.Parameter(torch.full((shape.action_dim,), params.initial_log_std))
        self.weights = [*self.actor.parameters(), *self.critic.parameters()]
        if not shape.if_discrete:
            self.weights.append(self.log_std)
        self.optimizer = torch.optim.Adam(
            self.weights, lr=params.learning_rate, eps=params.adam_eps, fused=True
        )
        steps, envs = shape.horizon, shape.num_envs
        self.obs = torch.zeros(steps, envs, shape.state_dim)
        action_shape, kind = (
            ((), torch.int64) if shape.if_discrete else ((shape.action_dim,), torch.float32)
        )
        self.actions = torch.zeros(steps, envs, *action_shape, dtype=kind)
        self.log_probs, self.rewards, self.dones, self.values = (
            torch.zeros(steps, envs) for _ in range(4)
        )
        self.next_obs = self._normalise(env.reset())

    def _normalise(self, obs: Tensor) -> Tensor:
        return (obs - self.avg) / self.std

    def _policy(self, obs: Tensor) -> Categorical | Normal:
        output = self.actor(obs)
        if self.shape.if_discrete:
            return Categorical(logits=output)  # type: ignore[no-untyped-call]
        return Normal(output, self.log_std.exp().expand_as(output))  # type: ignore[no-untyped-call]

    def _log_prob(self, policy: Categorical | Normal, action: Tensor) -> Tensor:
        log_prob: Tensor = policy.log_prob(action)  # type: ignore[no-untyped-call]
        return log_prob if self.shape.if_discrete else log_prob.sum(-1)

    def rollout(self) -> int:
        """Collect a rollout and update; returns the number of transitions."""
        advantages, returns = self._collect()
        self._update(advantages.view(-1), returns.view(-1))
        return self.shape.samples

    @torch.no_grad()
    def _collect(self) -> tuple[Tensor, Tensor]:
        env, numbers, steps = self.env, self.params, self.shape.horizon
        env.draw(steps)
        for step in range(steps):
            policy = self._policy(self.next_obs)
            action = policy.sample()  # type: ignore[no-untyped-call]
            self.obs[step], self.actions[step] = self.next_obs, action
            self.values[step] = self.critic(self.next_obs).squeeze(-1)
            self.log_probs[step] = self._log_prob(policy, action)
            made = env.step(action if self.shape.if_discrete else action.clamp(-1.0, 1.0))
            self.rewards[step], self.dones[step] = made.reward, made.terminated | made.truncated
            self.next_obs = self._normalise(made.obs)
        env.check()
        advantages = torch.zeros_like(self.rewards)
        following, carried = (
            self.critic(self.next_obs).squeeze(-1),
            torch.zeros(self.shape.num_envs),
        )
        for step in range(steps - 1, -1, -1):
            going_on = 1.0 - self.dones[step]
            delta = self.rewards[step] + numbers.gamma * following * going_on - self.values[step]
            carried = delta + numbers.gamma * numbers.gae_lambda * going_on * carried
            advantages[step], following = carried, self.values[step]
        return advantages, advantages + self.values

    def _update(self, advantages: Tensor, returns: Tensor) -> None:
        numbers, size = self.params, self.shape.minibatch
        obs, actions = self.obs.flatten(0, 1), self.actions.flatten(0, 1)
        log_probs = self.log_probs.view(-1)
        for _ in range(self.shape.epochs):
            order = torch.randperm(len(obs))
            for start in range(0, len(obs) - size + 1, size):
                rows = order[start : start + size]
                policy = self._policy(obs[rows])
                ratio = (self._log_prob(policy, actions[rows]) - log_probs[rows]).exp()
                advantage = advantages[rows]
                advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                clipped = ratio.clamp(1.0 - numbers.clip, 1.0 + numbers.clip)
                gain = torch.min(advantage * ratio, advantage * clipped).mean()
                entropy = policy.entropy()  # type: ignore[no-untyped-call]
                entropy = entropy.mean() if self.shape.if_discrete else entropy.sum(-1).mean()
                error = 0.5 * (self.critic(obs[rows]).squeeze(-1) - returns[rows]).square().mean()
                loss = numbers.value_coef * error - gain - numbers.entropy_coef * entropy
                self.optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.weights, numbers.max_grad_norm)
                self.optimizer.step()
