"""The gate of a game's player: the rules that it must meet to become champion.

The first stage asks whether the weights are those that were scored; the second the panel (`deploy.games.panel`), at
which every look is counted. Against each other player two things are tested on the same games:

* the mean return is higher: the lower end of the interval of the mean difference is above 0;
* the return is higher in most games: the lower end of the interval of the share of games ahead is above 1/2. Games with
  equal returns are left out (a sign test).

The mean alone can be higher because of a few games; the majority alone can hide large losses. The intervals are of 95 %
at a game's first look, 97.5 % at the second, and so on. So all looks together let a player that is no better pass in at
most one case of twenty. Requiring both makes that rarer, never more frequent. To beat several baseline players, a
candidate must beat each of them at that level.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from deploy.games.panel import Interval, Opponent, Panel
from deploy.promotion.rules import GateRule, Measured

SEARCH, PANEL = "search", "panel"
MAJORITY = 0.5


@dataclass(frozen=True)
class GameEvidence:
    """What is known about a candidate. faults: what went wrong in training, sentences. panel: None before the look.
    solved: the mean return from which on the game counts as solved; None if that is not defined.
    """

    faults: tuple[str, ...]
    panel: Panel | None = None
    solved: float | None = None


def words(found: Interval) -> str:
    """Mean and interval: `+12.3 (95 %: +10.1 to +14.2)`."""
    return (
        f"{found.mean:+.4g} ({100 * found.confidence:.4g} %: {found.low:+.4g} to {found.high:+.4g})"
    )


def ahead_in(other: Opponent) -> str:
    """In how many games the candidate was ahead: `ahead in 49 of 100 games`, and the equal ones."""
    equal = f", equal in {other.equal}" if other.equal else ""
    return f"ahead in {other.ahead} of {other.games} games{equal}"


def shown(panel: Panel, solved: float | None) -> str:
    """The panel's result in words: mean returns, games ahead, and what was not tested."""
    others = [*([panel.champion] if panel.champion else []), *panel.baselines]
    compared = [
        f"{other.own.mean:.4g} by {'champion ' * (other is panel.champion)}{other.name} ({ahead_in(other)})"
        for other in sorted(others, key=lambda other: -other.own.mean)[:3]
    ]
    text = f"Mean return of a game {panel.own.mean:.4g}; {', '.join(compared)}."
    if solved is not None:
        verdict = "it is" if panel.own.mean >= solved else "it is not"
        text += f" The game counts as solved from {solved:g} on: {verdict}."
    if [other.name for other in others] == ["random"]:
        text += (
            " The only other player was random play: to beat it shows learning, not a good player."
        )
    return text


def _faults(evidence: GameEvidence) -> Measured:
    count = len(evidence.faults)
    return Measured(
        count,
        evidence.faults[0]
        if count
        else "training stayed finite, and the weights are those that were scored",
    )


def _mean(panel: Panel, other: Opponent, name: str) -> Measured:
    said = (
        f"mean return {panel.own.mean:.4g}, where {name} has {other.own.mean:.4g} in the same {panel.games} games: "
        f"{words(other.difference)}"
    )
    return Measured(other.difference.low, said)


def _share(_: Panel, other: Opponent, name: str) -> Measured:
    if not other.ahead + other.behind:
        return Measured(0.0, f"every game has the same return as that of {name}")
    share = other.share
    said = (
        f"{ahead_in(other)} against {name}; of the games that differ, {share.mean:.0%} "
        f"({100 * share.confidence:.4g} %: {share.low:.0%} to {share.high:.0%})"
    )
    return Measured(share.low, said)


Compare = Callable[[Panel, Opponent, str], Measured]


def _hardest(compare: Compare) -> Callable[[GameEvidence], Measured | None]:
    """Measures the baseline player against whom the candidate does worst."""

    def measure(evidence: GameEvidence) -> Measured | None:
        panel = evidence.panel
        if panel is None or not panel.baselines:
            return None
        found = [
            compare(panel, other, f"the baseline player {other.name}") for other in panel.baselines
        ]
        hardest = min(found, key=lambda measured: measured.value or 0.0)
        count = len(found)
        more = f"; it is the hardest of {count} to beat" if count > 1 else ""
        return Measured(hardest.value, hardest.explanation + more)

    return measure


def _solved(evidence: GameEvidence) -> Measured | None:
    panel, solved = evidence.panel, evidence.solved
    if panel is None or solved is None:
        return None
    said = f"mean return {panel.own.mean:.4g}; the game counts as solved from {solved:g} on (this decides nothing)"
    return Measured(panel.own.mean - solved, said)


def _champion(compare: Compare) -> Callable[[GameEvidence], Measured | None]:
    def measure(evidence: GameEvidence) -> Measured | None:
        panel = evidence.panel
        if panel is None or panel.champion is None:
            return None
        return compare(panel, panel.champion, f"champion {panel.champion.name}")

    return measure


DEFAULT_RULES: tuple[GateRule[GameEvidence], ...] = (
    GateRule("training-faults", SEARCH, "<=", 0.0, "nothing went wrong in training", _faults),
    GateRule(
        "beats-baselines",
        PANEL,
        ">",
        0.0,
        "a higher mean return than every baseline player",
        _hardest(_mean),
    ),
    GateRule(
        "ahead-of-baselines",
        PANEL,
        ">",
        MAJORITY,
        "a higher return than every baseline player in most games",
        _hardest(_share),
    ),
    GateRule(
        "solved", PANEL, ">=", 0.0, "as good as people ask of this game", _solved, decides=False
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
