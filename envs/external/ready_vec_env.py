"""External environments that learners step one by one, those first that are ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweepd.envs.external.describe import EnvKind
from sweepd.envs.external.first_ready import FirstReadyEnvs
from sweepd.envs.external.layouts import count_workers
from sweepd.envs.external.sharded import Layout
from sweepd.envs.external.sources import Source
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.support.errors import InputError

STEPS = "steps_made"  # in a member's state


class Outcome(NamedTuple):
    """What the last step of some rows returned, (n,) each. See `Step`."""

    reward: Tensor
    terminated: Tensor
    truncated: Tensor


class ReadyVecEnv(ExternalVecEnv):
    """An `ExternalVecEnv` that is also stepped by `send` and `receive`.

    Between `send` and `receive`, a row shows what it showed before. What a row does follows from its
    actions alone, as in `step`; only the order in which environments are received depends on timing.

    A member's state contains the steps that each of its environments made in each rollout, if the
    learner notes them, and a member may be told to repeat such a record.

    Attributes:
        rows_each: rows per environment.
    """

    _envs: FirstReadyEnvs

    def __init__(
        self,
        source: str | Source | Callable[..., Any],
        members: int | Sequence[Mapping[str, Any]],
        envs_per_member: int,
        *,
        workers: int | None = None,
        device: torch.device | str = "cpu",
        debug: bool = False,
        step_timeout: float = 20.0,
        **kwargs: Any,
    ) -> None:
        """Make the environments. Call `reset` before the first step.

        Args:
            source: See `ExternalVecEnv`.
            members: Likewise.
            envs_per_member: Rows per member.
            workers: Number of env workers; None: as many as keep the processors busy
                (`count_workers`).
            device: See `ExternalVecEnv`.
            debug: Likewise.
            step_timeout: Seconds without a finished step after which a busy worker counts as hung.
            **kwargs: See `ExternalVecEnv`.

        Raises:
            InputError: The environment cannot be made or be sent to workers, or it steps several
                environments together.
        """
        self._asked = workers
        super().__init__(
            source,
            members,
            envs_per_member,
            device=device,
            debug=debug,
            step_timeout=step_timeout,
            **kwargs,
        )
        self.rows_each = self._what.rows
        self._made: list[list[NDArray[np.int32]]] = [[] for _ in range(self.num_members)]
        self._repeated: list[NDArray[np.int32] | None] = [None] * self.num_members

    def _make_envs(
        self,
        env_kwargs: list[Mapping[str, Any]],
        layout: Layout | None,  # noqa: ARG002
        step_timeout: float,
        restarts: int,  # noqa: ARG002
    ) -> FirstReadyEnvs:
        what = self._what
        if what.kind in (EnvKind.VECTOR, EnvKind.BUFFERED):
            raise InputError(
                f"{self.env_name} steps several environments together, so none of them can be ready "
                "before the others; give what makes a single one, such as gym:ID"
            )
        workers = self._asked or count_workers(self._source, env_kwargs, what)
        return FirstReadyEnvs(
            self._source,
            env_kwargs,
            workers,
            description=what,
            step_timeout=step_timeout,
            resumable=True,
        )

    def send(self, envs: NDArray[np.int64], action: Tensor) -> None:
        """Have some environments step.

        Args:
            envs: (k,) environments, numbered across members, that are not being stepped.
            action: Of all rows, as `step` takes it; those of other environments are not used.
        """
        given = action.cpu().numpy().reshape(self.num_envs, -1)
        legal = self._faults.legal(given)
        if self.debug:
            self.check()
        self._envs.send(envs, legal[self.rows_of(envs)])

    def receive(self) -> NDArray[np.int64]:
        """Wait for at least one environment, and return (k,) those that are ready, in order."""
        envs = self._envs.receive()
        self._steps += 1
        self._check_rewards()
        return envs

    def rows_of(self, envs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the rows of these environments."""
        return self._envs.rows_of(envs)

    def outcome(self, rows: Tensor) -> Outcome:
        """Return what the last step of some rows returned. rows: (n,) int64, on the CPU."""
        found = (self._reward[rows], self._terminated[rows], self._truncated[rows])
        return Outcome(*(part.to(self.device) for part in found))

    def observe_rows(self, rows: Tensor, out: Tensor) -> None:
        """Write the present observations of some rows into `out` (num_envs, obs_dim)."""
        out[rows.to(self.device)] = self._observations.unpack(self._obs[rows].to(self.device))

    # The record of steps.

    def note_steps(self, steps: NDArray[np.int32]) -> None:
        """Add a rollout to the members' records. steps: (num_members, environments of each)."""
        for made, own in zip(self._made, steps, strict=True):
            made.append(own)

    def repeat_steps(self, member: int, steps: NDArray[np.int32]) -> None:
        """Have a member repeat a record, (rollouts, its environments), from its beginning."""
        self._repeated[member] = steps

    def next_steps(self, member: int) -> NDArray[np.int32] | None:
        """Return the steps of the member's next rollout, if it repeats a record that has them."""
        record, rollout = self._repeated[member], len(self._made[member])
        return None if record is None or rollout >= len(record) else record[rollout]

    def configure_member(self, member: int, params: Mapping[str, Any] | None = None) -> None:
        """See `ExternalVecEnv.configure_member`."""
        self._repeated[member] = None
        super().configure_member(member, params)

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """See `VecEnv.reset_member`. The record is that of the new stream."""
        if seed is not None:
            self._made[member] = []
        super().reset_member(member, seed)

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `VecEnv.get_member`."""
        made = self._made[member]
        record = {STEPS: torch.from_numpy(np.stack(made))} if made else {}
        return super().get_member(member) | record

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """See `VecEnv.set_member`."""
        self._made[member] = list(state[STEPS].numpy()) if STEPS in state else []
        super().set_member(member, state)
