"""A PPO in CleanRL's style, for comparisons: one module, autograd, shuffled minibatches.

After Huang et al. 2022. It steps our environments' tensors directly, preallocates its rollout and
uses torch's fused Adam, so it is as fast as this style allows without compilation. It trains one
member at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

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


class Agent(nn.Module):
    """Actor and critic for normalised observations."""

    def __init__(self, shape: Shape, params: PPOParams) -> None:
        super().__init__()
        self.actor = _mlp(shape.state_dim, shape.action_dim, shape, 0.01)
        self.critic = _mlp(shape.state_dim, 1, shape, 1.0)
        first = torch.full((shape.action_dim,), params.initial_log_std)
        self.log_std = None if shape.if_discrete else nn.Parameter(first)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return the actor's outputs (logits, or means), the log deviations of the latter, and the
        values."""
        return self.actor(obs), self.log_std, self.critic(obs).squeeze(-1)


def draw(output: Tensor, log_std: Tensor | None, noise: Tensor) -> Tensor:
    """Return actions. noise: exponential for logits, normal for means; of their shape."""
    if log_std is None:  # the first event of processes whose rates are the probabilities
        return (noise.log() - output).argmin(-1)
    return output + log_std.exp() * noise


def judge(output: Tensor, log_std: Tensor | None, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return the actions' log probabilities, and the entropy of the policy."""
    if log_std is None:
        log_probs = output.log_softmax(-1)
        taken = log_probs.gather(-1, action[:, None]).squeeze(-1)
        return taken, -(log_probs.exp() * log_probs).sum(-1)
    scaled = (action - output) / log_std.exp()
    taken = (-0.5 * scaled.square() - log_std - 0.5 * math.log(2.0 * math.pi)).sum(-1)
    return taken, (log_std + 0.5 * math.log(2.0 * math.pi * math.e)).sum()


def loss(
    agent: Callable[[Tensor], tuple[Tensor, Tensor | None, Tensor]],
    batch: Sequence[Tensor],
    params: PPOParams,
) -> Tensor:
    """Return PPO's loss. batch: observations, actions, log probabilities, advantages, returns."""
    obs, action, old, advantage, returns = batch
    output, log_std, value = agent(obs)
    log_prob, entropy = judge(output, log_std, action)
    ratio = (log_prob - old).exp()
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = ratio.clamp(1.0 - params.clip, 1.0 + params.clip)
    gain = torch.min(advantage * ratio, advantage * clipped).mean()
    error = 0.5 * (value - returns).square().mean()
    return params.value_coef * error - gain - params.entropy_coef * entropy.mean()


class PlainPPO:
    """One member on all rows of `env`, with the sizes of a `Shape` and a `PPOParams`."""

    def __init__(
        self, env: VecEnv, shape: Shape, params: PPOParams, state_avg: Tensor, state_std: Tensor
    ) -> None:
        self.env, self.shape, self.params = env, shape, params
        self.avg, self.std = state_avg, state_std
        self.agent = Agent(shape, params)
        self.optimizer = torch.optim.Adam(
            self.agent.parameters(), lr=params.learning_rate, eps=params.adam_eps, fused=True
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
        self.next_obs = env.reset()

    def rollout(self) -> int:
        """Collect a rollout and update; returns the number of transitions."""
        self.collect()
        advantages = self.advantages()
        found = (self.obs, self.actions, self.log_probs, advantages, advantages + self.values)
        data = [one.flatten(0, 1) for one in found]
        size = self.shape.minibatch
        for _ in range(self.shape.epochs):
            order = torch.randperm(self.shape.samples)
            for rows in order[: self.shape.samples // size * size].split(size):
                self.update(rows, *data)
        return self.shape.samples

    def act(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, ...]:
        """Return normalised observations, drawn actions, their log probabilities, and values."""
        obs = (obs - self.avg) / self.std
        output, log_std, value = self.agent(obs)
        action = draw(output, log_std, noise)
        return obs, action, judge(output, log_std, action)[0], value

    @torch.no_grad()
    def collect(self) -> None:
        """Play a rollout."""
        self.env.draw(self.shape.horizon)
        noise = self._noise(self.shape.horizon)
        for step in range(self.shape.horizon):
            found = self.act(self.next_obs, noise[step])
            self.obs[step], action, self.log_probs[step], self.values[step] = found
            self.actions[step] = action
            made = self.env.step(action if self.shape.if_discrete else action.clamp(-1.0, 1.0))
            self.rewards[step], self.dones[step] = made.reward, made.terminated | made.truncated
            self.next_obs = made.obs
        self.env.check()

    def _noise(self, steps: int) -> Tensor:
        noise = torch.empty(steps, self.shape.num_envs, self.shape.action_dim)
        return noise.exponential_() if self.shape.if_discrete else noise.normal_()

    @torch.no_grad()
    def advantages(self) -> Tensor:
        """Return the generalised advantage estimates of the rollout (Schulman et al. 2016)."""
        numbers = self.params
        advantages = torch.zeros_like(self.rewards)
        *_, following = self.act(self.next_obs, self._noise(1)[0])
        carried = torch.zeros(self.shape.num_envs)
        going_on = numbers.gamma * (1.0 - self.dones)
        delta = self.rewards + going_on * torch.cat([self.values[1:], following[None]])
        delta, kept = delta - self.values, numbers.gae_lambda * going_on
        for step in range(self.shape.horizon - 1, -1, -1):
            carried = torch.addcmul(delta[step], kept[step], carried, out=advantages[step])
        return advantages

    def update(self, rows: Tensor, *data: Tensor) -> None:
        """Make a gradient step on these rows of the rollout."""
        found = loss(self.agent, [one[rows] for one in data], self.params)
        self.optimizer.zero_grad()
        found.backward()
        nn.utils.clip_grad_norm_(self.agent.parameters(), self.params.max_grad_norm)
        self.optimizer.step()
