"""Candidates of a study on a game: the best member of each finished trial, and its team."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from optuna.trial import FrozenTrial

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.policy.members import chosen_members
from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.games.manifest import (
    GameManifest,
    GameOriginPart,
    GamePart,
    PlayerManifest,
    PlayerPart,
    TeamManifest,
    TeamOriginPart,
    TeamPlayerPart,
)
from sweepd.deploy.games.panel import Panel
from sweepd.deploy.games.player import read_player
from sweepd.deploy.games.rules import GameEvidence, shown
from sweepd.deploy.games.selection import selection_of
from sweepd.deploy.promotion.promotion import GateResult, Promotion
from sweepd.deploy.promotion.studies import GateStudy, objective_of, scored_weights, unrecorded
from sweepd.deploy.registry.bundle_files import MEMBERS_FILE, describe_files, finite, new_bundle
from sweepd.envs.external.roles import Roles
from sweepd.envs.games.game import Game, is_population
from sweepd.envs.games.pairings import is_versus
from sweepd.envs.games.registry import get_game
from sweepd.envs.gymnasium_view import codec_of
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.keys import LEAGUE_REPORT
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.specs import GameSpec, Play
from sweepd.optimize.study.record.trials import TrialRecord


class LeagueMember(NamedTuple):
    """A trial in the league of its study. share: of the equilibrium among the trials."""

    member: int
    share: float


class GameStudy(GateStudy):
    """A study on a game. Raises InputError for a study on a market.

    Attributes:
        league: the members that play in the study's league, by trial; empty without a league.
            Trials with larger shares of its equilibrium then come first, before larger objectives.
        selection: of a game of one player, see `selection_of`.
    """

    spec: GameSpec

    def __init__(self, study: StudyReader) -> None:
        if not isinstance(study.spec, GameSpec):
            raise InputError(
                f"study {study.name!r} is on {study.spec.environment!r}, which is not a game"
            )
        super().__init__(study)
        self.selection = selection_of(self)
        self.league = _read_league(self.run_dir)
        if not self.spec.several:  # else the study's rule selects
            shares = {trial.number: _share(self.league, trial.number) for trial in self.complete}
            ranked = sorted(self.complete, key=lambda trial: -shares[trial.number])
            self.complete = tuple(ranked)

    @property
    def game(self) -> Game:
        """The game; InputError if it is unknown here."""
        return get_game(self.spec.environment)

    @property
    def versus(self) -> bool:
        """Whether it is a game of two players against each other."""
        game = self.game
        return game.versus is not None and is_versus(game, game.params(**self.spec.env))

    @property
    def roles(self) -> Roles:
        """The roles of the game's agents, each of which is a member of a trial."""
        return self.game.roles(self.game.params(**self.spec.env))

    @property
    def teams(self) -> bool:
        """Whether a trial's members play together, so that they are a candidate as a team."""
        game = self.game
        seats = game.seats(game.params(**self.spec.env))
        return is_population(game, seats) and self.spec.seeds > 1


