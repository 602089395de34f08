"""Phases of a training: the game's parameters, in games of two the opponents, and for how long.

Phases change between rollouts, for each member by itself. `sweepd.envs.games.phase_files` reads
them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from sweepd.envs.support.errors import InputError

# Opponents that are policies: the member as it is now, as it was earlier, and the other members of
# its trial.
SELF, PAST, OTHERS = "self", "past", "others"
LEARNERS = (SELF, PAST, OTHERS)
LEAGUE = "league"  # the best members of the study's complete trials, in equilibrium
BUNDLE = "bundle:"  # a champion of the registry
NO_OPPONENTS = "none"  # of `--opponents`: the member has both seats
BUNDLE_DIGITS = 16  # of a hash that names a bundle
MOST_PAST = 1_000
EITHER: Final = "either"  # seat of a member, drawn for every episode


@dataclass(frozen=True)
class Until:
    """What ends a phase before its share of the budget is spent: games, or a result in them.

    Games are counted in windows: once `games` games have ended, their result decides; if it is too
    small, the next window begins. A result since the phase's start would also contain the games
    from before the member learned. Without a result to reach, the first window ends the phase.

    Attributes:
        games: least number of games in a window.
        opponent: one of the phase's opponents, against whom games count; None: all of them, or
            there are none.
        win_rate: share of won games to reach; a drawn game is not won.
        score: mean return of a game to reach, in games without opponents.
    """

    games: int = 200
    opponent: str | None = None
    win_rate: float | None = None
    score: float | None = None

    @property
    def least(self) -> float | None:
        """The least mean result of a window that ends the phase; None: any."""
        return self.score if self.win_rate is None else self.win_rate

    def describe(self, games: float, mean: float) -> str:
        """Say how the phase ended: after `games` games with a mean result."""
        against = "" if self.opponent is None else f" against {self.opponent}"
        if self.win_rate is not None:
            return f"{mean:.0%} of {games:.0f} games won{against}"
        if self.score is not None:
            return f"a mean return of {mean:g} in {games:.0f} games"
        return f"{games:.0f} games{against}"

    def __str__(self) -> str:
        against = "" if self.opponent is None else f" against {self.opponent}"
        if self.win_rate is not None:
            return f"until {self.win_rate:.0%} won{against}"
        if self.score is not None:
            return f"until a mean return of {self.score:g} in {self.games} games"
        return f"until {self.games} games{against} have ended"


@dataclass(frozen=True)
class Phase:
    """A part of a member's training.

    Attributes:
        share: of the budget.
        opponents: probabilities by name, which add up to 1; empty: none are named.
        seat: of the member: "first", "second" or "either", drawn for every episode.
        env: parameters of the game that the phase changes.
        replay: what happens to an off-policy learner's replay buffer at its start.
        until: ends the phase early.
    """

    share: float = 1.0
    opponents: Mapping[str, float] = field(default_factory=dict)
    seat: str = EITHER
    env: Mapping[str, Any] = field(default_factory=dict)
    replay: str = "keep"
    until: Until | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the phase as an entry of `[[phases]]`."""
        described = {**vars(self), "opponents": dict(self.opponents), "env": dict(self.env)}
        if not self.opponents:
            del described["opponents"]
        if self.seat == EITHER and not self.opponents:
            del described["seat"]
        if self.until is None:
            del described["until"]
        else:
            until = vars(self.until)
            described["until"] = {name: own for name, own in until.items() if own is not None}
        return described

    def __str__(self) -> str:
        names = ", ".join(f"{name} {share:g}" for name, share in self.opponents.items())
        parts = [f"{self.share:.0%} " + (f"against {names}" if names else "of the budget")]
        parts += [f"at the {self.seat} seat"] if self.seat != EITHER else []
        parts += [f"with {name} {value}" for name, value in self.env.items()]
        parts += [] if self.until is None else [str(self.until)]
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

    def against_self(self) -> Curriculum:
        """Return the curriculum of a game of two: where no opponents are named, the member itself."""
        phases = (
            phase if phase.opponents else replace(phase, opponents={SELF: 1.0})
            for phase in self.phases
        )
        return replace(self, phases=tuple(phases))

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
                phase.until,
                opponent=phase.until.opponent
                and hashes.get(phase.until.opponent, phase.until.opponent),
            )
            phases.append(replace(phase, opponents=mixture, until=until))
        return replace(self, phases=tuple(phases), bundles={})

    def to_json(self) -> str:
        """Return the phases as one line, as `--phases` takes them."""
        return json.dumps([phase.to_dict() for phase in self.phases])


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
            f"opponent {name!r} of {game} is not known{hint}; choose one of {', '.join(known)}, "
            "bundle:NAME (a champion of the registry) or the path of a bundle"
        )


def is_bundle(name: str) -> bool:
    """Whether an opponent is a bundle, named by its slot in the registry or by its path."""
    return name.startswith(BUNDLE) or "/" in name
