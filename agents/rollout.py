"""One rollout of a program: collecting transitions from the environment, and what they say about the actions taken."""

from __future__ import annotations

import torch
from torch import Tensor

from agents.distributions import distribution_of
from agents.networks import Activations, Shape, forward
from agents.population import Population
from envs.streams import Streams
from envs.vec_env import VecEnv


class Rollout:
    """Buffers of G * horizon * num_envs transitions, filled by `collect` and `estimate`, read by gradient steps
    through `gather`.

    They lie member by member, so that a member's transitions are neighbours, and have one more step for the
    observation after the last. obs: (G * num_envs, obs_dim), the rows' present observations as the environment gave
    them; rewards (G, horizon, num_envs).
    """

    def __init__(self, shape: Shape, population: Population) -> None:
        self.shape = shape
        self.population = population
        device = population.device
        slots, envs, steps = shape.slots, shape.num_envs, shape.horizon
        self._distribution = distribution_of(shape)
        self._kept = self._distribution.columns(shape)

        def new(*size: int, dtype: torch.dtype | None = None) -> Tensor:
            return torch.zeros(*size, dtype=dtype, device=device)

        self.obs = new(slots * envs, shape.obs_dim)
        self.rewards = new(slots, steps, envs)
        # Normalised observations; and beside them what else a gradient step needs of a transition, to be gathered in
        # one go: the action as the distribution keeps it, then its log-probability, advantage and return.
        self._store = new(slots, steps + 1, envs, shape.obs_dim)
        self._side = new(slots, steps + 1, envs, self._kept + 3)
        self._outputs = new(slots, steps, envs, shape.action_dim)
        self._values = new(slots, steps + 1, envs)
        self._advantages = new(slots, steps + 1, envs)
        self._final_values = new(slots, steps, envs)
        self._terminated = new(slots, steps, envs, dtype=torch.bool)
        self._truncated = new(slots, steps, envs, dtype=torch.bool)
        self._acting = Activations(shape, envs, device)
        self._final = new(slots, envs, shape.obs_dim)
        rest = shape.samples % shape.minibatch
        self._rest = Activations(shape, rest, device) if rest else None
        self._first_row = torch.arange(slots, device=device).view(-1, 1, 1) * ((steps + 1) * envs)

    def collect(self, env: VecEnv, streams: Streams) -> None:
        """Step the environment `horizon` times with actions sampled from the members' streams.

        Wherever an episode is truncated, the value of its last observation is noted.
        """
        shape, weights, acting, distribution = self.shape, self.population.weights, self._acting, self._distribution
        slots, envs, steps = shape.slots, shape.num_envs, shape.horizon
        noise = distribution.noise(shape, streams, steps, envs)
        env.draw(steps)
        if env.rematches:
            self.obs.copy_(env.observe())
        self._normalise(self.obs, self._store[:, 0])
        noted = 0
        for step in range(steps):
            forward(weights, self._store[:, step], acting, critic=False)
            self._outputs[:, step] = acting.output
            action = self._side[:, step, :, : self._kept]
            distribution(shape, acting.output, weights).sample(noise[step], out=action)
            _, reward, terminated, truncated = env.step(distribution.to_env(action), out=self.obs)
            self._normalise(self.obs, self._store[:, step + 1])
            self.rewards[:, step] = reward.view(slots, envs)
            self._terminated[:, step] = terminated.view(slots, envs)
            self._truncated[:, step] = truncated.view(slots, envs)
            if step + 1 - noted == env.bootstrap_interval or step + 1 == steps:
                # Within an interval a row is truncated at most once, so its final observation is still there.
                self._normalise(env.final_obs(), self._final)
                ends = self._truncated[:, noted : step + 1] & ~self._terminated[:, noted : step + 1]
                value = self._value_of(self._final, acting).unsqueeze(1)
                self._final_values[:, noted : step + 1] = torch.where(ends, value, 0.0)
                noted = step + 1
        taken = self._side.view(slots, -1, self._kept + 3)[:, : shape.samples]
        outputs = self._outputs.view(slots, shape.samples, -1)
        taken[..., self._kept] = distribution(shape, outputs, weights).log_prob(taken[..., : self._kept])

    def estimate(self, gamma: Tensor, gae_lambda: Tensor, chunk: Activations) -> Tensor:
        """Values, advantages (GAE, Schulman et al., 2016) and returns of the rollout; gamma, gae_lambda: (G, 1).

        chunk: buffers for `minibatch` rows. Returns (G,), the share of the returns' variance that the values explain.
        """
        shape = self.shape
        slots, steps, samples, kept = shape.slots, shape.horizon, shape.samples, self._kept
        store, values = self._store.view(slots, -1, shape.obs_dim), self._values.view(slots, -1)
        for start in range(0, samples, shape.minibatch):
            stop = min(start + shape.minibatch, samples)
            into = chunk if self._rest is None or stop - start == shape.minibatch else self._rest
            values[:, start:stop] = self._value_of(store[:, start:stop], into)
        self._values[:, steps] = self._value_of(self._store[:, steps], self._acting)

        gamma, gae_lambda = gamma.unsqueeze(-1), gae_lambda.unsqueeze(-1)
        done = self._terminated | self._truncated
        following = torch.where(done, self._final_values, self._values[:, 1:])
        errors = self.rewards + gamma * following - self._values[:, :steps]
        carry = torch.where(done, 0.0, gamma * gae_lambda)
        advantages = self._advantages
        for step in range(steps - 1, -1, -1):
            torch.addcmul(errors[:, step], carry[:, step], advantages[:, step + 1], out=advantages[:, step])

        flat = advantages.view(slots, -1)[:, :samples]
        returns = flat + values[:, :samples]
        side = self._side.view(slots, -1, kept + 3)
        side[:, :samples, kept + 1] = (flat - flat.mean(1, keepdim=True)) / (flat.std(1, keepdim=True) + 1e-4)
        side[:, :samples, kept + 2] = returns
        return 1.0 - flat.var(1) / (returns.var(1) + 1e-12)

    def batches(self, order: Tensor) -> Tensor:
        """Which transitions each gradient step takes: (steps, G * minibatch) for `gather`, from (G, epochs, samples)
        permutations.

        What is left of a permutation after whole minibatches waits for another epoch's order.
        """
        shape = self.shape
        used = shape.samples // shape.minibatch * shape.minibatch
        rows = (order[:, :, :used] + self._first_row).reshape(shape.slots, -1, shape.minibatch)
        return rows.transpose(0, 1).reshape(-1, shape.slots * shape.minibatch)

    def gather(self, rows: Tensor, batch: Tensor, side: Tensor) -> None:
        """Copy transitions into batch (G, minibatch, obs_dim) and side (G, minibatch, columns + 3): the action as it
        is kept, then its log-probability, normalised advantage and return.
        """
        for source, into in ((self._store, batch), (self._side, side)):
            torch.index_select(source.view(-1, source.shape[-1]), 0, rows, out=into.view(-1, into.shape[-1]))

    def value(self, output: Tensor) -> Tensor:
        """(G, rows): the critics' outputs (G, rows, 1) in units of returns."""
        return torch.addcmul(self.population.value_avg, output, self.population.value_std).squeeze(-1)

    def _value_of(self, obs: Tensor, into: Activations) -> Tensor:
        forward(self.population.weights, obs, into, actor=False)
        return self.value(into.value)

    def _normalise(self, obs: Tensor, out: Tensor) -> None:
        """(G * num_envs, obs_dim) observations into (G, num_envs, obs_dim) `out`."""
        torch.sub(obs.view(out.shape), self.population.state_avg, out=out)
        out.div_(self.population.state_std)
