"""Any external environment as a `VecEnv`, as learners use it."""

from __future__ import annotations

import logging
import math
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.streams import Streams
from sweepd.envs.core.vec_env import Step, on_cpu
from sweepd.envs.external.action_check import ActionCheck, action_masks
from sweepd.envs.external.conformance import Conformance, check_conformance
from sweepd.envs.external.describe import EnvKind, describe
from sweepd.envs.external.episode_log import Snapshot
from sweepd.envs.external.guard import inside
from sweepd.envs.external.layouts import choose_layout
from sweepd.envs.external.sharded import Layout, ShardedEnvs
from sweepd.envs.external.sources import FactorySource, GymSource, Source
from sweepd.envs.support.errors import InputError, RunError

ENDLESS = 100_000  # `max_step` if nothing limits an episode


class ExternalVecEnv(GameEnv):
    """`envs_per_member` rows of an external environment per member.

    The environments run on the CPU whatever the device is, so `step` waits for the actions: unlike
    in other vectorized environments, this synchronization cannot be avoided.

    Observations are (num_envs, state_dim) float32, with Dict and Tuple spaces flattened and choices
    one-hot; or uint8 of images. Actions are float in [-1, 1], scaled to the bounds of
    a Box, or else int64 choices from 0; an "action_mask" in the observations or in `info` says
    which are legal. Rows of members that were never seeded are idle: they are not stepped and show
    zeros.

    The state of an external environment cannot be read. So `set_member` restores a member by
    replaying the actions of its current episodes. This is exact if the environment draws its random
    numbers from Gymnasium's `np_random` and `reset` clears everything else, as in Gymnasium's own
    environments. If the observation afterwards differs from the saved one, and always for
    environments of several rows, all of the member's rows begin new episodes instead, with the next
    seeds of its stream; these are the same however often the member is restored.
    """

    _faults: ActionCheck

    def __init__(
        self,
        source: str | Source | Callable[..., Any],
        members: int | Sequence[Mapping[str, Any]],
        envs_per_member: int,
        *,
        device: torch.device | str = "cpu",
        debug: bool = False,
        layout: Layout | None = None,
        step_timeout: float = 20.0,
        restarts: int = 0,
        **kwargs: Any,
    ) -> None:
        """Make the environments. Call `reset` before the first step.

        Args:
            source: A Gymnasium id, with or without `gym:` (`MODULE:ID` imports the module first);
                or what makes one environment of any kind that `describe` recognizes.
            members: The number of members, or the arguments of each member's environments.
            envs_per_member: Rows per member.
            device: Device of the observations, rewards and flags.
            debug: Whether to check for illegal actions after every step.
            layout: Sizes of the shards; None: what was measured to be fastest (`choose_layout`).
            step_timeout: See `ShardedEnvs`.
            restarts: See `ShardedEnvs`.
            **kwargs: Arguments of all environments; ignored if `source` is a `Source`.

        Raises:
            InputError: The environment cannot be made, or its spaces are not supported.
        """
        self._source = _source(source, kwargs)
        every = [{}] * members if isinstance(members, int) else [dict(params) for params in members]
        self.env_name = self._source.name
        self._set_rows(self.env_name, len(every), envs_per_member)
        self.device, self.debug = torch.device(device), debug
        self._on_cpu = self.device.type == "cpu"
        self._what = what = describe(self._source, every[0])
        _check_rows(self._source, envs_per_member, what.rows)
        self._per_member = envs_per_member // what.rows  # environments
        if what.kind == EnvKind.PARALLEL:
            self.rows_per_game = what.rows
        env_kwargs: list[Mapping[str, Any]] = [
            params for params in every for _ in range(self._per_member)
        ]
        self._envs = self._make_envs(env_kwargs, layout, step_timeout, restarts)
        self._observations, self._actions = what.observations, what.actions
        self._components = () if self._actions.single else (self._actions.width,)  # of an action
        self.spec, self.score_range = what.spec, what.score_range
        self.state_dim, self.action_dim = self.spec.state_dim, self.spec.action_dim
        self.if_discrete, self.max_step = self.spec.if_discrete, what.limit or ENDLESS
        self._params: list[Mapping[str, Any]] = list(every)
        self._share_buffers()
        self._streams = Streams(self.num_members)
        self._masks = action_masks(self._envs)
        self._faults = ActionCheck(self.num_envs, envs_per_member, self._actions, self._masks)
        # Of the last reset of each member's environments.
        self._seeds: list[list[int]] = [[] for _ in every]
        self._restarted = [False] * self.num_members
        self._started = False
        self._steps = 0
        self._spoilt: dict[int, str] = {}  # by member, the first reward that was not finite

    def _make_envs(
        self,
        env_kwargs: list[Mapping[str, Any]],
        layout: Layout | None,
        step_timeout: float,
        restarts: int,
    ) -> ShardedEnvs:
        return ShardedEnvs(
            self._source,
            env_kwargs,
            layout or choose_layout(self._source, env_kwargs, self._what).layout,
            description=self._what,
            step_timeout=step_timeout,
            restarts=restarts,
            resumable=True,
        )

    def _share_buffers(self) -> None:
        """Make tensors that share memory with the buffers."""
        buffers = self._envs.buffers
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

    def configure_member(self, member: int, params: Mapping[str, Any] | None = None) -> None:
        """Give a slot to another member, whose environments are made with `params`.

        Call `reset_member` or `set_member` next.
        """
        params = dict(params or {})
        self._spoilt.pop(member, None)
        if params != self._params[member]:
            self._envs.make(self._envs_of(member), params)
            self._params[member] = params

    def change_member(self, member: int, params: Mapping[str, Any]) -> bool:
        """See `GameEnv.change_member`. Environments with other arguments replace its own."""
        if dict(params) == self._params[member]:
            return False
        self.configure_member(member, params)
        self._begin(member)
        return True

    def ignore_advice(self) -> None:
        """Treat masks in `info` as advice only, for learners without support for masks.

        An environment with such masks accepts every action of its space. Masks that are part of the
        observations stay in force.
        """
        if self._what.kind == EnvKind.MASKED:
            self._masks, self.spec = None, replace(self.spec, masked=False)
            self._faults = ActionCheck(self.num_envs, self.envs_per_member, self._actions)

    def last_seeds(self, member: int) -> list[int]:
        """Return the seeds of the last reset of the member's environments.

        Their later episodes follow from these seeds.
        """
        return self._seeds[member]

    def seeded(self, member: int) -> bool:
        """See `VecEnv.seeded`."""
        return self._streams.seeded(member)

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """See `VecEnv.reset_member`."""
        if seed is not None:
            self._streams.seed(member, seed)
        self._begin(member)
        self._faults.clear(self._rows(member))

    def rest(self, rows: Tensor) -> None:
        """See `GameEnv.rest`. An environment of several rows rests if all of them may."""
        resting = rows.cpu().numpy().reshape(-1, self._envs.rows).all(1)
        self._envs.idle(np.flatnonzero(resting).tolist())

    def draw(self, horizon: int) -> None:
        """Do nothing: every environment has a random generator of its own."""

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """See `VecEnv.step`."""
        self._check_shape(action, *self._components)
        if not self._started:
            raise RuntimeError("step was called before reset")
        given = (
            (action if self._on_cpu else action.cpu()).detach().numpy().reshape(self.num_envs, -1)
        )
        self._envs.buffers.action[:] = self._faults.legal(given)
        if self.debug:
            self.check()
        self._envs.step()
        self._steps += 1
        self._check_rewards()
        step = Step(
            self.observe(out),
            self._copy(self._reward),
            self._copy(self._terminated),
            self._copy(self._truncated),
        )
        if self.follower is not None:
            self.follower.count(step)
        return step

    def observe(self, out: Tensor | None = None) -> Tensor:
        """See `VecEnv.observe`."""
        return self._unpack(self._obs, out)

    def observations(self) -> list[Any]:
        """Return the present observation of every row as its environment gave it."""
        return self._observations.restore(self._envs.buffers.obs)

    def encode(self, action: Any) -> NDArray[Any]:
        """Return an action of the environment's space as `step` takes it for one row, (width,).

        Raises:
            ValueError: It is not an action of the space.
        """
        return self._actions.encode(action)

    def present(self) -> Tensor:
        """See `VecEnv.present`."""
        return self._copy(self._present) if self.spec.has_absent_agents else super().present()

    def action_mask(self, chosen: Tensor) -> Tensor:
        """See `VecEnv.action_mask`. Here, what is legal does not depend on earlier choices."""
        if self._masks is None:
            return super().action_mask(chosen)
        return self._masks.of_choice(chosen.shape[1]).to(self.device)

    def final_obs(self) -> Tensor:
        """See `VecEnv.final_obs`."""
        return self._unpack(self._final, None)

    def keep_infos(self) -> None:
        """See `GameEnv.keep_infos`; kept of environments of one agent that are stepped one by one."""
        self._envs.keep_infos()

    def infos(self, member: int) -> list[dict[str, Any]]:
        """See `GameEnv.infos`."""
        if self._envs.rows > 1:
            return super().infos(member)
        return self._envs.infos(self._envs_of(member))

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `VecEnv.get_member`, and the class on what can be restored."""
        rows = self._rows(member)
        buffers = self._envs.buffers
        state = {"stream": self._streams.state(member), **self._faults.state(rows)}
        for name, array in (("obs", buffers.obs), ("final", buffers.final)):
            state[name] = torch.from_numpy(
                array[rows].copy().view(np.uint8).reshape(self.envs_per_member, -1)
            )
        found = [shot for shot in self._envs.snapshot(self._envs_of(member)) if shot is not None]
        if len(found) == self._per_member:
            # Episodes differ in length: actions are padded with zeros, which are not replayed.
            ages = torch.tensor([len(shot.actions) for shot in found])
            actions = np.zeros(
                (len(found), max(1, int(ages.max())), self._actions.width), self._actions.dtype
            )
            for padded, shot in zip(actions, found, strict=True):
                padded[: len(shot.actions)] = shot.actions
            starts = torch.from_numpy(np.stack([shot.start for shot in found]))
            state |= {"starts": starts, "ages": ages, "actions": torch.from_numpy(actions)}
        if self.follower is not None:
            state |= on_cpu(self.follower.get_member(member))
        return state

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """See `VecEnv.set_member`, and the class on what can be restored."""
        if self.follower is not None:
            self.follower.set_member(member, state)
        rows = self._rows(member)
        self._streams.set_state(member, state["stream"])
        self._started = True
        self._restarted[member] = self._streams.seeded(member) and not self._replay(
            member, rows, state
        )
        if self._restarted[member]:
            self._begin(member)
        self._faults.set_state(rows, state)

    def restarted(self, member: int) -> bool:
        """See `VecEnv.restarted`, and the class on what can be restored."""
        return self._restarted[member]

    @property
    def pids(self) -> list[int]:
        """The env workers' process ids."""
        return self._envs.pids

    def reward_fault(self, member: int) -> str:
        """See `VecEnv.reward_fault`."""
        return self._spoilt.get(member, "")

    def conformance(self) -> Conformance:
        """Play one more environment to see whether it keeps to its spaces and seeds.

        Raises:
            RunError: The environment raises.
        """
        try:
            with inside(self.env_name):
                return check_conformance(self._source, self._params[0], self._what)
        except Exception as error:
            raise RunError(
                f"{self.env_name} raised in random play:\n{traceback.format_exc().rstrip()}"
            ) from error

    def close(self) -> None:
        """Close the environments and end the env workers."""
        self._envs.close()

    def _check_rewards(self) -> None:
        """Remember each member's first reward that is not finite."""
        reward = self._envs.buffers.reward
        # The cheapest look at all of them; squares may overflow, so look again.
        if math.isfinite(reward.dot(reward)):
            return
        for row in np.flatnonzero(~np.isfinite(reward)).tolist():
            env = row // self._envs.rows
            self._spoilt.setdefault(
                row // self.envs_per_member,
                f"environment {env} of {self.env_name} returned the reward {reward[row]} in its "
                f"step {self._steps:,}",
            )

    def _envs_of(self, member: int) -> range:
        return range(member * self._per_member, (member + 1) * self._per_member)

    def _replay(self, member: int, rows: slice, state: dict[str, Tensor]) -> bool:
        """Replay the member's episodes; return whether that restored all of its environments."""
        if "starts" not in state:
            return False
        parts = zip(
            state["starts"].numpy(), state["actions"].numpy(), state["ages"].tolist(), strict=True
        )
        snapshots = [Snapshot(start, actions[:age]) for start, actions, age in parts]
        buffers = self._envs.buffers
        # `restore` compares the observations after the replay with these.
        for name, array in (("obs", buffers.obs), ("final", buffers.final)):
            array[rows] = np.ascontiguousarray(state[name].numpy()).view(array.dtype).reshape(-1)
        done = self._envs.restore(self._envs_of(member), snapshots)
        if not all(done):
            logging.getLogger(__name__).warning(
                "%s could not be restored to its saved state; member %d begins new episodes",
                self.env_name,
                member,
            )
        return all(done)

    def _begin(self, member: int) -> None:
        """Begin new episodes with the next seeds of the member's stream."""
        self._started = True
        if self._streams.seeded(member):
            uniform = self._streams.member_uniform(member, self._per_member)
            # 31 bits, the most that environments written in C accept.
            self._seeds[member] = uniform.mul_(2.0**31).long().tolist()
            self._envs.reset(self._envs_of(member), self._seeds[member])

    def _unpack(self, raw: Tensor, out: Tensor | None) -> Tensor:
        values = self._observations.unpack(
            raw if self._on_cpu else raw.to(self.device, non_blocking=True)
        )
        return values.clone() if out is None else out.copy_(values)

    def _copy(self, buffer: Tensor) -> Tensor:
        """Return a copy on the device: the next step overwrites the buffer."""
        return buffer.clone() if self._on_cpu else buffer.to(self.device)


