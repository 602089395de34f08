"""Any external environment as a `VecEnv`: for learners, it is one like ours."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.core.streams import Streams
from envs.core.vec_env import Step, VecEnv
from envs.external.action_check import ActionCheck
from envs.external.episode_log import Snapshot
from envs.external.hosted import HostedEnvs, Layout
from envs.external.layouts import choose_layout
from envs.external.masks import masks_of
from envs.external.sources import MASKED, FactorySource, GymSource, Source, describe
from envs.support.errors import InputError

ENDLESS = 100_000  # `max_step` where nothing limits an episode


class ExternalVecEnv(VecEnv):
    """`envs_per_member` copies of an external environment per member.

    They step on the CPU, whatever the device is, so `step` waits for the actions: it is the one kind of environment
    that cannot be without. Observations: (num_envs, state_dim) float32, Dict and Tuple spaces flattened and choices
    one-hot; or uint8 where `image_shape` is set. Actions: in [-1, 1], scaled to the bounds of a Box; int64 choices from
    0 otherwise; an "action_mask" among the observations, or in `info`, says which of their options are legal. Slots
    that were never seeded are idle: they are not stepped, and show zeros.

    An environment's state cannot be taken out of it. So a member that `set_member` puts back is brought to where it was
    by its episodes' actions, once more from their beginnings: exactly there, where an environment has its random
    numbers from Gymnasium's `np_random` and its `reset` forgets all else (as Gymnasium's own do). That it sees what it
    saw is checked; where it doesn't, and for environments of several agents, all of the member's rows begin new
    episodes, with the next seeds of its stream: the same ones however often that is done, but not those it was torn
    from.
    """

    def __init__(
        self,
        source: str | Source | Callable[..., Any],
        members: int | Sequence[Mapping[str, Any]],
        envs_per_member: int,
        *,
        device: torch.device | str = "cpu",
        debug: bool = False,
        layout: Layout | None = None,
        patience: float = 20.0,
        restarts: int = 0,
        **kwargs: Any,
    ) -> None:
        """Call `reset` before the first step.

        source: a Gymnasium id, with or without `gym:` before it (`MODULE:ID` imports the module first); or what makes
        one environment (`sources.describe` says of which kinds). members: how many, or each one's own arguments for
        making it. kwargs: the arguments that all have. debug: check for illegal actions after every step. layout: who
        steps what; None: what was measured to be the fastest here (`layouts.choose_layout`). patience, restarts: see
        `HostedEnvs`. Raises InputError where it cannot be made, or its spaces are not such as can be learned in.
        """
        self._source = _source(source, kwargs)
        own = [{}] * members if isinstance(members, int) else [dict(params) for params in members]
        if not own or envs_per_member < 1:
            raise InputError(
                f"{self._source.name} needs members and envs, and got {len(own)} members of {envs_per_member} envs"
            )
        self.env_name = self._source.name
        self.device, self.debug = torch.device(device), debug
        self._on_cpu = self.device.type == "cpu"
        self.num_members, self.envs_per_member = len(own), envs_per_member
        self.num_envs = len(own) * envs_per_member
        self._what = what = describe(self._source, own[0])
        if envs_per_member % what.rows:
            fitting = sorted(
                {
                    max(what.rows, envs_per_member // what.rows * what.rows),
                    -(-envs_per_member // what.rows) * what.rows,
                }
            )
            raise InputError(
                f"{envs_per_member} rows per member are not a multiple of the {what.rows} that one {self._source.name} "
                f"has; {' or '.join(map(str, fitting))} would be"
            )
        self._per_member = envs_per_member // what.rows  # environments
        every = [params for params in own for _ in range(self._per_member)]
        layout = layout or choose_layout(self._source, every, what).layout
        self._envs = HostedEnvs(
            self._source,
            every,
            layout,
            description=what,
            patience=patience,
            restarts=restarts,
            resumable=True,
        )
        self._observations, self._actions = self._envs.observations, self._envs.actions
        self.max_step = what.limit or ENDLESS
        self.has_absent_agents = what.has_absent_agents
        self.state_dim, self.image_shape = self._observations.size, self._observations.image_shape
        self.if_discrete = self._actions.discrete
        self.action_dim = sum(self._actions.choices) if self.if_discrete else self._actions.width
        self.action_dims = (
            self._actions.choices if self.if_discrete and not self._actions.single else ()
        )

        self._params: list[Mapping[str, Any]] = list(own)
        buffers = self._envs.buffers
        self._action_shape = (
            (self.num_envs,) if self._actions.single else (self.num_envs, self._actions.width)
        )
        # What lies in the buffers, as tensors.
        self._obs, self._final = (
            torch.from_numpy(rows.view(np.uint8).reshape(self.num_envs, -1))
            for rows in (buffers.obs, buffers.final)
        )
        if self.device.type == "cuda":
            for rows in (buffers.obs, buffers.final):
                _pin(self, rows)
        self._reward = torch.from_numpy(buffers.reward)
        self._terminated, self._truncated, self._present = map(
            torch.from_numpy, (buffers.terminated, buffers.truncated, buffers.present)
        )
        self._streams = Streams(self.num_members)
        self._masks = masks_of(self._envs, envs_per_member)
        self.masked = self._masks is not None
        self._check = ActionCheck(self.num_envs, envs_per_member, self._actions, self._masks)
        self._seeds: list[list[int]] = [[] for _ in own]
        self._began_anew = [False] * self.num_members
        self._started = False

    def configure_member(self, member: int, params: Mapping[str, Any] | None = None) -> None:
        """Give a slot to another member, with these arguments of its own; follow it with `reset_member` or
        `set_member`.
        """
        params = dict(params or {})
        if params != self._params[member]:
            self._envs.make(self._own_envs(member), params)
            self._params[member] = params

    def ignore_advice(self) -> None:
        """Take a mask that is in `info` alone for the advice that it is: the environment must take any action of its
        space. For learners that know no masks. One among the observations stays.
        """
        if self._what.kind == MASKED:
            self._masks, self.masked = None, False
            self._check = ActionCheck(self.num_envs, self.envs_per_member, self._actions)

    def member_params(self, member: int) -> Mapping[str, Any]:
        """The arguments that a slot was configured with."""
        return self._params[member]

    def last_seeds(self, member: int) -> list[int]:
        """The seeds that the member's environments were last reset with; their later episodes follow from these."""
        return self._seeds[member]

    def seeded(self, member: int) -> bool:
        """See `VecEnv.seeded`."""
        return self._streams.seeded(member)

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """Begin new episodes in that member's rows, its stream anew too where a seed is given; the others go on."""
        if seed is not None:
            self._streams.seed(member, seed)
        self._begin(member)
        rows = self._rows(member)
        self._check.clear(slice(rows.start, rows.stop))

    def draw(self, horizon: int) -> None:
        """See `VecEnv.draw`. Nothing to do: every environment has a generator of its own."""

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """See `VecEnv.step`."""
        if action.shape != self._action_shape:
            raise ValueError(
                f"actions have the shape {tuple(action.shape)}, not {self._action_shape}"
            )
        if not self._started:
            raise RuntimeError("step was called before reset")
        given = (
            (action if self._on_cpu else action.cpu()).detach().numpy().reshape(self.num_envs, -1)
        )
        self._envs.buffers.action[:] = self._check.legal(given)
        if self.debug:
            self.check()
        self._envs.step()
        return Step(
            self.observe(out),
            self._own(self._reward),
            self._own(self._terminated),
            self._own(self._truncated),
        )

    def observe(self, out: Tensor | None = None) -> Tensor:
        """(num_envs, state_dim): what every row sees now. Changes nothing."""
        return self._unpacked(self._obs, out)

    def present(self) -> Tensor:
        """See `VecEnv.present`."""
        return self._own(self._present) if self.has_absent_agents else super().present()

    def action_mask(self, chosen: Tensor) -> Tensor:
        """See `VecEnv.action_mask`. What is legal does not depend on the choices before."""
        if self._masks is None:
            return super().action_mask(chosen)
        return self._masks.of_choice(chosen.shape[1]).to(self.device)

    def final_obs(self) -> Tensor:
        """See `VecEnv.final_obs`."""
        return self._unpacked(self._final, None)

    def faults(self) -> Tensor:
        """See `VecEnv.faults`."""
        return self._check.latched().to(self.device)

    def check(self) -> None:
        """See `VecEnv.check`."""
        self._check.check()

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `VecEnv.get_member`, and above."""
        rows = slice(self._rows(member).start, self._rows(member).stop)
        buffers = self._envs.buffers
        state = {"stream": self._streams.state(member), **self._check.state(rows)}
        for name, seen in (("obs", buffers.obs), ("final", buffers.final)):
            state[name] = torch.from_numpy(
                seen[rows].copy().view(np.uint8).reshape(self.envs_per_member, -1)
            )
        found = [shot for shot in self._envs.snapshot(self._own_envs(member)) if shot is not None]
        if len(found) == self._per_member:
            ages = torch.tensor([len(shot.actions) for shot in found])
            actions = np.zeros(
                (len(found), max(1, int(ages.max())), self._actions.width), self._actions.dtype
            )
            for own, shot in zip(actions, found, strict=True):
                own[: len(shot.actions)] = shot.actions
            starts = torch.from_numpy(np.stack([shot.start for shot in found]))
            state |= {"starts": starts, "ages": ages, "actions": torch.from_numpy(actions)}
        return state

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """See `VecEnv.set_member`, and above."""
        rows = slice(self._rows(member).start, self._rows(member).stop)
        self._streams.set_state(member, state["stream"])
        self._started = True
        self._began_anew[member] = self._streams.seeded(member) and not self._brought_back(
            member, rows, state
        )
        if self._began_anew[member]:
            self._begin(member)
        self._check.set_state(rows, state)

    def began_anew(self, member: int) -> bool:
        """See `VecEnv.began_anew`, and above."""
        return self._began_anew[member]

    @property
    def pids(self) -> list[int]:
        """The workers' process ids."""
        return self._envs.pids

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    def _rows(self, member: int) -> range:
        return range(member * self.envs_per_member, (member + 1) * self.envs_per_member)

    def _own_envs(self, member: int) -> range:
        return range(member * self._per_member, (member + 1) * self._per_member)

    def _brought_back(self, member: int, rows: slice, state: dict[str, Tensor]) -> bool:
        """Whether all of the member's environments are where they were."""
        if "starts" not in state:
            return False
        parts = zip(
            state["starts"].numpy(), state["actions"].numpy(), state["ages"].tolist(), strict=True
        )
        snapshots = [Snapshot(start, actions[:age]) for start, actions, age in parts]
        buffers = self._envs.buffers
        for name, seen in (("obs", buffers.obs), ("final", buffers.final)):
            seen[rows] = np.ascontiguousarray(state[name].numpy()).view(seen.dtype).reshape(-1)
        done = self._envs.restore(self._own_envs(member), snapshots)
        if not all(done):
            logging.getLogger(__name__).warning(
                "%s can't be brought back to where it was; member %d begins new episodes",
                self.env_name,
                member,
            )
        return all(done)

    def _begin(self, member: int) -> None:
        """New episodes with the next seeds of the member's stream."""
        self._started = True
        if self._streams.seeded(member):
            uniform = self._streams.member_uniform(member, self._per_member)
            self._seeds[member] = (
                uniform.mul_(2.0**31).long().tolist()
            )  # environments in C take 31 bits
            self._envs.reset(self._own_envs(member), self._seeds[member])

    def _unpacked(self, raw: Tensor, out: Tensor | None) -> Tensor:
        values = self._observations.unpack(
            raw if self._on_cpu else raw.to(self.device, non_blocking=True)
        )
        return values.clone() if out is None else out.copy_(values)

    def _own(self, buffer: Tensor) -> Tensor:
        """The buffer's content as the caller's own tensor."""
        return buffer.clone() if self._on_cpu else buffer.to(self.device)


def _source(source: str | Source | Callable[..., Any], kwargs: dict[str, Any]) -> Source:
    if isinstance(source, str):
        return GymSource(source.removeprefix("gym:"), kwargs)
    if isinstance(source, GymSource | FactorySource):
        return source
    return FactorySource(source, kwargs)


def _pin(owner: ExternalVecEnv, rows: NDArray[Any]) -> None:
    """Lock these pages in memory for as long as `owner` lives, so that a GPU copies from them directly, and nobody
    waits for it: the next step's actions, which do, come later in the same stream.
    """
    runtime, address = torch.cuda.cudart(), rows.ctypes.data  # type: ignore[no-untyped-call]
    if (
        int(runtime.cudaHostRegister(address, rows.nbytes, 0)) == 0
    ):  # otherwise copies go another way round
        weakref.finalize(owner, runtime.cudaHostUnregister, address)
