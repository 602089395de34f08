"""The gate of games: the rules that a player must pass to become champion.

The first stage checks that the weights are those that were scored. The second stage evaluates the
player on a panel (`sweepd.deploy.games.panel`), and every such evaluation is counted. Two things
are tested against each other player, on the same games:

* the mean return is higher: the lower end of the interval of the mean difference is above 0;
* the return is higher in most games: the lower end of the interval of the share of games ahead is
  above 1/2, where games with equal returns are left out (a sign test).

In games of two players, "return" is the outcome of a game: the mean difference is the candidate's
points minus the other's in games against each other, and the share is that of deals in which the
candidate has more points over both seatings. There, one more rule asks for more than half of all
points, past champions and other candidates included.

A few games can raise the mean alone, and a majority alone can hide large losses. The intervals have
a confidence of 95% at the first evaluation, 97.5% at the second, and so on, so the probability
that a player without an advantage ever passes is at most 1/20 (one-sided).

Which baseline player is the best one is not known before the panel, and picking it by the panel's
means would need a correction. So the candidate must be ahead of each of them at that level: an
intersection-union test (R. L. Berger 1982). A candidate that is no better than the best baseline
player must pass the test against that player, so the probability is at most the level of one test,
however many baseline players there are. Requiring both tests only lowers it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweepd.deploy.games.baselines import is_simple
from sweepd.deploy.games.duel_panel import DuelPanel, counted
from sweepd.deploy.games.panel import Interval, Opponent, Panel
from sweepd.deploy.promotion.rules import GateRule, Measured, training_faults

SEARCH, PANEL = "search", "panel"
MAJORITY = 0.5


@dataclass(frozen=True)
class GameEvidence:
    """The evidence about a player.

    Attributes:
        faults: what went wrong in training, in sentences.
        panel: None before the evaluation on a panel.
        solved: the mean return from which the game counts as solved, None if undefined.
    """

    faults: tuple[str, ...]
    panel: Panel | None = None
    solved: float | None = None


def format_interval(found: Interval) -> str:
    """Format mean and interval: `+12.3 (95%: +10.1 to +14.2)`, or `+12.3 (equal in all games)`."""
    confident = f"{100 * found.confidence:.4g}%: {found.low:+.4g} to {found.high:+.4g}"
    return f"{found.mean:+.4g} ({'equal in all games' if found.low == found.high else confident})"


def ahead_in(other: Opponent) -> str:
    """Format the games ahead: `ahead in 49 of 100 games, equal in 3`."""
    equal = f", equal in {other.equal}" if other.equal else ""
    return f"ahead in {other.ahead} of {other.games} games{equal}"


def results_in(other: Opponent) -> str:
    """Format the games of two players: `120 won, 30 drawn, 50 lost`."""
    return f"{other.ahead} won, {other.equal} drawn, {other.behind} lost"


def shown(panel: Panel, solved: float | None) -> str:
    """The panel's result in words: mean returns, games ahead, and limitations."""
    if isinstance(panel, DuelPanel):
        return _duels_shown(panel)
    compared = [
        f"{other.own.mean:.4g} by {'champion ' * (other is panel.champion)}{other.name} "
        f"({ahead_in(other)})"
        for other in sorted(panel.opponents, key=lambda other: -other.own.mean)[:3]
    ]
    text = f"Mean return of a game {panel.own.mean:.4g}; {', '.join(compared)}."
    if solved is not None:
        verdict = "it is solved" if panel.own.mean >= solved else "it is not solved"
        text += f" The game counts as solved from a mean of {solved:g}: {verdict}."
    if all(is_simple(other.name) for other in panel.opponents):
        text += (
            " The only other players were random and constant play: beating them shows learning, "
            "not a good player."
        )
    return text


def _duels_shown(panel: DuelPanel) -> str:
    decided = [*panel.baselines, *([panel.champion] if panel.champion else [])]
    text = f"{panel.own.mean:.1%} of all points; " + "; ".join(
        f"{results_in(other)} against {'champion ' * (other is panel.champion)}{other.name}"
        for other in decided
    )
    more = len(panel.past) + len(panel.candidates)
    text += f"; {more} more opponent{'s' * (more > 1)}." if more else "."
    found = panel.ratings
    # Whole numbers: formatted floats could read "-0".
    rating, low, high = (round(part[0]) for part in (found.ratings, found.low, found.high))
    return text + (
        f" Rating {rating:+d} ({found.confidence:.0%}: {low:+d} to {high:+d}), where "
        f"{panel.baselines[0].name} has 0."
    )