def _source(source: str | Source | Callable[..., Any], kwargs: dict[str, Any]) -> Source:
    if isinstance(source, str):
        return GymSource(source.removeprefix("gym:"), kwargs)
    if isinstance(source, GymSource | FactorySource):
        return source
    return FactorySource(source, kwargs)


def _check_rows(source: Source, rows: int, per_env: int) -> None:
    """Raise InputError unless the rows of a member are a multiple of those of an environment."""
    if rows % per_env:
        fitting = sorted({max(per_env, rows // per_env * per_env), -(-rows // per_env) * per_env})
        raise InputError(
            f"{rows} rows per member are not a multiple of the {per_env} that one {source.name} "
            f"has; {' or '.join(map(str, fitting))} would be"
        )


def _pin(owner: ExternalVecEnv, rows: NDArray[Any]) -> None:
    """Page-lock the array for as long as `owner` lives.

    A GPU then copies from it directly and asynchronously. The copy is complete before the next step
    overwrites the array, because that step waits for its actions, which come later in the stream.
    """
    runtime, address = torch.cuda.cudart(), rows.ctypes.data  # type: ignore[no-untyped-call]
    # If locking fails, copies go through another buffer: slower, but correct.
    if int(runtime.cudaHostRegister(address, rows.nbytes, 0)) == 0:
        weakref.finalize(owner, runtime.cudaHostUnregister, address)
