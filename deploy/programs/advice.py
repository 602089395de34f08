"""What to do next where the selected parameters of a program do not pass."""

from __future__ import annotations

import math
import shlex

from sweepd.deploy.programs.candidates import ProgramCandidate, ProgramResult, ProgramStudy
from sweepd.deploy.programs.rules import VALUE
from sweepd.deploy.promotion.commands import new_study, on_study
from sweepd.deploy.promotion.promotion import Step
from sweepd.deploy.promotion.rules import RuleFinding, deciding
from sweepd.deploy.promotion.studies import where_flags
from sweepd.deploy.registry.flags import registry_flags
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.intervals import FEW
from sweepd.envs.support.invocation import program

MOST_SEEDS = 100  # more of them is no advice


def next_steps(
    study: ProgramStudy, closest: ProgramResult, registry: Registry, slot: str
) -> list[Step]:
    """Return the commands that help, by the rule that decides. slot: that of the promotion."""
    decides = deciding(closest.findings)
    candidate = closest.candidate
    steps = []
    if decides is not None and decides.name in (VALUE, "beats-champion"):
        count = seeds_needed(closest, decides)
        if count is not None:
            steps.append(
                Step(
                    f"measure on {count} fresh seeds: the lead is positive, and so many seeds would "
                    "decide one of this size",
                    _measure(study, candidate, count)
                    + f" --slot {shlex.quote(slot)}"
                    + (f" {decides.flag}" if decides.name == VALUE else "")
                    + registry_flags(registry),
                )
            )
    elif decides is not None and decides.name == "fresh-seeds":
        what = f"measure the parameters on {FEW} fresh seeds"
        return [Step(what, candidate.measure)]
    elif decides is not None and decides.name == "comparable":
        command = on_study("promote", study, "--slot", f"{slot}-2") + registry_flags(registry)
        return [Step("promote to a slot of its own", command)]
    elif decides is not None and decides.name in ("fresh-failures", "files", "constraints"):
        return [Step("read the reasons of the trials and their folders", on_study("status", study))]
    return [*steps, *search_on(study)]


def search_on(study: ProgramStudy) -> list[Step]:
    """Return commands that search for better parameters: more trials, and longer ones."""
    count = 2 * study.finished
    steps = [
        Step(
            f"search on with {count} trials in total", on_study("train", study, "--n-trials", count)
        )
    ]
    budget = 2 * study.spec.budget
    command = new_study(study, study.finished, budget=budget)
    if command is not None:
        steps.append(Step(f"a new study with twice the budget, {budget:,} steps", command))
    return steps


def seeds_needed(result: ProgramResult, finding: RuleFinding) -> int | None:
    """Return the number of fresh seeds at which a lead of the present size would be significant.

    The half-width of an interval shrinks with the root of the number of seeds; a fifth is added.

    Returns:
        None if there is no lead, or more seeds than `MOST_SEEDS` would be needed.
    """
    score = result.score
    if score is None:
        return None
    found = score.mean if score.champion is None else score.champion.difference
    limit = finding.limit if finding.name == VALUE else 0.0
    found = score.mean if finding.name == VALUE else found
    lead = found.value - limit
    if found.empty or lead <= 0.0:
        return None
    count = math.ceil(1.2 * len(score.values) * ((found.value - found.low) / lead) ** 2)
    return count if len(score.values) < count <= MOST_SEEDS else None


def _measure(study: ProgramStudy, candidate: ProgramCandidate, seeds: int) -> str:
    """The commands that measure the parameters on so many fresh seeds, and promote that run."""
    trial = f"{study.name}#{candidate.configuration.best_trial.number}"
    # A run of its own: the name of the present one belongs to another number of seeds.
    name = f"{study.name}-{candidate.configuration.best_trial.number}-{seeds}-seeds"
    named = ["--study-name", name, *where_flags(study)]
    run = shlex.join(["--trial", trial, "--seeds", str(seeds), *named])
    return f"{program()} run {run} && {program()} promote {shlex.join(named)}"
