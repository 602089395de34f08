"""The league of a study: the best members of its complete trials, as opponents of later trials.

This is PSRO (Lanctot et al., "A unified game-theoretic approach to multiagent reinforcement
learning", NeurIPS 2017, arXiv:1711.00832). The trials of a batch, a generation, are trained against
the equilibrium of all earlier players. The equilibrium is computed when the batch begins and is
recorded with each of its trials, so a resumed trial meets the same opponents.

A trial's player is the member that plays best against the opponents that it was trained against:
the best response, of those that were found. Scores do not say which one that is: they are points
against scripted players, often all of them, or against random play.

The result of a pair of players is a function of their weights, the game and the study's seed. So
the files with results are a cache: workers need not agree on who plays a pair, and a lost file is
written again with the same numbers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import TrialState

from sweepd.agents.policy.duels import Duels, FrozenEntrant, duel_report
from sweepd.agents.policy.equilibrium import equilibrium
from sweepd.agents.policy.exact_league import exact_league
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.league import Floats
from sweepd.agents.policy.league_pictures import draw_duels, equilibrium_words
from sweepd.agents.policy.members import Member, load_members
from sweepd.agents.policy.ratings import write_ratings
from sweepd.agents.policy.roster import Champion
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.game import Game
from sweepd.envs.games.pairings import Entrant, play_pairs, scripted_entrants
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import read_json, write_atomic
from sweepd.envs.support.formatting import counted
from sweepd.optimize.objectives.artifacts import attach_files
from sweepd.optimize.objectives.games.phased_training import LeaguePlayer
from sweepd.optimize.study.database.storage import TrialLost
from sweepd.optimize.study.record.keys import LEAGUE_KEY, LEAGUE_REPORT
from sweepd.optimize.study.record.trials import RecordedFile, TrialRecord
from sweepd.optimize.study.study import Plan, StudyHandle

DEALS = 100  # of every pair, each played in both seatings
MOST_PLAYERS = 64  # of the league: the newest ones
MOST_OPPONENTS = 8  # of a trial: the ones with the largest shares
LEAST_SHARE = 0.05  # of an opponent of a trial
MOST_DRAWN = 20  # players in the pictures: the best ones
FOLDER = "league"  # in the study's folder
REPORT = ("league.png", "ratings.png", LEAGUE_REPORT)


@dataclass(frozen=True)
class Player:
    """The member of a complete trial that plays for it in the league.

    Attributes:
        trial: number of the trial.
        member: index in the trial.
        file: the file with the weights of the trial's members.
        weights: of the player.
        policy: plays with them.
    """

    trial: int
    member: int
    file: RecordedFile
    weights: Member
    policy: FrozenPolicy

    @property
    def name(self) -> str:
        return f"trial {self.trial}"

    @property
    def key(self) -> str:
        """What identifies it in the files with results."""
        return f"{self.trial}-{self.member}-{self.file.sha256}"

    def entrant(self) -> FrozenEntrant:
        """Return it as a player of pairs. It samples its actions, unless it has only values."""
        return FrozenEntrant(self.name, self.policy, sampled=self.policy.has_distribution)


def largest_shares(weights: Sequence[float]) -> dict[int, float]:
    """Return the shares of a mixture's opponents in training, which add up to 1.

    Every opponent computes all games, so only the MOST_OPPONENTS with the largest weights are kept,
    and of them those with at least LEAST_SHARE of the kept weight.

    Args:
        weights: of a mixture.

    Returns:
        Shares by index, in the order of the indices.
    """
    order = sorted(range(len(weights)), key=lambda index: (-weights[index], index))
    kept = order[:MOST_OPPONENTS]
    total = sum(weights[index] for index in kept)
    kept = [index for index in kept if weights[index] >= LEAST_SHARE * total]
    total = sum(weights[index] for index in kept)
    return {index: weights[index] / total for index in sorted(kept)}


class StudyLeague:
    """The league of one study.

    Args:
        handle: the study.
        game: the study's game.
        meet: sets the league's players in training environments made from now on.
        say: prints one line.
    """

    def __init__(
        self,
        handle: StudyHandle,
        game: Game,
        meet: Callable[[Mapping[str, LeaguePlayer]], None],
        say: Callable[[str], None],
    ) -> None:
        self._handle, self._game, self._meet, self._say = handle, game, meet, say
        self._params = game.params(**handle.spec.env)
        self._seed = derive_seed(handle.spec.seed, "study league")
        self._known: dict[tuple[int, int, str], Player] = {}  # by trial, member and hash

    # -- opponents of a generation

    def begin(self, plans: Sequence[Plan], ask: Callable[[], None]) -> None:
        """Set the opponents of a batch's trials: recorded ones, or the present equilibrium.

        Args:
            plans: trials with the same recorded opponents, or without any.
            ask: called at every step of the games that are played; may raise to stop.

        Raises:
            InputError: the weights of a recorded opponent are missing or have changed.
        """
        recorded = plans[0].league
        if recorded is None:
            recorded = self._present(ask)
            for plan in plans:
                # A lost trial is noticed by its next report.
                with suppress(TrialLost):
                    self._handle.storage.set_trial_user_attr(plan.trial_id, LEAGUE_KEY, recorded)
        league = {}
        for entry in recorded["opponents"]:
            player = self._recorded(entry)
            champion = Champion(player.weights, sampled=player.policy.has_distribution)
            league[player.name] = LeaguePlayer(champion, entry["share"])
        self._meet(league)
        told = ", ".join(f"{name} {player.share:.0%}" for name, player in league.items())
        found = counted(len(recorded["players"]), "player")
        numbers = ", ".join(str(plan.number) for plan in plans)
        several = len(plans) > 1
        who = f"trials {numbers} play" if several else f"trial {numbers} plays"
        told = told or ("themselves" if several else "itself")
        self._say(f"{who} against {told}; the league has {found}")

    def _present(self, ask: Callable[[], None]) -> dict[str, Any]:
        """Return the present equilibrium as JSON.

        Returns:
            players: trials of the league; opponents: those with a share of a new trial's games,
                each with trial, member, file and share.
        """
        players = self._players(ask)
        opponents = []
        if players:
            duels = Duels(tuple(p.name for p in players), self._results(players, ask))
            shares = largest_shares(equilibrium(duels.payoffs).weights.tolist())
            opponents = [
                {
                    "trial": players[index].trial,
                    "member": players[index].member,
                    "file": vars(players[index].file),
                    "share": share,
                }
                for index, share in shares.items()
            ]
        return {"players": [player.trial for player in players], "opponents": opponents}

    # -- players

    def _players(self, ask: Callable[[], None]) -> list[Player]:
        """Return the league's players, ordered by trial."""
        players = []
        for trial in self._handle.trials():
            record = TrialRecord.from_attributes(trial.user_attrs)
            if trial.state != TrialState.COMPLETE or not record.members or not record.scores:
                continue
            try:
                recorded = trial.user_attrs.get(LEAGUE_KEY) or {"opponents": []}
                member = self._best_member(trial.number, record, recorded["opponents"], ask)
                players.append(self._load(trial.number, member, record.members))
            except InputError as error:  # its files were deleted
                self._say(f"trial {trial.number} is not in the league: {error}")
        return players[-MOST_PLAYERS:]

    def _best_member(
        self,
        trial: int,
        record: TrialRecord,
        opponents: Sequence[Mapping[str, Any]],
        ask: Callable[[], None],
    ) -> int:
        """Return the member of a trial that is its player.

        It has the most points against the trial's opponents from the league, weighted by their
        shares; ties, and trials without such opponents, are decided by the score.
        """
        scores = record.scores or ()
        points = np.zeros(len(scores))
        if opponents and len(scores) > 1:
            points = self._responses(trial, record, opponents, ask)
        return max(range(len(scores)), key=lambda member: (points[member], scores[member], -member))

    def _responses(
        self,
        trial: int,
        record: TrialRecord,
        opponents: Sequence[Mapping[str, Any]],
        ask: Callable[[], None],
    ) -> Floats:
        """Return (members,) mean points against the trial's opponents; play what no file has."""
        assert record.scores
        assert record.members
        path = self._handle.run_dir / FOLDER / f"members-{trial:05d}.json"
        head = {"file": record.members.sha256, "opponents": list(opponents), "deals": DEALS}
        known = read_json(path, head).get("points")
        if isinstance(known, list) and len(known) == len(record.scores):
            return np.array(known)
        count = len(record.scores)
        players = [self._load(trial, member, record.members) for member in range(count)]
        players += [self._recorded(entry) for entry in opponents]
        pairs = [(one, other) for one in range(count) for other in range(count, len(players))]
        # Other deals than the league's: the best of several members was partly lucky in these.
        seed = derive_seed(self._seed, "members")
        entrants = [player.entrant() for player in players]
        found = play_pairs(self._game, self._params, entrants, pairs, DEALS, seed, ask=ask)
        means = found.points.mean((1, 2)).reshape(count, len(opponents))
        points = means @ np.array([entry["share"] for entry in opponents])
        write_atomic(path, json.dumps({**head, "points": points.tolist()}))
        return np.asarray(points)

    def _recorded(self, entry: Mapping[str, Any]) -> Player:
        """Return a recorded opponent; InputError if its weights are missing or have changed."""
        return self._load(entry["trial"], entry["member"], RecordedFile(**entry["file"]))

    def _load(self, trial: int, member: int, file: RecordedFile) -> Player:
        """Return a player; InputError if its weights are missing or have changed."""
        key = trial, member, file.sha256
        if key not in self._known:
            path = self._handle.run_dir / file.path
            try:
                found = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError as error:
                raise InputError(f"{path} cannot be read: {error.strerror or error}") from None
            if found != file.sha256:
                raise InputError(f"{path} is not the file that the study recorded")
            weights = load_members(path)[member]
            self._known[key] = Player(trial, member, file, weights, FrozenPolicy([weights]))
        return self._known[key]

    # -- results

    def _results(self, players: Sequence[Player], ask: Callable[[], None]) -> Floats:
        """Return (P, P, deals, 2) points, as `Duels.results`; play what no file has."""
        count = len(players)
        results = np.full((count, count, DEALS, 2), 0.5)
        for index, player in enumerate(players):
            for other, points in enumerate(self._row(player, players[:index], ask)):
                results[index, other] = points
                # By the other player's own seat.
                results[other, index] = 1.0 - points[:, ::-1]
        return results

    def _row(
        self, player: Player, earlier: Sequence[Player], ask: Callable[[], None]
    ) -> list[Floats]:
        """Return a player's (deals, 2) points against each earlier one.

        They are kept in a file of the player, which another worker may write at the same time: an
        entry that is lost thereby is played again.
        """
        path = self._handle.run_dir / FOLDER / f"trial-{player.trial:05d}.json"
        row = _read_row(path, player)
        missing = [other for other in earlier if other.key not in row["points"]]
        if missing:
            entrants = [player.entrant(), *(other.entrant() for other in missing)]
            pairs = [(0, index) for index in range(1, len(entrants))]
            found = play_pairs(
                self._game, self._params, entrants, pairs, DEALS, self._seed, ask=ask
            )
            for other, points in zip(missing, found.points, strict=True):
                row["points"][other.key] = points.tolist()
            write_atomic(path, json.dumps(row))
        return [np.array(row["points"][other.key]) for other in earlier]

    # -- report

    def write_report(self) -> str:
        """Write `league.json`, `league.png` and `ratings.png` into the study's folder.

        The game's scripted players, or uniform random play, take part as in a trial's league. The
        files become artifacts of the study, which optuna-dashboard shows.

        Returns:
            A line about the equilibrium, and the ratings of the best players; "" without a
            complete trial.
        """
        players = self._players(lambda: None)
        if not players:
            return ""
        duels = self._with_scripted(players)
        entrants: list[Entrant] = [player.entrant() for player in players]
        entrants += scripted_entrants(self._game, self._params)
        league = duel_report(duels, len(players), exact_league(self._game, self._params, entrants))
        league["member_of_trial"] = {player.name: player.member for player in players}
        folder = self._handle.run_dir
        write_atomic(folder / LEAGUE_REPORT, json.dumps(league, indent=1))
        order = np.argsort(-duels.ratings().ratings, kind="stable")[:MOST_DRAWN]
        best = Duels(
            tuple(duels.names[index] for index in order), duels.results[np.ix_(order, order)]
        )
        title = f"{self._handle.name}, the league of the study"
        drawn = duel_report(best, 0) | {"equilibrium": league["equilibrium"]}
        draw_duels(folder / "league.png", drawn, title)
        ratings = best.ratings()
        write_ratings(folder / "ratings.png", ratings, title)
        attach_files(self._handle.storage, self._handle.study_id, folder, REPORT)
        found = league["equilibrium"].get("members", league["equilibrium"]["all"])
        words = equilibrium_words(found, digits=2)
        return f"league of {counted(len(players), 'player')}: {words}\n{ratings.table()}"

    def _with_scripted(self, players: Sequence[Player]) -> Duels:
        """Return the results of all pairs, the scripted players' included."""
        scripted = scripted_entrants(self._game, self._params)
        entrants: list[Entrant] = [player.entrant() for player in players]
        entrants += scripted
        count, total = len(players), len(entrants)
        pairs = [(one, other) for other in range(count, total) for one in range(other)]
        found = play_pairs(self._game, self._params, entrants, pairs, DEALS, self._seed)
        results = np.full((total, total, DEALS, 2), 0.5)
        results[:count, :count] = self._results(players, lambda: None)
        for (one, other), points in zip(pairs, found.points, strict=True):
            results[one, other] = points
            results[other, one] = 1.0 - points[:, ::-1]
        return Duels(tuple(entrant.names[0] for entrant in entrants), results)


def _read_row(path: Path, player: Player) -> dict[str, Any]:
    """Return a player's results from its file; without any if the file is not of this player."""
    head = {"player": player.key, "deals": DEALS}
    row = read_json(path, head)
    return row if isinstance(row.get("points"), dict) else {**head, "points": {}}
