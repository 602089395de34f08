"""Phases of a training, as flags and TOML files describe them.

[[phases]]
share = 0.3                                # of the budget; the shares of all phases add up to 1
env = { mode = "train_shooting" }          # parameters of the game in this phase
replay = "keep"                            # or "clear": a replay buffer at the phase's start
until = { games = 200 }                    # ends the phase earlier, after so many games
# In games of two seats:
opponents = { weak = 0.5, self = 0.5 }     # drawn at the start of every episode; default: self
seat = "either"                            # the member's: first, second or either

Instead, `until = { opponent = "weak", win_rate = 0.9, games = 200 }` ends the phase once so large a
share of 200 games was won, and in games without opponents `until = { score = 100, games = 200 }`
once their mean return is so large.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from sweepd.envs.games.curriculum import EITHER, LEAGUE, MOST_PAST, SELF, Curriculum, Phase, Until
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import read_toml
from sweepd.envs.support.validation import StrictModel, checked

CURRICULUM_KEYS = frozenset({"phases", "past_interval", "past_size"})  # of a TOML file
MOST_PHASES = 50
SUM_TOLERANCE = 1e-6  # shares are written in decimals


class UntilTable(StrictModel):
    """`until`. opponent: may be left out if the phase has one, or if games alone are counted."""

    opponent: str | None = None
    win_rate: Annotated[float, Field(gt=0, le=1)] | None = None
    score: float | None = None
    games: Annotated[int, Field(ge=1)] | None = None


class PhaseTable(StrictModel):
    """An entry of `[[phases]]`. share: may be left out if it is the only phase."""

    share: Annotated[float, Field(gt=0)] = 1.0
    opponents: dict[str, Annotated[float, Field(ge=0)]] | None = None
    seat: Literal["first", "second", "either"] = EITHER
    env: dict[str, Any] = Field(default_factory=dict)
    replay: Literal["keep", "clear"] = "keep"
    until: UntilTable | None = None


class CurriculumTable(StrictModel):
    """All phases. bundles: only as `Curriculum.to_dict` returns them."""

    phases: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=MOST_PHASES)]
    past_interval: Annotated[int, Field(ge=1, le=10**9)] = Curriculum.past_interval
    past_size: Annotated[int, Field(ge=1, le=MOST_PAST)] = Curriculum.past_size
    bundles: dict[str, str] = Field(default_factory=dict)


def read_phases(text: str) -> Curriculum:
    """Return the curriculum of `--phases`: the path of a TOML file, or a JSON list of phases.

    Raises:
        InputError: it cannot be read, or an entry is invalid.
    """
    if text.lstrip().startswith("["):
        try:
            return parse_curriculum({"phases": json.loads(text)}, "--phases")
        except json.JSONDecodeError as error:
            raise InputError(f"--phases: not a valid JSON list of phases ({error})") from None
    source = f"--phases {text}"
    described = read_toml(Path(text), source, "a TOML file with [[phases]], or give a JSON list")
    unknown = sorted(set(described) - CURRICULUM_KEYS)
    if unknown:
        raise InputError(
            f"{source}: unknown key {unknown[0]!r}; a file of phases has "
            f"{', '.join(sorted(CURRICULUM_KEYS))}"
        )
    if "phases" not in described:
        raise InputError(f"{source} has no [[phases]]")
    return parse_curriculum(described, source)


def read_opponents(text: str) -> Curriculum:
    """Return the curriculum of `--opponents NAME=SHARE,…`, or `--opponents league`: one phase.

    Raises:
        InputError: an entry is invalid.
    """
    mixture: dict[str, Any] = {}
    for part in (f"{LEAGUE}=1" if text.strip() == LEAGUE else text).split(","):
        name, _, share = part.strip().rpartition("=")
        try:
            if not name or name in mixture:
                raise ValueError
            mixture[name] = float(share)
        except ValueError:
            raise InputError(
                f"--opponents {text!r}: {part.strip()!r} is not valid; give every opponent once, "
                "like weak=0.5,self=0.5"
            ) from None
    return Curriculum((_phase({"opponents": mixture}, "--opponents"),))


def parse_curriculum(described: Mapping[str, Any], source: str) -> Curriculum:
    """Build a curriculum and check what can be checked without the game.

    Args:
        described: tables of a TOML file, or the result of `Curriculum.to_dict`; other keys are
            ignored.
        source: name of the file in messages.

    Raises:
        InputError: an entry is invalid.
    """
    if not isinstance(described["phases"], list):  # such as [phases]
        raise InputError(f"{source}: phases must be a list of tables [[phases]]")
    own = {key: described[key] for key in CurriculumTable.model_fields if key in described}
    table = checked(CurriculumTable, own, f"{source}: ")
    count = len(table.phases)
    for number, entry in enumerate(table.phases, 1):
        if count > 1 and "share" not in entry:
            raise InputError(f"{source}: phase {number} of {count} has no share of the budget")
    phases = tuple(
        _phase(entry, f"{source}: phase {number} of {count}")
        for number, entry in enumerate(table.phases, 1)
    )
    total = math.fsum(phase.share for phase in phases)
    if abs(total - 1.0) > SUM_TOLERANCE:
        raise InputError(f"{source}: the shares of the phases add up to {total:g}, not 1")
    if phases[-1].until is not None:
        raise InputError(
            f"{source}: the last phase has until, but no phase follows it; leave it out"
        )
    return Curriculum(phases, table.past_interval, table.past_size, table.bundles)


def _phase(entry: Mapping[str, Any], where: str) -> Phase:
    """Return the phase that an entry describes; opponents with probability 0 are left out."""
    table = checked(PhaseTable, entry, f"{where}: ")
    named = {} if table.opponents is None else table.opponents
    total = math.fsum(named.values())
    if table.opponents is not None and abs(total - 1.0) > SUM_TOLERANCE:
        raise InputError(f"{where}: the shares of the opponents add up to {total:g}, not 1")
    opponents = {name: share for name, share in named.items() if share > 0}
    until = None
    if table.until is not None:
        until = _until(table.until, tuple(opponents) or (SELF,), f"{where}: until")
    return Phase(table.share, opponents, table.seat, table.env, table.replay, until)


def _until(table: UntilTable, opponents: tuple[str, ...], where: str) -> Until:
    """Return the end of a phase. opponents: those of the phase."""
    opponent, games = table.opponent, table.games or Until.games
    if table.score is not None:
        if table.win_rate is not None or opponent is not None:
            raise InputError(
                f"{where}: score is for games without opponents; give it without win_rate and "
                "opponent"
            )
        return Until(games, score=table.score)
    if table.win_rate is None:
        if table.games is None:
            raise InputError(f"{where}: give games, or a win_rate or score to reach")
        if opponent is None:
            return Until(games)
    if opponent is None and len(opponents) == 1:
        opponent = opponents[0]
    if opponent not in opponents:
        raise InputError(
            f"{where}: opponent = {opponent!r} is not one of the phase's: {', '.join(opponents)}"
        )
    if opponent == LEAGUE:
        raise InputError(
            f"{where}: games against {LEAGUE} cannot end a phase, since its players differ from "
            "trial to trial; name another opponent or leave until out"
        )
    return Until(games, opponent, table.win_rate)