def _read_league(run_dir: Path) -> dict[int, LeagueMember]:
    """Return the league as the study's last report has it; empty without one."""
    try:
        report = json.loads((run_dir / LEAGUE_REPORT).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    # Without weights if the equilibrium was not found.
    shares = report["equilibrium"]["members"].get("weights", {})
    return {
        int(name.removeprefix("trial ")): LeagueMember(member, shares.get(name, 0.0))
        for name, member in report["member_of_trial"].items()
    }


def _share(league: Mapping[int, LeagueMember], trial: int) -> float:
    return league[trial].share if trial in league else 0.0


@dataclass(frozen=True)
class GameCandidate:
    """The best member of a trial, or several of its members as a team.

    Attributes:
        trial: the trial.
        members: indices in the trial: the member, or those of the team.
        scores: their mean returns when the trial was judged; each played at every seat.
        seats: of a team: by seat, which of `members` plays it; () for a single member.
        play: how it acts.
        record: what the trial's worker recorded about it.
        weights: bytes of a file with these members alone, None if there are faults.
        faults: what keeps it from being deployed, in sentences.
        solved: the mean return from which the game counts as solved, None if undefined.
        selection: of the study, if the trial is one of its selected configuration.
    """

    trial: FrozenTrial
    members: tuple[int, ...]
    scores: tuple[float, ...]
    seats: tuple[int, ...]
    play: Play
    record: TrialRecord
    weights: bytes | None
    faults: tuple[str, ...]
    solved: float | None
    selection: Mapping[str, Any] | None = None

    @property
    def trials(self) -> tuple[int, ...]:
        """The number of its trial."""
        return (self.trial.number,)

    @property
    def name(self) -> str:
        """The candidate in words."""
        seeds = ", ".join(map(str, self.members))
        return f"trial {self.trial.number} ({'team of seeds' if self.seats else 'seed'} {seeds})"

    @property
    def objective(self) -> float:
        """Its trial's objective value, to be maximised."""
        return objective_of(self.trial)

    def evidence(self) -> GameEvidence:
        """The evidence for the first stage of the gate."""
        return GameEvidence(self.faults, solved=self.solved)

    def describe(self, score: Panel | None) -> dict[str, Any]:
        """Its own part of a result's JSON."""
        return {
            **(
                {"team": [self.members[own] for own in self.seats], "scores": list(self.scores)}
                if self.seats
                else {"member": self.members[0], "score": self.scores[0]}
            ),
            "play": self.play,
            "selection": self.selection,
            "shown": "" if score is None else shown(score, self.solved),
            "panel": None if score is None else score.to_dict(),
        }


GameResult: TypeAlias = GateResult[GameCandidate, Panel, GameBundle]
GamePromotion: TypeAlias = Promotion[GameResult]


def role_seats(trial: FrozenTrial, study: GameStudy) -> tuple[int, ...]:
    """Return the member that plays each agent: the roles of the seed with the best score."""
    scores = TrialRecord.from_attributes(trial.user_attrs).scores or (0.0,)
    best = max(range(len(scores)), key=lambda index: scores[index])
    return tuple(best * len(study.roles.names) + role for role in study.roles.of_agents)


def read_candidate(
    trial: FrozenTrial, study: GameStudy, play: Play | None = None, *, team: bool = False
) -> GameCandidate:
    """Read a trial's member in the study's league, else that with the best score; ties: the first.

    A team consists of the members with the best scores, as many as the game has seats. They play
    the seats in the order of their indices, again from the first if there are more seats.

    Args:
        trial: a finished trial.
        study: its study.
        play: how the members act; None: as in the study's evaluations.
        team: whether to read the team instead.
    """
    faults: list[str] = []
    record = TrialRecord.from_attributes(trial.user_attrs)
    if not get_algorithm(study.spec.algorithm).deployed:
        faults.append(
            f"{study.spec.algorithm} has its own network, which can be searched but not deployed"
        )
    if study.roles.names:
        faults.append(
            f"it has one policy for each of the roles {', '.join(study.roles.names)}, and a bundle has the "
            "policy of one player or a team of equal ones"
        )
    faults += unrecorded(record, ("seed", "shape", "env_params", "learner_params"))
    scores = list(record.scores or ())
    if not scores or not all(map(math.isfinite, scores)):
        faults.append("the trial did not record a finite score of every seed")
        scores = [math.nan]
    # The best scores are biased upwards by this choice; the panel's games are new.
    best = sorted(range(len(scores)), key=lambda index: -scores[index])
    chosen = best[:1]
    seats: tuple[int, ...] = ()
    if team:
        game = study.game
        count = game.seats(game.params(**study.spec.env))
        chosen = sorted(best[:count])
        seats = tuple(seat % len(chosen) for seat in range(count))
    elif trial.number in study.league and study.league[trial.number].member < len(scores):
        chosen = [study.league[trial.number].member]
    weights, selection = None, study.selection
    try:
        content = scored_weights(record, study.run_dir)
        if not faults:
            weights = _file_of(content, chosen, seats)
    except InputError as error:
        faults.append(str(error))
    return GameCandidate(
        trial,
        tuple(chosen),
        tuple(scores[index] for index in chosen),
        seats,
        play or study.spec.play,
        record,
        weights,
        tuple(faults),
        study.game.solved,
        selection if selection and trial.number in selection["trials"] else None,
    )


def build_bundle(candidate: GameCandidate, study: GameStudy, gate: dict[str, Any]) -> GameBundle:
    """The bundle of a candidate with this gate report; ValueError if the candidate has faults."""
    if candidate.weights is None:
        raise ValueError(f"{candidate.name} cannot be deployed: {candidate.faults[0]}")
    files = {MEMBERS_FILE: candidate.weights}
    player = read_player(candidate.weights, seats=candidate.seats)
    spec, record = study.spec, candidate.record
    assert record.seed is not None
    assert record.scores is not None
    assert record.members is not None
    played: dict[str, Any] = {
        "algorithm": spec.algorithm,
        "state_dim": player.state_dim,
        "action_dim": player.action_dim,
        "choices": player.choices,
        "shape": dict(record.shape or {}),
        "play": candidate.play,
        "spaces": _spaces(study),
    }
    origin: dict[str, Any] = {
        "study": study.name,
        "study_uid": study.uid,
        "trial": candidate.trial.number,
        "seed": record.seed,
        "members": len(record.scores),
        "members_sha256": record.members.sha256,
        "objective": spec.objective,
        "objective_value": candidate.objective,
        "parameters": dict(candidate.trial.params),
        "learner_params": finite(record.learner_params),
        "env_params": finite(record.env_params),
    }
    common: dict[str, Any] = {
        "game": GamePart(
            name=spec.environment,
            params=spec.env,
            seats=study.game.seats(study.game.params(**spec.env)),
        ),
        "metrics": {"describes": "the trial's members, when the search judged it"}
        | finite(record.metrics or {}),
        "gate": gate,
        "code_version": spec.code_version,
        "torch_version": spec.torch_version,
        "files": describe_files(files),
    }
    manifest: PlayerManifest
    if candidate.seats:
        manifest = TeamManifest(
            player=TeamPlayerPart(**played, seats=candidate.seats),
            origin=TeamOriginPart(**origin, team=candidate.members, scores=candidate.scores),
            **common,
        )
    else:
        (member,), (score,) = candidate.members, candidate.scores
        manifest = GameManifest(
            player=PlayerPart(**played),
            origin=GameOriginPart(**origin, member=member, score=score),
            **common,
        )
    return new_bundle(GameBundle, manifest, files)


def trial_bundle(study: GameStudy, number: int, *, team: bool = False) -> GameBundle:
    """The best member of a complete trial, as the bundle that would be deployed, without a report.

    Args:
        study: the study.
        number: of the trial.
        team: the members as a team instead.

    Raises:
        InputError: there is no such trial, or it has no such player.
    """
    if team and not study.teams:
        raise InputError(f"the members of study {study.name!r} do not play together as a team")
    candidate = read_candidate(study.complete_trial(number), study, team=team)
    if candidate.faults:
        raise InputError(
            f"trial {number} of study {study.name!r} has no player: {candidate.faults[0]}"
        )
    return build_bundle(candidate, study, {})


def _spaces(study: GameStudy) -> dict[str, Any] | None:
    """The spaces in which the player acts, for its bundle; None if it has none."""
    game = study.game
    with contextlib.suppress(InputError):
        return codec_of(game, game.params(**study.spec.env)).to_dict()
    return None


def same_game(bundle: GameBundle, study: GameStudy) -> bool:
    """Whether the bundle plays the study's game with the same parameters."""
    game: GamePart = bundle.manifest.game
    return (game.name, game.params) == (study.spec.environment, finite(study.spec.env))


def _file_of(content: bytes, chosen: Sequence[int], seats: Sequence[int]) -> bytes:
    """The bytes of a file with these members alone; its tensors are those of the trial's file."""
    try:
        own = chosen_members(content, chosen, MEMBERS_FILE)
        read_player(own, seats=seats)
    except InputError as error:
        raise InputError(f"its weights are not those of a player: {error}") from error
    return own


def plain(params: Mapping[str, Any]) -> str:
    """Format parameters: `scenario rest_trap, length 1.0`."""
    return ", ".join(f"{name} {value}" for name, value in sorted(params.items()))
