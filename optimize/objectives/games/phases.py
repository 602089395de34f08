"""How members go through the phases of a curriculum, and what their states say about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.core.policies import Policies
from sweepd.envs.core.vec_env import Step
from sweepd.envs.games.curriculum import Curriculum
from sweepd.envs.games.opponents import Opponents
from sweepd.envs.games.seating import VersusEnv
from sweepd.envs.games.tally import Tally
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.checkpoint import State

NOT_BEGUN = -1


def begun_phases(state: State | None) -> list[int]:
    """Return the rollouts after which a member's phases began. state: of its environment."""
    began = [] if state is None else state["phases_began"].tolist()
    return [int(rollouts) for rollouts in began if rollouts != NOT_BEGUN]


def inherited(own: State, source: State) -> State:
    """Return the environment's state of a member that goes on with another member's weights.

    Its phases, its past selves, the rollouts that decide when the next ones are due, and the results
    that `until` counts are the source's. The games in progress, whom they are against, and random
    numbers stay the member's own.

    Args:
        own: the state of the member's environment.
        source: that of the other one, after as many rollouts.
    """
    # See `OpponentSeats.get_member`, `Phases.get_member` and `Tally.get_member`.
    taken = ("opponents_", "results_", "phases_", "tally_games", "tally_returns")
    return own | {name: tensor for name, tensor in source.items() if name.startswith(taken)}


