"""A share of the environments: those that one process steps."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

from envs.external.actions import ActionLayout
from envs.external.buffers import Buffers
from envs.external.episode_log import Snapshot
from envs.external.observations import ObservationLayout
from envs.external.sources import MASKED, SINGLE, Source


class EnvFailure(Exception):
    """An environment raised. env: which one, of its share; text: its traceback."""

    def __init__(self, env: int, text: str) -> None:
        super().__init__(env, text)
        self.env, self.text = env, text


def failed(env: int) -> NoReturn:
    """Turn the exception at hand into that environment's failure."""
    raise EnvFailure(env, traceback.format_exc()) from None


class Share(Protocol):
    """Environments and the rows they write into. Those that were never reset are idle: not stepped, and zeros.

    Everything raises EnvFailure where an environment raises.
    """

    def make(self, envs: Sequence[int], own: Mapping[str, Any]) -> None:
        """Make these anew, with these arguments of their own; they stay idle until they are reset."""

    def reset(self, envs: Sequence[int], seeds: Sequence[int]) -> None:
        """Begin an episode in each of these, with that seed; later ones go on with the environment's own generator."""

    def step(self) -> None:
        """One step of every environment that is not idle, with the actions in the buffers."""

    def step_one(self, env: int) -> None:
        """One step of that one alone."""

    def snapshot(self, envs: Sequence[int]) -> list[Snapshot | None]:
        """What it takes to bring these back to where they are; None where that can't be told."""

    def restore(self, envs: Sequence[int], snapshots: Sequence[Snapshot | None]) -> list[bool]:
        """Bring them back there, by the same actions; False where that can't be done. Whoever asks compares what they
        see.
        """

    def close(self) -> None:
        """Close the environments."""


def make_share(
    source: Source,
    own: Sequence[Mapping[str, Any]],
    buffers: Buffers,
    observations: ObservationLayout,
    actions: ActionLayout,
    kind: str,
    rows: int,
    resumable: bool = False,
) -> Share:
    """`len(own)` environments, of that kind and with so many rows each (`sources.Description`), on all of `buffers`.

    resumable: whether `snapshot` is going to be asked for. Raises EnvFailure where one cannot be made.
    """
    if kind in (SINGLE, MASKED):
        from envs.external.gym_share import GymShare

        return GymShare(
            source, own, buffers, observations, actions, resumable, masked=kind == MASKED
        )
    from envs.external.game_share import GameShare

    return GameShare(source, own, buffers, observations, actions, kind, rows)
