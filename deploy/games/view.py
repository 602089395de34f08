"""Promotions and bundles of players in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.games.candidates import plain
from sweepd.deploy.games.duel_panel import CANDIDATE
from sweepd.deploy.games.promote import GamePromotion, GameResult
from sweepd.deploy.games.selection import selection_sentence
from sweepd.deploy.promotion import views
from sweepd.deploy.promotion.views import bundle_panel, columns, identity_table


def promotion_view(promotion: GamePromotion) -> RenderableType:
    """The whole report of a promotion."""
    chosen = promotion.chosen
    notes = []
    if chosen is not None:
        notes = [chosen.candidate.describe(chosen.score)["shown"]]
        notes += (
            [selection_sentence(chosen.candidate.selection)] if chosen.candidate.selection else []
        )
    note = "\n".join(filter(None, notes))
    return views.promotion_view(promotion, cells=_cells, evidence=_evidence, note=note)


def _cells(result: GameResult) -> dict[str, str]:
    return {
        "trial": str(result.candidate.trial.number),
        "objective": f"{result.candidate.objective:+.4f}",
        "best seed": ("team " if result.candidate.seats else "")
        + ", ".join(map(str, result.candidate.members)),
        "its mean": ", ".join(f"{score:+.4f}" for score in result.candidate.scores),
    }


def _evidence(result: GameResult) -> list[RenderableType]:
    """The panel, if the candidate was evaluated on it."""
    if result.score is None:
        return []
    return [panel_table(result.score.to_dict(), result.candidate.name)]


def panel_table(panel: Mapping[str, Any], who: str) -> Table:
    """Mean returns of all players, and the differences of `who` to the others.

    Args:
        panel: as `Panel.to_dict` returns it.
        who: the player that the panel is about.
    """
    if "points" in panel:
        return _duel_table(panel, who)
    table = Table(
        title=f"Panel: {panel['games']:,} games that the search did not use, the same for all"
    )
    table.title_justify = "left"
    others = list(panel["baselines"].items())
    if panel["champion"] is not None:
        others.insert(0, (f"champion {panel['champion']['name']}", panel["champion"]))
    strict = {100 * found["difference"]["confidence"] for _, found in others}
    table.add_column("player", min_width=14)
    for name in ("mean", "95%", "ahead by", f"{max(strict, default=95):.4g}%", "ahead in"):
        table.add_column(name, justify="right", no_wrap=name in ("mean", "ahead by"))
    table.add_row(Text(who, style="bold"), *_mean(panel["own"]), "", "", "")
    for other, found in others:
        gap = found["difference"]
        ahead = f"{gap['mean']:+.4g}", f"{gap['low']:+.4g} to {gap['high']:+.4g}", _ahead(found)
        table.add_row(other, *_mean(found["own"]), *ahead)
    table.caption = f"ahead: {who} compared with the player of that row, game by game"
    return table


def _duel_table(panel: Mapping[str, Any], who: str) -> Table:
    """Won, drawn and lost games of `who` against each opponent, and the ratings of all."""
    table = Table(title=f"Panel: {panel['games']:,} games against each player, both seats alike")
    table.title_justify = "left"
    others = [(name, name, found) for name, found in panel["baselines"].items()]
    if panel["champion"] is not None:
        name = panel["champion"]["name"]
        others.insert(0, (name, f"champion {name}", panel["champion"]))
    others += [(name, f"past champion {name}", own) for name, own in panel["past"].items()]
    others += [(name, name, own) for name, own in panel["candidates"].items()]
    level = 100 * panel["points"]["confidence"]
    table.add_column("player")
    for name in ("won", "drawn", "lost", "points", f"{level:.4g}%", "rating", "95%"):
        table.add_column(name, justify="right", no_wrap=True)
    overall = panel["points"]
    table.add_row(
        Text(who, style="bold"),
        *(str(sum(own[key] for *_, own in others)) for key in ("ahead", "equal", "behind")),
        *_share_cells(overall["mean"], overall["low"], overall["high"]),
        *_rating_cells(panel, CANDIDATE),
    )
    for name, label, own in others:
        # The difference of points per game is from -1 to 1.
        gap = [(1.0 + own["difference"][key]) / 2.0 for key in ("mean", "low", "high")]
        counts = (str(own[key]) for key in ("ahead", "equal", "behind"))
        table.add_row(label, *counts, *_share_cells(*gap), *_rating_cells(panel, name))
    table.caption = f"won, drawn, lost, points: those of {who} against the player of that row"
    return table


def _share_cells(mean: float, low: float, high: float) -> tuple[str, str]:
    return f"{mean:.1%}", f"{low:.1%} to {high:.1%}"


def _rating_cells(panel: Mapping[str, Any], name: str) -> tuple[str, str]:
    own = panel["ratings"]["players"][name]
    # Whole numbers: formatted floats could read "-0".
    rating, low, high = (round(own[key]) for key in ("rating", "low", "high"))
    return f"{rating:+d}", f"{low:+d} to {high:+d}"


def _ahead(found: Mapping[str, Any]) -> str:
    """Games ahead. Bundles of earlier versions have a share that counts equal games as half."""
    if "ahead" not in found:
        return f"{found['wins']:.0%}"
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


def game_view(facts: Mapping[str, Any], gate: RenderableType | None) -> RenderableType:
    """A player on one screen: identity, game, gate, panel and parameters.

    Args:
        facts: as `game_facts` returns them.
        gate: table of the gate's findings.
    """
    game, player, origin = facts["game"], facts["player"], facts["origin"]
    identity = identity_table(facts)
    settings = plain(game["params"])
    several = game["seats"] > 1 and "seats" not in player
    seats = f", at each of {game['seats']} seats" if several else ""
    identity.add_row("plays", f"{game['name']}{f' ({settings})' if settings else ''}{seats}")
    identity.add_row(
        "from",
        f"study {origin['study']}, trial {origin['trial']} ({origin['objective']} "
        f"{origin['objective_value']:+.4f}), {_members(origin)}",
    )
    if "seats" in player:
        seeds = [str(origin["team"][own]) for own in player["seats"]]
        identity.add_row("team", f"the seats are played by the seeds {', '.join(seeds)}")
    if facts["selection"]:
        identity.add_row("selection", selection_sentence(facts["selection"]))
    actions = (
        f"choices of {player['choices']}"
        if player["choices"]
        else f"{player['action_dim']} numbers"
    )
    shape = "".join(f", {name} {value}" for name, value in player["shape"].items())
    reads = f", {player['state_dim']} inputs, {actions}" if player["state_dim"] else ""
    sampled = ", actions drawn from the policy" if player["play"] == "sampled" else ""
    identity.add_row("policy", f"{player['algorithm']}{reads}{shape}{sampled}")
    identity.add_row("made with", f"sweepd {facts['code_version']}")
    if facts["look"] is not None:
        identity.add_row(
            "evaluations",
            f"panel evaluation {facts['look']}; evaluations used so far: {facts['looks_now']}",
        )
    parts: list[RenderableType] = [identity]
    if gate is not None:
        parts.append(gate)
    if facts["panel"] is not None:
        parts.append(panel_table(facts["panel"], "this player"))
    return bundle_panel(facts, parts, columns(origin["parameters"]))


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
