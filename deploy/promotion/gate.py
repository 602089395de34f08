"""What a kind of study answers when it is promoted: its `Gate`.

`sweepd.deploy.gates` is the table of the kinds. Code outside the packages of the kinds asks the
table for a gate and does not distinguish the kinds itself. An instance is the gate of one promotion
(`sweepd.deploy.promotion.promoter`); the static methods are about stored bundles and about the
policies of trials, which need no promotion.
"""
# ruff: noqa: ARG002 -- the defaults ignore arguments that only one kind needs

from __future__ import annotations

import shlex
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from optuna.trial import FrozenTrial

from sweepd.deploy.promotion.comparison import Compared, Comparison
from sweepd.deploy.promotion.flags import PromoteFlags
from sweepd.deploy.promotion.own_rules import own_rules
from sweepd.deploy.promotion.promotion import (
    CandidateT,
    GateResult,
    Outcome,
    Promotion,
    ScoreT,
    Step,
)
from sweepd.deploy.promotion.rules import (
    NOT_EVALUATED,
    GateRule,
    RuleFinding,
    deciding,
    judge,
    parse_limits,
    with_limits,
)
from sweepd.deploy.promotion.sections import Report, Section, distance
from sweepd.deploy.promotion.studies import GateStudy
from sweepd.deploy.registry.bundle_files import BundleT
from sweepd.deploy.registry.flags import registry_flags
from sweepd.deploy.registry.records import CountedEvaluation
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.invocation import program
from sweepd.optimize.study.record.reader import StudyReader

if TYPE_CHECKING:  # they import torch or pandas
    import pandas as pd

    from sweepd.agents.policy.frozen import FrozenPolicy
    from sweepd.envs.external.codec import SpaceCodec
    from sweepd.optimize.study.record.specs import StudySpec

StudyT = TypeVar("StudyT", bound=GateStudy)
Result: TypeAlias = GateResult[CandidateT, ScoreT, BundleT]


class NothingToJudge(Exception):
    """A study has no candidate; the message says why, in a sentence without its full stop."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


@dataclass(frozen=True)
class Verification:
    """The result of scoring a stored bundle again.

    Attributes:
        content: for JSON; `agrees` says whether all numbers are equal.
        said: the result in a sentence; if numbers differ, without its full stop.
        sections: the numbers, for a terminal.
        difference: the number that differs most, or first, then and now; "" if none does.
    """

    content: Mapping[str, Any]
    said: str
    sections: Sequence[Section] = ()
    difference: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the bundle is verified."""
        return bool(self.content["agrees"])


class TrialPolicy(Protocol):
    """A trial's members as `Gate.evaluate_policy` needs them; `sweepd.Policy` is one."""

    @property
    def members(self) -> tuple[FrozenPolicy, ...]:
        """One policy per member."""

    @property
    def acting(self) -> FrozenPolicy:
        """The policy that acts."""

    @property
    def seats(self) -> tuple[int, ...]:
        """Of a team: by seat, the member that plays it."""

    @property
    def spec(self) -> StudySpec:
        """What the study was created with."""

    @property
    def env_params(self) -> dict[str, Any]:
        """Parameters of the trial's environment."""


