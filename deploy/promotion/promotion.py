"""Results of a promotion: the gate's findings about each candidate, and the outcome."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from sweepd.deploy.promotion.rules import RuleFinding, loosened, passed
from sweepd.deploy.registry.bundle_files import BundleT, finite

if TYPE_CHECKING:  # needs SQLAlchemy, which takes long to import
    from sweepd.deploy.registry.records import CountedEvaluation

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
MOST_STEPS = 3  # commands of a verdict
KEPT_CANDIDATES = 20  # in the JSON of a promotion


class Candidate(Protocol):
    """What may be promoted: a trial, or several together."""

    @property
    def trials(self) -> tuple[int, ...]:
        """Numbers of its trials, best objective first."""

    @property
    def name(self) -> str:
        """The candidate in words."""

    @property
    def objective(self) -> float:
        """Its objective value in the search, to be maximised."""

    def evidence(self) -> Any:
        """The evidence for the first stage of the gate."""

    def describe(self, score: Any) -> dict[str, Any]:
        """Its own part of a result's JSON. score: None if it was not evaluated on unseen data."""


CandidateT = TypeVar("CandidateT", bound=Candidate)
ScoreT = TypeVar("ScoreT")


@dataclass(frozen=True)
class GateResult(Generic[CandidateT, ScoreT, BundleT]):
    """A candidate and the finding of every rule about it.

    Attributes:
        candidate: the candidate.
        findings: one per rule.
        look: the counted evaluation on unseen data, None if there was none.
        score: the result of that evaluation.
        bundle: the bundle that would be deployed, None without such an evaluation.
    """

    candidate: CandidateT
    findings: tuple[RuleFinding, ...]
    look: CountedEvaluation | None = None
    score: ScoreT | None = None
    bundle: BundleT | None = None

    @property
    def passes(self) -> bool:
        """Whether every rule is met."""
        return passed(self.findings)

    @property
    def loosened(self) -> str:
        """The limits that a user loosened; see `sweepd.deploy.promotion.rules.loosened`."""
        return loosened(finding.to_dict() for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The result for JSON: plain numbers and text."""
        return {
            "trial": self.candidate.trials[0],
            "objective": self.candidate.objective,
            "passes": self.passes,
            "look": None if self.look is None else dataclasses.asdict(self.look),
            "bundle": None if self.bundle is None else self.bundle.hash,
            "findings": [finding.to_dict() for finding in self.findings],
            **self.candidate.describe(self.score),
        }


ResultT = TypeVar("ResultT", bound=GateResult[Any, Any, Any])


@dataclass(frozen=True)
class CandidateOutcome(Generic[ResultT]):
    """The outcome for one candidate.

    Attributes:
        result: the gate's result, None where no candidate was judged.
        outcome: None if the candidate failed; the next one is judged then.
        reason: why, in a sentence without its full stop.
        version: number of the bundle in the slot, if it was stored.
    """

    result: ResultT | None
    outcome: Outcome | None = None
    reason: str = ""
    version: int | None = None


@dataclass(frozen=True)
class Step:
    """A command that leads on from a verdict.

    Attributes:
        purpose: what it does, in a few words.
        command: the line, which runs as printed in any shell.
    """

    purpose: str
    command: str


@dataclass(frozen=True)
class Promotion(Generic[ResultT]):
    """The outcome of a promotion.

    Attributes:
        outcome: what happened to the slot.
        slot: the deployment slot.
        study: name of the study.
        reason: why, in a sentence without its full stop.
        how_far: how much is missing or left over: value and limit of the rule that decides, in the
            units of the kind; "" if nothing was judged.
        power: which candidates this gate would find, in a sentence; "" where it is not known.
        steps: what to do next.
        candidates: results of the judged candidates, best objective first.
        chosen: the result that the outcome is about, or the one closest to passing.
        choice: how the chosen candidate was chosen from a frontier, see `GateStudy.choice`.
        champion_before: hash of the champion before the promotion.
        champion: hash of the champion afterwards; unchanged in a dry run.
        version: number of the stored bundle in the slot.
        dry_run: whether nothing but evaluations was written.
        complete: number of complete trials of the study.
        looks: evaluations counted on this hold-out or panel, including those of this promotion.
        details: what its JSON has besides these fields, see `Gate.details`.
    """

    outcome: Outcome
    slot: str
    study: str
    reason: str
    how_far: str = ""
    power: str = ""
    steps: tuple[Step, ...] = ()
    candidates: tuple[ResultT, ...] = ()
    chosen: ResultT | None = None
    choice: Mapping[str, Any] | None = None
    champion_before: str | None = None
    champion: str | None = None
    version: int | None = None
    dry_run: bool = False
    complete: int = 0
    looks: int = 0
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def loosened(self) -> str:
        """The limits that a user loosened for the chosen candidate; "" if none."""
        return "" if self.chosen is None else self.chosen.loosened

    @property
    def dry_run_note(self) -> str:
        """What a dry run wrote to the registry, in words; "" if it was no dry run."""
        if not self.dry_run:
            return ""
        new = [
            str(one.look.number)
            for one in self.candidates
            if one.look is not None and not one.look.repeated
        ]
        if not new:
            return "--dry-run: nothing was written"
        plural, was, its = ("", "was", "its") if len(new) == 1 else ("s", "were", "their")
        return (
            f"--dry-run: evaluation{plural} {', '.join(new)} {was} counted, because {its} results "
            "were shown; nothing else was written"
        )

    def to_dict(self) -> dict[str, Any]:
        """The promotion for JSON: plain numbers and text."""
        names = (
            "outcome",
            "slot",
            "study",
            "reason",
            "how_far",
            "power",
            "champion_before",
            "champion",
            "version",
            "dry_run",
            "complete",
            "looks",
        )
        chosen = self.chosen
        content: dict[str, Any] = finite(
            {name: getattr(self, name) for name in names}
            | {
                "next": [dataclasses.asdict(step) for step in self.steps],
                "trial": chosen.candidate.trials[0] if chosen else None,
                "loosened": [one.name for one in chosen.findings if one.loosened] if chosen else [],
                "candidates": [result.to_dict() for result in self.candidates[:KEPT_CANDIDATES]],
            }
            | ({} if self.choice is None else {"choice": self.choice})
            | dict(self.details)
        )
        return content
