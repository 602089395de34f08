"""What all promotions have in common: candidates are judged one after the other, and the first that meets every rule
becomes champion in one transaction. If another champion was promoted meanwhile, the candidate is compared again.

`deploy.market.promote` has what is particular to markets, `deploy.games.promote` what is to games.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from deploy.promotion.rules import Finding, deferred, loosened, passed
from deploy.registry.bundle_files import StoredBundle, finite
from deploy.registry.records import ChampionMoved, Evaluation
from deploy.registry.registry import Registry
from envs.support.errors import RunError

Outcome = Literal[
    "promoted",
    "would promote",
    "champion already",
    "challenger",
    "none passes",
    "no candidate",
    "no hold-out",
    "first stage",
]
MAX_RACES = 5
KEPT_CANDIDATES = 20  # in the JSON of a promotion
NO_LOOK_SPENT = "it failed a rule that is free to ask: no look was spent"
CHAMPION_ALREADY = "it is the champion already"


@dataclass(frozen=True, kw_only=True)
class JudgedCandidate:
    """A candidate and what every rule said about it.

    trial: its (best) trial's number. name: in words. objective: its value in the search, to be maximised. look, bundle:
    None where nothing unseen was looked at.
    """

    trial: int
    name: str
    objective: float
    findings: tuple[Finding, ...]
    look: Evaluation | None = None
    bundle: StoredBundle[Any] | None = None

    @property
    def passes(self) -> bool:
        """Whether every rule is met."""
        return passed(self.findings)

    @property
    def loosened(self) -> str:
        """Which of the limits that it was held to a user loosened; see `deploy.promotion.rules.loosened`."""
        return loosened(finding.to_dict() for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: plain numbers and text."""
        return {
            "trial": self.trial,
            "objective": self.objective,
            "passes": self.passes,
            "look": None if self.look is None else dataclasses.asdict(self.look),
            "bundle": None if self.bundle is None else self.bundle.hash,
            "findings": [finding.to_dict() for finding in self.findings],
        }


Judged = TypeVar("Judged", bound=JudgedCandidate)


@dataclass(frozen=True)
class Settled(Generic[Judged]):
    """The outcome for one candidate. outcome None: it failed, and the next candidate is judged. version: the
    champion's number in the slot, if it changed.
    """

    judged: Judged | None
    outcome: Outcome | None = None
    reason: str = ""
    version: int | None = None


@dataclass(frozen=True)
class AnyPromotion(Generic[Judged]):
    """The outcome of a promotion.

    candidates: those that were judged, best objective first; chosen: the one the outcome is about, or the one that came
    closest. champion: the slot's afterwards (with dry_run: still the old one). version: the champion's number in the
    slot, where it moved. complete: number of complete trials. looks: counted so far at this hold-out or panel,
    including this promotion's.
    """

    outcome: Outcome
    slot: str
    study: str
    reason: str
    candidates: tuple[Judged, ...] = ()
    chosen: Judged | None = None
    champion_before: str | None = None
    champion: str | None = None
    version: int | None = None
    dry_run: bool = False
    complete: int = 0
    looks: int = 0

    @property
    def loosened(self) -> str:
        """Which limits of the rules that the chosen candidate was held to a user loosened; "" where none."""
        return "" if self.chosen is None else self.chosen.loosened

    @property
    def dry_run_note(self) -> str:
        """What a dry run wrote to the registry, in a sentence or two; empty where it was no dry run."""
        if not self.dry_run:
            return ""
        new = [
            str(one.look.number)
            for one in self.candidates
            if one.look is not None and not one.look.repeated
        ]
        if not new:
            return "--dry-run: nothing was written"
        looks = f"look {new[0]} was" if len(new) == 1 else f"looks {', '.join(new)} were"
        its = "its" if len(new) == 1 else "their"
        return f"--dry-run: {looks} counted, because {its} numbers were shown; nothing else was written"

    def headline(self, headlines: Mapping[str, str]) -> str:
        """A page's headline. headlines: by outcome."""
        return headlines.get(self.outcome, self.outcome) + (
            " (limits loosened)" if self.loosened else ""
        )

    def to_dict(self) -> dict[str, Any]:
        """For JSON: plain numbers and text."""
        names = (
            "outcome",
            "slot",
            "study",
            "reason",
            "champion_before",
            "champion",
            "version",
            "dry_run",
        )
        content: dict[str, Any] = finite(
            {name: getattr(self, name) for name in (*names, "complete", "looks")}
            | {
                "trial": self.chosen.trial if self.chosen else None,
                "loosened": [finding.name for finding in self.chosen.findings if finding.loosened]
                if self.chosen
                else [],
                "candidates": [judged.to_dict() for judged in self.candidates[:KEPT_CANDIDATES]],
            }
        )
        return content


