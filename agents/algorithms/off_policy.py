"""Off-policy learning for G members at once: what SAC and D3QN share.

A rollout is `horizon` steps of every row, stored in the members' replay buffers, then `updates`
gradient steps on minibatches sampled from them. While a member has fewer than `warmup` transitions,
it acts at random and does not learn.

Nothing in these loops reads a tensor's value on the host, except the environment's fault latch,
once per rollout. Nothing mixes members. A member whose gradient is not finite is marked as diverged
and is not updated again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from sweepd.agents.engine.graphs import Effect, Repeated, recorder_for
from sweepd.agents.engine.program import Act, Member, Program, check_tensors
from sweepd.agents.engine.replay import Batch, ReplayBuffers
from sweepd.agents.native.choice import Evaluator, kernels
from sweepd.agents.native.kernels import Kernels
from sweepd.agents.native.off_policy import ReplayKernel, Trained
from sweepd.agents.networks.net import Net, StateDict
from sweepd.agents.networks.optimizer import Adam
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.spec import NetSpec
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.upload import upload

Figures = dict[str, Tensor]


class Tally:
    """Sums over a rollout's gradient steps, in tensors that stay where they are.

    Attributes:
        running: (G,) bool, members that make the next step.
        updates: (G,), steps made.
        totals: (G,) by name, sums of the steps' statistics.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self.running = torch.zeros(slots, dtype=torch.bool, device=device)
        self.updates = torch.zeros(slots, device=device)
        self.totals: Figures = {}

    def begin(self, running: Tensor) -> None:
        """Start a rollout with the members `running`."""
        self.running.copy_(running)
        for numbers in (self.updates, *self.totals.values()):
            numbers.zero_()

    def add(self, running: Tensor, figures: Figures) -> None:
        """Add a step with its statistics; `running` are the members that made it."""
        self.running.copy_(running)
        self.updates += running
        for name, value in figures.items():
            if name not in self.totals:
                self.totals[name] = torch.zeros_like(value)
            # `where` instead of a product: a diverged member's NaN times 0 is NaN.
            self.totals[name] += torch.where(running, value, 0.0)

    def means(self) -> Figures:
        """Return the means over the steps made."""
        return {name: total / self.updates.clamp(min=1.0) for name, total in self.totals.items()}


