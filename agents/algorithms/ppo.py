"""Proximal policy optimization (PPO) for G members at once.

Source: Schulman et al., 2017, arXiv:1707.06347.

The members' rows, G * num_envs of them, are stepped in one vectorized environment. Formulas with
their derivations are in `docs/ppo.md`. Reading order:

1. `PPO._collect` and `PPO._learn`: a rollout, advantages, gradient steps
   (`sweepd.agents.engine.rollout`, `sweepd.agents.engine.advantages`);
2. `PPO._minibatch`: one gradient step, with the loss's gradient written by hand
   (`sweepd.agents.networks.distributions` for log π and its gradient);
3. `sweepd.agents.networks.mlp`: forward and backward pass through the stacked networks;
4. `sweepd.agents.networks.optimizer`: gradient norms and AdamW.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.agents.algorithms.fused_loss import LossGradients, fused_loss
from sweepd.agents.algorithms.popart import scale_values
from sweepd.agents.algorithms.ppo_params import PPOParams
from sweepd.agents.engine.acting import Actors
from sweepd.agents.engine.graphs import Effect, Repeated, recorder_for
from sweepd.agents.engine.population import Population
from sweepd.agents.engine.program import Member, Program, Supported
from sweepd.agents.engine.rollout import Rollout
from sweepd.agents.engine.transitions import Transitions
from sweepd.agents.native.choice import kernels
from sweepd.agents.native.kernels import UpdateKernel
from sweepd.agents.networks.distributions import Distribution, distribution_of
from sweepd.agents.networks.mlp import Activations, Backward, forward
from sweepd.agents.networks.normaliser import clip_of
from sweepd.agents.networks.optimizer import Adam
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.weights import StateDict
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


@dataclass(frozen=True)
class LossTerms:
    """What the loss's gradient needs of the members' hyperparameters, constant over a rollout.

    Attributes:
        low: (G, 1), 1 - ε.
        high: (G, 1), 1 + ε.
        d_entropy: (G, 1), -c_H / B: derivative of the loss by a row's entropy.
        unit: (G, 1), u: unit of value errors.
        d_value: (G, 1), c_v σ / (u B): derivative of the loss by a critic's output, per clipped
            error.
        max_norm: (G,), largest gradient norm.
        target_kl: (G,), infinite where it is off.
        highest_log_std: (G,), largest log standard deviation of the Gaussian.
    """

    low: Tensor
    high: Tensor
    d_entropy: Tensor
    unit: Tensor
    d_value: Tensor
    max_norm: Tensor
    target_kl: Tensor
    highest_log_std: Tensor

    @classmethod
    def of(cls, numbers: Mapping[str, Tensor], population: Population, minibatch: int) -> LossTerms:
        """Compute the terms from hyperparameters (G, 1) by name and the value normalisers."""
        target, unit = numbers["target_kl"][:, 0], population.value_unit()[..., 0]
        return cls(
            low=1.0 - numbers["clip"],
            high=1.0 + numbers["clip"],
            d_entropy=numbers["entropy_coef"] / -minibatch,
            unit=unit,
            d_value=numbers["value_coef"] * (population.value_std[..., 0] / unit) / minibatch,
            max_norm=numbers["max_grad_norm"][:, 0],
            target_kl=torch.where(target > 0, target, torch.inf),
            highest_log_std=numbers["initial_log_std"][:, 0].clamp(min=0.0),
        )


class GradientStep(NamedTuple):
    """The results of one gradient step.

    Attributes:
        running: (G,) bool, members that continue with the next minibatch.
        distribution: of the minibatch's actions.
        log_ratio: (G, minibatch), log of the probability ratios.
        error: (G, minibatch), value errors in their unit.
        norms: (2, G), gradient norms of actors and critics.
    """

    running: Tensor
    distribution: Distribution
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
    )
    episode_state = (*Program.episode_state, "memory")
    _layout = 2

    def __init__(self, shape: Shape, device: torch.device | str = "cpu") -> None:
        super().__init__(shape, device)
        slots, rows = shape.slots, shape.minibatch
        self._distribution = distribution_of(shape)
        self.population = Population(shape, self.device)
        self.rollout = Rollout(shape, self.population, self.obs)
        self.optimizer = Adam(self.population.flat, shape)
        steps = shape.bptt if shape.recurrent else 1
        self._activations = Activations(shape, rows, self.device, steps)
        self._backward = Backward(shape, rows, self.device)
        self._batch = Transitions.empty(shape, (slots, rows), rows // steps, self.device)
        self._fused_loss = fused_loss(shape, self.device)
        # Gradient steps with and without early stopping, recorded where the device can.
        self.recorder = recorder_for(self.device)
        self._graphs: dict[bool, Repeated[GradientStep]] = {}
        self._native: UpdateKernel | None = None
        native = kernels(shape, self.device)
        if native is not None:
            self._native = UpdateKernel(
                native,
                shape,
                self.population.flat,
                self.optimizer,
                self.rollout.transitions,
                self.population.state_avg,
                self.population.state_std,
            )

    # One rollout and its gradient steps.

    def _collect(self, env: VecEnv) -> None:
        self.rollout.collect(env, self.streams, self.recorder)

    def _scales(self) -> list[tuple[Tensor, Tensor]]:
        return [(self.population.state_avg, self.population.state_std)]

    def _seen(self) -> tuple[Tensor, Tensor | None]:
        return self.rollout.seen()

    def play_stats(self) -> Mapping[str, Tensor]:
        """See `Program.play_stats`."""
        return self.rollout.play

    def _learn(self) -> RolloutStats:
        explained_variance = self.rollout.estimate(
            self.numbers["gamma"], self.numbers["gae_lambda"], self._activations
        )
        stats = self._update(explained_variance)
        self._average_weights()
        return stats

    def _update(self, explained_variance: Tensor) -> RolloutStats:
        """Make `epochs` passes of minibatches over the rollout."""
        shape, index = self.shape, self.rollout.index
        batches = index.batches(self.streams.permutations(shape.epochs, index.items))
        self.optimizer.lr = self._learning_rates()
        self.optimizer.prepare()
        # Before the terms of the loss: they depend on the value normalisers.
        self._scale_values()
        terms = LossTerms.of(self.numbers, self.population, shape.minibatch)
        # Members that stop early or diverge stay in the batch, so no tensor changes its shape.
        learns = self._live & ~self._diverged
        train = self._train if self._native is None else self._train_native
        # Without columns where there are several sets of weights per member: actions are discrete.
        log_std = self.population.weights.log_std[: shape.slots]
        return RolloutStats(
            reward=self.rollout.mean_reward(),
            **train(batches, learns, terms),
            explained_variance=explained_variance,
            std=log_std.exp().sum((1, 2)) / shape.action_dim,
        )

    def _train_native(self, batches: Tensor, learns: Tensor, terms: LossTerms) -> dict[str, Tensor]:
        """Do what `_train` does, with the native kernels."""
        assert self._native is not None
        population = self.population
        numbers = {
            **{name: number.view(-1) for name, number in vars(terms).items()},
            "clip": self.numbers["clip"][:, 0],
            "value_avg": population.value_avg[:, 0, 0],
            "value_std": population.value_std[:, 0, 0],
        }
        stats, diverged = self._native(batches, numbers, learns)
        self._diverged |= diverged
        return stats

    def _train(self, batches: Tensor, running: Tensor, terms: LossTerms) -> dict[str, Tensor]:
        """Make the gradient steps of a rollout.

        Args:
            batches: (steps, G * minibatch), transitions of each step.
            running: (G,) bool, members to update.
            terms: of the loss.

        Returns:
            (G,) each, those of the rollout's statistics that the gradient steps decide.
        """
        # Decided on the host: comparing the KL costs a reduction per minibatch, which most programs
        # do not need.
        stop_early = any(member.params.target_kl > 0 for member in self.members if member)
        steps_before = self.optimizer.step.clone()
        step = self._gradient_steps(batches, running, terms, stop_early=stop_early)
        return {**self._step_stats(step), "updates": self.optimizer.step - steps_before}

    def _gradient_steps(
        self, batches: Tensor, running: Tensor, terms: LossTerms, *, stop_early: bool
    ) -> GradientStep:
        """Make a gradient step per row of `batches` (steps, G * minibatch); return the last."""
        if self.recorder is None:
            for rows in batches.unbind(0):
                step = self._minibatch(rows, running, terms, stop_early=stop_early)
                running = step.running
            return step
        graph = self._graphs.get(stop_early)
        if graph is None:
            graph = self._graphs[stop_early] = self._graph(batches[0], running, terms, stop_early)
        graph.begin(running, *vars(terms).values())
        for rows in batches.unbind(0):
            graph.run(rows)
        return graph.result

    def _graph(
        self, rows: Tensor, running: Tensor, terms: LossTerms, stop_early: bool
    ) -> Repeated[GradientStep]:
        """Return a gradient step that can be recorded: its inputs are copies that stay."""
        rows, running = rows.clone(), running.clone()
        kept = LossTerms(*(term.clone() for term in vars(terms).values()))

        def make() -> GradientStep:
            step = self._minibatch(rows, running, kept, stop_early=stop_early)
            running.copy_(step.running)
            return step

        effect = Effect([self.population.flat], partial(self.optimizer.moves, running))
        return Repeated(make, [rows], [running, *vars(kept).values()], effect, self.recorder)

    def _minibatch(
        self, rows: Tensor, running: Tensor, terms: LossTerms, *, stop_early: bool
    ) -> GradientStep:
        """Make one gradient step.

        Gradients of members that do not run are computed as well, and not applied.

        Args:
            rows: (G * minibatch,), transitions of the rollout.
            running: (G,) bool, members to update.
            terms: of the loss.
            stop_early: whether to compare the KL divergence with `terms.target_kl`.
        """
        # Forward pass, into buffers that all minibatches share.
        weights, grads = self.population.weights, self.optimizer.grads
        batch, acts = self._batch, self._activations
        self.rollout.index.gather(self.rollout.transitions, rows, batch)
        if acts.cells is not None:
            batch.set_cells(acts.cells)
        obs = self.population.inputs(batch.obs)
        forward(weights, obs, acts)

        distribution = self._distribution(self.shape, acts.output, weights, batch.masks)
        loss = self._loss(distribution, terms, stop_early=stop_early)
        if loss.divergence is not None:
            # The step that exceeds the target is not made either. A comparison with `>`, negated,
            # lets NaN pass: the check of the gradients below marks such a member as diverged.
            # (`a > b` of booleans is `a and not b` in one launch.)
            running = running > (loss.divergence > terms.target_kl)

        # Backward pass and optimizer.
        self._backward(weights, obs, acts, loss.d_output, loss.d_critic.unsqueeze(-1), grads)
        norms = self.optimizer.norms()
        # A norm is finite only if every element of the gradient is.
        finite = norms.amax(0) < torch.inf  # false for NaN; `isfinite` is four launches
        self._diverged |= running > finite
        running = running & finite
        # A minibatch without a valid transition is skipped; the next one is not.
        stepped = running if batch.valid is None else running & batch.valid.any(-1)
        self.optimizer.apply(norms, terms.max_norm, stepped)
        # A larger deviation would push the samples into the saturated ends of tanh.
        weights.log_std[: self.shape.slots].clamp_(max=terms.highest_log_std.view(-1, 1, 1))
        return GradientStep(running, distribution, loss.log_ratio, loss.error, norms)

    def _loss(
        self, distribution: Distribution, terms: LossTerms, *, stop_early: bool
    ) -> LossGradients:
        """Compute the gradients of a minibatch's loss, after its forward pass.

        The gradients of the distribution's own weights are written to the optimizer's.
        """
        batch, acts, grads = self._batch, self._activations, self.optimizer.grads
        if self._fused_loss is not None:
            weights, of = self.population.weights, self.population
            found, d_log_std = self._fused_loss(acts, batch.side, weights, terms, of)
            if not self.shape.discrete:
                entropies = terms.d_entropy * self.shape.minibatch
                torch.add(d_log_std, entropies.unsqueeze(-1), out=grads.log_std)
            return found if stop_early else found._replace(divergence=None)

        # Gradient of the loss for the actors' outputs: d_output (G, B, action_dim).
        log_ratio = distribution.log_prob(batch.actions).sub_(batch.log_probs)
        advantages, d_entropy, d_value = batch.advantages, terms.d_entropy, terms.d_value
        if batch.valid is not None:
            # Means over the valid rows instead of all B. Invalid rows have advantage 0 already;
            # their entropy and value error must not contribute either.
            scale = self._valid_scale(batch.valid)
            advantages, d_value = advantages * scale, d_value * scale
            d_entropy = torch.where(batch.valid, d_entropy * scale, 0.0)
        ratio = log_ratio.exp()
        divergence = self._mean(ratio - 1.0 - log_ratio) if stop_early else None
        # The loss is minus the mean objective, hence -1/B.
        d_log_prob = surrogate_gradient(ratio, advantages, terms).mul_(-1.0 / self.shape.minibatch)
        d_output = distribution.backward(d_log_prob, d_entropy, grads)

        # Gradient for the critics' outputs v, with V = σ v + μ. The critic minimises
        #     c_v / B Σ smooth_l1(e),  e = (V - R) / u,  and smooth_l1'(e) = clamp(e, -1, 1).
        error = (self.rollout.value(acts.value) - batch.returns) / terms.unit
        if batch.valid is not None:
            error = torch.where(batch.valid, error, 0.0)
        d_critic = error.clamp(-1.0, 1.0).mul_(d_value)
        return LossGradients(d_output, d_critic, log_ratio, error, divergence)

    def _step_stats(self, step: GradientStep) -> dict[str, Tensor]:
        """Return statistics of a minibatch, (G,) each."""
        ratio = step.log_ratio.exp()
        size = step.error.abs()
        norms = step.norms.clone()  # the next rollout's replays overwrite those of a recorded step
        return {
            # smooth_l1(e) = e²/2 for |e| < 1, else |e| - 1/2
            "value_loss": self._mean(torch.where(size < 1.0, 0.5 * size * size, size - 0.5)),
            # Schulman's estimate of KL(old || new): http://joschu.net/blog/kl-approx.html
            "approx_kl": self._mean(ratio - 1.0 - step.log_ratio),
            "clip_fraction": self._mean(((ratio - 1.0).abs() > self.numbers["clip"]).float()),
            "actor_norm": norms[0],
            "critic_norm": norms[1],
            "entropy": self._mean(step.distribution.entropy()),
        }

    def _mean(self, numbers: Tensor) -> Tensor:
        """Return (G,), the mean over the last minibatch's valid rows of (G, minibatch or 1)."""
        valid = self._batch.valid
        if valid is None:
            return numbers.mean(-1)
        return torch.where(valid, numbers, 0.0).mean(-1) * self._valid_scale(valid)[:, 0]

    def _valid_scale(self, valid: Tensor) -> Tensor:
        """Return (G, 1), B / (number of valid rows), which rescales means over B rows."""
        return self.shape.minibatch / valid.sum(-1, keepdim=True).clamp_min(1)

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
        population = self.population
        return Actors(
            self.shape,
            population.acting(),
            population.state_avg.clone(),
            population.state_std.clone(),
        )

    def export_member(self, slot: int) -> tuple[StateDict, StateDict]:
        """See `Program.export_member`; `sweepd.agents.policy.frozen` saves and runs the actor."""
        self._member(slot)
        return self.population.export_member(slot)

    def acting_weights(self) -> StateDict:
        """See `Program.acting_weights`."""
        actors = [self.population.present_actor(slot) for slot in range(self.shape.slots)]
        return {name: torch.stack([actor[name] for actor in actors]) for name in actors[0]}

    def import_actor(self, slot: int, actor: Mapping[str, Tensor]) -> None:
        """See `Program.import_actor`."""
        _, critic = self.export_member(slot)
        # The first columns are the actor's; privileged ones keep the critic's own normaliser.
        columns = actor["state_avg"].numel()
        for name in ("state_avg", "state_std"):
            critic[name][:columns] = actor[name]
        # One that was trained with a fixed scale reads the same numbers, unless they are extreme.
        self.population.import_member(slot, clip_of(self.shape) | dict(actor), critic)
        if self.scale is not None:
            population = self.population
            self.scale.start(slot, population.state_avg[slot, 0], population.state_std[slot, 0])

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
            "state_avg": population.state_avg[slot],
            "state_std": population.state_std[slot],
            "value_avg": population.value_avg[slot],
            "value_std": population.value_std[slot],
        }

    def _occupy(self, slot: int, member: Member) -> None:
        super()._occupy(slot, member)
        self.population.popart[slot] = member.params.popart_beta > 0
        self.population.averaged[slot] = member.params.weight_average > 0
        self.optimizer.eps[slot] = member.params.adam_eps
        self.optimizer.weight_decay[slot] = member.params.weight_decay

    def _memory(self, slot: int) -> Tensor:
        """Return (2, num_envs, state size), the recurrent states of the slot's actor and critic."""
        memory = self.rollout.memory
        return memory.view(2, self.shape.slots, *memory.shape[1:])[:, slot]

    def _shape_code_extras(self) -> list[int]:
        """Return a hash of the fields that `Program._shape_code` does not list.

        Only fields that differ from their default enter the hash, so states saved before a field
        existed keep their code.
        """
        used = [
            f"{_NAME_IN_CODE.get(field.name, field.name)}={value}"
            for field in fields(self.shape)
            if field.name not in _NOT_IN_HASH
            and (value := getattr(self.shape, field.name)) != field.default
        ]
        return [derive_seed(*used)] if used else []


