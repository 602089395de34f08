"""Environments of several rows each: games of several agents, batched environments, environments that write for
themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from envs.external.actions import ActionLayout
from envs.external.buffers import Buffers
from envs.external.episode_log import Snapshot
from envs.external.observations import ObservationLayout
from envs.external.share import failed
from envs.external.sources import BUFFERED, PARALLEL, Source


class Game(Protocol):
    """One environment that writes into rows of its own. `step` begins the next episode where one has ended."""

    def reset(self, seed: int) -> None: ...
    def step(self) -> None: ...
    def close(self) -> None: ...


class GameShare:
    """See `Share`. Environment i has the rows `i * rows` … `(i + 1) * rows - 1` of the buffers."""

    def __init__(
        self,
        source: Source,
        own: Sequence[Mapping[str, Any]],
        buffers: Buffers,
        observations: ObservationLayout,
        actions: ActionLayout,
        kind: str,
        rows: int,
    ) -> None:
        """own: each environment's own arguments. kind, rows: as in `sources.Description`."""
        self._source, self._kind, self._layouts = source, kind, (observations, actions)
        self._parts = [buffers.part(env * rows, (env + 1) * rows) for env in range(len(own))]
        self._games = [self._make(env, kwargs) for env, kwargs in enumerate(own)]
        self._live: list[int] = []

    def make(self, envs: Sequence[int], own: Mapping[str, Any]) -> None:
        for env in envs:
            self._games[env].close()
            self._games[env] = self._make(env, own)
        self._live = [env for env in self._live if env not in set(envs)]

    def reset(self, envs: Sequence[int], seeds: Sequence[int]) -> None:
        for env, seed in zip(envs, seeds, strict=True):
            part = self._parts[env]
            part.reward[:], part.terminated[:], part.truncated[:] = 0.0, False, False
            try:
                self._games[env].reset(seed)
            except Exception:
                failed(env)
        self._live = sorted({*self._live, *envs})

    def step(self) -> None:
        for env in self._live:
            self.step_one(env)

    def step_one(self, env: int) -> None:
        try:
            self._games[env].step()
        except Exception:
            failed(env)

    def snapshot(self, envs: Sequence[int]) -> list[Snapshot | None]:
        return [None for _ in envs]

    def restore(self, envs: Sequence[int], snapshots: Sequence[Snapshot | None]) -> list[bool]:  # noqa: ARG002
        return [False for _ in envs]

    def close(self) -> None:
        for game in self._games:
            game.close()

    def _make(self, env: int, own: Mapping[str, Any]) -> Game:
        try:
            return self._game(own, self._parts[env])
        except Exception:
            failed(env)

    def _game(self, own: Mapping[str, Any], part: Buffers) -> Game:
        if self._kind == PARALLEL:
            from envs.external.parallel_game import ParallelGame

            return ParallelGame(self._source.make(own).env, part, *self._layouts)
        if self._kind == BUFFERED:
            from envs.external.buffered_game import BufferedGame

            return BufferedGame(self._source, own, part, *self._layouts)
        from envs.external.vector_game import VectorGame

        return VectorGame(self._source.make(own).env, part, *self._layouts)
