"""Proximal policy optimization (PPO) for G members at once.

Source: Schulman et al., 2017, arXiv:1707.06347.

The members' rows, G * num_envs of them, are stepped in one vectorized environment. Formulas with
their derivations are in `docs/explanation/ppo.md`. Reading order:

1. `PPO._collect` and `PPO._learn`: a rollout, advantages, gradient steps
   (`sweepd.agents.engine.rollout`, `sweepd.agents.engine.advantages`);
2. `PPO._minibatch` and `PPO._loss`: one gradient step
   (`sweepd.agents.networks.distributions` for log π);
3. `sweepd.agents.networks.net`: the forward pass of all members' networks;
4. `sweepd.agents.networks.optimizer`: gradients, their norms and AdamW.

It is ElegantRL's PPO: a Gaussian before tanh, whose log-probability is that of the sample before
tanh, or a categorical distribution; a smooth-L1 critic; separate networks, each with its own
gradient clipping and Adam. It differs in five points: every transition is used once per epoch (a
permutation per member); a truncated episode is bootstrapped with the value of its last observation;
advantages are normalised over the member's whole rollout; value targets may be normalised
(`sweepd.agents.algorithms.popart`); and all random numbers come from a stream per member.

Nothing in these loops reads a tensor's value on the host, except the environment's fault latch,
once per rollout. Nothing mixes members. A member whose gradient is not finite is marked as diverged
and is not updated again; its rows continue with finite actions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from sweepd.agents.algorithms.fused_loss import Loss, fused_loss
from sweepd.agents.algorithms.popart import scale_values
from sweepd.agents.algorithms.ppo_params import PPOParams
from sweepd.agents.engine.acting import Actors
from sweepd.agents.engine.async_rollout import AsyncRollout
from sweepd.agents.engine.graphs import Effect, Repeated, recorder_for
from sweepd.agents.engine.population import Population
from sweepd.agents.engine.program import Member, Program, Supported
from sweepd.agents.engine.recurrent_states import learned_shape
from sweepd.agents.engine.rollout import Rollout
from sweepd.agents.engine.transitions import Transitions
from sweepd.agents.native.choice import kernels
from sweepd.agents.native.kernels import UpdateKernel
from sweepd.agents.networks.distributions import distribution_of
from sweepd.agents.networks.net import StateDict
from sweepd.agents.networks.optimizer import Adam
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.spec import NetSpec
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.support.upload import upload

__all__ = ["PPO", "PPOParams", "RolloutStats", "Shape"]


class RolloutStats(NamedTuple):
    """Statistics of one rollout per slot, (G,) float32 on the device.

    Values in empty or diverged slots have no meaning.

    Attributes:
        reward: mean per step.
        value_loss: of the last minibatch; of normalised returns with return scaling.
        approx_kl: of the last minibatch, mean(r - 1 - log r) with the probability ratio r.
        clip_fraction: of the last minibatch, fraction of ratios outside 1 ± clip.
        actor_norm: gradient norm in the last minibatch, before clipping.
        critic_norm: likewise.
        explained_variance: of the returns by the values before the update.
        entropy: in nats; of the Gaussian before tanh after the update, or of the last minibatch's
            categorical distributions.
        std: mean over the dimensions of an action; 0 where actions are discrete.
        updates: gradient steps made.
    """

    reward: Tensor
    value_loss: Tensor
    approx_kl: Tensor
    clip_fraction: Tensor
    actor_norm: Tensor
    critic_norm: Tensor
    explained_variance: Tensor
    entropy: Tensor
    std: Tensor
    updates: Tensor


class GradientStep(NamedTuple):
    """The results of one gradient step.

    Attributes:
        running: (G,) bool, members that continue with the next minibatch.
        output: (G, minibatch, action_dim), of the actors.
        log_ratio: (G, minibatch), log of the probability ratios.
        error: (G, minibatch), value errors in their unit.
        norms: (2, G), gradient norms of actors and critics.
    """

    running: Tensor
    output: Tensor
    log_ratio: Tensor
    error: Tensor
    norms: Tensor


class PPO(Program):
    """A program of `shape.slots` members on as many members of an environment."""

    algorithm = "ppo"
    params_type = PPOParams
    stats_type = RolloutStats
    supports = Supported(
        masks=True,
        absent_agents=True,
        multi_discrete=True,
        turns=True,
        images=True,
        byte_obs=True,
        items=True,
        privileged=True,
        recurrent=True,
        per_seat=True,
        running_scale=True,
        activations=True,
        entities=True,
        async_envs=True,
    )
    episode_state = (*Program.episode_state, "memory")

    def __init__(self, shape: Shape, device: torch.device | str = "cpu") -> None:
        super().__init__(shape, device)
        slots, rows = shape.slots, shape.minibatch
        self._distribution = distribution_of(shape)
        self.population = Population(shape, self.device)
        kind = AsyncRollout if shape.async_envs else Rollout
        self.rollout = kind(shape, self.population, self.obs)
        self.optimizer = Adam(self.population.flat, self.population.pair.leaves)
        steps = shape.bptt if shape.recurrent else 1
        self._batch = Transitions.empty(shape, (slots, rows), rows // steps, self.device)
        self._fused_loss = fused_loss(shape, self.device)
        # Gradient steps with and without early stopping, recorded where the device can.
        self.recorder = recorder_for(self.device)
        self._graphs: dict[bool, Repeated[GradientStep]] = {}
        self._native: UpdateKernel | None = None
        native = kernels(shape, self.device)
        if native is not None:
            nets, learned = self.population.pair.nets, self.rollout.states.learned
            own = learned_shape(shape)
            self._native = UpdateKernel(native, own, nets, self.optimizer, learned)

    # One rollout and its gradient steps.

    def _collect(self, env: VecEnv) -> None:
        self.rollout.collect(env, self.streams, self.recorder)

    def _scales(self) -> list[tuple[Tensor, Tensor]]:
        normalisers = [net.normalisers for net in self.population.pair.nets]
        return [(own["state_avg"], own["state_std"]) for own in normalisers]

    def _seen(self) -> tuple[Tensor, Tensor | None]:
        return self.rollout.seen()

    def play_stats(self) -> Mapping[str, Tensor]:
        """See `Program.play_stats`."""
        return self.rollout.play

    def _learn(self) -> RolloutStats:
        explained_variance = self.rollout.estimate(
            self.numbers["gamma"], self.numbers["gae_lambda"]
        )
        stats = self._update(explained_variance)
        self._average_weights()
        return stats

    def _update(self, explained_variance: Tensor) -> RolloutStats:
        """Make `epochs` passes of minibatches over the rollout."""
        shape, index = self.shape, self.rollout.index
        self.rollout.states.order()
        batches = index.batches(self.streams.permutations(shape.epochs, index.items))
        self.optimizer.lr = self._learning_rates()
        self.optimizer.prepare()
        # Before the gradient steps: their losses depend on the value normalisers.
        self._scale_values()
        # Members that stop early or diverge stay in the batch, so no tensor changes its shape.
        learns = self._live & ~self._diverged
        train = self._train if self._native is None else self._train_native
        log_std = self.population.actor.weights.get("action_std_log")
        no_std = torch.zeros(shape.slots, device=self.device)
        return RolloutStats(
            reward=self.rollout.mean_reward(),
            **train(batches, learns),
            explained_variance=explained_variance,
            std=no_std
            if log_std is None
            else log_std.detach().exp().sum((1, 2)) / shape.action_dim,
        )

    def _train_native(self, batches: Tensor, learns: Tensor) -> dict[str, Tensor]:
        """Do what `_train` does, with the native kernels."""
        assert self._native is not None
        population = self.population
        numbers = {
            **self.numbers,
            "value_avg": population.value_avg,
            "value_std": population.value_std,
            "value_unit": population.value_unit(),
        }
        stats, diverged = self._native(batches, numbers, learns)
        self._diverged |= diverged
        return stats

    def _train(self, batches: Tensor, running: Tensor) -> dict[str, Tensor]:
        """Make the gradient steps of a rollout.

        Args:
            batches: (steps, G * minibatch), transitions of each step.
            running: (G,) bool, members to update.

        Returns:
            (G,) each, those of the rollout's statistics that the gradient steps decide.
        """
        # Decided on the host: comparing the KL costs a reduction per minibatch, which most programs
        # do not need.
        stop_early = any(member.params.target_kl > 0 for member in self.members if member)
        steps_before = self.optimizer.step.clone()
        if self._fused_loss is not None:
            self._fused_loss.prepare(self.numbers, self.population)
        step = self._gradient_steps(batches, running, stop_early=stop_early)
        return {**self._step_stats(step), "updates": self.optimizer.step - steps_before}

    def _gradient_steps(
        self, batches: Tensor, running: Tensor, *, stop_early: bool
    ) -> GradientStep:
        """Make a gradient step per row of `batches` (steps, G * minibatch); return the last."""
        if self.recorder is None:
            for rows in batches.unbind(0):
                step = self._minibatch(rows, running, stop_early=stop_early)
                running = step.running
            return step
        graph = self._graphs.get(stop_early)
        if graph is None:
            graph = self._graphs[stop_early] = self._graph(batches[0], running, stop_early)
        graph.begin(running)
        for rows in batches.unbind(0):
            graph.run(rows)
        return graph.result

    def recorded_steps(self) -> dict[str, list[bool]]:
        return {
            "gradient": [step.recorded for step in self._graphs.values()],
            "rollout": [step.recorded for step in self.rollout.replays.steps.values()],
        }

    def _graph(self, rows: Tensor, running: Tensor, stop_early: bool) -> Repeated[GradientStep]:
        """Return a gradient step that can be recorded: its inputs are copies that stay."""
        rows, running = rows.clone(), running.clone()

        def make() -> GradientStep:
            step = self._minibatch(rows, running, stop_early=stop_early)
            running.copy_(step.running)
            return step

        effect = Effect([self.population.flat], partial(self.optimizer.moves, running))
        return Repeated(make, [rows], [running], effect, self.recorder)

    def _minibatch(self, rows: Tensor, running: Tensor, *, stop_early: bool) -> GradientStep:
        """Make one gradient step.

        Gradients of members that do not run are computed as well, and not applied.

        Args:
            rows: (G * minibatch,), transitions of the rollout.
            running: (G,) bool, members to update.
            stop_early: whether to compare the KL divergence with `target_kl`.
        """
        batch, population, numbers = self._batch, self.population, self.numbers
        self.rollout.index.gather(self.rollout.states.learned, rows, batch)
        x = population.critic.inputs(batch.obs)  # it reads all columns
        memories = batch.memories() if self.shape.recurrent else None
        with torch.enable_grad():
            (output, value), _ = population.pair.forward(x, memories)
            if self._fused_loss is None:
                loss = self._loss(output, value)
            else:
                log_std = population.actor.weights.get("action_std_log")
                loss = self._fused_loss(output, value, batch.side, log_std)
            norms = self.optimizer.gradients(loss.of, loss.derivatives)
        log_ratio, error = loss.log_ratio.detach(), loss.error.detach()
        if stop_early:
            # The step that exceeds the target is not made either. A comparison with `>`, negated,
            # lets NaN pass: the check of the gradients below marks such a member as diverged.
            # (`a > b` of booleans is `a and not b` in one launch.)
            target = numbers["target_kl"][:, 0]
            running = running > ((_divergence(log_ratio, self._mean) > target) & (target > 0))
        # A norm is finite only if every element of the gradient is.
        finite = norms.amax(0) < torch.inf  # false for NaN; `isfinite` is four launches
        self._diverged |= running > finite
        running = running & finite
        # A minibatch without a valid transition is skipped; the next one is not.
        stepped = running if batch.valid is None else running & batch.valid.any(-1)
        self.optimizer.apply(norms, numbers["max_grad_norm"][:, 0], stepped)
        if not self.shape.if_discrete:
            # A larger deviation would push the samples into the saturated ends of tanh.
            highest = numbers["initial_log_std"].clamp(min=0.0).unsqueeze(-1)
            population.actor.weights["action_std_log"].clamp_(max=highest)
        return GradientStep(running, output.detach(), log_ratio, error, norms)

    def _loss(self, output: Tensor, value: Tensor) -> Loss:
        """Return the loss of the minibatch in `_batch` (Schulman et al., 2017, eq. 7 and 9).

        With the probability ratio r = π(a|s) / π_old(a|s), advantage A and return R of each row,
        entropy H of π, and value V = σ v + μ:

            L = -mean(min(r A, clip(r, 1 - ε, 1 + ε) A)) - c_H mean(H) + c_v mean(smooth_l1(e)),
            e = (V - R) / u.

        Args:
            output: (G, minibatch, action_dim), of the actors.
            value: (G, minibatch, 1), v.
        """
        batch, numbers, population = self._batch, self.numbers, self.population
        policy = self._distribution(self.shape, output, population.actor.weights, batch.masks)
        log_ratio = policy.log_prob(batch.actions) - batch.log_probs
        if batch.valid is not None:
            # A ratio that does not count may be infinite, and 0 times its derivative is NaN.
            log_ratio = torch.where(batch.valid, log_ratio, 0.0)
        ratio, clip = log_ratio.exp(), numbers["clip"]
        clipped = ratio.clamp(1.0 - clip, 1.0 + clip) * batch.advantages
        surrogate = self._mean(torch.minimum(ratio * batch.advantages, clipped))
        entropy = self._mean(policy.entropy())
        values = population.critic.value(value).squeeze(-1)
        error = (values - batch.returns) / population.value_unit()[..., 0]
        value_loss = self._mean(_smooth_l1(error))
        bonus = numbers["entropy_coef"][:, 0] * entropy
        total = numbers["value_coef"][:, 0] * value_loss - surrogate - bonus
        return Loss([total], None, log_ratio, error)

    def _step_stats(self, step: GradientStep) -> dict[str, Tensor]:
        """Return statistics of a minibatch, (G,) each."""
        batch, ratio = self._batch, step.log_ratio.exp()
        norms = step.norms.clone()  # the next rollout's replays overwrite those of a recorded step
        weights = self.population.actor.weights
        policy = self._distribution(self.shape, step.output, weights, batch.masks)
        policy.log_prob(batch.actions)  # the entropies of later choices depend on the earlier ones
        return {
            "value_loss": self._mean(_smooth_l1(step.error)),
            "approx_kl": _divergence(step.log_ratio, self._mean),
            "clip_fraction": self._mean(((ratio - 1.0).abs() > self.numbers["clip"]).float()),
            "actor_norm": norms[0],
            "critic_norm": norms[1],
            "entropy": self._mean(policy.entropy()),
        }

    def _mean(self, numbers: Tensor) -> Tensor:
        """Return (G,), the mean over the last minibatch's valid rows of (G, minibatch or 1)."""
        valid = self._batch.valid
        if valid is None:
            return numbers.mean(-1)
        # From a mean over all rows to one over the valid ones.
        scale = self.shape.minibatch / valid.sum(-1).clamp_min(1)
        return torch.where(valid, numbers, 0.0).mean(-1) * scale

    def _scale_values(self) -> None:
        """Update the value normalisers of members with return scaling."""
        # Weight 1/k gives the plain mean over rollouts; a fixed weight would favour the first one.
        rate = torch.maximum(self.numbers["popart_beta"], 1.0 / self._rollout_number())
        learns = (self._live & ~self._diverged).unsqueeze(-1)
        enabled = self.population.popart[..., 0] & learns
        scale_values(self.population, *self.rollout.return_moments(), rate, enabled)

    def _average_weights(self) -> None:
        """Update the running means of the actors' weights, if a member has one."""
        if not any(member.params.weight_average > 0 for member in self.members if member):
            return
        length = self.numbers["weight_average"] * self._rollout_number()
        self.population.average(1.0 / length.clamp_min(1.0))

    def _rollout_number(self) -> Tensor:
        """Return (G, 1), the number of the members' present rollout, from 1."""
        rollouts = [[member.rollouts + 1 if member else 1] for member in self.members]
        return upload(torch.tensor(rollouts), self.device)

    # Acting, import and export.

    def act_fn(self) -> Actors:
        """See `Program.act_fn`."""
        return Actors(self.shape, self.population.acting())

    def export_member(self, slot: int) -> tuple[StateDict, StateDict]:
        """See `Program.export_member`; `sweepd.agents.policy.members` saves the actor."""
        self._member(slot)
        return self.population.export_member(slot)

    @property
    def actor_spec(self) -> NetSpec:
        """See `Program.actor_spec`."""
        return self.population.actor.spec

    def acting_weights(self) -> StateDict:
        """See `Program.acting_weights`."""
        return self.population.actor.named()

    def import_actor(self, slot: int, actor: Mapping[str, Tensor]) -> None:
        """See `Program.import_actor`."""
        _, critic = self.export_member(slot)
        # The first columns are the actor's; privileged ones keep the critic's own normaliser.
        columns = actor["state_avg"].numel()
        for name in ("state_avg", "state_std"):
            critic[name][:columns] = actor[name]
        self.population.import_member(slot, actor, critic)
        if self.scale is not None:
            critics = self.population.critic.normalisers
            self.scale.start(slot, critics["state_avg"][slot, 0], critics["state_std"][slot, 0])

    # Members' states.

    def begin(self, obs: Tensor, slots: Sequence[int] | None = None) -> None:
        """See `Program.begin`. Recurrent states start at zero."""
        super().begin(obs, slots)
        for slot in range(self.shape.slots) if slots is None else slots:
            if self.members[slot] is not None:
                self._memory(slot).zero_()

    def _fresh(
        self, slot: int, params: PPOParams, seed: int, state_avg: Tensor, state_std: Tensor
    ) -> None:
        weights_seed = derive_seed(seed, "weights")
        self.population.new_member(slot, weights_seed, params.initial_log_std, state_avg, state_std)
        if params.popart_beta > 0:
            self.population.value_std[slot] = 0  # no returns are known yet (`popart.scale_values`)

    def _clear(self, slot: int) -> None:
        self.population.clear(slot)
        self.population.popart[slot] = False
        self.population.averaged[slot] = False
        self.optimizer.reset(slot)
        self._memory(slot).zero_()

    def _save(self, slot: int) -> StateDict:
        population, optimizer = self.population, self.optimizer
        memory = {"memory": self._memory(slot)} if self.shape.recurrent else {}
        return {
            **memory,
            "weights": population.flat[:, slot],
            "average": population.averages[slot],
            "adam_m": optimizer.m[:, slot],
            "adam_v": optimizer.v[:, slot],
            "adam_step": optimizer.step[slot],
            **{
                f"{role}.{name}": part[slot]
                for role, net in (("actor", population.actor), ("critic", population.critic))
                for name, part in net.normalisers.items()
            },
        }

    def _occupy(self, slot: int, member: Member) -> None:
        super()._occupy(slot, member)
        self.population.popart[slot] = member.params.popart_beta > 0
        self.population.averaged[slot] = member.params.weight_average > 0
        self.optimizer.eps[slot] = member.params.adam_eps
        self.optimizer.weight_decay[slot] = member.params.weight_decay

    def _memory(self, slot: int) -> Tensor:
        """Return (2, num_envs, columns), the recurrent states of the slot's actor and critic."""
        return self.rollout.states.memory[:, slot]


def _smooth_l1(error: Tensor) -> Tensor:
    """Return e²/2 for |e| < 1, else |e| - 1/2."""
    return smooth_l1_loss(error, torch.zeros_like(error), reduction="none")


def _divergence(log_ratio: Tensor, mean: Callable[[Tensor], Tensor]) -> Tensor:
    """Return Schulman's estimate of KL(old || new): http://joschu.net/blog/kl-approx.html."""
    return mean(log_ratio.exp() - 1.0 - log_ratio)
