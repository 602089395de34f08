"""Why no candidate of a game passes, and what helps: by who failed against whom, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sweepd.deploy.games.baselines import FIRST_ACTION
from sweepd.deploy.games.candidates import GameResult
from sweepd.deploy.games.panel import Opponent, Panel
from sweepd.deploy.promotion.rules import RuleFinding
from sweepd.envs.games.constant_players import ALWAYS

MORE = "a larger --budget or more trials"


def why_none(results: Sequence[GameResult], closest: GameResult) -> str:
    """Return what the closest candidate does not meet, what helps, and how others failed."""
    failed = _failed(closest)
    said = "; ".join(f"{finding.name}: {finding.explanation}" for finding in failed)
    others = "" if len(results) == 1 else f", the closest of {len(results)},"
    text = f"{closest.candidate.name}{others} does not meet {said}"
    # Advice for the first failed rule: later rules depend on it.
    found = (advice(finding, closest.score) for finding in failed)
    helps = next(filter(None, found), "")
    text += f". What helps: {helps}" if helps else ""
    also = [
        f"{one.candidate.name} fails {', '.join(finding.name for finding in _failed(one))}"
        f"{_behind(one.score)}"
        for one in results
        if one is not closest and one.score is not None
    ]
    return text + (f". Also: {'; '.join(also)}" if also else "")


def advice(finding: RuleFinding, panel: Panel | None) -> str:
    """Return what helps a candidate that failed a rule; "" if nothing is known."""
    if finding.name == "training-faults":
        return "run the study again, or choose another trial with --trial"
    if finding.name == "points":
        return f"{MORE}, or training against the players that it loses to"
    if panel is None or "-" not in finding.name or finding.source:  # a user's rule
        return ""
    champion = finding.name.endswith("champion")
    rivals = [panel.champion] if champion and panel.champion else [*panel.baselines]
    if not rivals:
        return ""
    if finding.name.startswith("ahead-of"):
        return (
            "its mean is higher, but not its return in most games: in a game that few large payoffs "
            f"decide, a lower limit, such as --limit {finding.name}=0.1; else {MORE}"
        )
    stays = "; if no player can do better, the champion rightly stays" if champion else ""
    return _against(min(rivals, key=lambda other: other.difference.low), panel) + stays


def _against(other: Opponent, panel: Panel) -> str:
    """Return what helps against the player that the candidate does worst against."""
    gap, name = other.difference, other.name
    if gap.mean > 0.0:
        # The half-width shrinks with the root of the number of games.
        factor = ((gap.mean - gap.low) / gap.mean) ** 2
        games = math.ceil(1.2 * factor * panel.games / 10.0) * 10
        return (
            f"more games: it is ahead of {name}, but that may be luck; --games {games} would decide "
            "a lead of this size"
        )
    if other.equal == other.games:
        return f"{MORE}: it is as good as {name} in every game"
    if name == FIRST_ACTION or name.startswith(ALWAYS):
        return (
            f"training that learns more than {name}, a player that ignores its observations: other "
            "ranges of the hyperparameters, a look at rewards and observations (sweepd doctor "
            f"--env), or {MORE}"
        )
    return MORE


def _failed(result: GameResult) -> list[RuleFinding]:
    return [finding for finding in result.findings if finding.verdict == "fail"]


def _behind(panel: Panel | None) -> str:
    """Return how far a candidate is behind the player that it does worst against."""
    if panel is None:
        return ""
    other = min(panel.opponents, key=lambda one: one.difference.low)
    word = "ahead of" if other.difference.mean > 0.0 else "behind"
    return f" ({abs(other.difference.mean):.4g} {word} {other.name})"
