"""A rollout of environments that are stepped one by one, those first that are ready.

Each environment makes its own number of steps (`sweepd.agents.engine.step_quotas`). The steps of a
row are stored from the first one on; then its rewards, values and ends are moved so that the last
one is at the end of the rollout, where `sweepd.agents.engine.advantages` begins; and what is learned
from is gathered without the places that stayed free.

Networks always run on all rows, so that no tensor's shape, and no rounding, depends on which of them
are ready. If all environments make as many steps, every number is that of `Rollout`.

Reading order: `AsyncRollout.collect`, then `AsyncRollout.estimate`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.agents.engine.advantages import Experience
from sweepd.agents.engine.bits import pack
from sweepd.agents.engine.graphs import Recorder
from sweepd.agents.engine.play_stats import choice_entropies, play_names, play_stats
from sweepd.agents.engine.population import Population
from sweepd.agents.engine.recurrent_states import learned_shape
from sweepd.agents.engine.rollout import Rollout
from sweepd.agents.engine.step_quotas import StepQuotas
from sweepd.agents.engine.transitions import Transitions
from sweepd.agents.networks.recurrence import Memory
from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.streams import Streams
from sweepd.envs.core.vec_env import VecEnv

if TYPE_CHECKING:  # programs on tensors need none of its imports
    from sweepd.envs.external.ready_vec_env import ReadyVecEnv


class AsyncRollout(Rollout):
    """The transitions of one rollout of G members, filled by `collect` and `estimate`.

    `transitions` and the other buffers of `Rollout` have `num_envs` rows, of which each is filled as
    far as its environment came. `states.learned` has the transitions to learn from, those of
    `learned_envs` rows.
    """

    def __init__(self, shape: Shape, population: Population, obs: Tensor) -> None:
        super().__init__(shape, population, obs)
        own, device = learned_shape(shape), population.device
        slots, envs = shape.slots, shape.num_envs
        size, sequences = (slots, shape.horizon + 1, own.num_envs), self.index.items
        self.states.learned = Transitions.empty(
            own, size, sequences if shape.recurrent else 0, device
        )
        # The rows' present observations as networks read them, where their agents are, and the
        # actions drawn for them.
        self._now = torch.zeros(slots, envs, shape.obs_dim, dtype=shape.torch_dtype, device=device)
        self._here = torch.ones(slots, envs, dtype=torch.bool, device=device)
        self._side = torch.zeros(slots, envs, self.transitions.side.shape[-1], device=device)
        # Of all transitions to learn from, (G, horizon, learned_envs): step and row.
        self._step_of = torch.zeros(slots, shape.horizon, own.num_envs, dtype=torch.int64)
        self._row_of = torch.zeros_like(self._step_of)
        self._made = torch.zeros(slots, envs, dtype=torch.int64, device=device)

    def _is_replayable(self) -> bool:
        return False

    # Collecting transitions.

    @torch.no_grad()
    def collect(self, env: VecEnv, streams: Streams, recorder: Recorder | None = None) -> None:  # noqa: ARG002
        """Have the environments step, with actions sampled from the members' streams.

        Args:
            env: a `ReadyVecEnv`.
            streams: of the members.
            recorder: not used.
        """
        if not hasattr(env, "receive"):
            raise ValueError(f"{env.env_name} has no environments that are stepped one by one")
        ready_env, shape = cast("ReadyVecEnv", env), self.shape
        slots = range(shape.slots)
        quotas = StepQuotas(
            shape,
            ready_env.rows_each,
            [streams.seeded(slot) for slot in slots],
            [ready_env.next_steps(slot) for slot in slots],
        )
        noise = self._distribution.noise(shape, streams, shape.horizon, shape.num_envs)
        noise = noise.reshape(-1, noise.shape[-1])
        for part in (self.rewards, self._terminated, self._truncated, self._final_values):
            part.zero_()
        drawn = torch.zeros(*self._now.shape[:2], noise.shape[-1], device=noise.device)
        ready = quotas.all()
        self._note_obs(ready_env, quotas, ready)
        while True:
            going = quotas.grant(ready)
            if len(going):
                self._send(ready_env, quotas, going, noise, drawn)
            if not quotas.stepping:
                break
            ready = ready_env.receive()
            quotas.received(ready)
            self._note_outcome(ready_env, quotas, ready)
            self._note_obs(ready_env, quotas, ready)
        counts = quotas.counts()
        if shape.async_envs > 1:
            ready_env.note_steps(counts)
        self._order(np.repeat(counts, ready_env.rows_each, axis=1))
        self._finish(ready_env)

    def _send(
        self,
        env: ReadyVecEnv,
        quotas: StepQuotas,
        envs: NDArray[np.int64],
        noise: Tensor,
        drawn: Tensor,
    ) -> None:
        """Draw actions, store those of these environments, and have them step.

        Args:
            env: the environments.
            quotas: of the rollout.
            envs: those that step.
            noise: (horizon * G * num_envs, k), random numbers of all steps of all rows.
            drawn: (G, num_envs, k), those of the rows' present steps.
        """
        shape, stored = self.shape, self.transitions
        rows, step = self._places(env, quotas, envs, -1)
        before, after = self._at(rows, step, shape.horizon + 1), self._at(rows, step, shape.horizon)
        drawn.view(-1, drawn.shape[-1])[rows] = noise[step * (shape.slots * shape.num_envs) + rows]
        if shape.recurrent:
            self._remember(rows, step, before)
        else:
            self._output, _ = self._actor(self._now)
        legal = partial(self._legal, cast(VecEnv, env)) if shape.masked else None
        action = self._sampled(drawn, self._side, legal)
        env.send(envs, action)
        self._put(stored.side, before, self._side, rows)
        if self._draws is None:
            self._put(self._outputs, after, self._output, rows)
        if shape.masked:
            self._put(stored.packed_masks, before, pack(self._masks), rows)

    def _remember(self, rows: Tensor, step: Tensor, places: Tensor) -> None:
        """Run recurrent networks, and advance the states of these rows."""
        shape, states, size = self.shape, self.states, self.states.ending.shape[-1]
        memory = states.memory.view(2, -1, size)
        starts = step % shape.bptt == 0
        first = self._at(rows[starts], step[starts] // shape.bptt, shape.horizon // shape.bptt)
        self.transitions.memory.view(2, -1, size)[:, first] = memory[:, rows[starts]]
        live = self._here.unsqueeze(1) if shape.has_absent_agents else None
        memories = [Memory(state, live=live) for state in states.memory]
        (self._output, output), after = self._pair(self._now, memories)
        values = self.population.critic.value(output)
        self._values.view(-1)[places] = values.view(-1)[rows]
        assert after is not None
        memory[:, rows] = torch.stack(list(after)).view(2, -1, size)[:, rows]

    def _note_outcome(self, env: ReadyVecEnv, quotas: StepQuotas, envs: NDArray[np.int64]) -> None:
        """Store what the last step of these environments returned."""
        rows, step = self._places(env, quotas, envs, -1)
        found = env.outcome(rows.cpu())
        after = self._at(rows, step, self.shape.horizon)
        self.rewards.view(-1)[after] = found.reward
        self._terminated.view(-1)[after] = found.terminated
        self._truncated.view(-1)[after] = found.truncated
        done = found.terminated | found.truncated
        states = self.states
        if self.shape.recurrent:
            starts = self.transitions.flags.view(-1, self.transitions.flags.shape[-1])
            starts[self._at(rows, step + 1, self.shape.horizon + 1), -1] = done
            size = states.ending.shape[-1]
            memory, cut = states.memory.view(2, -1, size), rows[found.truncated]
            states.ending.view(-1, size)[cut] = memory[1, cut]
            memory[:, rows[done]] = 0.0
        ends = found.truncated & ~found.terminated
        if self.shape.has_absent_agents:
            ends &= self._here.view(-1)[rows]
        if ends.any():
            self._normalise(env.final_obs(), self._final_obs)
            values = self._value_of(self._final_obs).reshape(-1)
            self._final_values.view(-1)[after[ends]] = values[rows[ends]]

    def _note_obs(self, env: ReadyVecEnv, quotas: StepQuotas, envs: NDArray[np.int64]) -> None:
        """Store the present observations of these environments; those of absent agents are zeroed."""
        rows, step = self._places(env, quotas, envs, 0)
        at = self._at(rows, step, self.shape.horizon + 1)
        if (step > 0).any():
            env.observe_rows(rows.cpu(), self.obs)
        if self._now.dtype == torch.uint8:
            self._put(self._now, rows, self.obs, rows)
        else:
            self._normalise(self.obs, self._now)
        if self.raw is not None:
            self._put(self.raw, at, self.obs, rows)
        if self.shape.has_absent_agents:
            self._here.view(-1)[rows] = env.present()[rows]
            self._present.view(-1)[at] = self._here.view(-1)[rows]
            self._now.masked_fill_(~self._here.unsqueeze(-1), 0)
        self._put(self.transitions.obs, at, self._now, rows)

    def _finish(self, env: ReadyVecEnv) -> None:
        """Compute what needs all steps: the values of what follows, log-probabilities, figures."""
        shape, learned = self.shape, self.samples()
        self.states.finish(self._here)
        self._values[:, shape.horizon] = self._value_of(self._now)
        entropies: list[Tensor] = []
        if self._draws is None:
            # log π_old(a|s) of all actions at once, from the outputs that they were sampled from.
            outputs = self._gathered(self._outputs).flatten(1, 2)
            weights = self.population.actor.weights
            policy = self._distribution(shape, outputs, weights, learned.masks)
            learned.log_probs.copy_(policy.log_prob(learned.actions))
            if play_names(env):
                entropies = choice_entropies(policy, self._present_samples())
        if play_names(env):
            self.play = play_stats(
                env,
                self.states.learned.actions[:, : shape.horizon, :, 0],
                self._gathered(self._present) if shape.has_absent_agents else None,
                self._gathered(self.rewards),
                self._gathered(self._terminated),
                self._gathered(self._truncated),
                entropies,
            )

    # Where things are.

    def _places(
        self, env: ReadyVecEnv, quotas: StepQuotas, envs: NDArray[np.int64], shift: int
    ) -> tuple[Tensor, Tensor]:
        """Return the rows of environments and the number of their steps so far plus `shift`."""
        device = self.population.device
        rows = torch.from_numpy(env.rows_of(envs)).to(device)
        steps = np.repeat(quotas.begun[envs] + shift, env.rows_each)
        return rows, torch.from_numpy(steps).to(device)

    def _at(self, rows: Tensor, step: Tensor, steps: int) -> Tensor:
        """Return the indices of steps of rows in a flat (G * steps * num_envs, …)."""
        envs = self.shape.num_envs
        return (rows // envs * steps + step) * envs + rows % envs

    @staticmethod
    def _put(into: Tensor, places: Tensor, source: Tensor, rows: Tensor) -> None:
        """Copy rows of a (G, num_envs, k) or (G * num_envs, k) to places of a (G, steps, num_envs, k)."""
        columns = into.shape[-1]
        into.view(-1, columns)[places] = source.reshape(-1, columns)[rows]

    def _order(self, counts: NDArray[np.int32]) -> None:
        """Gather the transitions to learn from. counts: (G, num_envs), steps that each row made."""
        shape, device = self.shape, self.population.device
        length = shape.bptt if shape.recurrent else 1
        envs, own = shape.num_envs, shape.learned_envs
        # An empty slot has made no steps; any will do.
        counts = np.where(
            counts.any(1, keepdims=True), counts, shape.horizon * (np.arange(envs) < own)
        )
        # Sequence b of row e, in the order of b, then e: (G, sequences per row, learned_envs).
        made = np.arange(shape.horizon // length)[:, None] < counts[:, None] // length
        _, block, row = np.nonzero(made)
        blocks = (shape.slots, shape.horizon // length, 1, own)
        within = np.arange(length).reshape(1, 1, -1, 1)
        step = block.reshape(blocks) * length + within
        rows = np.broadcast_to(row.reshape(blocks), step.shape)
        self._step_of = torch.from_numpy(step.reshape(self._step_of.shape)).to(device)
        self._row_of = torch.from_numpy(rows.reshape(self._row_of.shape).copy()).to(device)
        self._made = torch.from_numpy(counts.astype(np.int64)).to(device)
        learned, first = self.states.learned, self._first(shape.horizon + 1)
        # The last step of `learned` is in no minibatch.
        last = torch.zeros(shape.slots, 1, own, dtype=torch.int64, device=device)
        places = first + torch.cat((self._step_of * envs + self._row_of, last), 1)
        self.transitions.take(places.flatten(), learned)
        if shape.recurrent:
            size = learned.memory.shape[-1]
            index = (block * envs + row).reshape(shape.slots, -1)
            kept = self._first(shape.horizon // length).view(-1, 1)
            places = (kept + torch.from_numpy(index).to(device)).flatten()
            memory = self.transitions.memory.view(2, -1, size)
            learned.memory.copy_(memory[:, places].view(learned.memory.shape))

    def _first(self, steps: int) -> Tensor:
        """Return (G, 1, 1), the index of each member's first row in a flat (G * steps * num_envs)."""
        slots = torch.arange(self.shape.slots, device=self.population.device)
        return (slots * steps * self.shape.num_envs).view(-1, 1, 1)

    def _gathered(self, part: Tensor) -> Tensor:
        """Return the transitions to learn from of a (G, steps, num_envs, …), in their order."""
        columns = part.shape[3:]
        rows = part.reshape(-1, *columns)
        return rows[self._first(part.shape[1]) + self._step_of * self.shape.num_envs + self._row_of]

    # Advantages.

    @torch.no_grad()
    def estimate(self, gamma: Tensor, gae_lambda: Tensor) -> Tensor:
        """See `Rollout.estimate`."""
        shape, learned = self.shape, self.states.learned
        horizon = shape.horizon
        if not shape.recurrent:  # recurrent values were computed while acting
            values = torch.zeros(learned.side.shape[:-1], device=learned.side.device)
            self._compute_values(learned, values)
            places = self._first(horizon + 1) + self._step_of * shape.num_envs + self._row_of
            self._values.view(-1)[places] = values[:, :horizon]
        done = self._terminated | self._truncated
        # Move every row so that its last step is the rollout's.
        shift = (horizon - self._made).unsqueeze(1)
        steps = torch.arange(horizon + 1, device=shift.device).view(1, -1, 1)
        from_step = (steps - shift).clamp_min(0)
        # What follows the last step is stored at `horizon` already.
        from_step[:, horizon] = horizon
        present = self._present
        if shape.has_absent_agents:
            present = present.clone()
            present[:, horizon] = self._here
        exp = Experience(
            *(
                part.gather(1, from_step[:, : part.shape[1]])
                for part in (self.rewards, self._values, self._final_values, done, present)
            )
        )
        valid = torch.zeros_like(present) if shape.has_absent_agents else None
        self._estimate(exp, gamma, gae_lambda, self._advantages, valid)
        # (G, horizon, learned_envs): where each transition was moved to.
        moved = self._step_of + shift[:, 0].gather(1, self._row_of.flatten(1)).view(
            self._row_of.shape
        )
        places = self._first(horizon + 1) + moved * shape.num_envs + self._row_of
        if valid is not None:
            learned.flags[:, :horizon, :, 0] = valid.view(-1)[places]
        advantages, values = (
            part.reshape(-1)[places].flatten(1) for part in (self._advantages, exp.values)
        )
        return self._store(advantages, values, self.samples())

    # What others read.

    def samples(self) -> Transitions:
        """Return views of the transitions to learn from, (G, samples)."""
        return self._flat(self.states.learned)

    def seen(self) -> tuple[Tensor, Tensor | None]:
        """See `Rollout.seen`."""
        assert self.raw is not None
        return self._gathered(self.raw).flatten(1, 2), self._present_samples()

    def mean_reward(self) -> Tensor:
        """See `Rollout.mean_reward`."""
        rewards = self._gathered(self.rewards)
        if not self.shape.has_absent_agents:
            return rewards.mean((1, 2))
        actions = self._gathered(self._present).sum((1, 2))
        return torch.where(actions > 0, rewards.sum((1, 2)) / actions.clamp_min(1), 0.0)

    def _present_samples(self) -> Tensor | None:
        """Return (G, samples) bool, the transitions with an agent; None where all have one."""
        if not self.shape.has_absent_agents:
            return None
        return self._gathered(self._present).flatten(1)