def _mean(panel: Panel, other: Opponent, name: str) -> Measured:
    if isinstance(panel, DuelPanel):
        said = (
            f"{1.0 - other.own.mean:.1%} of the points against {name} ({results_in(other)}); "
            f"points ahead per game {format_interval(other.difference)}"
        )
        return Measured(other.difference.low, said)
    said = (
        f"mean return {panel.own.mean:.4g}, {name} {other.own.mean:.4g} in the same {panel.games} "
        f"games; difference {format_interval(other.difference)}"
    )
    return Measured(other.difference.low, said)


def _share(panel: Panel, other: Opponent, name: str) -> Measured:
    share = other.share
    if isinstance(panel, DuelPanel):
        said = (
            f"of the deals with unequal points against {name}, more in {share.mean:.0%} "
            f"({100 * share.confidence:.4g}%: {share.low:.0%} to {share.high:.0%})"
        )
        return Measured(share.low, said)
    if not other.ahead + other.behind:
        return Measured(0.0, f"every game has the same return as with {name}")
    said = (
        f"{ahead_in(other)} against {name}; of the games that differ, {share.mean:.0%} "
        f"({100 * share.confidence:.4g}%: {share.low:.0%} to {share.high:.0%})"
    )
    return Measured(share.low, said)


Compare = Callable[[Panel, Opponent, str], Measured]


def _hardest(
    compare: Compare, kind: str, players: Callable[[Panel], Sequence[Opponent]]
) -> Callable[[GameEvidence], Measured | None]:
    """Measure the player against which the candidate does worst.

    Args:
        compare: the measurement.
        kind: what the players are called, such as `baseline player`.
        players: the players of a panel to compare with.
    """

    def measure(evidence: GameEvidence) -> Measured | None:
        others = () if evidence.panel is None else players(evidence.panel)
        if evidence.panel is None or not others:
            return None
        found = [compare(evidence.panel, other, f"{kind} {other.name}") for other in others]
        # All must be beaten, so the one against which the candidate does worst decides.
        hardest = min(found, key=lambda measured: measured.value or 0.0)
        more = f"; the hardest of {len(found)} baseline players" if len(found) > 1 else ""
        return Measured(hardest.value, hardest.explanation + more)

    return measure


def _baselines(compare: Compare) -> Callable[[GameEvidence], Measured | None]:
    return _hardest(compare, "the baseline player", lambda panel: panel.baselines)


def _champion(compare: Compare) -> Callable[[GameEvidence], Measured | None]:
    return _hardest(compare, "champion", lambda panel: (panel.champion,) if panel.champion else ())


def _points(evidence: GameEvidence) -> Measured | None:
    panel = evidence.panel
    if not isinstance(panel, DuelPanel):
        return None
    count, found = len(counted(panel.points)), panel.overall
    said = (
        f"{found.mean:.1%} of the points ({100 * found.confidence:.4g}%: {found.low:.1%} to "
        f"{found.high:.1%}) in {count * panel.games:,} games against {count} players"
    )
    return Measured(found.low, said)


def _solved(evidence: GameEvidence) -> Measured | None:
    panel, solved = evidence.panel, evidence.solved
    if panel is None or solved is None:
        return None
    said = (
        f"mean return {panel.own.mean:.4g}; the game counts as solved from {solved:g} "
        "(informational)"
    )
    return Measured(panel.own.mean - solved, said)


DEFAULT_RULES: tuple[GateRule[GameEvidence], ...] = (
    training_faults(SEARCH, "training stayed finite, and the weights are those that were scored"),
    GateRule(
        "beats-baselines",
        PANEL,
        ">",
        0.0,
        "a higher mean return than every baseline player",
        _baselines(_mean),
    ),
    GateRule(
        "ahead-of-baselines",
        PANEL,
        ">",
        MAJORITY,
        "a higher return than every baseline player in most games",
        _baselines(_share),
    ),
    GateRule(
        "solved", PANEL, ">=", 0.0, "the usual threshold of this game", _solved, decides=False
    ),
    GateRule(
        "beats-champion",
        PANEL,
        ">",
        0.0,
        "a higher mean return than the present champion",
        _champion(_mean),
    ),
    GateRule(
        "ahead-of-champion",
        PANEL,
        ">",
        MAJORITY,
        "a higher return than the present champion in most games",
        _champion(_share),
    ),
)
DUEL_RULES: tuple[GateRule[GameEvidence], ...] = (
    *DEFAULT_RULES,
    GateRule(
        "points",
        PANEL,
        ">",
        MAJORITY,
        "more than half of the points against all players, past champions and other candidates too",
        _points,
    ),
)
