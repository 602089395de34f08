"""The promotion of a study's candidates to a deployment slot, for every kind of study.

Candidates are judged in the order of their objective. The rules of the first stage need nothing
beyond what the study stored. A candidate that meets them is evaluated on unseen data, which is
counted (`sweepd.deploy.registry.evaluations`), and compared with the slot's champion. The first
candidate that meets every rule becomes champion in one transaction; if the champion changes
meanwhile, the candidate is compared with the new one.

The study's `Gate` says what a candidate is and how it is scored.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Callable, Sequence
from typing import Any, Generic

from sweepd.deploy.promotion.commands import promote_again
from sweepd.deploy.promotion.flags import PromoteFlags
from sweepd.deploy.promotion.gate import Gate, NothingToJudge, Result, StudyT
from sweepd.deploy.promotion.promotion import (
    MOST_STEPS,
    CandidateOutcome,
    CandidateT,
    GateResult,
    Outcome,
    Promotion,
    ScoreT,
    Step,
)
from sweepd.deploy.promotion.rules import RuleFinding, deferred, judge, not_evaluated, passed
from sweepd.deploy.registry.bundle_files import BundleT, finite
from sweepd.deploy.registry.flags import registry_flags
from sweepd.deploy.registry.records import ChampionMoved
from sweepd.deploy.registry.slots import check_slot
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.invocation import program

MAX_COMPARISONS = 5  # of one candidate, with champions that replace each other
NOT_SPENT = "a rule of the first stage failed, so no evaluation was spent"
CHAMPION_ALREADY = "it is the champion already"


class Promoter(Generic[StudyT, CandidateT, ScoreT, BundleT]):
    """One promotion of one study.

    With `--dry-run`, nothing is written to the registry, except that evaluations are counted,
    because their results are shown.

    Args:
        gate: the study's gate.

    Raises:
        InputError: the slot's name is invalid, or the registry is not writable.
    """

    def __init__(self, gate: Gate[StudyT, CandidateT, ScoreT, BundleT]) -> None:
        self.gate, self.registry, self.slot = gate, gate.registry, gate.slot
        self.dry_run = gate.flags.dry_run
        # Without evaluations, the promotion stops after the first stage.
        _check_flags(gate.flags)
        self.looks = 0 if gate.flags.without_looks else gate.flags.looks or gate.default_looks
        check_slot(self.slot)
        if not (self.dry_run or gate.flags.first_stage):
            self.registry.database.check_writable()
        self._before = self._champion

    @property
    def _asked(self) -> str:
        """The user's reason, as the slot's history appends it."""
        reason = self.gate.flags.reason
        return f" (asked for: {reason})" if reason else ""

    @property
    def _champion(self) -> str | None:
        """Hash of the slot's present champion."""
        return self.registry.slot(self.slot).champion

    def run(self, trial: int | None = None) -> Promotion[Result[CandidateT, ScoreT, BundleT]]:
        """Judge the candidates until one is promoted or the evaluations are spent.

        Args:
            trial: consider this trial only.

        Raises:
            InputError: the study, its data, the slot's champion or the registry cannot be used.
        """
        flags = self.gate.flags
        try:
            candidates = self.gate.candidates(0 if flags.refit else trial)
        except NothingToJudge as found:
            return self._promotion(CandidateOutcome(None, found.outcome, str(found)))
        if flags.for_arena:
            return self._ask_for_seat(candidates[0]())
        if flags.first_stage:
            return self._first_stage_only(candidates[0]())
        return self._promote_first(candidates)

    def _first_stage_only(
        self, candidate: CandidateT
    ) -> Promotion[Result[CandidateT, ScoreT, BundleT]]:
        """Judge one candidate by the first stage; nothing is written to the registry."""
        findings = self.gate.judge_first_stage(candidate, thorough=True)
        failed = [finding.name for finding in findings if finding.verdict != "pass"]
        said = (
            f"does not meet {', '.join(failed)}"
            if failed
            else f"meets every rule that needs no {self.gate.second_stage} evaluation"
        )
        skipped = not_evaluated(
            self.gate.rules, self.gate.second_stage, "only the first stage was requested"
        )
        result = GateResult[CandidateT, ScoreT, BundleT](candidate, (*findings, *skipped))
        reason = f"{candidate.name} {said}{result.loosened}"
        return self._promotion(CandidateOutcome(result, "first stage", reason), [result])

    def _ask_for_seat(
        self, candidate: CandidateT
    ) -> Promotion[Result[CandidateT, ScoreT, BundleT]]:
        """Make a candidate a challenger that only bars to come will judge."""
        champion = self._champion
        if champion is None:
            raise InputError(
                f"slot {self.slot!r} has no champion to compete with; promote one without --arena"
            )
        present = self.registry.bundle(champion, self.gate.bundle_type)
        findings, problem = self.gate.judge_for_arena(candidate, present)
        why = "bars that come after its entry decide"
        skipped = not_evaluated(self.gate.rules, self.gate.second_stage, why)
        result = GateResult[CandidateT, ScoreT, BundleT](candidate, (*findings, *skipped))
        failed = ", ".join(one.name for one in findings if one.verdict in ("fail", "defer"))
        problem = f"{candidate.name} does not meet {failed}" if failed else problem
        if problem:
            return self._promotion(CandidateOutcome(result, "first stage", problem), [result])
        bundle = self.gate.arena_bundle(candidate, findings)
        if self.gate.is_champion(bundle, champion):
            return self._promotion(self._champion_already(result), [result])
        result = dataclasses.replace(result, bundle=bundle)
        kind = "a refit" if self.gate.flags.refit else "a challenger"
        reason = (
            f"{candidate.name} of {self.gate.study.name} asks for a seat in the arena as {kind}"
            f"{result.loosened}"
        )
        version = None
        if not self.dry_run:
            version = self.registry.challenger(
                self.slot,
                bundle,
                reason=reason + self._asked,
                report=finite(result.to_dict() | {"study": self.gate.study.name}),
                data_dir=self.gate.data_dir,
                refit=self.gate.flags.refit,
            )
        return self._promotion(CandidateOutcome(result, "challenger", reason, version), [result])

    def _promote_first(
        self, candidates: Sequence[Callable[[], CandidateT]]
    ) -> Promotion[Result[CandidateT, ScoreT, BundleT]]:
        """Judge the candidates in turn until one is settled or `looks` evaluations are spent.

        Args:
            candidates: functions that read them, as later ones may not be needed.

        If no candidate passes, that is appended to the slot's history.
        """
        results: list[Result[CandidateT, ScoreT, BundleT]] = []
        for read in candidates:
            # Slow checks give the best candidate a full report; for the others, one failed rule
            # is enough.
            judged = self._judge(read(), thorough=not results)
            results += [judged.result] if judged.result else []
            if judged.outcome is not None:
                return self._promotion(judged, results)
            if sum(result.look is not None for result in results) == self.looks:
                break
        closest = self.gate.closest(results)
        reason = self.gate.why_none(results, closest)
        promotion = self._promotion(CandidateOutcome(closest, "none passes", reason), results)
        if not self.dry_run:
            self.registry.refuse(self.slot, reason + self._asked, promotion.to_dict())
        return promotion

    def _judge(
        self, candidate: CandidateT, *, thorough: bool
    ) -> CandidateOutcome[Result[CandidateT, ScoreT, BundleT]]:
        """Judge a candidate: the second stage only if it passes the first."""
        findings = self.gate.judge_first_stage(candidate, thorough=thorough)
        if passed(findings):
            return self._challenge(candidate, findings)
        skipped = not_evaluated(self.gate.rules, self.gate.second_stage, NOT_SPENT)
        return CandidateOutcome(GateResult(candidate, (*findings, *skipped)))

    def _challenge(
        self, candidate: CandidateT, findings: tuple[RuleFinding, ...]
    ) -> CandidateOutcome[Result[CandidateT, ScoreT, BundleT]]:
        """Second stage: evaluate on unseen data, and promote if every rule is met."""
        draft = self.gate.build(candidate, {})
        skipped = not_evaluated(self.gate.rules, self.gate.second_stage, CHAMPION_ALREADY)
        known = GateResult[CandidateT, ScoreT, BundleT](candidate, (*findings, *skipped))
        # The same weights under the same settings are not evaluated again: that would reveal
        # nothing and could only replace the champion by itself.
        if self.gate.is_champion(draft, self._champion):
            return self._champion_already(known)
        look, score = self.gate.evaluate(candidate, draft)
        # The comparison takes long, so it runs outside the registry's write lock; the lock's
        # transaction checks that the champion is still the one compared with.
        for _ in range(MAX_COMPARISONS):
            champion = self._champion
            if self.gate.is_champion(draft, champion):  # promoted concurrently by another process
                return self._champion_already(dataclasses.replace(known, look=look, score=score))
            evidence, compared = self.gate.compare(candidate, draft, look, score, champion)
            found = (*findings, *judge(self.gate.rules, evidence, self.gate.second_stage))
            choice = self.gate.study.choice(candidate.trials)
            gate = self.gate.record(candidate, compared) | {
                "slot": self.slot,
                "look": look.number,
                "findings": [finding.to_dict() for finding in found],
                **({} if choice is None else {"choice": choice}),
            }
            bundle = self.gate.build(candidate, finite(gate))
            try:
                return self._settle(GateResult(candidate, found, look, compared, bundle), champion)
            except ChampionMoved:
                continue
        raise RunError(
            f"the champion of {self.slot} changed {MAX_COMPARISONS} times while {candidate.name} "
            "was compared with it; try again"
        )

    def _settle(
        self, result: Result[CandidateT, ScoreT, BundleT], champion: str | None
    ) -> CandidateOutcome[Result[CandidateT, ScoreT, BundleT]]:
        """Write the outcome to the registry.

        Args:
            result: of the candidate.
            champion: hash of the champion that it was compared with.

        Raises:
            ChampionMoved: the slot has another champion by now.
        """
        is_challenger = deferred(result.findings)
        if not (result.passes or is_challenger):
            return CandidateOutcome(result)
        assert result.bundle is not None
        name = result.candidate.name
        reason = f"{name} of {self.gate.study.name} met every rule{result.loosened}"
        if is_challenger:
            why = next(one.explanation for one in result.findings if one.verdict == "defer")
            reason = f"{name} met every rule that could be evaluated{result.loosened}, but {why}"
        if self.dry_run:
            outcome: Outcome = "challenger" if is_challenger else "would promote"
            return CandidateOutcome(result, outcome, reason)
        written: dict[str, Any] = {
            "reason": reason + self._asked,
            "report": finite(result.to_dict() | {"study": self.gate.study.name}),
            "data_dir": self.gate.data_dir,
        }
        if is_challenger:
            version = self.registry.challenger(self.slot, result.bundle, **written)
            return CandidateOutcome(result, "challenger", reason, version)
        version = self.registry.promote(self.slot, result.bundle, expected=champion, **written)
        return CandidateOutcome(result, "promoted", reason, version)

    def _champion_already(
        self, result: Result[CandidateT, ScoreT, BundleT]
    ) -> CandidateOutcome[Result[CandidateT, ScoreT, BundleT]]:
        reason = f"{result.candidate.name} is the champion of {self.slot} already"
        return CandidateOutcome(result, "champion already", reason)

    def _promotion(
        self,
        outcome: CandidateOutcome[Result[CandidateT, ScoreT, BundleT]],
        results: Sequence[Result[CandidateT, ScoreT, BundleT]] = (),
    ) -> Promotion[Result[CandidateT, ScoreT, BundleT]]:
        """The outcome of the promotion."""
        assert outcome.outcome is not None
        study, result = self.gate.study, outcome.result
        champion = self._champion
        steps: Sequence[Step]
        if outcome.outcome == "none passes":
            assert result is not None
            steps = self.gate.steps(results, result)
        elif outcome.outcome == "would promote":
            command = promote_again(self.gate.study, self.registry, self.gate.flags)
            steps = [Step("promote it", command)]
        elif outcome.outcome == "challenger" and self.gate.flags.for_arena:
            where = f"{shlex.quote(self.slot)}{registry_flags(self.registry)}"
            steps = [Step("give it a seat", f"{program()} trader arena {where}")]
        else:
            steps = self.gate.champion_steps(champion)
        # The rules of a candidate that is the champion already are not evaluated.
        judged = None if outcome.outcome == "champion already" else result
        return Promotion(
            outcome=outcome.outcome,
            slot=self.slot,
            study=study.name,
            reason=outcome.reason,
            how_far="" if judged is None else self.gate.how_far(judged),
            power="" if judged is None else self.gate.power(judged),
            steps=tuple(steps[:MOST_STEPS]),
            candidates=tuple(results),
            chosen=result,
            choice=None if result is None else study.choice(result.candidate.trials),
            champion_before=self._before,
            champion=champion,
            version=outcome.version,
            dry_run=self.dry_run,
            complete=len(study.all_complete),
            looks=self.gate.looks(),
            details=self.gate.details(result),
        )


def _check_flags(flags: PromoteFlags) -> None:
    """Raise InputError for flags that exclude each other or have no effect together."""
    chosen = [name for name in ("arena", "refit", "first_stage") if getattr(flags, name)]
    if len(chosen) > 1:
        named = " and ".join(f"--{name.replace('_', '-')}" for name in chosen)
        raise InputError(f"{named} exclude each other: give one")
    if flags.for_arena and flags.looks is not None:
        raise InputError(f"--looks has no effect with --{chosen[0]}, which makes no evaluation")
    if flags.refit and (flags.trial is not None or flags.ensemble > 1):
        raise InputError("--refit takes trial 0, so --trial and --ensemble have no effect")
