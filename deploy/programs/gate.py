"""The gate of programs: the selected parameters are judged by their values on fresh seeds.

`sweepd.deploy.programs.rules` has the rules.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sweepd.deploy.programs.advice import next_steps
from sweepd.deploy.programs.bundle import ProgramBundle, program_key, program_name
from sweepd.deploy.programs.candidates import (
    ProgramCandidate,
    ProgramPromotion,
    ProgramResult,
    ProgramStudy,
    build_bundle,
    read_candidate,
)
from sweepd.deploy.programs.report import program_facts, program_report, program_sections
from sweepd.deploy.programs.rules import (
    FRESH,
    SEARCH,
    VALUE,
    ChampionValues,
    FreshScore,
    ProgramEvidence,
    rules,
)
from sweepd.deploy.promotion.bootstrap import gate_level
from sweepd.deploy.promotion.gate import Gate, NothingToJudge, Verification
from sweepd.deploy.promotion.promotion import Step
from sweepd.deploy.promotion.rules import GateRule, parse_limits
from sweepd.deploy.promotion.sections import Report, Section
from sweepd.deploy.registry.bundle_files import PROGRAM
from sweepd.deploy.registry.records import CountedEvaluation
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.registry.slots import slot_name
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import counted
from sweepd.envs.support.intervals import over_seeds, paired

NO_FILES = "the program wrote no file to SWEEPD_OUT, so there is nothing to deploy"


class ProgramGate(Gate[ProgramStudy, ProgramCandidate, FreshScore, ProgramBundle]):
    """The gate of one promotion of a program's files; see `Gate`."""

    title = "commands"
    study_type, bundle_type = ProgramStudy, ProgramBundle
    first_stage, second_stage = SEARCH, FRESH
    without_effect = (
        *("data_dir", "looks", "ensemble", "weights", "first_stage", "arena", "refit"),
        *("games", "play", "baseline"),
    )
    limit_example = "value=0.9"

    @property
    def default_slot(self) -> str:
        """It is named after the script, or the program."""
        return slot_name(program_name(self.study.spec.command))

    @property
    def default_rules(self) -> Sequence[GateRule[ProgramEvidence]]:
        limits = parse_limits(self.flags.limit or [], self.limit_example)
        return rules(limits.get(VALUE))

    def candidates(self, trial: int | None) -> Sequence[Callable[[], ProgramCandidate]]:
        found = self.study.configuration(trial)
        if found is None:
            raise NothingToJudge("no candidate", self.study.why_none_complete)
        candidate = read_candidate(found, self.study)
        if candidate.fresh is not None and candidate.fresh.files == {}:
            raise NothingToJudge("no candidate", NO_FILES)
        return [lambda: candidate]

    def build(self, candidate: ProgramCandidate, gate: dict[str, Any]) -> ProgramBundle:
        return build_bundle(candidate, self.study, gate)

    def is_champion(self, draft: ProgramBundle, champion: str | None) -> bool:
        present = self._load(champion)
        return present is not None and present.members_sha256 == draft.members_sha256

    def _load(self, champion: str | None) -> ProgramBundle | None:
        return None if champion is None else self.registry.bundle(champion, ProgramBundle)

    def evaluate(
        self, candidate: ProgramCandidate, draft: ProgramBundle
    ) -> tuple[CountedEvaluation, FreshScore]:
        look = self.registry.evaluations.record_panel(
            program_key(self.study.spec.command),
            len(candidate.values),
            members_sha256=draft.members_sha256,
            study=self.study.name,
            study_uid=self.study.uid,
            trial=candidate.trials[0],
            kind=PROGRAM,
        )
        seeds = counted(len(candidate.values), "fresh seed")
        others = self.study.others_measured(candidate)
        chosen = (
            f", chosen by hand after {counted(others, 'other configuration')} on fresh seeds"
            if others
            else ""
        )
        self.progress(f"{candidate.name}: evaluation {look.number} on {seeds}{chosen}")
        mean = over_seeds(candidate.values, level=1.0 - gate_level(look.number + others))
        return look, FreshScore(look.number, candidate.values, mean, others=others)

    def compare(
        self,
        candidate: ProgramCandidate,
        draft: ProgramBundle,
        look: CountedEvaluation,
        score: FreshScore,
        champion: str | None,
    ) -> tuple[ProgramEvidence, FreshScore]:
        present = self._load(champion)
        if present is not None:
            theirs = present.manifest.fresh.values
            # Both have seeds of their own, so the difference is that of two independent means.
            ours, others = (np.array(values)[:, None] for values in (score.values, theirs))
            level = 1.0 - gate_level(look.number + score.others)
            difference = paired(ours, others, level=level)
            other = ChampionValues(
                self.called(present), theirs, difference, _unlike(draft, present)
            )
            score = dataclasses.replace(score, champion=other)
        return dataclasses.replace(candidate.evidence(), score=score), score

    def record(self, candidate: ProgramCandidate, score: FreshScore) -> dict[str, Any]:
        return {"fresh": score.to_dict(), "selection": candidate.configuration.to_dict()}

    def steps(self, results: Sequence[ProgramResult], closest: ProgramResult) -> Sequence[Step]:  # noqa: ARG002
        return next_steps(self.study, closest, self.registry, self.slot)

    def looks(self) -> int:
        return self.registry.evaluations.count_panel(program_key(self.study.spec.command), PROGRAM)

    def report(self, promotion: ProgramPromotion) -> Report:
        return program_report(self.study, promotion)

    def champion_commands(self, slot: str) -> Sequence[tuple[str, str]]:  # noqa: ARG002
        return (
            ("registry show", "show the champion, its parameters and its gate report"),
            ("registry export --out champion", "copy its files to the folder champion"),
        )

    @staticmethod
    def bundle_facts(
        registry: Registry, bundle: ProgramBundle, places: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        return program_facts(registry, bundle, places)

    @staticmethod
    def bundle_sections(facts: Mapping[str, Any]) -> list[Section]:
        return program_sections(facts)

    @staticmethod
    def verify(
        registry: Registry,  # noqa: ARG004
        bundle: ProgramBundle,
        data_dir: Path | None,
    ) -> Verification:
        if data_dir is not None:
            raise InputError(f"--data-dir is not for programs: bundle {bundle.name} holds files")
        size = sum(part.size for part in bundle.manifest.files.values())
        files = counted(len(bundle.files), "file")
        content = {
            "bundle": bundle.hash,
            "agrees": True,  # files with other hashes are refused when a bundle is loaded
            "files": len(bundle.files),
            "bytes": size,
            "replayed": False,
        }
        return Verification(
            content,
            f"{bundle.name} is verified: the hashes of its {files} ({size:,} bytes) are right. sweepd "
            "does not run the program again, so its values are not compared.",
        )


def _unlike(draft: ProgramBundle, champion: ProgramBundle) -> tuple[str, ...]:
    """What makes the values of two bundles incomparable, in words."""
    own, other = draft.manifest.program, champion.manifest.program
    return tuple(
        f"the champion's {name} is {getattr(other, name)!r}, the candidate's {getattr(own, name)!r}"
        for name in ("command", "budget")
        if getattr(own, name) != getattr(other, name)
    )