class Phases:
    """Leads the members of an environment through the phases of a curriculum.

    Before every rollout, each member whose phase ends gets the next phase's game parameters and,
    in games with opponents, its mixture of opponents and seat. Members that share their games
    change together, by the results of all their games.

    Mixture and seat apply to episodes that begin later, so that no episode changes its opponent.
    Game parameters apply at once, also to running episodes: an environment has one set of
    parameters per member, and a second one per game would have to be selected in every step. An
    episode that is older than a new, smaller limit is truncated, not terminated, so learners
    bootstrap from its last observation. Environments of other packages are replaced, and begin
    other episodes.

    The state is part of the member's: when each phase began, and where the window of `until` did.

    Attributes:
        changes: (slot, text) of the phases that began since they were last taken.
    """

    def __init__(
        self,
        env: GameEnv,
        curriculum: Curriculum,
        params: Sequence[Any],
        *,
        opponents: Opponents | None = None,
        shared: int = 1,
    ) -> None:
        """Become the environment's follower; all members begin with the first phase.

        Args:
            env: the environment.
            curriculum: the phases.
            params: the parameters of the games in each phase, until `seat` gives a member others.
            opponents: those of the environment, if it has some.
            shared: number of consecutive members that share their games.
        """
        self.curriculum = curriculum
        self.changes: list[tuple[int, str]] = []
        self._env, self._opponents, self._shared = env, opponents, shared
        members = env.num_members
        self._params: list[Sequence[Any]] = [params] * members
        self._began = torch.full((members, len(curriculum.phases)), NOT_BEGUN)
        # Games and results, as of the present rollout: (2, members, opponents or 1). Results are
        # won games, or returns in games without opponents.
        self._results = torch.zeros(2, members, len(opponents.names) if opponents else 1).double()
        # Those that count for `until`, when its present window began.
        self._window = torch.zeros(members, 2, dtype=torch.float64)
        # In games with opponents, the environment counts.
        self._tally: Tally | None = None
        if self._measures and opponents is None:
            ends = [phase.until for phase in curriculum.phases if phase.until]
            self._tally = Tally(env, returns=any(until.score is not None for until in ends))
        env.follower = self
        for slot in range(members):
            self.seat(slot, params)

    @property
    def _measures(self) -> bool:
        """Whether a phase has `until`."""
        return any(phase.until for phase in self.curriculum.phases)

    def seat(self, slot: int, params: Sequence[Any], began: Sequence[int] = ()) -> None:
        """Put another member into a slot.

        Args:
            slot: the slot.
            params: of the member in each phase.
            began: rollouts at which its phases have begun, if its state is restored next.
        """
        self._params[slot] = params
        self._began[slot] = NOT_BEGUN
        self._window[slot] = 0
        if self._tally is not None:
            self._tally.clear(slot)
        self._configure(slot, max(0, len(began) - 1))

    def take_changes(self) -> list[tuple[int, str]]:
        """Return (slot, text) of the phases that began since the last call."""
        taken, self.changes = self.changes, []
        return taken

    # What a follower does.

    def begin_rollout(self, policies: Policies) -> None:
        """Change the phases that end here. See `VecEnv.begin_rollout`."""
        self._read_results()
        for first in range(0, len(self._params), self._shared):
            progress = policies.progress(first)
            if progress is not None:
                self._advance(range(first, first + self._shared), *progress, policies)

    def count(self, step: Step) -> None:
        """See `Follower.count`."""
        if self._tally is not None:
            self._tally.count(step)

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `Follower.get_member`."""
        own = {"phases_began": self._began[member], "phases_window": self._window[member]}
        return own | ({} if self._tally is None else self._tally.get_member(member))

    def set_member(self, member: int, state: Mapping[str, Tensor]) -> None:
        """See `Follower.set_member`. `seat` has given the slot the member's parameters.

        Raises:
            InputError: the state has no phases.
        """
        if "phases_began" not in state:
            raise InputError(
                "a checkpoint of this study was written by an earlier version of sweepd, without "
                "the state of its phases; create the study again"
            )
        self._began[member] = state["phases_began"].cpu()
        self._window[member] = state["phases_window"].cpu()
        if self._tally is not None:
            self._tally.set_member(member, state)
        self._configure(member, max(0, len(self._phases_of(member)) - 1))

    # Changes of phases.

    def _phases_of(self, slot: int) -> list[int]:
        """Return the rollouts at which the member's phases have begun."""
        return [int(began) for began in self._began[slot].tolist() if began != NOT_BEGUN]

    def _advance(self, group: range, rollouts: int, total: int, policies: Policies) -> None:
        """Begin the next phase of members that share their games, if it is time."""
        began = self._phases_of(group[0])
        if not began:
            self._note(group, 0, rollouts)
            return
        present = len(began) - 1
        reached = self._reached(group, present)
        if not self.curriculum.changes(began, rollouts, total, met=bool(reached)):
            return
        phase, count = self.curriculum.phases[present + 1], len(self.curriculum.phases)
        after = f" with {reached}" if reached else ""
        self._note(group, present + 1, rollouts)
        for slot in group:
            if self._env.change_member(slot, self._params[slot][present + 1]):
                policies.begin(self._env.observe(), [slot])
            self._mix(slot, present + 1)
            if phase.replay == "clear":
                policies.clear_replay(slot)
            text = f"phase {present + 2} of {count} began after {rollouts} rollouts{after}"
            self.changes.append((slot, text))

    def _note(self, group: range, index: int, rollouts: int) -> None:
        """Note that a phase begins."""
        for slot in group:
            self._began[slot, index] = rollouts
            self._window[slot] = self._measured(slot, index)

    def _configure(self, slot: int, index: int) -> None:
        """Give a slot what a phase has, before its games begin or are restored."""
        self._env.configure_member(slot, self._params[slot][index])
        self._mix(slot, index)

    def _mix(self, slot: int, index: int) -> None:
        """Give the slot's games the opponents and the seat of a phase."""
        if self._opponents is not None:
            phase = self.curriculum.phases[index]
            self._opponents.configure_member(slot, phase.opponents, phase.seat)

    def _reached(self, group: range, index: int) -> str:
        """Return how `until` of a phase is met, or "" if it is not.

        A window that is full and not good enough is followed by the next one.
        """
        until = self.curriculum.phases[index].until
        if until is None:
            return ""
        now = {slot: self._measured(slot, index) for slot in group}
        own = torch.stack([now[slot] - self._window[slot] for slot in group])
        games, result = own.sum(0).tolist()
        if games < until.games:
            return ""
        if until.least is not None and result < until.least * games:
            for slot in group:
                self._window[slot] = now[slot]
            return ""
        return until.describe(games, result / games)

    def _measured(self, slot: int, index: int) -> Tensor:
        """Return the finished games that count for a phase's `until`, and their results, (2,)."""
        until = self.curriculum.phases[index].until
        if until is None:
            return torch.zeros(2, dtype=torch.float64)
        if until.opponent is None:
            return self._results[:, slot].sum(-1)
        assert self._opponents is not None
        return self._results[:, slot, self._opponents.names.index(until.opponent)]

    def _read_results(self) -> None:
        # One read of the device per rollout, and none where no phase has `until`.
        if self._tally is not None:
            self._results = self._tally.totals().unsqueeze(-1).cpu()
        elif self._measures:
            assert isinstance(self._env, VersusEnv)
            results = self._env.results()
            self._results = torch.stack((results.games, results.wins)).cpu()