class OffPolicy(Program):
    """A program that learns from replay buffers. These hold observations before normalisation.

    Attributes:
        networks: by name.
        optimizers: of those that learn.
        replay: the members' replay buffers.
    """

    def __init__(
        self,
        shape: Shape,
        device: torch.device | str,
        networks: dict[str, Net],
        columns: int,
        *,
        acts: str,
        discrete: bool,
    ) -> None:
        """Set up a program.

        Args:
            shape: its shape.
            device: where it runs.
            networks: by name; "target" does not learn.
            columns: floats of a stored action.
            acts: name of the network that acts.
            discrete: whether the algorithm takes discrete actions.

        Raises:
            InputError: the algorithm does not take the shape's actions.
        """
        super().__init__(shape, device)
        if shape.if_discrete != discrete:
            takes = "one of several choices" if discrete else "numbers"
            raise InputError(
                f"{self.algorithm} takes actions that are {takes}; this environment's are not."
            )
        self.networks, self._acts = networks, acts
        self.optimizers = {
            name: Adam(net.flat.unsqueeze(0), [*net.weights.values()])
            for name, net in networks.items()
            if name != "target"
        }
        self.replay = ReplayBuffers(
            shape.slots,
            shape.num_envs,
            shape.buffer // shape.num_envs,
            shape.horizon,
            shape.obs_dim,
            columns,
            self.device,
        )
        native = kernels(shape, self.device)
        # None: torch makes the gradient steps.
        self._native: ReplayKernel | None = None
        if native is not None and not shape.privileged_dim:
            self._native = self._replay_kernel(native)
        self._run = Evaluator(shape, networks[acts])
        self._reward = torch.zeros(shape.slots, device=self.device)  # mean of the latest rollout
        # Gradient steps are recorded where the device can.
        self.recorder = recorder_for(self.device)
        self._tally = Tally(shape.slots, self.device)
        self._repeated: Repeated[None] | None = None

    def _replay_kernel(self, native: Kernels) -> ReplayKernel:
        normalisers = self.networks[self._learned].normalisers
        return ReplayKernel(
            native,
            self.shape,
            self._trained(),
            self.replay.rings,
            (normalisers["state_avg"], normalisers["state_std"]),
        )

    def _scales(self) -> list[tuple[Tensor, Tensor]]:
        parts = [network.normalisers for network in self.networks.values()]
        return [(part["state_avg"], part["state_std"]) for part in parts]

    def _seen(self) -> tuple[Tensor, None]:
        return self.replay.latest_obs(), None

    # What an algorithm implements, besides `params_type` and `stats_type`.

    @abstractmethod
    def _noise(self, steps: int) -> Tensor:
        """Return (steps, G, num_envs, k), the random numbers of `_explore` for a rollout."""

    @abstractmethod
    def _explore(self, obs: Tensor, noise: Tensor, random: Tensor) -> Tensor:
        """Return exploring actions as stored, (G, num_envs, columns).

        Args:
            obs: (G, num_envs, obs_dim).
            noise: one step of `_noise`.
            random: (G, 1, 1), probability of a random action; 1 during a member's warm-up.
        """

    @abstractmethod
    def _to_env(self, stored: Tensor) -> Tensor:
        """Convert stored actions to the environment's form; NaN becomes a legal action."""

    @abstractmethod
    def _update_noise(self) -> Tensor | None:
        """Return (updates, …), the random numbers of `_update` for a rollout's gradient steps."""

    @abstractmethod
    def _update(
        self, batch: Batch, noise: Tensor | None, running: Tensor
    ) -> tuple[Tensor, Figures]:
        """Make one gradient step of the running members.

        Args:
            batch: transitions of all members.
            noise: one step of `_update_noise`.
            running: (G,) bool.

        Returns:
            The members still running, (G,) bool, and statistics (G,) by name.
        """

    # Name of the network whose values are learned.
    _learned: ClassVar[str]

    @abstractmethod
    def _trained(self) -> dict[str, Trained]:
        """Return the networks as `ReplayKernel` takes them."""

    def _optimizers(self) -> list[tuple[Adam, float]]:
        """Return the optimizers, each with the factor on the members' learning rate."""
        return [(adam, 1.0) for adam in self.optimizers.values()]

    def _explore_rates(self) -> Tensor:
        """Return (G,), the probability of random actions in this rollout, after the warm-up."""
        return torch.zeros(self.shape.slots, device=self.device)

    def _own_figures(self) -> Figures:
        """Return statistics of the rollout that are not means over its gradient steps."""
        return {}

    @abstractmethod
    def _policy(self, run: Evaluator, obs: Tensor) -> Tensor:
        """Return deterministic actions in the environment's form at obs (G, rows, obs_dim).

        Args:
            run: the networks that act.
            obs: the observations.
        """

    @property
    def actor_spec(self) -> NetSpec:
        """See `Program.actor_spec`."""
        return self.networks[self._acts].spec

    def acting_weights(self) -> StateDict:
        """See `Program.acting_weights`."""
        return self.networks[self._acts].named()

    def clear_replay(self, slot: int) -> None:
        """See `Program.clear_replay`. The warm-up is not repeated: the member goes on acting."""
        self.replay.clear(slot)

    def act_fn(self) -> Act:
        """See `Program.act_fn`."""
        run = Evaluator(self.shape, self.networks[self._acts].copy())

        @torch.no_grad()
        def act(obs: Tensor) -> Tensor:
            return self._policy(run, obs.view(self.shape.slots, -1, obs.shape[-1]))

        return act

    def _collect(self, env: VecEnv) -> None:
        """Step the environment `horizon` times and store the transitions."""
        shape = self.shape
        noise = self._noise(shape.horizon)
        # A member that has not yet collected its warm-up acts at random.
        collected = torch.tensor([self._collected(slot) for slot in range(shape.slots)])
        collected = upload(collected, self.device)
        warmup, rates = self.numbers["warmup"][:, 0], self._explore_rates()
        self._reward = torch.zeros(shape.slots, device=self.device)
        env.draw(shape.horizon)
        for step in range(shape.horizon):
            # A copy: the environment writes its next observations into `self.obs`.
            obs = self.obs.view(shape.slots, shape.num_envs, -1).clone()
            random = torch.where(collected + step * shape.num_envs < warmup, 1.0, rates)
            stored = self._explore(obs, noise[step], random.view(-1, 1, 1))
            result = env.step(self._to_env(stored), out=self.obs)
            self.replay.note(obs, stored, result, self.numbers["reward_scale"], env)
            self._reward += result.reward.view(shape.slots, -1).mean(1) / shape.horizon
        self.replay.store()

    def _learn(self) -> Any:
        shape = self.shape
        self._set_rates()
        # All random numbers of the rollout's gradient steps at once, also of members that do not
        # learn yet: how many a member draws must not depend on the others.
        rows = self.replay.draw(self.streams, shape.updates, shape.minibatch)
        noise = self._update_noise()
        # Known on the host from counters, so nothing is read from the device.
        ready = [
            member is not None and self._collected(slot) + shape.samples >= member.params.warmup
            for slot, member in enumerate(self.members)
        ]
        tally = self._tally
        tally.begin(self._live & ~self._diverged & upload(torch.tensor(ready), self.device))
        if any(ready):
            train = self._train if self._native is None else self._train_native
            train(rows, noise)
        means, updates = tally.means(), tally.updates.clone()
        nothing = torch.zeros_like(updates)
        own = self._own_figures() | {"reward": self._reward, "updates": updates}
        return self.stats_type(
            **{name: own.get(name, means.get(name, nothing)) for name in self.stats_type._fields}
        )

    def _set_rates(self) -> None:
        """Set the learning rates of this rollout."""
        rates = self._learning_rates()
        for adam, factor in self._optimizers():
            adam.lr = [factor * rate for rate in rates]

    def _train(self, rows: Tensor, noise: Tensor | None) -> None:
        """Make the gradient steps of a rollout.

        Args:
            rows: (updates, G * minibatch), transitions of each step.
            noise: of `_update_noise`.
        """
        for adam, _ in self._optimizers():
            adam.prepare()
        take_step = self._gradient_step if self.recorder is None else self._recorded_step
        for step in range(self.shape.updates):
            take_step(rows[step], *(() if noise is None else (noise[step],)))

    def _train_native(self, rows: Tensor, noise: Tensor | None) -> None:
        """Do what `_train` does, with the native kernels."""
        assert self._native is not None
        tally = self._tally
        numbers = {
            "target_entropy": torch.zeros(self.shape.slots),  # for D3QN, which has none
            **self.numbers,
            **self.networks[self._learned].normalisers,
        }
        tally.totals, diverged = self._native(rows, noise, numbers, tally.running)
        tally.updates.copy_(tally.totals.pop("updates"))
        self._diverged |= diverged

    def _gradient_step(self, rows: Tensor, noise: Tensor | None = None) -> None:
        """Make one gradient step of the running members.

        Args:
            rows: (G * minibatch,), of the replay buffers.
            noise: one step of `_update_noise`.
        """
        tally = self._tally
        tally.add(*self._update(self.replay.gather(rows), noise, tally.running))

    def recorded_steps(self) -> dict[str, list[bool]]:
        steps = [] if self._repeated is None else [self._repeated.recorded]
        return {"gradient": steps, "rollout": []}

    def _recorded_step(self, *inputs: Tensor) -> None:
        """Make one gradient step, recorded once and replayed. Arguments as of `_gradient_step`."""
        if self._repeated is None:
            own = [tensor.clone() for tensor in inputs]
            step, adam = partial(self._gradient_step, *own), self.optimizers[self._learned]
            flat = self.networks[self._learned].flat
            effect = Effect([flat], lambda: adam.moves(self._tally.running))
            self._repeated = Repeated(step, own, [], effect, self.recorder)
        self._repeated.run(*inputs)

    def _diverge(self, running: Tensor, norms: Tensor) -> Tensor:
        """Return the running members whose gradients are finite; mark the others as diverged."""
        finite = norms < torch.inf  # of norms, which are not negative; false for NaN
        self._diverged |= running > finite
        return running & finite

    def _occupy(self, slot: int, member: Member) -> None:
        super()._occupy(slot, member)
        for adam, _ in self._optimizers():
            adam.eps[slot] = member.params.adam_eps
            adam.weight_decay[slot] = member.params.weight_decay

    def _clear(self, slot: int) -> None:
        for network in self.networks.values():
            network.clear(slot)
        for adam, _ in self._optimizers():
            adam.reset(slot)
        self.replay.clear(slot)

    def _tensors(self, slot: int) -> dict[str, Tensor]:
        own = {name: network.tensors(slot) for name, network in self.networks.items()}
        for name, adam in self.optimizers.items():
            own[name] |= adam.tensors(slot)
        return {
            f"{name}.{part}": tensor
            for name, parts in own.items()
            for part, tensor in parts.items()
        }

    def _save(self, slot: int) -> dict[str, Tensor]:
        return self._tensors(slot) | {
            f"replay.{name}": part for name, part in self.replay.get_member(slot).items()
        }

    def _check_state(self, slot: int, state: Mapping[str, Tensor]) -> None:
        targets = self._tensors(slot)
        wanted = {*targets, *(f"replay.{name}" for name in self.replay.get_member(slot))}
        if set(state) != wanted:
            raise InputError(
                f"A member's state must hold {sorted(wanted)}, and holds {sorted(state)}."
            )
        check_tensors(targets, {name: state[name] for name in targets})
        self.replay.check_member(_replayed(state))

    def _load(self, slot: int, state: Mapping[str, Tensor], params: Any) -> None:  # noqa: ARG002
        for name, target in self._tensors(slot).items():
            target.copy_(state[name])
        self.replay.set_member(slot, _replayed(state))


def _replayed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {
        name.removeprefix("replay."): part
        for name, part in state.items()
        if name.startswith("replay.")
    }
