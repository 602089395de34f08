"""Opponents that follow a curriculum, and what a member's state says about its phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.core.policies import Policies
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.games.curriculum import Curriculum
from sweepd.envs.games.opponents import Opponents
from sweepd.envs.games.seating import VersusEnv
from sweepd.optimize.study.checkpoint import State

NOT_BEGUN = -1


def begun_phases(state: State | None) -> list[int]:
    """Return the rollouts after which a member's phases began. state: of its environment."""
    began = [] if state is None else state["opponents_phases"].tolist()
    return [int(rollouts) for rollouts in began if rollouts != NOT_BEGUN]


class PhasedOpponents(Opponents):
    """Opponents that follow a curriculum.

    Before every rollout, each member whose phase ends gets the next phase's mixture of opponents,
    seat and game parameters. Mixture and seat apply to episodes that begin later, so that no
    episode changes its opponent. Game parameters apply at once, also to running episodes: an
    environment has one set of parameters per member, and a second one per game would have to be
    selected in every step. An episode that is older than a new, smaller limit is truncated, not
    terminated, so learners bootstrap from its last observation.

    The state is part of the member's: when each phase began, and where the window of `until` did.

    Attributes:
        inner: the opponents.
        changes: (slot, text) of the phases that began since they were last taken.
    """

    def __init__(self, inner: Opponents, curriculum: Curriculum) -> None:
        """Wrap `inner`, whose mixtures and seats are set by the curriculum from now on."""
        self.inner, self.curriculum = inner, curriculum
        self.names, self.uniforms, self.memory = inner.names, inner.uniforms, inner.memory
        # The same tensors: `inner` changes them in place.
        self.shares, self.first = inner.shares, inner.first
        self.changes: list[tuple[int, str]] = []
        members = len(inner.shares)
        self._env: VersusEnv | None = None
        self._params: list[Sequence[Any]] = [()] * members
        # Games and wins of all members against all opponents, as of the present rollout.
        self._results = torch.zeros(2, members, len(self.names), dtype=torch.float64)
        self._began = torch.full((members, len(curriculum.phases)), NOT_BEGUN)
        # Games and wins against the opponent of `until` when its present window began.
        self._window = torch.zeros(members, 2, dtype=torch.float64)

    @property
    def decode(self) -> Callable[[Tensor], Tensor]:
        """See `Opponents.decode`."""
        return self.inner.decode

    @decode.setter
    def decode(self, decode: Callable[[Tensor], Tensor]) -> None:
        self.inner.decode = decode

    def attach(self, env: VersusEnv, params: Sequence[Any]) -> None:
        """Set the environment that these opponents play in.

        Args:
            env: the environment.
            params: the parameters of its games in each phase, until `seat` gives a member others.
        """
        self._env = env
        for slot in range(env.num_members):
            self.seat(slot, params)

    def seat(self, slot: int, params: Sequence[Any]) -> None:
        """Begin with a new member in a slot, which has these parameters in each phase."""
        self._params[slot] = params
        self._forget(slot)

    def begin(self, uniforms: Tensor) -> Tensor:
        """See `Opponents.begin`."""
        return self.inner.begin(uniforms)

    def act(
        self,
        obs: Tensor,
        chosen: Tensor,
        memory: Tensor,
        uniforms: Tensor,
        legal: Legal | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See `Opponents.act`."""
        return self.inner.act(obs, chosen, memory, uniforms, legal)

    def begin_rollout(self, policies: Policies) -> None:
        """Change the phases that end here. See `VecEnv.begin_rollout`."""
        self._read_results()
        for slot in range(len(self._params)):
            progress = policies.progress(slot)
            if progress is not None:
                self._advance(slot, *progress, policies)
        self.inner.begin_rollout(policies)

    def reset_member(self, member: int) -> None:
        """See `Opponents.reset_member`."""
        self.inner.reset_member(member)
        if self._env is not None:
            self._forget(member)

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `Opponents.get_member`."""
        own = {"phases": self._began[member], "window": self._window[member]}
        return self.inner.get_member(member) | own

    def set_member(self, member: int, state: Mapping[str, Tensor]) -> None:
        """See `Opponents.set_member`. `seat` has given the slot the member's parameters."""
        self._began[member] = state["phases"].cpu()
        self._window[member] = state["window"].cpu()
        self._apply(member, max(0, len(self._phases_of(member)) - 1))
        self.inner.set_member(member, state)

    def take_changes(self) -> list[tuple[int, str]]:
        """Return (slot, text) of the phases that began since the last call."""
        taken, self.changes = self.changes, []
        return taken

    def _forget(self, slot: int) -> None:
        self._began[slot] = NOT_BEGUN
        self._window[slot] = 0
        self._apply(slot, 0)

    def _phases_of(self, slot: int) -> list[int]:
        """Return the rollouts at which the member's phases have begun."""
        return [int(began) for began in self._began[slot].tolist() if began != NOT_BEGUN]

    def _advance(self, slot: int, rollouts: int, total: int, policies: Policies) -> None:
        began = self._phases_of(slot)
        if not began:
            self._begin_phase(slot, 0, rollouts)
            return
        present = len(began) - 1
        reached = self._result(slot, present)
        if self.curriculum.changes(began, rollouts, total, met=bool(reached)):
            self._begin_phase(slot, present + 1, rollouts)
            phase, count = self.curriculum.phases[present + 1], len(self.curriculum.phases)
            if phase.replay == "clear":
                policies.clear_replay(slot)
            after = f" with {reached}" if reached else ""
            text = f"phase {present + 2} of {count} began after {rollouts} rollouts{after}"
            self.changes.append((slot, text))

    def _begin_phase(self, slot: int, index: int, rollouts: int) -> None:
        self._began[slot, index] = rollouts
        self._apply(slot, index)
        self._window[slot] = self._measured(slot, index)

    def _apply(self, slot: int, index: int) -> None:
        """Give the slot's games the parameters, opponents and seat of a phase."""
        assert self._env is not None
        phase = self.curriculum.phases[index]
        self._env.configure_member(slot, self._params[slot][index])
        self.inner.configure_member(slot, phase.opponents, phase.seat)

    def _result(self, slot: int, index: int) -> str:
        """Return how `until` of a phase is met, or "" if it is not.

        A window that is full and not good enough is followed by the next one.
        """
        until = self.curriculum.phases[index].until
        if until is None:
            return ""
        now = self._measured(slot, index)
        games, wins = (now - self._window[slot]).tolist()
        if games < until.games:
            return ""
        if wins < until.win_rate * games:
            self._window[slot] = now
            return ""
        return f"{wins / games:.0%} of {games:.0f} games won against {until.opponent}"

    def _measured(self, slot: int, index: int) -> Tensor:
        """Return the finished and the won games against the opponent of a phase's `until`."""
        until = self.curriculum.phases[index].until
        if until is None:
            return torch.zeros(2, dtype=torch.float64)
        return self._results[:, slot, self.names.index(until.opponent)]

    def _read_results(self) -> None:
        # One read of the device per rollout, and none where no phase has `until`.
        if any(phase.until for phase in self.curriculum.phases):
            assert self._env is not None
            results = self._env.results()
            self._results = torch.stack((results.games, results.wins)).cpu()