def surrogate_gradient(ratio: Tensor, advantages: Tensor, terms: LossTerms) -> Tensor:
    """Return the derivative of PPO's clipped objective by each row's log-probability.

    The objective (Schulman et al., 2017, eq. 7) is, per row with probability ratio r and
    advantage A,

        J = min(A r, A clip(r, 1 - ε, 1 + ε)),    r = exp(log π(a|s) - log π_old(a|s)).

    Since dr / d(log π) = r, its derivative is A r where the first term is the smaller one or equal,
    and 0 where clipping makes it constant.

    Args:
        ratio: (G, rows), r.
        advantages: (G, rows), A.
        terms: with 1 - ε and 1 + ε.
    """
    plain = advantages * ratio
    clipped = torch.clamp(ratio, terms.low, terms.high).mul_(advantages)
    return torch.where(plain <= clipped, plain, 0.0)


# Fields of a shape that `Program._shape_code` lists, and those that a state does not depend on.
_NOT_IN_HASH = {
    *("discrete", "state_dim", "action_dim", "privileged_dim", "net_width", "net_depth"),
    *("num_envs", "horizon", "minibatch", "epochs", "slots", "algorithm", "seat_column"),
}
# Fields that enter the hash by another name than their own, so that stored states keep their code.
_NAME_IN_CODE = {"has_absent_agents": "crewed"}
