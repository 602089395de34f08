"""A player as `registry show` tells about it: its facts, and their sections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.games.candidates import plain
from sweepd.deploy.games.report import panel_table
from sweepd.deploy.games.selection import selection_sentence
from sweepd.deploy.promotion.report import gate_findings, identity
from sweepd.deploy.promotion.sections import Cell, Section, parameters_text


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
