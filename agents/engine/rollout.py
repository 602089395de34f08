"""One rollout of a program: collecting transitions from the environment, and what they say about the actions taken."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from agents.engine.population import Population
from agents.networks.distributions import distribution_of
from agents.networks.mlp import Activations, forward
from agents.networks.recurrence import REMEMBERED, Cells
from agents.networks.shape import Shape
from envs.core.streams import Streams
from envs.core.vec_env import VecEnv


@dataclass
class Transitions:
    """What a gradient step needs of (G, rows) transitions, in as few tensors as can be gathered at once.

    obs (G, rows, obs_dim): normalised, or uint8 where they are images; side (G, rows, columns + 3): the action as the
    distribution keeps it, then its log-probability, normalised advantage and return; flags (G, rows, k) bool: the masks
    of `masked` shapes, then whether there is something to learn from the transition where agents may be absent, then
    whether an episode starts with it where they are `recurrent`; memory (2G, sequences, remembered): of those, what the
    networks remembered before each sequence of `bptt` rows, which then come step by step, sequences side by side.
    """

    shape: Shape
    obs: Tensor
    side: Tensor
    flags: Tensor
    memory: Tensor

    @classmethod
    def empty(
        cls, shape: Shape, size: tuple[int, ...], sequences: int, device: torch.device
    ) -> Transitions:
        """For transitions (G, …), and so many sequences of them, zeros throughout."""
        columns = distribution_of(shape).columns(shape) + 3
        flags = shape.action_dim * shape.masked + shape.has_absent_agents + bool(shape.recurrent)
        remembered = REMEMBERED[shape.recurrent] * shape.net_width if shape.recurrent else 0
        return cls(
            shape,
            torch.zeros(*size, shape.obs_dim, dtype=_obs_dtype(shape), device=device),
            torch.zeros(*size, columns, device=device),
            torch.zeros(*size, flags, dtype=torch.bool, device=device),
            torch.zeros(2 * size[0], sequences, remembered, device=device),
        )

    @property
    def actions(self) -> Tensor:
        """(G, rows, columns), as the distribution keeps them."""
        return self.side[..., :-3]

    @property
    def masks(self) -> Tensor | None:
        """(G, rows, action_dim): which options were legal; None where all always are."""
        return self.flags[..., : self.shape.action_dim] if self.shape.masked else None

    @property
    def learned(self) -> Tensor | None:
        """(G, rows): which ones count; None where all do."""
        return (
            self.flags[..., self.shape.action_dim * self.shape.masked]
            if self.shape.has_absent_agents
            else None
        )

    @property
    def starts(self) -> Tensor:
        """(G, rows): where an episode starts; of `recurrent` shapes."""
        return self.flags[..., -1]

    def remind(self, cells: Cells) -> None:
        """Have the networks' cells start where these transitions' sequences started."""
        cells.state.copy_(self.memory)
        steps = (self.shape.slots, self.shape.bptt, -1)
        cells.starts = self.starts.view(steps)
        cells.live = None if self.learned is None else self.learned.view(steps)


class Rollout:
    """Buffers of G * horizon * num_envs transitions, filled by `collect` and `estimate`, read by gradient steps
    through `gather`.

    They lie member by member, so that a member's transitions are neighbours, and have one more step for the
    observation after the last. obs: (G * num_envs, obs_dim), the rows' present observations as the environment gave
    them; memory: (2G, num_envs, remembered), what the networks remember of the rows' episodes before it; rewards (G,
    horizon, num_envs).
    """

    def __init__(self, shape: Shape, population: Population) -> None:
        self.shape = shape
        self.population = population
        device = population.device
        slots, envs, steps = shape.slots, shape.num_envs, shape.horizon
        self._distribution = distribution_of(shape)

        def new(*size: int, dtype: torch.dtype | None = None) -> Tensor:
            return torch.zeros(*size, dtype=dtype, device=device)

        self.obs = new(slots * envs, shape.obs_dim, dtype=_obs_dtype(shape))
        self.rewards = new(slots, steps, envs)
        sequences = shape.samples // shape.bptt if shape.recurrent else 0
        self.shuffled = (
            sequences or shape.samples
        )  # of what an epoch makes a new order: whole sequences, if there are
        self._all = Transitions.empty(shape, (slots, steps + 1, envs), sequences, device)
        self._store, self._side = self._all.obs, self._all.side
        self._present = new(slots, steps + 1, envs, dtype=torch.bool)
        self._outputs = new(slots, steps, envs, shape.action_dim)
        self._values = new(slots, steps + 1, envs)
        self._advantages = new(slots, steps + 1, envs)
        self._final_values = new(slots, steps, envs)
        self._terminated = new(slots, steps, envs, dtype=torch.bool)
        self._truncated = new(slots, steps, envs, dtype=torch.bool)
        self._acting = Activations(shape, envs, device)
        self.memory = (
            new(2 * slots, envs, 0) if self._acting.cells is None else self._acting.cells.state
        )
        self._final = new(slots, envs, shape.obs_dim, dtype=_obs_dtype(shape))
        rest = shape.samples % shape.minibatch
        self._rest = Activations(shape, rest, device) if rest and not shape.recurrent else None
        self._ending = (
            Activations(shape, envs, device) if shape.recurrent else self._acting
        )  # for last observations
        self._first_row = torch.arange(slots, device=device).view(-1, 1, 1) * ((steps + 1) * envs)

    def collect(self, env: VecEnv, streams: Streams) -> None:
        """Step the environment `horizon` times with actions sampled from the members' streams.

        Wherever an episode is truncated, the value of its last observation is noted.
        """
        shape, weights, acting, distribution = (
            self.shape,
            self.population.weights,
            self._acting,
            self._distribution,
        )
        actions = self._all.actions
        slots, envs, steps = shape.slots, shape.num_envs, shape.horizon
        noise = distribution.noise(shape, streams, steps, envs)
        env.draw(steps)
        if env.rematches:
            self.obs.copy_(env.observe())
            self.memory.zero_()
        self._see(env, 0)
        noted = 0
        for step in range(steps):
            self._act(step)
            self._outputs[:, step] = acting.output
            legal = partial(self._legal, env, step) if shape.masked else None
            distribution(shape, acting.output, weights).sample(noise[step], actions[:, step], legal)
            action = distribution.to_env(shape, actions[:, step])
            _, reward, terminated, truncated = env.step(action, out=self.obs)
            self._see(env, step + 1)
            self.rewards[:, step] = reward.view(slots, envs)
            self._terminated[:, step] = terminated.view(slots, envs)
            self._truncated[:, step] = truncated.view(slots, envs)
            self._forget(step)
            if step + 1 - noted == env.bootstrap_interval or step + 1 == steps:
                # Within an interval a row is truncated at most once, so its final observation is still there.
                self._normalise(env.final_obs(), self._final)
                ends = self._truncated[:, noted : step + 1] & ~self._terminated[:, noted : step + 1]
                if shape.has_absent_agents:
                    ends &= self._present[:, noted : step + 1]
                value = self._value_of(self._final, self._ending).unsqueeze(1)
                self._final_values[:, noted : step + 1] = torch.where(ends, value, 0.0)
                noted = step + 1
        if self._ending.cells is not None:
            self._ending.cells.state.copy_(self.memory)
        self._values[:, steps] = self._value_of(self._store[:, steps], self._ending)
        taken = self._taken()
        outputs = self._outputs.view(slots, shape.samples, -1)
        taken.side[..., -3] = distribution(shape, outputs, weights, taken.masks).log_prob(
            taken.actions
        )

    def estimate(self, gamma: Tensor, gae_lambda: Tensor, chunk: Activations) -> Tensor:
        """Values, advantages (GAE, Schulman et al., 2016) and returns of the rollout; gamma, gae_lambda: (G, 1).

        chunk: buffers for `minibatch` rows. Returns (G,), the share of the returns' variance that the values explain.
        """
        shape = self.shape
        slots, steps, samples = shape.slots, shape.horizon, shape.samples
        store, values = self._store.view(slots, -1, shape.obs_dim), self._values.view(slots, -1)
        for start in range(
            0, 0 if shape.recurrent else samples, shape.minibatch
        ):  # those that remember know already
            stop = min(start + shape.minibatch, samples)
            into = chunk if self._rest is None or stop - start == shape.minibatch else self._rest
            values[:, start:stop] = self._value_of(store[:, start:stop], into)

        gamma, gae_lambda = gamma.unsqueeze(-1), gae_lambda.unsqueeze(-1)
        done = self._terminated | self._truncated
        if shape.has_absent_agents:
            return self._estimate_with_absent_agents(gamma, gae_lambda, done)
        following = torch.where(done, self._final_values, self._values[:, 1:])
        errors = self.rewards + gamma * following - self._values[:, :steps]
        carry = torch.where(done, 0.0, gamma * gae_lambda)
        advantages = self._advantages
        for step in range(steps - 1, -1, -1):
            torch.addcmul(
                errors[:, step], carry[:, step], advantages[:, step + 1], out=advantages[:, step]
            )

        flat = advantages.view(slots, -1)[:, :samples]
        returns = flat + values[:, :samples]
        side = self._taken().side
        side[..., -2] = (flat - flat.mean(1, keepdim=True)) / (
            flat.std(1, keepdim=True) + self._least_deviation()
        )
        side[..., -1] = returns
        return 1.0 - flat.var(1) / (returns.var(1) + 1e-12)

    def _estimate_with_absent_agents(
        self, gamma: Tensor, gae_lambda: Tensor, done: Tensor
    ) -> Tensor:
        """`estimate` where agents come and go. Time is counted in an agent's own actions: an action leads to the
        agent's next action in the same episode, or to the episode's end. Its reward is the undiscounted sum of all
        rewards that reach the row up to there, as PettingZoo's AEC environments accumulate them. Rewards before an
        agent's first action of an episode (or of the rollout) belong to no action and are dropped. An action is not
        learned from when neither the next action nor the end is in the rollout, since its outcome is not known.
        """
        slots, samples = self.shape.slots, self.shape.samples
        taken, learned = self._taken(), self._all.learned
        counts = taken.learned
        assert learned is not None
        assert counts is not None
        value, known = self._values[:, -1], self._present[:, -1]
        ahead = torch.zeros_like(value)  # the advantage of the agent's next action
        reward = torch.zeros_like(value)  # since the agent's last action
        for step in range(self.shape.horizon - 1, -1, -1):
            here, end, final = self._present[:, step], done[:, step], self._final_values[:, step]
            value, ahead, known = (
                torch.where(end, final, value),
                torch.where(end, 0.0, ahead),
                end | known,
            )
            reward = torch.where(end, 0.0, reward) + self.rewards[:, step]
            error = reward + gamma[:, 0] * value - self._values[:, step]
            advantage = torch.where(known, error + gamma[:, 0] * gae_lambda[:, 0] * ahead, 0.0)
            learned[:, step] = here & known
            self._advantages[:, step] = torch.where(here, advantage, 0.0)
            value, ahead = (
                torch.where(here, self._values[:, step], value),
                torch.where(here, advantage, ahead),
            )
            reward, known = torch.where(here, 0.0, reward), here | known
        flat, values = (
            self._advantages.view(slots, -1)[:, :samples],
            self._values.view(slots, -1)[:, :samples],
        )
        returns = torch.where(counts, flat + values, 0.0)
        variance = _variance(flat, counts)
        centred = (flat - _mean(flat, counts)) / (variance.sqrt() + self._least_deviation())
        taken.side[..., -2] = torch.where(counts, centred, 0.0)
        taken.side[..., -1] = returns
        return (1.0 - variance / (_variance(returns, counts) + 1e-12))[:, 0]

    def _least_deviation(self) -> Tensor:
        """(G, 1): what is added to the deviation that advantages are divided by."""
        unit = torch.where(self.population.popart, self.population.value_std, 1.0)[:, 0]
        return (1e-4 * unit).clamp_min(1e-30)

    def moments(self) -> tuple[Tensor, Tensor]:
        """(G, 1) each: mean and variance of the returns that `estimate` found; NaN where fewer than two count."""
        taken = self._taken()
        returns, counts = taken.side[..., -1], taken.learned
        if counts is None:
            return returns.mean(1, keepdim=True), returns.var(1, keepdim=True)
        enough = counts.sum(1, keepdim=True) > 1
        mean, variance = _mean(returns, counts), _variance(returns, counts)
        return torch.where(enough, mean, torch.nan), torch.where(enough, variance, torch.nan)

    def mean_reward(self) -> Tensor:
        """(G,): per step; where agents come and go, per action, and 0 without any."""
        if not self.shape.has_absent_agents:
            return self.rewards.mean((1, 2))
        actions = self._present[:, :-1].sum((1, 2))
        return torch.where(actions > 0, self.rewards.sum((1, 2)) / actions.clamp_min(1), 0.0)

    def batches(self, order: Tensor) -> Tensor:
        """Which transitions each gradient step takes: (steps, G * minibatch) for `gather`, from (G, epochs, shuffled)
        permutations.

        What is left of a permutation after whole minibatches waits for another epoch's order.
        """
        shape = self.shape
        used = shape.samples // shape.minibatch * shape.minibatch
        if shape.recurrent:
            order = order[:, :, : used // shape.bptt]
            first = (
                order // shape.num_envs * (shape.bptt * shape.num_envs)
                + order % shape.num_envs
                + self._first_row
            )
            steps = torch.arange(shape.bptt, device=order.device).unsqueeze(1) * shape.num_envs
            sequences = first.reshape(shape.slots, -1, 1, shape.minibatch // shape.bptt)
            return (sequences + steps).transpose(0, 1).reshape(-1, shape.slots * shape.minibatch)
        rows = (order[:, :, :used] + self._first_row).reshape(shape.slots, -1, shape.minibatch)
        return rows.transpose(0, 1).reshape(-1, shape.slots * shape.minibatch)

    def gather(self, rows: Tensor, batch: Transitions) -> None:
        """Copy transitions into `batch`, of (G, minibatch)."""
        every, shape = self._all, self.shape
        for source, into in (
            (every.obs, batch.obs),
            (every.side, batch.side),
            (every.flags, batch.flags),
        ):
            if source.shape[-1]:
                torch.index_select(
                    source.view(-1, source.shape[-1]), 0, rows, out=into.view(-1, into.shape[-1])
                )
        if shape.recurrent:
            first = rows.view(shape.slots, shape.bptt, -1)[:, 0] - self._first_row[:, 0]
            sequence = (
                first // (shape.num_envs * shape.bptt) * shape.num_envs + first % shape.num_envs
            )
            remembered, sequences = every.memory.shape[-1], every.memory.shape[1]
            network = torch.arange(2 * shape.slots, device=rows.device).unsqueeze(1)
            index = (sequence.repeat(2, 1) + network * sequences).flatten()
            torch.index_select(
                every.memory.view(-1, remembered), 0, index, out=batch.memory.view(-1, remembered)
            )

    def _taken(self) -> Transitions:
        """The rollout's transitions, (G, samples) of them, without the observation after the last."""
        parts = (self._all.obs, self._all.side, self._all.flags)
        obs, side, flags = (part.flatten(1, 2)[:, : self.shape.samples] for part in parts)
        return Transitions(self.shape, obs, side, flags, self._all.memory)

    def _act(self, step: int) -> None:
        """Run the actors on what the rows see before that step; where networks remember, the critics, too."""
        acting, cells, shape = self._acting, self._acting.cells, self.shape
        obs = self.population.inputs(self._store[:, step])
        if cells is None:
            forward(self.population.weights, obs, acting, critic=False)
            return
        if step % shape.bptt == 0:
            sequences = slice(
                step // shape.bptt * shape.num_envs, (step // shape.bptt + 1) * shape.num_envs
            )
            self._all.memory[:, sequences] = self.memory
        cells.live = self._present[:, step : step + 1] if shape.has_absent_agents else None
        forward(self.population.weights, obs, acting)
        self._values[:, step] = self.value(acting.value)

    def _forget(self, step: int) -> None:
        """What networks remembered of an episode that ended with that step goes; its value has yet to be asked for."""
        if self._ending.cells is None:
            return
        truncated = self._truncated[:, step]
        done = self._terminated[:, step] | truncated
        self._all.starts[:, step + 1] = done
        ending = self._ending.cells.state
        torch.where(truncated.repeat(2, 1).unsqueeze(-1), self.memory, ending, out=ending)
        self.memory.masked_fill_(done.repeat(2, 1).unsqueeze(-1), 0.0)

    def _see(self, env: VecEnv, step: int) -> None:
        """Note what the rows see before that step. What absent agents see is nothing to anybody."""
        self._normalise(self.obs, self._store[:, step])
        if self.shape.has_absent_agents:
            present = env.present().view(self.shape.slots, -1)
            self._present[:, step] = present
            self._store[:, step].masked_fill_(~present.unsqueeze(-1), 0.0)

    def _legal(self, env: VecEnv, step: int, chosen: Tensor) -> Tensor:
        """Ask the environment which options of the next choice are legal, and note it."""
        mask, choices = env.action_mask(chosen), self.shape.choices
        start = sum(choices[: chosen.shape[1]])
        place = self._all.flags[:, step, :, start : start + choices[chosen.shape[1]]]
        place.copy_(mask.view(place.shape))
        return mask

    def value(self, output: Tensor) -> Tensor:
        """(G, rows): the critics' outputs (G, rows, 1) in units of returns."""
        return torch.addcmul(self.population.value_avg, output, self.population.value_std).squeeze(
            -1
        )

    def _value_of(self, obs: Tensor, into: Activations) -> Tensor:
        forward(self.population.weights, self.population.inputs(obs), into, actor=False)
        return self.value(into.value)

    def _normalise(self, obs: Tensor, out: Tensor) -> None:
        """(G * num_envs, obs_dim) observations into (G, num_envs, obs_dim) `out`; images stay as they are so long."""
        if self.shape.image_shape is not None:
            out.copy_(obs.view(out.shape))
            return
        torch.sub(obs.view(out.shape), self.population.state_avg, out=out)
        out.div_(self.population.state_std)


def _obs_dtype(shape: Shape) -> torch.dtype:
    return torch.get_default_dtype() if shape.image_shape is None else torch.uint8


def _mean(numbers: Tensor, counted: Tensor) -> Tensor:
    """(G, 1): the mean of those of (G, n) numbers that count; 0 where none does."""
    return torch.where(counted, numbers, 0.0).sum(1, keepdim=True) / counted.sum(
        1, keepdim=True
    ).clamp_min_(1)


def _variance(numbers: Tensor, counted: Tensor) -> Tensor:
    """(G, 1): their unbiased variance; 0 where fewer than two count."""
    squares = (numbers - _mean(numbers, counted)).square()
    return torch.where(counted, squares, 0.0).sum(1, keepdim=True) / (
        counted.sum(1, keepdim=True) - 1
    ).clamp_min_(1)
