"""Candidates of a study on a game: the best member of each finished trial."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from optuna.trial import FrozenTrial

from agents.algorithms.table import get_algorithm
from deploy.games.bundle import GameBundle
from deploy.games.gate import GameEvidence, shown
from deploy.games.manifest import GameManifest, GameOriginPart, GamePart, PlayerPart
from deploy.games.panel import Panel
from deploy.games.player import read_player, single_file, split_members
from deploy.games.selection import selection_of
from deploy.promotion.studies import FoundStudy, objective_of, scored_weights, unrecorded
from deploy.registry.bundle_files import MEMBERS_FILE, describe_files, finite, new_bundle
from envs.games.game import Game
from envs.games.pairings import is_versus
from envs.games.registry import get_game
from envs.gymnasium_view import codec_of
from envs.support.errors import InputError
from envs.support.study_record import LEAGUE_REPORT, GameSpec, Play, TrialRecord


class LeagueMember(NamedTuple):
    """A trial in the league of its study. share: of the equilibrium among the trials."""

    member: int
    share: float


@dataclass(frozen=True)
class GameStudy(FoundStudy):
    """A study on a game.

    Attributes:
        league: the members that play in the study's league, by trial; empty without a league.
            Trials with larger shares of its equilibrium then come first, before larger objectives.
        selection: of a game of one player, see `selection_of`.
    """

    spec: GameSpec
    league: Mapping[int, LeagueMember] = field(default_factory=dict)
    selection: Mapping[str, Any] | None = None

    @property
    def game(self) -> Game:
        """The game; InputError if it is unknown here."""
        return get_game(self.environment)

    @property
    def versus(self) -> bool:
        """Whether it is a game of two players against each other."""
        game = self.game
        return game.versus is not None and is_versus(game, game.params(**self.spec.env))


def game_study(found: FoundStudy) -> GameStudy:
    """Return the study as one on a game.

    Raises:
        InputError: the study is on a market.
    """
    if not isinstance(found.spec, GameSpec):
        raise InputError(f"study {found.name!r} is on {found.environment!r}, which is not a game")
    league = _read_league(found)
    trials = sorted(found.trials, key=lambda trial: -_share(league, trial.number))
    ordered = {"trials": tuple(trials), "league": league, "selection": selection_of(found)}
    return GameStudy(**{**vars(found), **ordered})


def _read_league(found: FoundStudy) -> dict[int, LeagueMember]:
    """Return the league as the study's last report has it; empty without one."""
    try:
        report = json.loads((found.run_dir / LEAGUE_REPORT).read_text(encoding="utf-8"))
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
    """The best member of a trial.

    Attributes:
        trial: the trial.
        member: index of the member in the trial.
        score: the member's mean return when the trial was judged.
        play: how it acts.
        record: what the trial's worker recorded about it.
        weights: bytes of a file with this member alone, None if there are faults.
        faults: what keeps it from being deployed, in sentences.
        solved: the mean return from which the game counts as solved, None if undefined.
        selection: of the study, if the trial is one of its selected configuration.
    """

    trial: FrozenTrial
    member: int
    score: float
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
        return f"trial {self.trial.number} (seed {self.member})"

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
            "member": self.member,
            "score": self.score,
            "play": self.play,
            "selection": self.selection,
            "shown": "" if score is None else shown(score, self.solved),
            "panel": None if score is None else score.to_dict(),
        }


def read_candidate(trial: FrozenTrial, study: GameStudy, play: Play | None = None) -> GameCandidate:
    """Read a trial's member in the study's league, else that with the best score; ties: the first.

    Args:
        trial: a finished trial.
        study: its study.
        play: how the member acts; None: as in the study's evaluations.
    """
    faults: list[str] = []
    record = TrialRecord.from_attributes(trial.user_attrs)
    if not get_algorithm(study.spec.algorithm).deployed:
        faults.append(
            f"{study.spec.algorithm} has its own network, which can be searched but not deployed"
        )
    faults += unrecorded(record, ("seed", "shape", "env_params", "learner_params"))
    scores = list(record.scores or ())
    if not scores or not all(map(math.isfinite, scores)):
        faults.append("the trial did not record a finite score of every seed")
        scores = [math.nan]
    # The best seed's score is biased upwards by this choice; the panel's games are new.
    member = max(range(len(scores)), key=lambda index: scores[index])
    if trial.number in study.league and study.league[trial.number].member < len(scores):
        member = study.league[trial.number].member
    weights, selection = None, study.selection
    try:
        content = scored_weights(record, study.run_dir)
        if not faults:
            weights = _single(content, member, len(scores))
    except InputError as error:
        faults.append(str(error))
    return GameCandidate(
        trial,
        member,
        scores[member],
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
    player = read_player(candidate.weights)
    spec, record = study.spec, candidate.record
    assert record.seed is not None
    assert record.scores is not None
    assert record.members is not None
    manifest = GameManifest(
        game=GamePart(
            name=spec.environment,
            params=spec.env,
            seats=study.game.seats(study.game.params(**spec.env)),
        ),
        player=PlayerPart(
            algorithm=spec.algorithm,
            state_dim=player.state_dim,
            action_dim=player.action_dim,
            choices=player.choices,
            shape=dict(record.shape or {}),
            play=candidate.play,
            spaces=_spaces(study),
        ),
        origin=GameOriginPart(
            study=study.name,
            study_uid=study.uid,
            trial=candidate.trial.number,
            seed=record.seed,
            member=candidate.member,
            members=len(record.scores),
            members_sha256=record.members.sha256,
            score=candidate.score,
            objective=spec.objective,
            objective_value=candidate.objective,
            parameters=dict(candidate.trial.params),
            learner_params=finite(record.learner_params),
            env_params=finite(record.env_params),
        ),
        metrics={"describes": "the trial's members, when the search judged it"}
        | finite(record.metrics or {}),
        gate=gate,
        code_version=spec.code_version,
        torch_version=spec.torch_version,
        files=describe_files(files),
    )
    return new_bundle(GameBundle, manifest, files)


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


def _single(content: bytes, member: int, members: int) -> bytes:
    """The bytes of a file with that member alone; its tensors are those of the trial's file."""
    try:
        own = single_file(split_members(content, members)[member])
        read_player(own)
    except InputError as error:
        raise InputError(f"its weights are not those of a player: {error}") from error
    return own


def plain(params: Mapping[str, Any]) -> str:
    """Format parameters: `scenario rest_trap, length 1.0`."""
    return ", ".join(f"{name} {value}" for name, value in sorted(params.items()))
