"""The panel of a game of two players: a candidate against others, with the same deals in both seats.

Every opponent plays the same deals, each with exchanged seats too. So differences are paired by
deal, and no player has the better seat. Results are outcomes: 1 won, 0.5 drawn, 0 lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sweepd.agents.policy.ratings import Ratings, rate
from sweepd.deploy.games.baselines import OwnEntrant, load_baselines
from sweepd.deploy.games.panel import Floats, Interval, Opponent, Panel, confidence, share_interval
from sweepd.deploy.games.player import Player
from sweepd.envs.games.constant_players import ALWAYS, ConstantEntrant, constant_actions
from sweepd.envs.games.game import Game
from sweepd.envs.games.pairings import Entrant, PairResults, play_pairs, scripted_entrants, tally
from sweepd.envs.games.play import EpisodeResults
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.intervals import gaffke

CANDIDATE = "candidate"  # name of the candidate in its games


@dataclass(frozen=True)
class DuelPanel(Panel):
    """The result of a panel of a game of two players.

    In `episodes` are the games against the baseline players, one after the other; returns are
    outcomes. An opponent's `difference` is the candidate's points minus the opponent's, by deal;
    `ahead`, `equal` and `behind` are games won, drawn and lost; `share` is the share of deals in
    which the candidate had more points, over both seatings, among those without equal points.

    Attributes:
        past: comparisons with past champions.
        candidates: comparisons with the study's other candidates.
        points: the candidate's points by deal, mean over both seatings, by opponent.
    """

    past: tuple[Opponent, ...] = ()
    candidates: tuple[Opponent, ...] = ()
    points: Mapping[str, Floats] = dataclasses.field(default_factory=dict)

    @property
    def games(self) -> int:
        """Number of games against each opponent."""
        return 2 * len(next(iter(self.points.values())))

    @property
    def opponents(self) -> tuple[Opponent, ...]:
        """All opponents."""
        return (*super().opponents, *self.past, *self.candidates)

    @property
    def overall(self) -> Interval:
        """The candidate's mean points, each opponent counting alike, at the gate's level."""
        by_deal = np.mean(list(counted(self.points).values()), axis=0)
        return points_interval(by_deal, confidence(self.look))

    @cached_property
    def ratings(self) -> Ratings:
        """The ratings of all players of the panel; that of the first baseline player is 0.

        The opponents are rated by their games against the candidate.
        """
        names = (CANDIDATE, *self.points)
        table = np.full((len(names), len(names), self.games // 2), np.nan)
        for index, points in enumerate(self.points.values(), start=1):
            table[0, index], table[index, 0] = points, 1.0 - points
        return rate(names, table, anchor=self.baselines[0].name)

    def to_dict(self) -> dict[str, Any]:
        """See `Panel.to_dict`."""
        content = super().to_dict()
        for name in ("past", "candidates"):
            content[name] = {other.name: other.to_dict() for other in getattr(self, name)}
        overall = dataclasses.asdict(self.overall)
        return content | {"points": overall, "ratings": self.ratings.to_dict()}


@dataclass(frozen=True)
class DuelGames:
    """The games of a panel.

    Attributes:
        game: the game.
        params: its parameters.
        games: number of games against each opponent; an odd number is rounded up.
        seed: of all random numbers.
        own: a user's baseline players, `MODULE:NAME`.
    """

    game: Game
    params: Any
    games: int
    seed: int
    own: tuple[str, ...] = ()

    def play(self, player: Player, others: Sequence[Entrant]) -> PairResults:
        """Play all games of a player against each of the others."""
        own = player.entrant(CANDIDATE)
        pairs = [(0, index) for index in range(1, len(others) + 1)]
        deals = -(-self.games // 2)
        return play_pairs(self.game, self.params, [own, *others], pairs, deals, self.seed)

    def play_baselines(
        self, player: Player, names: Sequence[str] | None = None
    ) -> tuple[tuple[str, ...], PairResults]:
        """Play against baseline players, in games of their own that can be repeated.

        Args:
            player: the candidate.
            names: of the baseline players; None: all of them, which are the scripted ones (without
                any, uniform random play), the constant ones, and a user's own.

        Returns:
            The baseline players' names, and the results.

        Raises:
            InputError: there is no such player.
        """
        others = {other.names[0]: other for other in self._baselines()}
        for name in names or ():
            if name not in others:
                raise InputError(f"there is no baseline player {name!r} in {self.game.name}")
        # Results are concatenated in this order, whatever that of `names`.
        chosen = tuple(name for name in others if names is None or name in names)
        return chosen, self.play(player, [others[name] for name in chosen])

    def _baselines(self) -> list[Entrant]:
        assert self.game.versus is not None
        env = self.game.versus([self.params], 2, together=1, device="cpu")
        with contextlib.closing(env):
            constant = [ConstantEntrant(name) for name in constant_actions(env)]
        own = [OwnEntrant(baseline) for baseline in load_baselines(self.own)]
        return [*scripted_entrants(self.game, self.params), *constant, *own]


def episodes_of(found: PairResults) -> EpisodeResults:
    """Return all games as those of one player, (1, games)."""
    return EpisodeResults(found.points.reshape(1, -1), found.lengths.reshape(1, -1))


def judge_duels(
    rules: DuelGames, look: int, player: Player, past: Sequence[Entrant], others: Sequence[Entrant]
) -> DuelPanel:
    """Evaluate the candidate; the champion is added later, by `with_champion`.

    Args:
        rules: the panel's games.
        look: number of the evaluation.
        player: the candidate.
        past: past champions.
        others: other candidates.
    """
    names, baselines = rules.play_baselines(player)
    points = dict(zip(names, baselines.points, strict=True))
    for group in (past, others):
        # Not in one batch: a player is in it once, and the batch's size limits the memory.
        if group:
            found = rules.play(player, group).points
            points |= {entrant.names[0]: own for entrant, own in zip(group, found, strict=True)}
    compared = {name: compare_duel(name, own, look) for name, own in points.items()}

    def chosen(group: Sequence[Entrant]) -> tuple[Opponent, ...]:
        return tuple(compared[entrant.names[0]] for entrant in group)

    by_deal = {name: own.mean(-1) for name, own in points.items()}
    return DuelPanel(
        seed=rules.seed,
        look=look,
        episodes=episodes_of(baselines),
        own=_own(by_deal),
        baselines=tuple(compared[name] for name in names),
        past=chosen(past),
        candidates=chosen(others),
        points=by_deal,
    )


def with_champion(
    panel: DuelPanel, rules: DuelGames, player: Player, champion: Player, name: str
) -> DuelPanel:
    """Return the panel with the champion's games; name: of the champion."""
    points = rules.play(player, [champion.entrant(name)]).points[0]
    # A past champion may have become champion again meanwhile.
    by_deal = {key: own for key, own in panel.points.items() if key != name}
    by_deal = {name: points.mean(-1)} | by_deal
    return dataclasses.replace(
        panel,
        own=_own(by_deal),
        champion=compare_duel(name, points, panel.look),
        past=tuple(other for other in panel.past if other.name != name),
        points=by_deal,
    )


