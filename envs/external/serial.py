"""All environments in this process: the plainest backend, and the one that every other must equal to the bit."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from typing import Any

from envs.errors import RunError
from envs.external.actions import ActionLayout
from envs.external.buffers import Buffers, lay, plan
from envs.external.gym_share import EnvFailure, GymShare
from envs.external.observations import ObservationLayout
from envs.external.sources import GymSource


class SerialEnvs:
    """`len(own)` environments of one source. `buffers` has what they saw last, and takes their actions.

    observations, actions: layouts of their spaces. own: each environment's own arguments.
    """

    buffers: Buffers

    def __init__(
        self,
        source: GymSource,
        own: Sequence[Mapping[str, Any]],
        observations: ObservationLayout,
        actions: ActionLayout,
    ) -> None:
        self._name = source.name
        _, size = plan(len(own), observations, actions)
        self.buffers = lay(mmap.mmap(-1, size), len(own), observations, actions)
        try:
            self._share = GymShare(source, own, self.buffers, observations, actions)
        except EnvFailure as failure:
            raise failed(self._name, failure) from None

    def make(self, rows: Sequence[int], own: Mapping[str, Any]) -> None:
        """Make these environments anew; they stay idle until they are reset."""
        try:
            self._share.make(rows, own)
        except EnvFailure as failure:
            raise failed(self._name, failure) from None

    def reset(self, rows: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these rows, with that seed."""
        try:
            self._share.reset(rows, seeds)
        except EnvFailure as failure:
            raise failed(self._name, failure) from None

    def step(self) -> None:
        """One step of every row that is not idle. Raises RunError with the environment's traceback where it raised."""
        try:
            self._share.step()
        except EnvFailure as failure:
            raise failed(self._name, failure) from None

    def close(self) -> None:
        """Close the environments."""
        self._share.close()


def failed(name: str, failure: EnvFailure) -> RunError:
    """What is said of an environment that raised."""
    return RunError(f"the {name} environment of row {failure.row} raised:\n{failure.text.rstrip()}")
