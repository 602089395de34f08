"""The gate of a game's player: the rules that it must meet to become champion.

The first stage asks whether the weights are those that were scored; the second the panel (`deploy.games.panel`), at
which every look is counted. A rule about others wants the lower end of an interval of the difference above 0: that of
95 % at a game's first look, 97.5 % at the second, and so on, so that all looks together let a player pass that is no
better in one case of twenty at most. To beat several baseline players, it must beat each of them at that level.
"""

from __future__ import annotations

from dataclasses import dataclass

from deploy.games.panel import Interval, Opponent, Panel
from deploy.rules import Measured, Rule

SEARCH, PANEL = "search", "panel"


@dataclass(frozen=True)
class Evidence:
    """What is known about a candidate. faults: what went wrong in training, sentences. panel: None before the look.
    solved: the mean return from which on the game counts as solved, None where nobody says.
    """

    faults: tuple[str, ...]
    panel: Panel | None = None
    solved: float | None = None


def words(found: Interval) -> str:
    """Mean and interval: `+12.3 (95 %: +10.1 to +14.2)`."""
    return f"{found.mean:+.4g} ({100 * found.confidence:.4g} %: {found.low:+.4g} to {found.high:+.4g})"


def _faults(evidence: Evidence) -> Measured:
    count = len(evidence.faults)
    return Measured(
        count, evidence.faults[0] if count else "training stayed finite, and the weights are those that were scored"
    )


def _better(panel: Panel, other: Opponent, name: str) -> str:
    return (
        f"{panel.own.mean:.4g} a game, where {name} made {other.own.mean:.4g} in the same {panel.games}: "
        f"{words(other.difference)}, better in {other.wins:.0%} of them"
    )


def _baselines(evidence: Evidence) -> Measured | None:
    panel = evidence.panel
    if panel is None or not panel.baselines:
        return None
    hardest = min(panel.baselines, key=lambda other: other.difference.low)
    said = _better(panel, hardest, f"the baseline player {hardest.name}")
    if len(panel.baselines) > 1:
        said += f"; it is the hardest of {len(panel.baselines)} to beat"
    return Measured(hardest.difference.low, said)


def _solved(evidence: Evidence) -> Measured | None:
    panel, solved = evidence.panel, evidence.solved
    if panel is None or solved is None:
        return None
    said = f"{panel.own.mean:.4g} a game, and the game counts as solved from {solved:g} on (this decides nothing)"
    return Measured(panel.own.mean - solved, said)


def _champion(evidence: Evidence) -> Measured | None:
    panel = evidence.panel
    if panel is None or panel.champion is None:
        return None
    other = panel.champion
    return Measured(other.difference.low, _better(panel, other, f"champion {other.name}"))


DEFAULT_RULES: tuple[Rule[Evidence], ...] = (
    Rule("training-faults", SEARCH, "<=", 0.0, "nothing went wrong in training", _faults),
    Rule("beats-baselines", PANEL, ">", 0.0, "surely better than every baseline player", _baselines),
    Rule("solved", PANEL, ">=", 0.0, "as good as people ask of this game", _solved, decides=False),
    Rule("beats-champion", PANEL, ">", 0.0, "surely better than the present champion", _champion),
)
