"""What is told about a player: a promotion, and a bundle in `registry show`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.games.candidates import GamePromotion, GameResult, GameStudy, plain
from sweepd.deploy.games.duel_panel import CANDIDATE, DuelPanel
from sweepd.deploy.games.panel import Panel
from sweepd.deploy.games.rules import PANEL, shown
from sweepd.deploy.games.selection import selection_sentence
from sweepd.deploy.promotion.report import gate_findings, identity, promotion_report
from sweepd.deploy.promotion.sections import (
    Cell,
    Report,
    ReportPicture,
    ReportTable,
    ReportTerms,
    Section,
    Styled,
    capital,
    parameters_text,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TERMS = (
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
_DUEL_TERMS = (
    _TERMS[0],
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
    _TERMS[2],
    (
        "The picture",
        "Left: games that the candidate won (green), drew (grey) and lost (red). Right: ratings of "
        "all players by their games against the candidate, with 95% intervals; 400 points are odds "
        "of ten to one.",
    ),
)


def game_report(study: GameStudy, promotion: GamePromotion) -> Report:
    """The report on a promotion."""
    panel = None if promotion.chosen is None else promotion.chosen.score
    evidence, picture, terms = list[ReportTable](), None, _TERMS
    if promotion.chosen is not None and panel is not None:
        name, described = promotion.chosen.candidate.name, "Mean return of every player, and the "
        described += "candidate's difference to each"
        if isinstance(panel, DuelPanel):
            terms, described = _DUEL_TERMS, "Games won, drawn and lost, and ratings"
        evidence = [panel_table(panel.to_dict(), name)]
        picture = ReportPicture(described, partial(_draw, panel, name))
    return promotion_report(
        promotion,
        evaluation=f"{PANEL} evaluation",
        cells=_cells,
        about=_about(study, promotion),
        evidence=evidence,
        picture=picture,
        reading=ReportTerms("How to read this", terms),
        footer="Made by sweepd promote.",
    )


def _about(study: GameStudy, promotion: GamePromotion) -> list[str]:
    if promotion.chosen is None:
        return []
    chosen, panel = promotion.chosen.candidate, promotion.chosen.score
    settings = plain(study.spec.env)
    what = "several of its members as a team" if chosen.seats else "the best seed of its trial"
    drawn = "; it draws its actions from its policy" if chosen.play == "sampled" else ""
    judged = "was not evaluated on a panel"
    if panel is not None:
        each = " against each opponent" if isinstance(panel, DuelPanel) else ""
        judged = f"was judged by evaluation {panel.look} on a panel of {panel.games:,} games{each}"
    return [
        f"Study {promotion.study} on {study.spec.environment}"
        f"{f' ({settings})' if settings else ''}, algorithm {study.spec.algorithm}: "
        f"{promotion.complete} complete trials. {capital(chosen.name)}, {what}, {judged}{drawn}. "
        f"Panel evaluations of this game used, in this registry: {promotion.looks}.",
        *([shown(panel, chosen.solved)] if panel is not None else []),
        *([selection_sentence(chosen.selection)] if chosen.selection else []),
    ]


def _cells(result: GameResult) -> dict[str, str]:
    return {
        "trial": str(result.candidate.trial.number),
        "objective": f"{result.candidate.objective:+.4f}",
        "best seed": ("team " if result.candidate.seats else "")
        + ", ".join(map(str, result.candidate.members)),
        "its mean": ", ".join(f"{score:+.4f}" for score in result.candidate.scores),
    }


def _draw(panel: Panel, name: str) -> Figure:
    from sweepd.deploy.games.pictures import draw_panel  # imports matplotlib

    return draw_panel(panel, name)


def panel_table(panel: Mapping[str, Any], who: str) -> ReportTable:
    """Mean returns of all players, and the differences of `who` to the others.

    Args:
        panel: as `Panel.to_dict` returns it.
        who: the player that the panel is about.
    """
    if "points" in panel:
        return _duel_table(panel, who)
    others = list(panel["baselines"].items())
    if panel["champion"] is not None:
        others.insert(0, (f"champion {panel['champion']['name']}", panel["champion"]))
    strict = {100 * found["difference"]["confidence"] for _, found in others}
    rows: list[Sequence[Cell]] = [[Styled(who, "own"), *_mean(panel["own"]), "", "", ""]]
    for other, found in others:
        gap = found["difference"]
        ahead = f"{gap['mean']:+.4g}", f"{gap['low']:+.4g} to {gap['high']:+.4g}", _ahead(found)
        rows.append([other, *_mean(found["own"]), *ahead])
    return ReportTable(
        f"Panel: {panel['games']:,} games that the search did not use, the same for all",
        ("player", "mean", "95%", "ahead by", f"{max(strict, default=95):.4g}%", "ahead in"),
        rows,
        f"ahead: {who} compared with the player of that row, game by game",
    )


def _duel_table(panel: Mapping[str, Any], who: str) -> ReportTable:
    """Won, drawn and lost games of `who` against each opponent, and the ratings of all."""
    others = [(name, name, found) for name, found in panel["baselines"].items()]
    if panel["champion"] is not None:
        name = panel["champion"]["name"]
        others.insert(0, (name, f"champion {name}", panel["champion"]))
    others += [(name, f"past champion {name}", own) for name, own in panel["past"].items()]
    others += [(name, name, own) for name, own in panel["candidates"].items()]
    level = 100 * panel["points"]["confidence"]
    overall = panel["points"]
    rows: list[Sequence[Cell]] = [
        [
            Styled(who, "own"),
            *(str(sum(own[key] for *_, own in others)) for key in ("ahead", "equal", "behind")),
            *_share_cells(overall["mean"], overall["low"], overall["high"]),
            *_rating_cells(panel, CANDIDATE),
        ]
    ]
    for name, label, own in others:
        # The difference of points per game is from -1 to 1.
        gap = [(1.0 + own["difference"][key]) / 2.0 for key in ("mean", "low", "high")]
        counts = (str(own[key]) for key in ("ahead", "equal", "behind"))
        rows.append([label, *counts, *_share_cells(*gap), *_rating_cells(panel, name)])
    return ReportTable(
        f"Panel: {panel['games']:,} games against each player, both seats alike",
        ("player", "won", "drawn", "lost", "points", f"{level:.4g}%", "rating", "95%"),
        rows,
        f"won, drawn, lost, points: those of {who} against the player of that row",
    )


def _share_cells(mean: float, low: float, high: float) -> tuple[str, str]:
    return f"{mean:.1%}", f"{low:.1%} to {high:.1%}"


def _rating_cells(panel: Mapping[str, Any], name: str) -> tuple[str, str]:
    own = panel["ratings"]["players"][name]
    # Whole numbers: formatted floats could read "-0".
    rating, low, high = (round(own[key]) for key in ("rating", "low", "high"))
    return f"{rating:+d}", f"{low:+d} to {high:+d}"


def _ahead(found: Mapping[str, Any]) -> str:
    return f"{found['ahead']}" + (f", {found['equal']} equal" if found["equal"] else "")


def _mean(found: Mapping[str, float]) -> tuple[str, str]:
    return f"{found['mean']:.4g}", f"{found['low']:.4g} to {found['high']:.4g}"


def game_facts(
    bundle: GameBundle, places: Sequence[Mapping[str, Any]], folder: str, looks: int
) -> dict[str, Any]:
    """What `registry show` prints about a player. places: its present and former slots."""
    manifest = bundle.manifest
    gate = dict(manifest.gate)
    return {
        "bundle": bundle.hash,
        "weights_sha256": bundle.members_sha256,
        "folder": folder,
        "slots": list(places),
        "game": manifest.game.model_dump(mode="json"),
        "player": manifest.player.model_dump(mode="json"),
        "origin": manifest.origin.model_dump(mode="json"),
        "code_version": manifest.code_version,
        "look": gate.get("look"),
        "looks_now": looks,
        "panel": gate.get("panel"),
        "selection": gate.get("selection"),
        "findings": gate.get("findings", []),
    }


def game_sections(facts: Mapping[str, Any]) -> list[Section]:
    """A player: identity, gate and panel. facts: as `game_facts` returns them."""
    panel = facts["panel"]
    return [
        identity(facts, _identity(facts), "panel"),
        *gate_findings(facts),
        *([panel_table(panel, "this player")] if panel is not None else []),
    ]


def _identity(facts: Mapping[str, Any]) -> list[tuple[str, Cell]]:
    game, player, origin = facts["game"], facts["player"], facts["origin"]
    settings = plain(game["params"])
    several = game["seats"] > 1 and "seats" not in player
    seats = f", at each of {game['seats']} seats" if several else ""
    terms: list[tuple[str, Cell]] = [
        ("plays", f"{game['name']}{f' ({settings})' if settings else ''}{seats}"),
        (
            "from",
            f"study {origin['study']}, trial {origin['trial']} ({origin['objective']} "
            f"{origin['objective_value']:+.4f}), {_members(origin)}",
        ),
    ]
    if "seats" in player:
        seeds = [str(origin["team"][own]) for own in player["seats"]]
        terms.append(("team", f"the seats are played by the seeds {', '.join(seeds)}"))
    if facts["selection"]:
        terms.append(("selection", selection_sentence(facts["selection"])))
    actions = (
        f"choices of {player['choices']}"
        if player["choices"]
        else f"{player['action_dim']} numbers"
    )
    shape = "".join(f", {name} {value}" for name, value in player["shape"].items())
    reads = f", {player['state_dim']} inputs, {actions}" if player["state_dim"] else ""
    sampled = ", actions drawn from the policy" if player["play"] == "sampled" else ""
    return [
        *terms,
        ("policy", f"{player['algorithm']}{reads}{shape}{sampled}"),
        ("parameters", parameters_text(origin["parameters"])),
        ("made with", f"sweepd {facts['code_version']}"),
    ]


def _members(origin: Mapping[str, Any]) -> str:
    """Format which members of the trial they are, and their scores."""
    if "team" not in origin:
        return (
            f"seed {origin['member']} of {origin['members']} "
            f"(mean {origin['score']:+.4f} when the trial was judged)"
        )
    scores = ", ".join(f"{score:+.4f}" for score in origin["scores"])
    return (
        f"seeds {', '.join(map(str, origin['team']))} of {origin['members']} as a team "
        f"(means {scores} when the trial was judged, each alone at every seat)"
    )
