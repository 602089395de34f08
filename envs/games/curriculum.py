"""Phases of a training in a game of two seats: whom a member plays against, and for how long.

    [[phases]]
    share = 0.3                                # of the budget; the shares of all phases add up to 1
    opponents = { weak = 0.5, self = 0.5 }     # drawn at the start of every episode; default: self
    seat = "either"                            # the member's: first, second or either
    env = { mode = "train_shooting" }          # parameters of the game in this phase
    replay = "keep"                            # or "clear": a replay buffer at the phase's start
    until = { opponent = "weak", win_rate = 0.9, games = 200 }   # ends the phase earlier

Phases change between rollouts, for each member by itself.
"""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

from envs.games.opponents import SEATS
from envs.support.errors import InputError
from envs.support.files import read_toml

# Opponents that are policies: the member as it is now, as it was earlier, and the other members of
# its trial.
SELF, PAST, OTHERS = "self", "past", "others"
LEARNERS = (SELF, PAST, OTHERS)
LEAGUE = "league"  # the best members of the study's complete trials, in equilibrium
BUNDLE = "bundle:"  # a champion of the registry
NO_OPPONENTS = "none"  # of `--opponents`: the member has both seats
BUNDLE_DIGITS = 16  # of a hash that names a bundle
REPLAY = ("keep", "clear")
MOST_PHASES = 50
MOST_PAST = 1_000
SUM_TOLERANCE = 1e-6  # shares are written in decimals


@dataclass(frozen=True)
class Until:
    """A measured result that ends a phase before its share of the budget is spent.

    Games are counted in windows: once `games` games against the opponent have ended, the share of
    won ones decides; if it is too small, the next window begins. A share since the phase's start
    would also contain the games from before the member learned.

    Attributes:
        opponent: one of the phase's opponents.
        win_rate: share of won games to reach; a drawn game is not won.
        games: least number of games in a window.
    """

    opponent: str
    win_rate: float
    games: int = 200