def compare_duel(name: str, points: Floats, look: int) -> Opponent:
    """Compare the candidate with an opponent, from (deals, 2) points by its seat."""
    level, by_deal, games = confidence(look), points.mean(-1), tally(points)
    # The two games of a deal have luck in common, so deals and not games are counted.
    found = points_interval(by_deal, level)
    return Opponent(
        name,
        own=points_interval(1.0 - by_deal, 0.95),
        difference=Interval(
            2.0 * found.mean - 1.0, 2.0 * found.low - 1.0, 2.0 * found.high - 1.0, level
        ),
        ahead=games.wins,
        equal=games.draws,
        behind=games.losses,
        share=share_interval(int((by_deal > 0.5).sum()), int((by_deal < 0.5).sum()), level),
    )


def _own(points: Mapping[str, Floats]) -> Interval:
    return points_interval(np.mean(list(counted(points).values()), axis=0), 0.95)


def points_interval(by_deal: Floats, level: float) -> Interval:
    """The mean of (deals,) points with Gaffke's bounds.

    Points are between 0 and 1. A bootstrap has no width where all deals have the same points, and
    is too narrow near both ends; these bounds are those of Clopper and Pearson where every deal is
    won or lost.
    """
    low, high = gaffke(by_deal, (0.0, 1.0), level)
    return Interval(float(by_deal.mean()), low, high, level)


def counted(points: Mapping[str, Floats]) -> dict[str, Floats]:
    """Return the points without those against constant players, which would raise every mean."""
    return {name: own for name, own in points.items() if not name.startswith(ALWAYS)}
