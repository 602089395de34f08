"""Training environments of studies with phases and opponents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.networks.recurrence import state_size
from sweepd.agents.policy.roster import Champion, Roster
from sweepd.envs.core.game_env import GameEnv
from sweepd.envs.games.curriculum import LEAGUE, LEARNERS, Curriculum
from sweepd.envs.games.game import is_population
from sweepd.envs.games.pairings import is_versus
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.games.curriculum import (
    LoadBundle,
    check_spaces,
    find_bundles,
    phase_params,
)
from sweepd.optimize.objectives.games.phases import Phases, begun_phases
from sweepd.optimize.objectives.members.experiment import NO_SHAPE
from sweepd.optimize.study.checkpoint import State
from sweepd.optimize.study.record.specs import GameSpec


class LeaguePlayer(NamedTuple):
    """A player of the study's league as an opponent. share: of the games against the league."""

    champion: Champion
    share: float


class PhasedTraining:
    """Makes environments in which members go through the phases of a curriculum.

    Raises:
        InputError: a phase or an opponent fits neither the game nor the algorithm.
    """

    def __init__(
        self,
        spec: GameSpec,
        curriculum: Curriculum,
        env: GameEnv,
        device: torch.device,
        load_bundle: LoadBundle | None,
        make: Callable[[int, int], GameEnv],
    ) -> None:
        """Load champions and check everything that depends on the environment.

        Args:
            spec: the study's spec.
            curriculum: its phases.
            env: an environment of the study's game, without opponents.
            device: where training runs.
            load_bundle: see `Request`.
            make: makes environments of the study's game without opponents, for a number of
                members and of games per member.
        """
        self.spec, self.curriculum, self.device = spec, curriculum, device
        self.game, self.algorithm = get_game(spec.environment), get_algorithm(spec.algorithm)
        self._together = spec.seeds if curriculum.together else 1
        self._spec, self._make = env.spec, make
        params = self.game.params(**spec.env)
        self.versus = is_versus(self.game, params)
        shares = is_population(self.game, self.game.seats(params))
        self._shared = spec.seeds if shares else 1
        found = find_bundles(curriculum, spec.environment, load_bundle)
        self._champions = {name: Champion(b.actor, b.sampled) for name, b in found.items()}
        self._check_params(env)
        self._league: Mapping[str, LeaguePlayer] = {}
        learners = [name for name in (*LEARNERS, LEAGUE) if name in curriculum.opponents]
        named = ", ".join(learners)
        if learners and not self.algorithm.frozen:
            raise InputError(
                f"members of --algo {spec.algorithm} cannot be opponents ({named}); "
                "choose another algorithm or other opponents"
            )
        if learners and env.spec.image_shape is not None:
            raise InputError(
                f"policies that read images, as in {spec.environment}, cannot be opponents "
                f"({named}); choose scripted players or --opponents none"
            )
        if self.versus:
            self._roster(self._together, 1, NO_SHAPE)  # checks that champions fit

    def _check_params(self, env: GameEnv) -> None:
        """Check that no phase changes what shapes depend on, such as the observations."""
        own = self.game.params(**self.spec.env)
        for number, params in enumerate(self._params({}), 1):
            try:
                if not self.game.external:  # made for a look, of which these are not
                    env.configure_member(0, params)
                check_spaces(self.game, own, params)
            except InputError as error:
                raise InputError(f"phase {number}: env: {error}") from None
        if not self.game.external:
            env.configure_member(0, own)

    def meet(self, league: Mapping[str, LeaguePlayer]) -> None:
        """Set the players of the opponent `league` in environments made from now on.

        Args:
            league: players by name, whose shares add up to 1; none: the member itself.
        """
        self._league = dict(league)

    def _resolved(self) -> Curriculum:
        """Return the curriculum with the league's present players."""
        shares = {name: player.share for name, player in self._league.items()}
        return self.curriculum.with_league(shares)

    def make(self, slots: int, num_envs: int, shape: Mapping[str, Any]) -> GameEnv:
        """Return an environment; in a game of two, its rows are games against opponents.

        Args:
            slots: members of the program.
            num_envs: games per member.
            shape: the program's shape parameters.
        """
        if not self.versus:
            env = self._make(slots, num_envs)
            Phases(env, self.curriculum, self._params({}), shared=self._shared)
            return env
        opponents = self._roster(slots, num_envs, shape)
        assert self.game.versus is not None
        env = self.game.versus(
            [self.game.params(**self.spec.env)] * slots,
            num_envs,
            together=self._together,
            device=self.device,
            opponents=opponents,
        )
        Phases(env, self._resolved(), self._params({}), opponents=opponents)
        return env

    def seat(
        self, env: GameEnv, slot: int, env_params: Mapping[str, Any], state: State | None
    ) -> None:
        """Put another member into a slot.

        Args:
            env: the environment.
            slot: the slot.
            env_params: parameters of the member's trial.
            state: of the member, which is restored next; None: it begins.
        """
        phases_of(env).seat(slot, self._params(env_params), begun_phases(state))

    def _params(self, env: Mapping[str, Any]) -> list[Any]:
        """Return the game's parameters in each phase. env: those of a trial."""
        base = {**self.spec.env, **env}
        return [
            phase_params(self.game, phase, number, base)
            for number, phase in enumerate(self.curriculum.phases, 1)
        ]

    def _roster(self, slots: int, games: int, shape: Mapping[str, Any]) -> Roster:
        """Return all opponents of all phases. games: per member."""
        names = self._resolved().opponents
        league = {name: player.champion for name, player in self._league.items()}
        scripted = self.game.scripted(self.game.params(**self.spec.env))
        return Roster(
            slots,
            games,
            self._spec,
            scripted={name: player for name, player in scripted.items() if name in names},
            learners=[name for name in LEARNERS if name in names],
            champions=self._champions | league,
            past_interval=self.curriculum.past_interval,
            past_size=self.curriculum.past_size,
            together=self._together,
            recurrent_size=self._recurrent_size(shape),
            device=self.device,
        )

    def _recurrent_size(self, shape: Mapping[str, Any]) -> int:
        """Return the numbers in the recurrent state of a member's actor."""
        width = int(shape.get("net_width", self.algorithm.shape["net_width"]))
        return state_size(shape.get("recurrent", ""), width)


def phases_of(env: GameEnv) -> Phases:
    """Return the phases of an environment that `PhasedTraining` made."""
    assert isinstance(env.follower, Phases)
    return env.follower
