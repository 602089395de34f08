"""Proximal policy optimization (Schulman et al., 2017) for G members at once, on G * num_envs rows of one vectorized
environment.

It is ElegantRL's PPO: a Gaussian before tanh whose log-probability is that of the sample before tanh, or a categorical
distribution (`agents.networks.distributions`), a smooth-L1 critic, and separate networks, each with its own gradient clip and
Adam. It differs in five points: every transition is used once per epoch (a permutation per member), a truncated episode
is bootstrapped with the value of its last observation, advantages are normalised over the member's whole rollout, value
targets are normalised by a running mean and deviation where `popart_beta` is above 0 (`agents.algorithms.popart`), and all random
numbers come from a stream per member.

Reading order: `train` collects a rollout, estimates advantages and updates. Nothing in these loops reads a tensor's
value on the host, except the environment's fault latch, once per rollout; nothing mixes members. A member whose
gradient is no longer finite is latched as diverged and stops learning; its rows go on with finite actions, and the
others don't notice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

import torch
from torch import Tensor

from agents.algorithms.popart import scale_values
from agents.algorithms.ppo_params import NUMBERS, SCHEDULES, PPOParams
from agents.engine.acting import Actors
from agents.engine.population import Population, StateDict
from agents.engine.rollout import Rollout, Transitions
from agents.networks.distributions import Distribution, distribution_of
from agents.networks.mlp import Activations, Backward, forward, new_gradients
from agents.networks.optimizer import Adam
from agents.networks.shape import Shape, env_fields
from envs.core.streams import Streams, derive_seed
from envs.core.vec_env import VecEnv
from envs.support.errors import InputError

__all__ = ["PPO", "PPOParams", "RolloutStats", "Shape"]

# Fields of a shape that stand in a member's state as they are, and those that a member doesn't depend on.
_IN_CODE = {
    "discrete",
    "state_dim",
    "action_dim",
    "privileged_dim",
    "net_width",
    "net_depth",
    "num_envs",
    "horizon",
    "minibatch",
    "epochs",
    "slots",
    "algorithm",
}
# Fields that had another name in states saved before version 0.1.0.
_NAME_IN_CODE = {"has_absent_agents": "crewed"}


class RolloutStats(NamedTuple):
    """One rollout of every slot, on the device, (G,) float32; what stands in empty or diverged slots means nothing.

    reward: mean per step; value_loss (of normalised returns with return scaling), approx_kl, clip_fraction, actor_norm,
    critic_norm: of the rollout's last minibatch, the norms before clipping; explained_variance: of the returns by the
    values before the update; entropy: in nats (of the Gaussian before tanh as it is after the update; of the last
    minibatch's categorical distributions); std: mean over actions, 0 where they are discrete; updates: gradient steps
    made.
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


@dataclass
class _Slot:
    params: PPOParams
    total_rollouts: int
    rollouts: int = 0
    has_obs: bool = False


class _Terms(NamedTuple):
    """What a rollout's gradient steps take of the members' numbers, (G, 1): the bounds of the clipped ratio, the loss's
    derivative by each row's entropy, the unit of value errors, the loss's derivative by a critic's output per clipped
    error; (G,): the largest norm, the KL to stop at (infinite where off).
    """

    low: Tensor
    high: Tensor
    d_entropy: Tensor
    unit: Tensor
    pull: Tensor
    max_norm: Tensor
    target_kl: Tensor

    @classmethod
    def of(cls, numbers: Mapping[str, Tensor], population: Population, minibatch: int) -> _Terms:
        target, unit = numbers["target_kl"][:, 0], population.value_unit()[..., 0]
        return cls(
            low=1.0 - numbers["clip"],
            high=1.0 + numbers["clip"],
            d_entropy=numbers["entropy_coef"] / -minibatch,
            unit=unit,
            pull=numbers["value_coef"] * (population.value_std[..., 0] / unit) / minibatch,
            max_norm=numbers["max_grad_norm"][:, 0],
            target_kl=torch.where(target > 0, target, torch.inf),
        )


class PPO:
    """One program: `shape.slots` members, trained together on an environment of as many members with `shape.num_envs`
    rows each.

    A slot is empty until `add_member` or `set_member`. Empty slots compute along as dummies.
    """

    def __init__(self, shape: Shape, device: torch.device | str = "cpu") -> None:
        if shape.algorithm != "ppo":
            raise InputError(f"algorithm must be 'ppo' for this program, not {shape.algorithm!r}.")
        self.shape = shape
        self.device = torch.device(device)
        slots = shape.slots
        self._distribution = distribution_of(shape)
        self.population = Population(shape, self.device)
        self.rollout = Rollout(shape, self.population)
        self.optimizer = Adam(self.population.flat, shape)
        self.streams = Streams(slots, self.device)
        self._slots: list[_Slot | None] = [None] * slots
        self._live = torch.zeros(slots, dtype=torch.bool, device=self.device)
        self._diverged = torch.zeros(slots, dtype=torch.bool, device=self.device)
        self._numbers = {name: torch.zeros(slots, 1, device=self.device) for name in NUMBERS}

        rows = shape.minibatch
        steps = shape.bptt if shape.recurrent else 1
        self._learning = Activations(shape, rows, self.device, steps)
        self._backward = Backward(shape, rows, self.device)
        self._grads = new_gradients(shape, self.device)
        self._batch = Transitions.empty(shape, (slots, rows), rows // steps, self.device)

    def add_member(
        self,
        slot: int,
        params: PPOParams,
        seed: int,
        total_rollouts: int,
        state_avg: Tensor,
        state_std: Tensor,
    ) -> None:
        """Put a new member into a slot; whoever was there is gone.

        seed: its weights, exploration and minibatches follow from it; total_rollouts: what its learning-rate schedule
        spans; state_avg, state_std: (state_dim,) or (obs_dim,), frozen for good. Its first observation comes from
        `begin`.
        """
        if total_rollouts < 1:
            raise InputError(f"total_rollouts must be at least 1, not {total_rollouts}.")
        self.remove_member(slot)
        self.population.new_member(
            slot, derive_seed(seed, "weights"), params.initial_log_std, state_avg, state_std
        )
        self.streams.seed(slot, derive_seed(seed, "ppo"))
        self._occupy(slot, _Slot(params, total_rollouts))
        if params.popart_beta > 0:
            self.population.value_std[slot] = 0  # no returns are known yet

    def remove_member(self, slot: int) -> None:
        """Make a slot empty."""
        self.population.clear(slot)
        self.optimizer.reset(slot)
        self.streams.seed(slot, None)
        self._slots[slot] = None
        self._live[slot] = self._diverged[slot] = self.population.popart[slot] = False
        self._rows(self.rollout.obs, slot).zero_()
        self._memory(slot).zero_()

    def begin(self, obs: Tensor, slots: Sequence[int] | None = None) -> None:
        """Hand over the rows' present observations, (G * num_envs, obs_dim), as `VecEnv.reset` returns them, where
        episodes begin; of some slots only, if named.
        """
        for slot in range(self.shape.slots) if slots is None else slots:
            member = self._slots[slot]
            if member is not None:
                self._rows(self.rollout.obs, slot).copy_(self._rows(obs, slot))
                self._memory(slot).zero_()
                member.has_obs = True

    @property
    def diverged(self) -> list[bool]:
        """Per slot, whether its member's gradient or loss stopped being finite; it has learned nothing since. Reads
        the device.
        """
        return [bool(flag) for flag in self._diverged.tolist()]

    @property
    def rollouts(self) -> list[int]:
        """Per slot, how many rollouts its member has trained on; 0 where empty."""
        return [member.rollouts if member else 0 for member in self._slots]

    def get_member(self, slot: int) -> dict[str, Tensor]:
        """Everything a member needs to go on exactly, in any slot of a program of this shape: a flat dict of CPU
        tensors (safetensors-ready).
        """
        member = self._member(slot)
        schedule = SCHEDULES.index(member.params.lr_schedule)
        state = {
            **self._state(slot),
            "shape": self._shape_code(),
            "params": torch.tensor(
                [getattr(member.params, name) for name in NUMBERS], dtype=torch.float64
            ),
            "counters": torch.tensor(
                [member.rollouts, member.total_rollouts, schedule, int(member.has_obs)]
            ),
            "stream": self.streams.state(slot),
        }
        return {
            name: tensor.detach().to("cpu", copy=True).contiguous()
            for name, tensor in state.items()
        }

    def set_member(self, slot: int, state: Mapping[str, Tensor]) -> None:
        """Put back what `get_member` returned, in this or another slot. Raises InputError where it is of another shape
        or incomplete.
        """
        targets = self._state(slot)
        wanted = {*targets, "shape", "params", "counters", "stream"}
        if set(state) != wanted:
            raise InputError(
                f"A member's state must hold {sorted(wanted)}, and holds {sorted(state)}."
            )
        if not torch.equal(state["shape"], self._shape_code()):
            raise InputError(
                f"The member's state is of shape {state['shape'].tolist()}, which is not {self.shape}."
            )
        for name, target in targets.items():
            if state[name].shape != target.shape or state[name].dtype != target.dtype:
                given = f"{tuple(state[name].shape)} {state[name].dtype}"
                raise InputError(
                    f"The member's {name} is {given}, not {tuple(target.shape)} {target.dtype}."
                )
        self.remove_member(slot)
        for name, target in targets.items():
            target.copy_(state[name])
        self.streams.set_state(slot, state["stream"])
        rollouts, total, schedule, has_obs = state["counters"].tolist()
        numbers = dict(
            zip(NUMBERS, state["params"].tolist(), strict=False)
        )  # older states lack the last ones
        params = PPOParams(**numbers, lr_schedule=SCHEDULES[schedule])
        self._occupy(slot, _Slot(params, total, rollouts, bool(has_obs)))

    def act_fn(self, slots: Sequence[int] | None = None) -> Actors:
        """The members' actors as they are now, which act deterministically; training on doesn't change them.

        slots: which members (all by default; numbers that must not depend on the company come from all slots).
        """
        chosen = list(range(self.shape.slots)) if slots is None else list(slots)
        population = self.population
        return Actors(
            replace(self.shape, slots=len(chosen)),
            population.flat[:, chosen].clone(),
            population.state_avg[chosen].clone(),
            population.state_std[chosen].clone(),
        )

    def export_member(self, slot: int) -> tuple[StateDict, StateDict]:
        """(actor, critic) as ElegantRL's modules load them; the actor is what `agents.policy.frozen` saves and runs."""
        self._member(slot)
        return self.population.export_member(slot)

    @torch.no_grad()
    def train(
        self,
        env: VecEnv,
        rollouts: int,
        on_rollout: Callable[[RolloutStats], bool | None] | None = None,
    ) -> list[RolloutStats]:
        """Collect and learn from that many rollouts; every member in a slot advances by as many.

        A program that was never given an observation resets the environment itself. on_rollout: called after each
        rollout; returning True ends the training there, where a checkpoint may be taken. Raises RunError where the
        environment latched a fault, before learning from that rollout; ValueError where environment and shape don't
        fit, or a member has no observation.
        """
        self._check(env)
        if not any(member.has_obs for member in self._slots if member):
            self.begin(env.reset())
        if any(not member.has_obs for member in self._slots if member):
            raise ValueError(
                "a member was added without its first observation: call begin() with the environment's"
            )
        history: list[RolloutStats] = []
        for _ in range(rollouts):
            self.rollout.collect(env, self.streams)
            if bool(env.faults().any()):
                env.check()
            explained = self.rollout.estimate(
                self._numbers["gamma"], self._numbers["gae_lambda"], self._learning
            )
            history.append(self._update(explained))
            for member in self._slots:
                if member is not None:
                    member.rollouts += 1
            if on_rollout is not None and on_rollout(history[-1]):
                break
        return history

    def _update(self, explained: Tensor) -> RolloutStats:
        """Epochs of minibatches over the rollout."""
        shape, slots = self.shape, self.shape.slots
        batches = self.rollout.batches(
            self.streams.permutations(shape.epochs, self.rollout.shuffled)
        )
        self.optimizer.lr = [self._learning_rate(slot) for slot in range(slots)]
        self._scale_values()
        stop_early = any(member.params.target_kl > 0 for member in self._slots if member)
        terms = _Terms.of(self._numbers, self.population, shape.minibatch)
        running = self._live & ~self._diverged
        updates = torch.zeros(slots, device=self.device)
        for rows in batches.unbind(0):
            running, stepped, distribution, losses = self._minibatch(
                rows, running, terms, stop_early=stop_early
            )
            updates += stepped
        log_std = self.population.weights.log_std
        return RolloutStats(
            reward=self.rollout.mean_reward(),
            **self._minibatch_stats(*losses, distribution),
            explained_variance=explained,
            std=log_std.exp().sum((1, 2)) / shape.action_dim,
            updates=updates,
        )

    def _scale_values(self) -> None:
        """Let the value normalisers of members with return scaling follow the rollout's returns."""
        rollouts = torch.tensor(
            [[member.rollouts if member else 0] for member in self._slots], device=self.device
        )
        rate = torch.maximum(self._numbers["popart_beta"], 1.0 / (rollouts + 1))
        learns = (self._live & ~self._diverged).unsqueeze(-1)
        scale_values(
            self.population, *self.rollout.moments(), rate, self.population.popart[..., 0] & learns
        )

    def _minibatch(
        self, rows: Tensor, running: Tensor, terms: _Terms, *, stop_early: bool
    ) -> tuple[Tensor, Tensor, Distribution, tuple[Tensor, Tensor, Tensor]]:
        """One gradient step on the transitions `rows` (G * minibatch,) of the members `running` (G,) bool. Gradients of
        the others are computed, too, and left unused.

        Returns which members keep running, which of them made this step (a minibatch without any transition to learn
        from is skipped, the next one is not), the actions' distribution, and (log of the probability ratios, value
        errors, gradient norms).
        """
        weights, batch, acts, grads = (
            self.population.weights,
            self._batch,
            self._learning,
            self._grads,
        )
        self.rollout.gather(rows, batch)
        if acts.cells is not None:
            batch.remind(acts.cells)
        obs = self.population.inputs(batch.obs)
        forward(weights, obs, acts)

        # The actor maximises mean(min(A * ratio, A * clipped ratio) + entropy_coef * entropy).
        distribution = self._distribution(self.shape, acts.output, weights, batch.masks)
        old_log_prob, advantage, returns = batch.side[..., -3:].unbind(-1)
        log_ratio = distribution.log_prob(batch.actions).sub_(old_log_prob)
        d_entropy, pull, learned = terms.d_entropy, terms.pull, batch.learned
        if learned is not None:
            # The others' advantage is 0 already; their entropy and their error must not count either.
            share = self._share(learned)
            advantage, pull = advantage * share, pull * share
            d_entropy = torch.where(learned, d_entropy * share, 0.0)
        ratio = log_ratio.exp()
        if stop_early:
            running = running & ~(self._mean(ratio - 1.0 - log_ratio) > terms.target_kl)
        plain = advantage * ratio
        clipped = torch.clamp(ratio, terms.low, terms.high).mul_(advantage)
        d_log_prob = torch.where(plain <= clipped, plain, 0.0).mul_(-1.0 / self.shape.minibatch)
        d_output = distribution.backward(d_log_prob, d_entropy, grads)

        # The critic minimises value_coef * smooth L1 of (value - return) / unit; its derivative is the clipped error.
        error = (self.rollout.value(acts.value) - returns) / terms.unit
        if learned is not None:
            error = torch.where(learned, error, 0.0)
        d_value = error.clamp(-1.0, 1.0).mul_(pull)

        self._backward(weights, obs, acts, d_output, d_value.unsqueeze(-1), grads)
        norms = self.optimizer.norms(grads)
        finite = torch.isfinite(norms).all(0)
        self._diverged |= running & ~finite
        running = running & finite
        stepped = running if learned is None else running & learned.any(-1)
        self.optimizer.apply(norms, terms.max_norm, stepped)
        weights.log_std.clamp_(max=0.0)
        return running, stepped, distribution, (log_ratio, error, norms)

    def _minibatch_stats(
        self, log_ratio: Tensor, error: Tensor, norms: Tensor, distribution: Distribution
    ) -> dict[str, Tensor]:
        ratio = log_ratio.exp()
        size = error.abs()
        return {
            "value_loss": self._mean(torch.where(size < 1.0, 0.5 * size * size, size - 0.5)),
            "approx_kl": self._mean(ratio - 1.0 - log_ratio),
            "clip_fraction": self._mean(((ratio - 1.0).abs() > self._numbers["clip"]).float()),
            "actor_norm": norms[0],
            "critic_norm": norms[1],
            "entropy": self._mean(distribution.entropy()),
        }

    def _mean(self, numbers: Tensor) -> Tensor:
        """(G,): over the last minibatch, of (G, rows) numbers, or (G, 1) where they are the same for all rows."""
        learned = self._batch.learned
        if learned is None:
            return numbers.mean(-1)
        return torch.where(learned, numbers, 0.0).mean(-1) * self._share(learned)[:, 0]

    def _share(self, learned: Tensor) -> Tensor:
        """(G, 1): how often the rows (G, minibatch) of which something is to be learned fill the minibatch."""
        return self.shape.minibatch / learned.sum(-1, keepdim=True).clamp_min(1)

    def _state(self, slot: int) -> dict[str, Tensor]:
        """The tensors that are a member's, as views."""
        population, optimizer = self.population, self.optimizer
        memory = {"memory": self._memory(slot)} if self.shape.recurrent else {}
        return {
            **memory,
            "weights": population.flat[:, slot],
            "adam_m": optimizer.m[:, slot],
            "adam_v": optimizer.v[:, slot],
            "adam_step": optimizer.step[slot],
            "state_avg": population.state_avg[slot],
            "state_std": population.state_std[slot],
            "value_avg": population.value_avg[slot],
            "value_std": population.value_std[slot],
            "diverged": self._diverged[slot],
            "obs": self._rows(self.rollout.obs, slot),
        }

    def _rows(self, tensor: Tensor, slot: int) -> Tensor:
        return tensor[slot * self.shape.num_envs : (slot + 1) * self.shape.num_envs]

    def _memory(self, slot: int) -> Tensor:
        """(2, num_envs, remembered): what the slot's actor and critic remember."""
        memory = self.rollout.memory
        return memory.view(2, self.shape.slots, *memory.shape[1:])[:, slot]

    def _member(self, slot: int) -> _Slot:
        member = self._slots[slot]
        if member is None:
            raise ValueError(f"slot {slot} is empty")
        return member

    def _occupy(self, slot: int, member: _Slot) -> None:
        self._slots[slot] = member
        self._live[slot] = True
        for name, numbers in self._numbers.items():
            numbers[slot] = getattr(member.params, name)
        self.population.popart[slot] = member.params.popart_beta > 0
        self.optimizer.eps[slot] = member.params.adam_eps
        self.optimizer.weight_decay[slot] = member.params.weight_decay

    def _learning_rate(self, slot: int) -> float:
        member = self._slots[slot]
        return (
            member.params.learning_rate_at(member.rollouts, member.total_rollouts)
            if member
            else 0.0
        )

    def _shape_code(self) -> Tensor:
        shape = self.shape
        sizes = (
            shape.state_dim,
            shape.action_dim,
            shape.privileged_dim,
            shape.net_width,
            shape.net_depth,
        )
        layout = 2  # of the flat weights, and of this code
        code = [
            layout,
            int(shape.discrete),
            *sizes,
            shape.num_envs,
            shape.horizon,
            shape.minibatch,
            shape.epochs,
        ]
        # Fields that came later count where they are used, so that states of before still fit.
        later = [field for field in fields(shape) if field.name not in _IN_CODE]
        used = [
            f"{_NAME_IN_CODE.get(field.name, field.name)}={value}"
            for field in later
            if (value := getattr(shape, field.name)) != field.default
        ]
        return torch.tensor([*code, derive_seed(*used)] if used else code)

    def _check(self, env: VecEnv) -> None:
        given = env_fields(env)
        wanted = {name: getattr(self.shape, name) for name in given}
        if wanted != given:
            raise ValueError(f"the environment's {given} are not the shape's {wanted}")
