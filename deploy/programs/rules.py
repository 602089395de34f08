"""The gate of programs: the rules that the selected parameters of a program must pass.

The selected parameters look better than they are, since the best of many was selected. So the gate
looks at seeds that the selection has not seen: a run of the selected parameters on fresh seeds. The
first stage checks that there is such a run, that none of its programs failed, and that the files are
those that it wrote. The second stage compares the mean over fresh seeds with that of the champion.
Such comparisons are counted, and the interval of the difference has a confidence of 95% at the first
one, 97.5% at the second, and so on, so that the probability that parameters that are not better ever
replace a champion is at most 1/20 (one-sided). Where a user names a trial that the study does not
select, the other configurations whose fresh seeds could be looked at before count as well.

A seed whose program fails has no value, and leaving it out would flatter the others: parameters
that make the program crash for some seeds do not pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sweepd.deploy.promotion.rules import GateRule, Measured
from sweepd.envs.support.formatting import counted
from sweepd.envs.support.intervals import EQUAL, FEW, Interval

SEARCH, FRESH = "search", "fresh seeds"
VALUE = "value"  # the rule that applies with `--limit value=NUMBER` only


@dataclass(frozen=True)
class ChampionValues:
    """The comparison with the champion.

    Attributes:
        name: what the champion is called.
        values: its values on its own fresh seeds.
        difference: of the means, candidate minus champion.
        unlike: what makes the values incomparable, in words.
    """

    name: str
    values: tuple[float, ...]
    difference: Interval
    unlike: tuple[str, ...]


@dataclass(frozen=True)
class FreshScore:
    """The values of a candidate on fresh seeds, in one comparison.

    Attributes:
        look: number of the comparison.
        others: configurations of the study that were measured on fresh seeds before a user chose
            this one by hand. They count as further looks.
        values: of the fresh seeds.
        mean: their mean and its interval.
        champion: None for an empty slot.
    """

    look: int
    values: tuple[float, ...]
    mean: Interval
    champion: ChampionValues | None = None
    others: int = 0

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        champion = self.champion
        return {
            "look": self.look,
            **({"others": self.others} if self.others else {}),
            "values": list(self.values),
            "mean": self.mean.to_dict(),
            "champion": None
            if champion is None
            else {
                "name": champion.name,
                "values": list(champion.values),
                "difference": champion.difference.to_dict(),
                "unlike": list(champion.unlike),
            },
        }


@dataclass(frozen=True)
class ProgramEvidence:
    """The evidence about selected parameters.

    Attributes:
        measure: the command that runs them on fresh seeds.
        faults: what is wrong with the files, in sentences; None if there is no complete run.
        failures: why programs of the run failed; None if there is no run.
        values: of the fresh seeds.
        broken: constraints that are not met on fresh seeds, in words; None without constraints.
        score: None before the comparison.
    """

    measure: str
    faults: tuple[str, ...] | None
    failures: tuple[str, ...] | None
    values: tuple[float, ...]
    broken: tuple[str, ...] | None = None
    score: FreshScore | None = None


def lower(found: Interval) -> float:
    """The lower end of an interval; of values that are all equal, the value itself."""
    return found.value if found.method == EQUAL else found.low


def format_mean(found: Interval, count: int) -> str:
    """Format a mean over seeds: `1.25 over 5 fresh seeds (95%: +1.1 … +1.4)`."""
    seeds = counted(count, "fresh seed")
    if found.empty:
        return f"{found.value:.4g} on {seeds}"
    if found.method == EQUAL:
        return f"{found.value:.4g} on each of {seeds}"
    return f"{found.value:.4g} over {seeds} ({_bounds(found)})"


def _bounds(found: Interval) -> str:
    return f"{100 * found.level:.4g}%: {found.bounds('{:+.4g}')}"


def _failures(evidence: ProgramEvidence) -> Measured | None:
    failures = evidence.failures
    if failures is None:
        return None
    return Measured(len(failures), failures[0] if failures else "no program failed")


def _fresh_seeds(evidence: ProgramEvidence) -> Measured:
    count = len(evidence.values)
    if not count:
        return Measured(0, f"not measured on fresh seeds: {evidence.measure}")
    said = f"{counted(count, 'seed')} that the selection has not seen"
    return Measured(count, said)


def _constraints(evidence: ProgramEvidence) -> Measured | None:
    broken = evidence.broken
    if broken is None:
        return None
    said = f"not met on fresh seeds: {', '.join(broken)}" if broken else "met on fresh seeds"
    return Measured(len(broken), said)


def _files(evidence: ProgramEvidence) -> Measured | None:
    faults = evidence.faults
    if faults is None:
        return None
    return Measured(len(faults), faults[0] if faults else "all files are those that the run wrote")


def _value(evidence: ProgramEvidence) -> Measured | None:
    score = evidence.score
    if score is None:
        return None
    return Measured(lower(score.mean), f"mean {format_mean(score.mean, len(score.values))}")


def _comparable(evidence: ProgramEvidence) -> Measured | None:
    champion = None if evidence.score is None else evidence.score.champion
    if champion is None:
        return None
    said = "; ".join(champion.unlike) or f"champion {champion.name} has the same command and budget"
    return Measured(len(champion.unlike), said)


def _champion(evidence: ProgramEvidence) -> Measured | None:
    score = evidence.score
    if score is None or score.champion is None:
        return None
    other = score.champion
    found = other.difference
    between = "equal in all seeds" if found.method == EQUAL else _bounds(found)
    said = (
        f"mean {score.mean.value:.4g} of {counted(len(score.values), 'fresh seed')}, champion "
        f"{other.name} {math.fsum(other.values) / len(other.values):.4g} of "
        f"{len(other.values)}; difference {found.value:+.4g} ({between})"
    )
    return Measured(lower(found), said)


def _unmeasured(_evidence: ProgramEvidence) -> None:
    return None


def rules(least: float | None) -> Sequence[GateRule[ProgramEvidence]]:
    """The rules of the gate.

    Args:
        least: the limit of `VALUE` that the user set; None: the rule does not apply, since what
            values mean is known to the program alone.
    """
    value: Callable[[ProgramEvidence], Measured | None] = _unmeasured if least is None else _value
    return (
        GateRule(
            "fresh-failures", SEARCH, "<=", 0.0, "no program failed on fresh seeds", _failures
        ),
        GateRule(
            "fresh-seeds", SEARCH, ">=", float(FEW), "enough seeds for an interval", _fresh_seeds
        ),
        GateRule(
            "constraints", SEARCH, "<=", 0.0, "the constraints hold on fresh seeds", _constraints
        ),
        GateRule("files", SEARCH, "<=", 0.0, "the files are whole", _files),
        GateRule(VALUE, FRESH, ">=", least or 0.0, "a mean of at least this on fresh seeds", value),
        GateRule(
            "comparable",
            FRESH,
            "<=",
            0.0,
            "the champion's values are of the same command and budget",
            _comparable,
        ),
        GateRule(
            "beats-champion",
            FRESH,
            ">",
            0.0,
            "a higher mean on fresh seeds than the present champion",
            _champion,
        ),
    )
