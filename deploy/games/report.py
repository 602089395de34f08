"""The gate report on a player: one HTML page for readers who do not know the terms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sweepd.deploy.games.candidates import GameCandidate, GameStudy, plain
from sweepd.deploy.games.duel_panel import CANDIDATE, DuelPanel
from sweepd.deploy.games.gate import MAJORITY, shown
from sweepd.deploy.games.panel import Panel
from sweepd.deploy.games.promote import GamePromotion
from sweepd.deploy.games.selection import selection_sentence
from sweepd.deploy.promotion.findings import findings_page
from sweepd.envs.support.files import write_atomic

OWN, OTHER, CHAMPION = "#1f5fa8", "#8a8a8a", "#2a9d5c"
READING = (
    (
        "What is tested",
        "A search tries many settings and keeps the best one, which is partly luck: it was lucky "
        "in the games that judged it. So the candidate plays a panel of new games that the search "
        "did not use. All players play the same games.",
    ),
    (
        "Better than which players?",
        "Than baseline players (random play, players that do the same in every step, and others where "
        "the game or the user has them) and than the present champion, in two ways. All of them must "
        "be beaten, so their number does not make the test easier. The mean return must be higher: the "
        "interval of the mean difference, taken game by game (a bootstrap over games), must lie above "
        "0. And the return must be higher in most games: among games without equal returns, the "
        "interval of the share in which the candidate is ahead must lie above one half. A few large "
        "payoffs can raise a mean; the second rule requires that the candidate is usually ahead as "
        "well.",
    ),
    (
        "Number of evaluations",
        "After enough evaluations some candidate passes by luck. So all evaluations on a game's "
        "panel are counted, each plays new games, and each is twice as strict as the one before: "
        "its intervals have a confidence of 95%, 97.5%, 98.75% and so on.",
    ),
    (
        "The picture",
        "Left: each player's mean return with its 95% interval, and every game of the candidate "
        "as a dot. Right: the difference of the candidate's mean to that of each player; green "
        "where both rules are met.",
    ),
)
DUEL_READING = (
    READING[0],
    (
        "Better than which players?",
        "The candidate plays the scripted players of the game (uniform random play if it has none), "
        "constant players, the present champion, past champions and the study's other candidates. A won game is 1 "
        "point and a drawn one half a point. Every deal is played twice with exchanged seats. "
        "Against each scripted player and the champion, the interval of the points ahead (a "
        "bootstrap over deals) must lie above 0, and among deals with unequal points, the interval "
        "of the share in which the candidate has more must lie above one half. Of all points "
        "together it must take more than half.",
    ),
    READING[2],
    (
        "The picture",
        "Left: games that the candidate won (green), drew (grey) and lost (red). Right: ratings of "
        "all players by their games against the candidate, with 95% intervals; 400 points are odds "
        "of ten to one.",
    ),
)


def write_report(study: GameStudy, promotion: GamePromotion) -> list[Path]:
    """Write `gate.html` into the study's run directory; no file without a panel.

    Returns:
        Paths of the written files.
    """
    chosen = promotion.chosen
    if chosen is None or chosen.score is None:
        return []
    path = study.run_dir / "gate" / "gate.html"
    duels = isinstance(chosen.score, DuelPanel)
    page = findings_page(
        title=promotion.study,
        headline=promotion.headline,
        opening=summary(study, promotion, chosen.candidate, chosen.score),
        findings=chosen.findings,
        picture=draw_panel(chosen.score, chosen.candidate.name),
        described="Games won, drawn and lost, and ratings"
        if duels
        else "Mean return of every player, and the candidate's difference to each",
        reading=DUEL_READING if duels else READING,
        footer="Made by sweepd promote.",
    )
    write_atomic(path, page)
    return [path]


def summary(
    study: GameStudy, promotion: GamePromotion, chosen: GameCandidate, panel: Panel
) -> list[str]:
    """The summary, one sentence or paragraph each."""
    settings = plain(study.spec.env)
    each = " against each opponent" if isinstance(panel, DuelPanel) else ""
    what = "several of its members as a team" if chosen.seats else "the best seed of its trial"
    drawn = ", and draws its actions from its policy" if chosen.play == "sampled" else ""
    return [
        f"Study {promotion.study} on {study.spec.environment}"
        f"{f' ({settings})' if settings else ''}, algorithm {study.spec.algorithm}: "
        f"{promotion.complete} complete trials. This page is about {chosen.name}, "
        f"{what}{drawn}, judged by evaluation {panel.look} on a panel of "
        f"{panel.games:,} games{each} for the deployment slot {promotion.slot}. Panel evaluations "
        f"of this game used, in this registry: {promotion.looks}.",
        promotion.reason[:1].upper() + promotion.reason[1:] + ".",
        *([selection_sentence(chosen.selection)] if chosen.selection else []),
        shown(panel, chosen.solved),
    ]


def draw_panel(panel: Panel, name: str) -> Figure:
    """The returns of all players, and the candidate's difference to each."""
    if isinstance(panel, DuelPanel):
        return _draw_duels(panel, name)
    others = panel.opponents
    figure = Figure(figsize=(11.0, 1.6 + 0.42 * (1 + len(others))))
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    returns = panel.episodes.returns[0]
    shift = np.random.default_rng(0).uniform(-0.2, 0.2, returns.size)
    rows = [(name, panel.own, OWN)]
    rows += [
        (f"champion {other.name}", other.own, CHAMPION)
        if other is panel.champion
        else (other.name, other.own, OTHER)
        for other in others
    ]
    left.scatter(returns, shift, s=6, alpha=0.35, color=OWN, linewidths=0)
    for row, (_, found, colour) in enumerate(rows):
        left.plot(
            [found.low, found.high], [row, row], color=colour, linewidth=3, solid_capstyle="butt"
        )
        left.plot([found.mean], [row], "o", color=colour, markersize=6)
    left.set_yticks(range(len(rows)), [label for label, _, _ in rows], fontsize=8)
    left.set_xlabel("return of a game", fontsize=8)
    for row, other in enumerate(others, start=1):
        gap = other.difference
        colour = "#2a9d5c" if gap.low > 0.0 and other.share.low > MAJORITY else "#c0392b"
        right.plot(
            [gap.low, gap.high], [row, row], color=colour, linewidth=3, solid_capstyle="butt"
        )
        right.plot([gap.mean], [row], "o", color=colour, markersize=6)
    right.axvline(0.0, color="black", linewidth=1)
    right.set_yticks(range(1, len(rows)), [label for label, _, _ in rows[1:]], fontsize=8)
    right.set_xlabel(f"{name} is better by", fontsize=8)
    for axes in (left, right):
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.tick_params(axis="x", labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    return figure


def _draw_duels(panel: DuelPanel, name: str) -> Figure:
    """Won, drawn and lost games against every opponent, and the ratings of all players."""
    others, rating = panel.opponents, panel.ratings
    labels = [
        f"champion {other.name}" if other is panel.champion else other.name for other in others
    ]
    figure = Figure(figsize=(11.0, 1.8 + 0.42 * (1 + len(others))), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for row, other in enumerate(others):
        start = 0
        for count, colour in zip(
            (other.ahead, other.equal, other.behind), (CHAMPION, "#d0d0d0", "#c0392b"), strict=True
        ):
            left.barh(row, count, left=start, color=colour, height=0.7)
            if count:
                left.text(start + count / 2, row, str(count), ha="center", va="center", fontsize=7)
            start += count
    left.axvline(panel.games / 2, color="black", linewidth=1)
    left.set_yticks(range(len(others)), labels, fontsize=8)
    left.set_ylim(len(others) - 0.5, -0.5)
    left.set_xlabel(f"games that {name} won, drew and lost", fontsize=8)
    order = sorted(range(len(rating.names)), key=lambda index: -rating.ratings[index])
    shown_names = {CANDIDATE: name} | dict(zip([o.name for o in others], labels, strict=True))
    for row, index in enumerate(order):
        own = rating.names[index] == CANDIDATE
        colour = OWN if own else OTHER
        right.plot([rating.low[index], rating.high[index]], [row, row], color=colour, linewidth=3)
        right.plot([rating.ratings[index]], [row], "o", color=colour, markersize=6)
    right.set_yticks(range(len(order)), [shown_names[rating.names[i]] for i in order], fontsize=8)
    right.set_ylim(len(order) - 0.5, -0.5)
    right.set_xlabel("Bradley-Terry rating in Elo points, 95%", fontsize=8)
    for axes in (left, right):
        axes.tick_params(axis="x", labelsize=8)
        axes.grid(alpha=0.25, axis="x")
        axes.spines[["top", "right"]].set_visible(False)
    return figure
