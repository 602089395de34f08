"""Policies of a trial in Python: its members act, and are evaluated on windows or in games."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.outside import SpacePolicy
from sweepd.deploy.gates import gate_of
from sweepd.deploy.promotion.studies import find_study
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.external.padding import padded
from sweepd.envs.external.roles import KEY as ROLES
from sweepd.envs.external.wrapping import KEY as WRAPPERS
from sweepd.envs.external.wrapping import wrap
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.record.trials import TrialRecord

Time = str | pd.Timestamp  # without a zone: UTC


class OpenStudy(Protocol):
    """A study as `load_policy` and `promote` need it; `sweepd.Study` is one."""

    @property
    def name(self) -> str:
        """Name of the study."""

    @property
    def storage(self) -> str:
        """URL of its database."""

    @property
    def runs_dir(self) -> Path | None:
        """Folder that contains its files, if the caller named one."""


@dataclass(frozen=True, repr=False)
class Policy:
    """The members of a complete trial, with the weights that were scored.

    Attributes:
        study: name of the study.
        trial: number of the trial.
        members: one policy per fold (market) or seed (game); each has `act(observation)`,
            `act_batch(observations)`, `state_dim` and `action_dim`.
        acting: what `act` and `evaluate` use: on a market the ensemble of all members, which is
            what promotion deploys; in a game the best member, as promotion would choose it.
        seats: where promotion would choose a team: by seat, the member that plays it; of a study with
            `--roles`, by agent in the order of `possible_agents`; else ().
            `evaluate` then plays the team, and `act` takes the seat.
        spec: what the study was created with.
        env_params: parameters of the trial's environment, by name.
    """

    study: str
    trial: int
    members: tuple[FrozenPolicy, ...]
    acting: FrozenPolicy
    spec: StudySpec
    env_params: dict[str, Any]
    seats: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return (
            f"<sweepd.Policy of trial {self.trial} of {self.study!r}: {len(self.members)} members, "
            f"{self.state_dim} observations, {self.action_dim} actions>"
        )

    @property
    def state_dim(self) -> int:
        """Columns of an observation."""
        return self.acting.state_dim

    @property
    def action_dim(self) -> int:
        """Numbers of an action, or options of all choices together."""
        return self.acting.action_dim

    def act(
        self,
        observation: NDArray[np.float32],
        legal: Legal | None = None,
        *,
        seat: int | None = None,
    ) -> NDArray[np.float64]:
        """Return the deterministic action for one observation, computed in float64 on the CPU.

        Args:
            observation: (state_dim,) float32, as the environment gives it, not normalized.
            legal: for games with illegal actions, see `sweepd.agents.policy.frozen.FrozenPolicy`.
            seat: of a team: the seat that acts.

        Returns:
            (action_dim,) float64 in [-1, 1], or (choices,) indices of the chosen options.

        Raises:
            InputError: there is no such seat, or it is a team and no seat is named.
            RunError: the observation has another shape, or a value that is not finite.
        """
        if self.seats or seat is not None:
            return self._at(seat).act(observation, legal)
        return self.acting.act(observation, legal)

    def action(self, observation: Any, info: Mapping[str, Any] | None = None) -> Any:
        """Return the deterministic action for `env.step`, in the environment's own spaces.

        Unlike `act`, it takes what the environment returns and gives what it accepts: actions are
        scaled to the bounds of a Box and whole numbers for Discrete; images may have their channels
        last; Dict and Tuple spaces work as they are.

        Args:
            observation: of the observation space, or a batch of them as Gymnasium's vector
                environments return it. In a game of several agents, that of one agent.
            info: what `reset` or `step` returned with the observation; needed only by environments
                that put the action mask there.

        Returns:
            An action of the action space; of a batch what the vector environment's `step` takes.

        Raises:
            RunError: the observation is not of the space.
            InputError: the environment cannot be made to look up its spaces, or acts by choices
                that are masked one after the other, or by players in turns.
        """
        if self.seats:
            raise InputError("a team acts by seat; use act(observation, seat=…)")
        return self._in_spaces.action(observation, info)

    def wrap(self, env: Any) -> Any:
        """Return an environment within the wrappers of the study (`--wrapper`); without any, itself.

        With `--roles`, agents with different spaces are padded as in the study.

        Args:
            env: the environment, for whose observations `action` is then called.

        Raises:
            InputError: a wrapper cannot be imported, or does not take the environment.
        """
        # Studies on a market have no parameters of this name.
        params = getattr(self.spec, "env", {})
        wrapped = wrap(env, params.get(WRAPPERS, ()))
        return padded(wrapped) if ROLES in params else wrapped

    def reset(self, ended: NDArray[np.bool_] | None = None) -> None:
        """Begin an episode: clear the state of a recurrent policy; no effect on others.

        Args:
            ended: (n,) bool, the rows of a batch that begin one; None: all.
        """
        if ended is None:
            self.acting.reset()
        else:
            self.acting.done(np.asarray(ended))

    @cached_property
    def _in_spaces(self) -> SpacePolicy:
        codec = gate_of(self.spec.environment).codec(self)
        return SpacePolicy(self.acting, codec, self.spec.algorithm)

    def _at(self, seat: int | None) -> FrozenPolicy:
        if seat is None or seat not in range(len(self.seats)):
            known = f"0 to {len(self.seats) - 1}" if self.seats else "none, as it is no team"
            raise InputError(f"seat {seat}: the seats of this policy are {known}")
        return self.members[self.seats[seat]]

    def member(self, index: int) -> Policy:
        """Return the same policy with only this member acting.

        Raises:
            InputError: there is no such member.
        """
        if not 0 <= index < len(self.members):
            raise InputError(
                f"member {index}: trial {self.trial} has the members 0 to {len(self.members) - 1}"
            )
        return dataclasses.replace(self, acting=self.members[index], seats=())


def load_policy(study: OpenStudy, trial: int | None = None) -> Policy:
    """Return the policy of a complete trial.

    Args:
        study: the study.
        trial: number of the trial; None: the one that promotion would consider first, which is the
            best one (with a league: the heaviest of its equilibrium).

    Raises:
        InputError: there is no such complete trial, its algorithm has no network that can act
            alone, or its weights are not the bytes that were scored.
    """
    found = find_study(study.name, study.storage, study.runs_dir)
    gate = gate_of(found.spec.environment)
    judged = gate.study_type(found)
    asked = judged.asked(trial)
    if not asked:
        raise InputError(f"study {found.name!r} has no policy: {judged.why_none_complete}")
    chosen = asked[0]
    members, acting, seats = gate.acting(judged, chosen)
    env = dict(TrialRecord.from_attributes(chosen.user_attrs).env_params or {})
    return Policy(found.name, chosen.number, members, acting, found.spec, env, seats)


def evaluate(
    policy: Policy,
    windows: Sequence[tuple[Time, Time]] = (),
    *,
    data_dir: str | Path | None = None,
    games: int = 100,
    seed: int = 0,
) -> pd.DataFrame:
    """Score a policy, on windows of a market or in games.

    A market's windows are traded from cash with the canonical float64 environment, which the paper
    trader agrees with to 1e-9. Windows before the hold-out are the bars that trials were trained and
    selected on, so figures there are optimistic. The hold-out is refused: promotion evaluates it,
    and counts every evaluation.

    Args:
        policy: the policy.
        windows: of a market: (start, end) of the bars whose returns count, by their opens, without
            the end; dates such as "2024-05-01", in UTC unless they name a zone.
        data_dir: folder of the market's bars; default: as the study recorded it.
        games: of a game: number of games, against each opponent if there are two players.
        seed: of a game: seed of the games. No seed gives games of the search or of promotion.

    Returns:
        Of a market: one row per window, with start and end (UTC), bars, and all metrics: ratios a
        year, returns and drawdowns as fractions, and those of the same trades before fees as
        `NAME_before_fees`. Of a game: one row with games, mean, deviation,
        worst return and mean length; of two players one row per opponent, with games, points (1
        won, 0.5 drawn, 0 lost, mean), won, drawn, lost (shares) and length.

    Raises:
        InputError: a window is empty, has no bars, or reaches into the hold-out; the bars are
            missing; or an argument is for the other kind of study.
    """
    gate = gate_of(policy.spec.environment)
    return gate.evaluate_policy(policy, windows, data_dir, games, seed)