class Gate(ABC, Generic[StudyT, CandidateT, ScoreT, BundleT]):
    """The gate of one kind of study, in one promotion.

    Args:
        study: the study.
        registry: where the slot is.
        flags: the options of the promotion.
        progress: called with a short description of each slow step.

    Attributes:
        title: the kind in messages.
        study_type: its studies.
        bundle_type: its bundles.
        first_stage: name of the rules that need nothing beyond what the study stored.
        second_stage: name of those that need an evaluation on unseen data.
        without_effect: names of the options that have no effect here.
        limit_example: a value of `--limit`.
        trades: whether its champions trade, and are replayed after a study.
        rules: the gate's rules, with the limits that the user set.

    Raises:
        InputError: an option has a wrong value.
    """

    title: ClassVar[str]
    first_stage: ClassVar[str]
    second_stage: ClassVar[str]
    without_effect: ClassVar[tuple[str, ...]]
    limit_example: ClassVar[str]
    trades: ClassVar[bool] = False
    study_type: type[StudyT]
    bundle_type: type[BundleT]

    def __init__(
        self,
        study: StudyT,
        registry: Registry,
        flags: PromoteFlags = PromoteFlags(),  # noqa: B008 (frozen)
        progress: Callable[[str], None] = lambda _text: None,
    ) -> None:
        self.study, self.registry, self.flags, self.progress = study, registry, flags, progress
        limits = parse_limits(flags.limit or [], self.limit_example)
        stages, built_in = (self.first_stage, self.second_stage), self.default_rules
        self.rules = with_limits(
            (*built_in, *own_rules(flags.rule or [], stages, built_in)), limits
        )
        self.slot = flags.slot or self.default_slot

    @classmethod
    def open(
        cls,
        found: StudyReader,
        registry: Registry,
        flags: PromoteFlags,
        progress: Callable[[str], None],
    ) -> Gate[StudyT, CandidateT, ScoreT, BundleT]:
        """Open a study of this kind for a promotion.

        Raises:
            InputError: an option is for another kind, or has a wrong value.
        """
        for name in cls.without_effect:
            if getattr(flags, name) != getattr(PromoteFlags, name):
                raise InputError(
                    f"--{name.replace('_', '-')} is not for {cls.title}, and study "
                    f"{found.name!r} is on {found.spec.environment}; leave it out"
                )
        return cls(cls.study_type(found), registry, flags, progress)

    @classmethod
    def trial_bundle(cls, study: StudyReader, number: int, *, team: bool = False) -> BundleT:
        """Return what a complete trial would be deployed as, without a report of the gate.

        Args:
            study: a study of this kind.
            number: of the trial.
            team: its members as a team.

        Raises:
            InputError: there is no such trial, or nothing of this kind acts.
        """
        what = "team" if team else "player"
        raise InputError(f"trial {number} of study {study.name!r} is of {cls.title} and no {what}")

    @classmethod
    def compare_players(cls, asked: Comparison) -> Compared:
        """Compare players of this kind.

        Raises:
            InputError: they cannot be compared so, or nothing of this kind acts.
        """
        raise InputError(f"{asked.words[0]} is of {cls.title}, which do not play: name others")

    # The study:

    @property
    @abstractmethod
    def default_slot(self) -> str:
        """The slot of the study's champions."""

    @property
    @abstractmethod
    def default_rules(self) -> Sequence[GateRule[Any]]:
        """The rules of the study's gate."""

    @property
    def data_dir(self) -> str:
        """Folder of the bars that bundles are scored on; "" without bars."""
        return ""

    @property
    def default_looks(self) -> int:
        """The most candidates that are evaluated on unseen data by default."""
        return 1

    @abstractmethod
    def candidates(self, trial: int | None) -> Sequence[Callable[[], CandidateT]]:
        """Functions that read the candidates, best first; later ones may not be needed.

        Args:
            trial: consider this trial only.

        Raises:
            NothingToJudge: there is no candidate, or no unseen data.
            InputError: the study or its data cannot be used.
        """

    # A candidate:

    def judge_first_stage(
        self, candidate: CandidateT, *, thorough: bool
    ) -> tuple[RuleFinding, ...]:
        """Findings of the first stage. thorough: run slow checks even if a rule has failed."""
        return judge(self.rules, candidate.evidence(), self.first_stage)

    @abstractmethod
    def build(self, candidate: CandidateT, gate: dict[str, Any]) -> BundleT:
        """The candidate's bundle with this gate report."""

    @abstractmethod
    def is_champion(self, draft: BundleT, champion: str | None) -> bool:
        """Whether that champion acts exactly as the draft does."""

    @abstractmethod
    def evaluate(self, candidate: CandidateT, draft: BundleT) -> tuple[CountedEvaluation, ScoreT]:
        """Count an evaluation on unseen data, and make it."""

    @abstractmethod
    def compare(
        self,
        candidate: CandidateT,
        draft: BundleT,
        look: CountedEvaluation,
        score: ScoreT,
        champion: str | None,
    ) -> tuple[Any, ScoreT]:
        """Compare with the champion: evidence for the second stage, and the completed score."""

    def called(self, bundle: BundleT) -> str:
        """What a present or past champion is called: `SLOT@3`, by its version in the slot."""
        versions = self.registry.versions(self.slot)
        number = next((one.number for one in versions if one.bundle == bundle.hash), None)
        return bundle.name if number is None else f"{self.slot}@{number}"

    @abstractmethod
    def record(self, candidate: CandidateT, score: ScoreT) -> dict[str, Any]:
        """The evaluation in the bundle's gate report."""

    # The arena:

    def judge_for_arena(
        self, candidate: CandidateT, champion: BundleT
    ) -> tuple[tuple[RuleFinding, ...], str]:
        """Findings of the rules that need no unseen data, and what else keeps a candidate out.

        Args:
            candidate: the candidate.
            champion: the slot's champion.

        Returns:
            The findings, and a sentence without its full stop, "" if nothing does.
        """
        raise NotImplementedError  # `without_effect` has --arena and --refit

    def arena_bundle(self, candidate: CandidateT, findings: Sequence[RuleFinding]) -> BundleT:
        """The candidate's bundle, which no unseen data has judged."""
        raise NotImplementedError

    # The outcome:

    @classmethod
    def defend(cls, registry: Registry, slot: str, games: int | None) -> list[str]:
        """Let the slot's challengers play its champion. Returns what changed, in sentences.

        Args:
            registry: the registry that holds the slot.
            slot: the slot.
            games: the most deals of a challenge, None for the default.

        Raises:
            InputError: there are no such games.
            ChampionMoved, ReignEnded: the champion changed meanwhile; call again.
        """
        del registry, games
        raise InputError(f"slot {slot!r} is of {cls.title}: only champions of games defend it")

    def closest(
        self, results: Sequence[Result[CandidateT, ScoreT, BundleT]]
    ) -> Result[CandidateT, ScoreT, BundleT]:
        """The result that is closest to passing.

        By default the first one with an evaluation, else the one that failed the fewest of the
        rules that all were judged by; ties: the first.
        """
        scored = [result for result in results if result.look is not None]
        if scored:
            return scored[0]
        common = set.intersection(
            *(
                {one.name for one in result.findings if one.verdict != NOT_EVALUATED}
                for result in results
            )
        )
        return min(
            results,
            key=lambda result: sum(
                one.verdict == "fail" for one in result.findings if one.name in common
            ),
        )

    def why_none(
        self,
        results: Sequence[Result[CandidateT, ScoreT, BundleT]],
        closest: Result[CandidateT, ScoreT, BundleT],
    ) -> str:
        """Why no candidate passed: the rules that the closest one does not meet, in plain words."""
        failed = [one for one in closest.findings if one.verdict in ("fail", "defer")]
        first = failed[0]
        also = f"; it also fails {', '.join(one.name for one in failed[1:])}" if failed[1:] else ""
        among = f", the closest of {len(results)} candidates," if len(results) > 1 else ""
        return f"{closest.candidate.name}{among} does not meet {first.name} ({first.meaning}){also}"

    def how_far(self, result: Result[CandidateT, ScoreT, BundleT]) -> str:
        """How far a candidate is from its limits: of the rule that decides (`deciding`)."""
        found = deciding(result.findings)
        return "" if found is None else distance(found)

    def power(self, result: Result[CandidateT, ScoreT, BundleT]) -> str:
        """Which candidates this gate would find, in a sentence; "" where it is not known."""
        return ""

    @abstractmethod
    def steps(
        self,
        results: Sequence[Result[CandidateT, ScoreT, BundleT]],
        closest: Result[CandidateT, ScoreT, BundleT],
    ) -> Sequence[Step]:
        """Commands that help where no candidate passed, the most useful first. closest: see there."""

    def champion_steps(self, champion: str | None) -> Sequence[Step]:
        """Commands that take the slot's champion; none without one."""
        if champion is None:
            return []
        where = f" {shlex.quote(self.slot)}{registry_flags(self.registry)}"
        steps = [
            Step(what, f"{program()} {command}{where}")
            for command, what in self.champion_commands(self.slot)
        ]
        if self.registry.slot(self.slot).previous is not None:
            steps.append(Step("bring the previous champion back", f"{program()} rollback{where}"))
        return steps

    @abstractmethod
    def looks(self) -> int:
        """Evaluations counted on this unseen data; 0 without such data."""

    def details(self, chosen: Result[CandidateT, ScoreT, BundleT] | None) -> dict[str, Any]:
        """What the JSON of a promotion has besides the fields of `Promotion`."""
        return {}

    @abstractmethod
    def report(self, promotion: Promotion[Result[CandidateT, ScoreT, BundleT]]) -> Report:
        """The report on a promotion."""

    def publish(self, promotion: Promotion[Result[CandidateT, ScoreT, BundleT]]) -> list[Path]:
        """Publish what the candidate does with the study, besides the report."""
        return []

    @abstractmethod
    def champion_commands(self, slot: str) -> Sequence[tuple[str, str]]:
        """Commands that take the champion's slot, and what they do."""

    # Stored bundles:

    @staticmethod
    @abstractmethod
    def bundle_facts(
        registry: Registry, bundle: BundleT, places: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """What `registry show` prints about a bundle. places: its present and former slots."""

    @staticmethod
    @abstractmethod
    def bundle_sections(facts: Mapping[str, Any]) -> list[Section]:
        """The sections of a bundle. facts: as `bundle_facts` returns them."""

    @staticmethod
    @abstractmethod
    def verify(registry: Registry, bundle: BundleT, data_dir: Path | None) -> Verification:
        """Score a bundle again. data_dir: folder of bars, if the user named one.

        Raises:
            InputError: there is nothing to compare with, or the data is missing.
        """

    # Policies of trials, in Python:

    @staticmethod
    def acting(
        study: StudyT,
        trial: FrozenTrial,  # noqa: ARG004
    ) -> tuple[tuple[FrozenPolicy, ...], FrozenPolicy, tuple[int, ...]]:
        """The policy of a complete trial.

        Returns:
            The trial's members, what acts, and of a team the member of each seat.

        Raises:
            InputError: nothing of it can act.
        """
        raise InputError(
            f"study {study.name!r} is on {study.spec.environment}, which has no policy that sweepd "
            "can load"
        )

    @staticmethod
    def codec(policy: TrialPolicy) -> SpaceCodec:
        """The spaces in which a policy of `acting` acts outside of the study."""
        raise NotImplementedError

    @staticmethod
    def evaluate_policy(
        policy: TrialPolicy,
        windows: Sequence[tuple[Any, Any]],
        data_dir: str | Path | None,
        games: int,
        seed: int,
    ) -> pd.DataFrame:
        """Score a policy of `acting`, see `sweepd.evaluate`."""
        raise NotImplementedError
