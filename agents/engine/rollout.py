"""One rollout of PPO: step the environment with sampled actions, then estimate advantages.

Reading order: `Rollout.collect`, then `Rollout.estimate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.agents.engine.advantages import (
    Experience,
    estimate,
    estimate_in_turns,
    estimate_with_absent_agents,
    moments,
)
from sweepd.agents.engine.bits import pack, packed_size
from sweepd.agents.engine.fused_step import Stored, fused_step
from sweepd.agents.engine.graphs import Effect, Recorder, Replays
from sweepd.agents.engine.play_stats import choice_entropies, play_names, play_stats
from sweepd.agents.engine.population import Population
from sweepd.agents.engine.recurrent_states import learned_shape, recurrent_states
from sweepd.agents.engine.transitions import MinibatchIndex, Transitions
from sweepd.agents.native.acting import action_kernel, normaliser_kernel
from sweepd.agents.native.choice import Evaluator, PairEvaluator, kernels
from sweepd.agents.networks.distributions import distribution_of
from sweepd.agents.networks.normaliser import normalised
from sweepd.agents.networks.portable import sqrt
from sweepd.agents.networks.recurrence import Memory
from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.streams import Streams
from sweepd.envs.core.vec_env import Legal, Step, VecEnv


class Static(NamedTuple):
    """What recorded steps of a rollout read and write, besides the rollout's own tensors.

    Attributes:
        step: (1,) int64, the number of the step.
        noises: (horizon, G, num_envs, k), random numbers of all steps.
        noise: (1, G, num_envs, k), those of this one.
        obs: (G, num_envs, obs_dim), the present observations, as transitions store them.
        side: (G, num_envs, columns + 3), whose first columns are the actions (`Transitions`).
    """

    step: Tensor
    noises: Tensor
    noise: Tensor
    obs: Tensor
    side: Tensor


class Rollout:
    """The transitions of one rollout of G members, filled by `collect` and `estimate`.

    Each member's transitions are contiguous in memory. The buffers have one more step than the
    horizon, for the observation after the rollout.

    Attributes:
        obs: (G * num_envs, obs_dim), the rows' current observations, as the environment gave them.
        transitions: (G, horizon + 1, num_envs) of them.
        states: the recurrent states of the rows, and the transitions in the order in which
            minibatches take them.
        index: which of the transitions in that order each minibatch holds.
        raw: (G, horizon + 1, num_envs, obs_dim), the observations as the environment gave them;
            None where their scale is fixed.
        rewards: (G, horizon, num_envs); of several players in turns (…, players).
        play: figures of play in the last rollout (`sweepd.agents.engine.play_stats`), (G,) each.
    """

    def __init__(self, shape: Shape, population: Population, obs: Tensor) -> None:
        self.shape = shape
        self.population = population
        device = population.device
        slots, envs, steps = shape.slots, shape.num_envs, shape.horizon
        self._distribution = distribution_of(shape)

        def new(*size: int, dtype: torch.dtype | None = None) -> Tensor:
            return torch.zeros(*size, dtype=dtype, device=device)

        self.obs = obs
        self.play: Mapping[str, Tensor] = {}
        # With players in turns, the last dimension is theirs.
        players = [shape.players] if shape.players > 1 else []
        self.raw = new(slots, steps + 1, envs, shape.obs_dim) if shape.running_scale else None
        self.rewards = new(slots, steps, envs, *players)
        self.index = MinibatchIndex(learned_shape(shape), device)
        sequences = steps // shape.bptt * envs if shape.recurrent else 0
        self.transitions = Transitions.empty(shape, (slots, steps + 1, envs), sequences, device)
        self.states = recurrent_states(shape, population.actor.spec.memory, self.transitions)
        # Rows with an agent; with players in turns, which of them is to move.
        self._present = new(slots, steps + 1, envs, *players, dtype=torch.bool)
        self._player = torch.arange(shape.players, device=device)
        # The masks of one step, padded to whole bytes.
        options = 8 * packed_size(shape.action_dim) if shape.masked else 0
        self._masks = new(slots, envs, options, dtype=torch.bool)
        self._values = new(slots, steps + 1, envs)
        self._advantages = new(slots, steps + 1, envs)
        self._final_values = new(slots, steps, envs)
        self._terminated = new(slots, steps, envs, dtype=torch.bool)
        self._truncated = new(slots, steps, envs, dtype=torch.bool)
        self._actor, self._critic = (
            Evaluator(shape, net) for net in (population.actor, population.critic)
        )
        native = kernels(shape, device)
        self._draws = action_kernel(native, shape, population.actor)
        # The actors' outputs that torch draws from.
        drawn = 0 if self._draws else steps
        self._outputs = new(slots, drawn, envs, shape.action_dim)
        self._normaliser = normaliser_kernel(native, shape, population.critic)
        self._pair = PairEvaluator(population.pair, (self._actor, self._critic))
        self._output = new(slots, envs, shape.action_dim)  # of the actors, in the present step
        self._final_obs = new(slots, envs, shape.obs_dim, dtype=shape.torch_dtype)
        self._return_moments = (new(slots, 1), new(slots, 1))
        self._static: Static | None = None
        stored = self._stored()
        self._fused_step = fused_step(shape, population, stored) if self._is_replayable() else None
        self.replays = Replays()

    # Collecting transitions.

    @torch.no_grad()
    def collect(self, env: VecEnv, streams: Streams, recorder: Recorder | None = None) -> None:
        """Step the environment `horizon` times with actions sampled from the members' streams.

        Args:
            env: the environment.
            streams: of the members.
            recorder: records steps, which are replayed then, where environment and shape allow it.
        """
        shape, weights = self.shape, self.population.actor.weights
        distribution, actions = self._distribution, self.transitions.actions
        envs, steps = shape.num_envs, shape.horizon
        noise = distribution.noise(shape, streams, steps, envs)
        env.draw(steps)
        # `draw` may have assigned rows to other members, who have not seen their episodes so far.
        if env.rematches:
            self.obs.copy_(env.observe())
            self.states.memory.zero_()
        self.states.begin()
        self._record_obs(env, 0)
        replayed = None
        # Fused steps are also made without a recorder, so that graphs change no bit.
        planned = recorder is not None or self._fused_step is not None
        if planned and env.replayable and self._is_replayable():
            replayed = self._begin_replays(env, noise, recorder)
        bootstrapped = 0
        for step in range(steps):
            if replayed is not None:
                replayed()
            else:
                self._act(step)
                legal = partial(self._legal, env) if shape.masked else None
                action = self._sampled(noise[step], self.transitions.side[:, step], legal)
                self._step(env.step, step, action)
                if shape.masked:
                    self.transitions.packed_masks[:, step] = pack(self._masks)
                self._record_obs(env, step + 1)
                if shape.recurrent:
                    self.states.end(step, self._terminated[:, step], self._truncated[:, step])
            # `env.final_obs` keeps the last observation of a row's latest truncation. Within
            # `bootstrap_interval` steps there is at most one, so none is lost.
            if step + 1 - bootstrapped == env.bootstrap_interval or step + 1 == steps:
                self._bootstrap(env, bootstrapped, step + 1)
                bootstrapped = step + 1
        # V of the observation after the rollout, which continues from the current recurrent state.
        self.states.finish(self._present[:, steps])
        self._values[:, steps] = self._value_of(self.transitions.obs[:, steps])
        entropies: list[Tensor] = []
        valid = self._present[:, :steps] if shape.has_absent_agents else None
        if self._draws is None:
            # log π_old(a|s) of all actions at once, from the outputs that they were sampled from.
            samples = self.samples()
            outputs = self._outputs.flatten(1, 2)
            policy = distribution(shape, outputs, weights, samples.masks)
            samples.log_probs.copy_(policy.log_prob(samples.actions))
            if play_names(env):
                entropies = choice_entropies(policy, None if valid is None else valid.flatten(1))
        if play_names(env):
            self.play = play_stats(
                env,
                actions[:, :steps, :, 0],
                valid,
                self.rewards,
                self._terminated,
                self._truncated,
                entropies,
            )

    def _sampled(self, noise: Tensor, side: Tensor, legal: Legal | None) -> Tensor:
        """Sample actions from the actors' outputs. Returns them in the environment's form.

        Args:
            noise: (G, num_envs, k).
            side: (G, num_envs, columns + 3), written: actions, and natively log-probabilities.
            legal: masks the choices.
        """
        if self._draws is not None:
            return self._draws(self._output, noise, side)
        weights, distribution = self.population.actor.weights, self._distribution
        actions = side[..., :-3]
        distribution(self.shape, self._output, weights).sample(noise, actions, legal)
        return distribution.to_env(self.shape, actions)

    def _step(
        self, advance: Callable[[Tensor, Tensor], Step], step: int | Tensor, action: Tensor
    ) -> None:
        """Advance the environment, and store the results and the actors' outputs.

        Args:
            advance: makes a step of the environment, which writes its observations into `obs`.
            step: its number, on the host or the device.
            action: in the environment's form.
        """
        if self._draws is None:
            _put(self._outputs, step, self._output)
        _, reward, terminated, truncated = advance(action, self.obs)
        _put(self.rewards, step, reward)
        _put(self._terminated, step, terminated)
        _put(self._truncated, step, truncated)

    # Steps that are recorded once and replayed.

    def _stored(self) -> Stored:
        """Return the tensors in which steps are stored."""
        raw = self._outputs.new_zeros(0) if self.raw is None else self.raw
        ends = self._terminated, self._truncated
        return Stored(
            self._outputs, self.transitions.side, self.transitions.obs, raw, self.rewards, *ends
        )

    def _is_replayable(self) -> bool:
        """Whether all that a step does is in `_replayable_step`."""
        shape = self.shape
        special = shape.recurrent or shape.masked or shape.has_absent_agents or shape.players > 1
        return not special

    def _begin_replays(
        self, env: VecEnv, noise: Tensor, recorder: Recorder | None
    ) -> Callable[[], None]:
        """Prepare a rollout of replayed steps, whose first observations are stored.

        Returns:
            What makes the next step.
        """
        static = self._static
        if static is None:
            obs, side = self.transitions.obs[:, 0], self.transitions.side[:, 0]
            step = torch.zeros(1, dtype=torch.int64, device=noise.device)
            static = Static(
                step, noise.clone(), noise[:1].clone(), obs.clone(), torch.zeros_like(side)
            )
            self._static = static
        static.step.zero_()
        static.noises.copy_(noise)
        static.obs.copy_(self.transitions.obs[:, 0])
        step_once = partial(self._replayable_step, env, static)
        effect = Effect([static.step])

        def replayed() -> None:
            # A plan means something only to its own environment.
            self.replays.of((id(env), env.plan_step()), step_once, effect, recorder).run()

        return replayed

    def _replayable_step(self, env: VecEnv, static: Static) -> None:
        """Make a planned step. It reads nothing on the host that differs between replays."""
        if self._fused_step is not None:
            action = self._fused_step.act(static.obs, static.noises, static.step)
            self._fused_step.store(static.step, env.planned_step(action, self.obs), static.obs)
            static.step.add_(1)
            return
        self._output, _ = self._actor(static.obs)
        torch.index_select(static.noises, 0, static.step, out=static.noise)
        action = self._sampled(static.noise[0], static.side, None)
        self._step(env.planned_step, static.step, action)
        _put(self.transitions.side, static.step, static.side)
        static.step.add_(1)
        self._normalise(self.obs, static.obs)
        if self.raw is not None:
            _put(self.raw, static.step, self.obs)
        _put(self.transitions.obs, static.step, static.obs)

    def _record_obs(self, env: VecEnv, step: int) -> None:
        """Store the rows' observations before a step; those of absent agents are zeroed."""
        obs = self.transitions.obs[:, step]
        self._normalise(self.obs, obs)
        if self.raw is not None:
            _put(self.raw, step, self.obs)
        if self.shape.has_absent_agents:
            present = env.present().view(self.shape.slots, -1)
            self._present[:, step] = present
            obs.masked_fill_(~present.unsqueeze(-1), 0)
        elif self.shape.players > 1:
            mover = env.to_move().view(self.shape.slots, -1, 1)
            self._present[:, step] = mover == self._player

    def _act(self, step: int) -> None:
        """Run the actors on the observations before a step; recurrent critics as well."""
        shape, obs = self.shape, self.transitions.obs[:, step]
        if not shape.recurrent:
            self._output, _ = self._actor(obs)
            return
        # An absent agent's recurrent state waits for its next action.
        live = self._present[:, step : step + 1] if shape.has_absent_agents else None
        before = self.states.before(step, self._present[:, step])
        memories = [Memory(state, live=live) for state in before]
        (self._output, output), after = self._pair(obs, memories)
        self._values[:, step] = self.population.critic.value(output).squeeze(-1)
        assert after is not None
        self.states.after(after)

    def _legal(self, env: VecEnv, chosen: Tensor) -> Tensor:
        """Return the environment's mask for the next choice, and keep it."""
        mask, choices = env.action_mask(chosen), self.shape.choices
        start = sum(choices[: chosen.shape[1]])
        options = slice(start, start + choices[chosen.shape[1]])
        stored = self._masks[..., options]
        stored.copy_(mask.view(stored.shape))
        return mask

    def _bootstrap(self, env: VecEnv, start: int, stop: int) -> None:
        """Store the values of the last observations of episodes truncated in steps start … stop."""
        # Computed for all rows, then selected: which rows ended is only known on the device.
        self._normalise(env.final_obs(), self._final_obs)
        ends = self._truncated[:, start:stop] & ~self._terminated[:, start:stop]
        if self.shape.has_absent_agents:
            ends &= self._present[:, start:stop]
        value = self._value_of(self._final_obs).unsqueeze(1)
        self._final_values[:, start:stop] = torch.where(ends, value, 0.0)

    # Advantages.

    @torch.no_grad()
    def estimate(self, gamma: Tensor, gae_lambda: Tensor) -> Tensor:
        """Compute values, advantages and returns (`sweepd.agents.engine.advantages`) of the
        rollout.

        Advantages are normalised over the member's rollout: (A - mean A) / (std A + c), with
        c = 1e-4, in units of returns where they are scaled.

        Args:
            gamma: (G, 1), discount.
            gae_lambda: (G, 1), decay of the advantage estimate.

        Returns:
            (G,), the explained variance of the returns, 1 - Var(A) / Var(R).
        """
        slots, samples = self.shape.slots, self.shape.samples
        if not self.shape.recurrent:  # recurrent values were computed while acting
            self._compute_values(self.transitions, self._values)
        done = self._terminated | self._truncated
        exp = Experience(self.rewards, self._values, self._final_values, done, self._present)
        self._estimate(exp, gamma, gae_lambda, self._advantages, self.transitions.valid)
        advantages = self._advantages.view(slots, -1)[:, :samples]
        values = self._values.view(slots, -1)[:, :samples]
        return self._store(advantages, values, self.samples())

    def _estimate(
        self,
        exp: Experience,
        gamma: Tensor,
        gae_lambda: Tensor,
        advantages: Tensor,
        valid: Tensor | None,
    ) -> None:
        """Compute the advantages of a grid of steps (`sweepd.agents.engine.advantages`).

        Args:
            exp: what was recorded.
            gamma: (G, 1).
            gae_lambda: (G, 1).
            advantages: (G, T + 1, rows), written.
            valid: likewise, bool, written where the shape loses transitions.
        """
        gamma, gae_lambda = gamma.unsqueeze(-1), gae_lambda.unsqueeze(-1)
        if valid is None:
            estimate(exp, gamma, gae_lambda, advantages)
        elif self.shape.players > 1:
            estimate_in_turns(exp, gamma, gae_lambda, advantages, valid)
        else:
            estimate_with_absent_agents(exp, gamma, gae_lambda, advantages, valid)

    def _store(self, advantages: Tensor, values: Tensor, into: Transitions) -> Tensor:
        """Store normalised advantages and returns, (G, samples); return the explained variance."""
        valid, returns = into.valid, advantages + values
        # c keeps the division finite where all advantages are equal. It is in units of returns, so
        # that return scaling makes learning independent of the rewards' scale.
        unit = torch.where(self.population.popart, self.population.value_std, 1.0)[:, 0]
        least = (1e-4 * unit).clamp_min(1e-30)
        if valid is not None:  # the same over the valid transitions only
            returns = torch.where(valid, returns, 0.0)
        mean, variance = moments(advantages, valid)
        centred = (advantages - mean) / (sqrt(variance) + least)
        into.advantages.copy_(centred if valid is None else torch.where(valid, centred, 0.0))
        into.returns.copy_(returns)
        self._return_moments = moments(returns, valid)
        return (1.0 - variance / (self._return_moments[1] + 1e-12))[:, 0]

    def _compute_values(self, transitions: Transitions, values: Tensor) -> None:
        """Write V of a rollout's transitions into `values`, `minibatch` rows at a time."""
        shape = self.shape
        obs = transitions.obs.view(shape.slots, -1, shape.obs_dim)
        values = values.view(shape.slots, -1)
        for start in range(0, shape.samples, shape.minibatch):
            stop = min(start + shape.minibatch, shape.samples)
            values[:, start:stop] = self._value_of(obs[:, start:stop])

    def return_moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the returns, (G, 1) each; NaN where fewer than two count."""
        valid = self.samples().valid
        if valid is None:
            return self._return_moments
        enough = valid.sum(1, keepdim=True) > 1
        mean, variance = (torch.where(enough, part, torch.nan) for part in self._return_moments)
        return mean, variance

    def mean_reward(self) -> Tensor:
        """Return (G,), the mean reward per step; per action where agents may be absent.

        Of several players in turns, the mean over both decisions and players.
        """
        if self.shape.players > 1:
            return self.rewards.mean((1, 2, 3))
        if not self.shape.has_absent_agents:
            return self.rewards.mean((1, 2))
        actions = self._present[:, :-1].sum((1, 2))
        return torch.where(actions > 0, self.rewards.sum((1, 2)) / actions.clamp_min(1), 0.0)

    # What both need.

    def samples(self) -> Transitions:
        """Return views of the rollout's transitions, (G, samples), without the last observation."""
        return self._flat(self.transitions)

    def _flat(self, every: Transitions) -> Transitions:
        """Return views of a rollout's transitions as `samples` does."""
        stored = (every.obs.shape[1] - 1) * every.obs.shape[2]
        obs, side, flags, masks = (
            part.flatten(1, 2)[:, :stored]
            for part in (every.obs, every.side, every.flags, every.packed_masks)
        )
        return Transitions(self.shape, obs, side, flags, masks, every.memory)

    def seen(self) -> tuple[Tensor, Tensor | None]:
        """Return the observations of the rollout as `RunningScale.observe` takes them."""
        assert self.raw is not None
        present = self._present[:, :-1].flatten(1) if self.shape.has_absent_agents else None
        return self.raw[:, :-1].flatten(1, 2), present

    def _value_of(self, obs: Tensor) -> Tensor:
        """Return (G, rows), values of stored observations; of recurrent critics, at ends."""
        memory = Memory(self.states.ending) if self.shape.recurrent else None
        output, _ = self._critic(obs, memory)
        return self.population.critic.value(output).squeeze(-1)

    def _normalise(self, obs: Tensor, out: Tensor) -> None:
        """Write (obs - mean) / std of (G * num_envs, obs_dim) into (G, num_envs, obs_dim) `out`.

        With a running scale, they are clipped. uint8 observations are copied as they are;
        networks normalise them.
        """
        if out.dtype == torch.uint8:
            out.copy_(obs.view(out.shape))
            return
        if self._normaliser is not None:
            self._normaliser(obs, out)
            return
        critic = self.population.critic  # it reads all columns
        avg, std = critic.normalisers["state_avg"], critic.normalisers["state_std"]
        normalised(obs.view(out.shape), avg, std, critic.spec.clip, out)


def _put(into: Tensor, step: int | Tensor, numbers: Tensor) -> None:
    """Store (G * num_envs, …) or (G, num_envs, …) as a step of (G, steps, num_envs, …).

    Args:
        into: written.
        step: its index, or (1,) int64 on the device.
        numbers: one step's.
    """
    if isinstance(step, int):
        place = into[:, step]
        place.copy_(numbers.view(place.shape))
    else:
        into.index_copy_(1, step, numbers.view(into.shape[0], 1, *into.shape[2:]))