@dataclass(frozen=True)
class Phase:
    """A part of a member's training.

    Attributes:
        share: of the budget.
        opponents: probabilities by name; they add up to 1.
        seat: of the member: "first", "second" or "either", drawn for every episode.
        env: parameters of the game that the phase changes.
        replay: what happens to an off-policy learner's replay buffer at its start.
        until: ends the phase early.
    """

    share: float = 1.0
    opponents: Mapping[str, float] = field(default_factory=lambda: {SELF: 1.0})
    seat: str = "either"
    env: Mapping[str, Any] = field(default_factory=dict)
    replay: str = "keep"
    until: Until | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the phase as an entry of `[[phases]]`."""
        described = {**vars(self), "opponents": dict(self.opponents), "env": dict(self.env)}
        if self.until is None:
            del described["until"]
        else:
            described["until"] = dict(vars(self.until))
        return described

    def __str__(self) -> str:
        names = ", ".join(f"{name} {share:g}" for name, share in self.opponents.items())
        parts = [f"{self.share:.0%} against {names}"]
        parts += [f"at the {self.seat} seat"] if self.seat != "either" else []
        parts += [f"with {name} {value}" for name, value in self.env.items()]
        if self.until is not None:
            parts.append(f"until {self.until.win_rate:.0%} won against {self.until.opponent}")
        return ", ".join(parts)


@dataclass(frozen=True)
class Curriculum:
    """The phases of a study, in order.

    Attributes:
        phases: at least one; their shares add up to 1.
        past_interval: rollouts between two snapshots of a member for the opponent `past`.
        past_size: snapshots that a member keeps; the oldest is replaced.
        bundles: hashes of the opponents that are bundles, by name, once they have been found.
    """

    phases: tuple[Phase, ...]
    past_interval: int = 10
    past_size: int = 8
    bundles: Mapping[str, str] = field(default_factory=dict)

    @property
    def opponents(self) -> tuple[str, ...]:
        """Names of all opponents, in the order of their first phases."""
        return tuple(dict.fromkeys(name for phase in self.phases for name in phase.opponents))

    @property
    def together(self) -> bool:
        """Whether the members of a trial play against each other, and so share a program."""
        return OTHERS in self.opponents

    @property
    def has_league(self) -> bool:
        """Whether members play against the study's league."""
        return LEAGUE in self.opponents

    def with_league(self, shares: Mapping[str, float]) -> Curriculum:
        """Return the curriculum with players in place of the opponent `league`.

        Args:
            shares: of the league's players by name, which add up to 1; empty while the league has
                no player: the member then plays against itself.
        """
        shares = shares or {SELF: 1.0}
        phases = []
        for phase in self.phases:
            mixture = {name: share for name, share in phase.opponents.items() if name != LEAGUE}
            whole = phase.opponents.get(LEAGUE, 0.0)
            for name, share in shares.items() if whole else ():
                mixture[name] = mixture.get(name, 0.0) + whole * share
            phases.append(replace(phase, opponents=mixture))
        return replace(self, phases=tuple(phases))

    def describe(self) -> list[str]:
        """Return a line for each phase."""
        count = len(self.phases)
        return [
            f"phase {number} of {count}: {phase}" for number, phase in enumerate(self.phases, 1)
        ]

    def end(self, index: int, began: int, total: int) -> int:
        """Return the rollout at which a phase ends at the latest.

        It depends on where the phase began: what an earlier phase left over is divided among the
        later ones by their shares. Every phase has at least one rollout.

        Args:
            index: of the phase.
            began: rollouts that the member had done when the phase began.
            total: rollouts of the whole training, at least as many as there are phases.
        """
        later = len(self.phases) - 1 - index
        if not later:
            return total
        left = total - began
        rest = sum(phase.share for phase in self.phases[index:])
        length = round(left * self.phases[index].share / rest)
        return began + min(max(1, length), left - later)

    def changes(self, began: Sequence[int], rollouts: int, total: int, *, met: bool) -> bool:
        """Return whether the member's next phase begins now.

        Args:
            began: rollouts at which the phases so far have begun, at least one.
            rollouts: that the member has done.
            total: rollouts of the whole training.
            met: whether `until` of the present phase is met.
        """
        index = len(began) - 1
        if index == len(self.phases) - 1 or rollouts <= began[-1]:
            return False
        return met or rollouts >= self.end(index, began[-1], total)

    def check_rollouts(self, total: int) -> None:
        """Raise InputError if there are fewer rollouts than phases."""
        if total < len(self.phases):
            raise InputError(
                f"{len(self.phases)} phases need at least as many rollouts, and the budget has "
                f"{total}; use a larger --budget, fewer --n-envs or fewer phases"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the curriculum as tables, for `parse_curriculum`."""
        return {
            "phases": [phase.to_dict() for phase in self.phases],
            "past_interval": self.past_interval,
            "past_size": self.past_size,
            **({"bundles": dict(self.bundles)} if self.bundles else {}),
        }

    def pinned(self) -> Curriculum:
        """Return the curriculum with bundles named by their hashes: a champion may change."""
        hashes = {
            name: BUNDLE + self.bundles[name][:BUNDLE_DIGITS]
            for name in self.opponents
            if name.startswith(BUNDLE) and name in self.bundles
        }
        phases = []
        for phase in self.phases:
            mixture = {hashes.get(name, name): share for name, share in phase.opponents.items()}
            until = phase.until and replace(
                phase.until, opponent=hashes.get(phase.until.opponent, phase.until.opponent)
            )
            phases.append(replace(phase, opponents=mixture, until=until))
        return replace(self, phases=tuple(phases), bundles={})

    def to_json(self) -> str:
        """Return the phases as one line, as `--phases` takes them."""
        return json.dumps([phase.to_dict() for phase in self.phases])


CURRICULUM_KEYS = frozenset({"phases", "past_interval", "past_size"})  # of a TOML file
_PHASE_KEYS = tuple(Phase.__dataclass_fields__)
_UNTIL_KEYS = tuple(Until.__dataclass_fields__)


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
        name, equals, share = part.strip().rpartition("=")
        try:
            if not equals or name in mixture:
                raise ValueError
            mixture[name] = float(share)
        except ValueError:
            raise InputError(
                f"--opponents {text!r}: {part.strip()!r} is not valid; give every opponent once, "
                "like weak=0.5,self=0.5"
            ) from None
    return Curriculum((Phase(opponents=_mixture(mixture, "--opponents")),))


def parse_curriculum(described: Mapping[str, Any], source: str) -> Curriculum:
    """Build a curriculum and check what can be checked without the game.

    Args:
        described: tables of a TOML file, or the result of `Curriculum.to_dict`; other keys than
            `CURRICULUM_KEYS` are ignored.
        source: name of the file in messages.

    Raises:
        InputError: an entry is invalid.
    """
    entries = described["phases"]
    if not isinstance(entries, list) or not entries or len(entries) > MOST_PHASES:
        raise InputError(f"{source}: phases must be a list of 1 to {MOST_PHASES} tables [[phases]]")
    phases = tuple(
        _parse_phase(entry, f"{source}: phase {number} of {len(entries)}", alone=len(entries) == 1)
        for number, entry in enumerate(entries, 1)
    )
    total = math.fsum(phase.share for phase in phases)
    if abs(total - 1.0) > SUM_TOLERANCE:
        raise InputError(f"{source}: the shares of the phases add up to {total:g}, not 1")
    if phases[-1].until is not None:
        raise InputError(
            f"{source}: the last phase has until, but no phase follows it; leave it out"
        )
    counts = {}
    for key, least, most in (("past_interval", 1, 10**9), ("past_size", 1, MOST_PAST)):
        if key in described:
            counts[key] = described[key]
            if not _is_whole(counts[key]) or not least <= counts[key] <= most:
                raise InputError(
                    f"{source}: {key} = {counts[key]!r} must be a whole number of {least} to "
                    f"{most:,}"
                )
    return Curriculum(phases, **counts, bundles=described.get("bundles", {}))


def _parse_phase(entry: Any, where: str, *, alone: bool) -> Phase:
    """Return the phase that an entry describes. alone: it is the only phase."""
    if not isinstance(entry, Mapping):
        raise InputError(f"{where} is {entry!r}, not a table")
    _refuse_unknown(entry, _PHASE_KEYS, where)
    given = dict(entry)
    if "share" not in given and not alone:
        raise InputError(f"{where} has no share of the budget")
    share = given.get("share", 1.0)
    if not _is_number(share) or share <= 0:
        raise InputError(f"{where}: share = {share!r} must be a number above 0")
    for key, allowed in (("seat", tuple(SEATS)), ("replay", REPLAY)):
        if given.get(key, allowed[0]) not in allowed:
            raise InputError(
                f"{where}: {key} = {given[key]!r} is not known; choose one of {', '.join(allowed)}"
            )
    if not isinstance(given.get("env", {}), Mapping):
        raise InputError(
            f"{where}: env = {given['env']!r} must be a table of the game's parameters"
        )
    if "opponents" in given:
        given["opponents"] = _mixture(given["opponents"], where)
    if "until" in given:
        opponents = given.get("opponents", {SELF: 1.0})
        given["until"] = _parse_until(given["until"], tuple(opponents), f"{where}: until")
    return Phase(**{**given, "share": float(share), "env": dict(given.get("env", {}))})


def _parse_until(entry: Any, opponents: Sequence[str], where: str) -> Until:
    if not isinstance(entry, Mapping):
        raise InputError(f"{where} = {entry!r} must be a table: {{ opponent, win_rate, games }}")
    _refuse_unknown(entry, _UNTIL_KEYS, where)
    given = dict(entry)
    if len(opponents) == 1:
        given.setdefault("opponent", opponents[0])
    if given.get("opponent") not in opponents:
        raise InputError(
            f"{where}: opponent = {given.get('opponent')!r} is not one of the phase's: "
            f"{', '.join(opponents)}"
        )
    if given["opponent"] == LEAGUE:
        raise InputError(
            f"{where}: games against {LEAGUE} cannot end a phase, since its players differ from "
            "trial to trial; name another opponent or leave until out"
        )
    rate, games = given.get("win_rate"), given.get("games", 200)
    if not _is_number(rate) or not 0 < rate <= 1:
        raise InputError(f"{where}: win_rate = {rate!r} must be a number above 0, at most 1")
    if not _is_whole(games) or games < 1:
        raise InputError(f"{where}: games = {games!r} must be a whole number of at least 1")
    return Until(given["opponent"], float(rate), games)


def _mixture(entry: Any, where: str) -> dict[str, float]:
    """Return the probabilities of opponents; those with probability 0 are left out."""
    if not isinstance(entry, Mapping) or not entry:
        raise InputError(
            f"{where}: opponents = {entry!r} must be a table of shares, like "
            "{ weak = 0.5, self = 0.5 }"
        )
    for name, share in entry.items():
        if not name or not _is_number(share) or share < 0:
            raise InputError(
                f"{where}: the share of opponent {name!r} is {share!r}; it must be a number of at "
                "least 0"
            )
    total = math.fsum(entry.values())
    if abs(total - 1.0) > SUM_TOLERANCE:
        raise InputError(f"{where}: the shares of the opponents add up to {total:g}, not 1")
    return {str(name): float(share) for name, share in entry.items() if share > 0}


def check_opponents(names: Sequence[str], scripted: Sequence[str], game: str) -> None:
    """Raise InputError for an opponent that does not exist; bundles are checked when loaded.

    Args:
        names: of the opponents.
        scripted: names of the game's scripted players.
        game: its name in messages.
    """
    known = (*scripted, *LEARNERS, LEAGUE)
    for name in names:
        if name in known or is_bundle(name):
            continue
        near = difflib.get_close_matches(name, known, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(
            f"opponent {name!r} of {game} is not known{hint}; choose of {', '.join(known)}, "
            "bundle:NAME (a champion of the registry) or the path of a bundle"
        )


def is_bundle(name: str) -> bool:
    """Whether an opponent is a bundle, named by its slot in the registry or by its path."""
    return name.startswith(BUNDLE) or "/" in name


def _refuse_unknown(entry: Mapping[str, Any], known: Sequence[str], where: str) -> None:
    unknown = [key for key in entry if key not in known]
    if unknown:
        near = difflib.get_close_matches(str(unknown[0]), known, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(
            f"{where} has the unknown key {unknown[0]!r}{hint}; use {', '.join(known)}"
        )


def _is_number(value: Any) -> TypeGuard[float]:
    # In Python a bool is an int.
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
