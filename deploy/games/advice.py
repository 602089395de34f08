"""What to do next where no candidate of a game passes: by who failed against whom, and by how much."""

from __future__ import annotations

import math

from sweepd.deploy.games.candidates import GameResult, GameStudy
from sweepd.deploy.games.panel import Opponent, Panel
from sweepd.deploy.promotion.commands import new_study, on_study
from sweepd.deploy.promotion.promotion import Step
from sweepd.deploy.promotion.rules import RuleFinding, deciding
from sweepd.deploy.registry.flags import registry_flags
from sweepd.deploy.registry.registry import Registry

MOST_GAMES = 100_000  # more of them is no advice


def next_steps(study: GameStudy, closest: GameResult, registry: Registry) -> list[Step]:
    """Return the commands that help, by the rule that decides: later rules depend on it."""
    finding = deciding(closest.findings)
    steps = []
    rival = None if finding is None else hardest(finding, closest.score)
    if rival is not None and closest.score is not None:
        games = games_needed(rival, closest.score.games)
        if games is not None:
            steps.append(
                Step(
                    f"play {games:,} games: it is ahead of {rival.name}, but that may be luck; so "
                    "many games would decide a lead of this size",
                    on_study("promote", study, "--games", games) + registry_flags(registry),
                )
            )
    return [*steps, *search_on(study)]


def search_on(study: GameStudy) -> list[Step]:
    """Return commands that search for a better player: longer training, and more trials."""
    budget, count = 2 * study.spec.budget, 2 * study.finished
    command = new_study(study, study.finished, budget=budget)
    steps = []
    if command is not None:
        steps.append(Step(f"train twice as long, {budget:,} steps per seed", command))
    more = on_study("train", study, "--n-trials", count)
    return [*steps, Step(f"search on with {count} trials in total", more)]


def hardest(finding: RuleFinding, panel: Panel | None) -> Opponent | None:
    """Return the player of a rule that the candidate does worst against; None without such a rule."""
    if panel is None or "-" not in finding.name or finding.source:  # a user's rule
        return None
    champion = finding.name.endswith("champion")
    rivals = [panel.champion] if champion and panel.champion else [*panel.baselines]
    return min(rivals, key=lambda other: other.difference.low) if rivals else None


def games_needed(other: Opponent, games: int) -> int | None:
    """Return the number of games at which a lead of the present size would be significant.

    The half-width of an interval shrinks with the root of the number of games; a fifth is added.

    Args:
        other: the player that the candidate does worst against.
        games: of the panel.

    Returns:
        None if there is no lead, or more games than `MOST_GAMES` would be needed.
    """
    gap = other.difference
    if gap.mean <= 0.0 or gap.low > 0.0:
        return None
    needed = 1.2 * games * ((gap.mean - gap.low) / gap.mean) ** 2
    count = math.ceil(needed / 10.0) * 10
    return count if games < count <= MOST_GAMES else None