@dataclass(frozen=True)
class Place:
    """The slot that a study's candidates ask for.

    data_dir: where the bars lie that its bundles are scored on. dry_run: nothing is written to the registry, except
    that a look is counted. Raises InputError for an invalid slot name, and for a registry that cannot be written to.
    """

    registry: Registry
    slot: str
    study: str
    dry_run: bool
    data_dir: str = ""

    def __post_init__(self) -> None:
        self.registry.check_slot(self.slot)
        if not self.dry_run:
            self.registry.database.check_writable()

    @property
    def champion(self) -> str | None:
        """The present champion's hash."""
        return self.registry.slot(self.slot).champion

    def race(self, name: str, compare: Callable[[str | None], Settled[Judged]]) -> Settled[Judged]:
        """Compare a candidate with the champion, and again with the next one where that has become it meanwhile.

        compare: given the champion's hash; it may raise ChampionMoved. Raises RunError where the champion keeps moving.
        """
        for _ in range(MAX_RACES):
            try:
                return compare(self.champion)
            except ChampionMoved:
                continue
        raise RunError(
            f"the champion of {self.slot} changed {MAX_RACES} times while {name} was compared with it; try again"
        )

    def settle(self, judged: Judged, champion: str | None) -> Settled[Judged]:
        """Write down what the findings mean for the slot. champion: the one that it was compared with.

        Raises ChampionMoved where the slot has another by now.
        """
        challenges = deferred(judged.findings)
        if not (judged.passes or challenges):
            return Settled(judged)
        assert judged.bundle is not None
        reason = f"{judged.name} of {self.study} met every rule{judged.loosened}"
        if challenges:
            open_question = next(
                finding.explanation for finding in judged.findings if finding.verdict == "defer"
            )
            reason = f"{judged.name} met every rule that could be asked{judged.loosened}, but {open_question}"
        if self.dry_run:
            outcome: Outcome = "challenger" if challenges else "would promote"
            return Settled(judged, outcome, reason)
        report = finite(judged.to_dict() | {"study": self.study})
        written: dict[str, Any] = {"reason": reason, "report": report, "data_dir": self.data_dir}
        if challenges:
            version = self.registry.challenger(self.slot, judged.bundle, **written)
            return Settled(judged, "challenger", reason, version)
        version = self.registry.promote(self.slot, judged.bundle, expected=champion, **written)
        return Settled(judged, "promoted", reason, version)

    def champion_already(self, judged: Judged) -> Settled[Judged]:
        """For a candidate that would act as the champion does."""
        return Settled(
            judged, "champion already", f"{judged.name} is the champion of {self.slot} already"
        )

    def record_refusal(self, promotion: AnyPromotion[Any]) -> None:
        """Append to the slot's history that no candidate passed, if so it ended."""
        if promotion.outcome == "none passes" and not self.dry_run:
            self.registry.refuse(self.slot, promotion.reason, promotion.to_dict())


Asking = TypeVar("Asking")


def ask_in_turn(
    candidates: Iterable[Asking], consider: Callable[[Asking, bool], Settled[Judged]], looks: int
) -> tuple[list[Judged], Settled[Judged] | None]:
    """Judge one candidate after the other until one's outcome is clear, or so many looks are spent.

    consider: given a candidate, and whether it is the first. Returns all that were judged, and how it ended; None where
    every one of them failed.
    """
    judged: list[Judged] = []
    for candidate in candidates:
        settled = consider(candidate, not judged)
        judged += [settled.judged] if settled.judged else []
        if settled.outcome is not None:
            return judged, settled
        if sum(one.look is not None for one in judged) == looks:
            break
    return judged, None
