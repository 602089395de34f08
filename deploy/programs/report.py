"""What is told about a program's files: a promotion, and a bundle in `registry show`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sweepd.deploy.programs.bundle import ProgramBundle, program_key
from sweepd.deploy.programs.candidates import ProgramPromotion, ProgramResult, ProgramStudy
from sweepd.deploy.programs.rules import FreshScore
from sweepd.deploy.promotion.report import gate_findings, identity, promotion_report
from sweepd.deploy.promotion.sections import (
    Cell,
    Report,
    ReportPicture,
    ReportTable,
    ReportTerms,
    Section,
    Styled,
    capital,
    parameters_text,
)
from sweepd.deploy.registry.bundle_files import PROGRAM
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.formatting import counted
from sweepd.envs.support.intervals import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure

READING = ReportTerms(
    "How to read this",
    (
        (
            "What is tested",
            "A search tries many parameters and keeps the best ones, which is partly luck. So the "
            "program was run again with the selected parameters, and with seeds that the search did "
            "not use. The mean over these fresh seeds is what the parameters are worth.",
        ),
        (
            "Better than the champion?",
            "The interval of the difference of the two means over fresh seeds must lie above 0. "
            "Candidate and champion have seeds of their own, so the seeds of both add to its width.",
        ),
        (
            "Which files?",
            "Those of the fresh run with the highest value. That value is the best of several, so it "
            "is biased upwards; the mean is not.",
        ),
        (
            "Number of evaluations",
            "After enough evaluations some candidate passes by luck. So the evaluations of a command "
            "are counted, and each is twice as strict as the one before: its intervals have a "
            "confidence of 95%, 97.5%, 98.75% and so on.",
        ),
    ),
)


def program_report(study: ProgramStudy, promotion: ProgramPromotion) -> Report:
    """The report on a promotion."""
    chosen = promotion.chosen
    score = None if chosen is None else chosen.score
    evidence, picture = list[ReportTable](), None
    if chosen is not None and score is not None:
        evidence = [_means(score.to_dict(), chosen.candidate.name)]
        picture = ReportPicture(
            "Values on fresh seeds of the candidate and the champion",
            partial(_draw, score, chosen.candidate.name),
        )
    return promotion_report(
        promotion,
        evaluation="evaluation",
        cells=_cells,
        about=_about(study, promotion),
        evidence=evidence,
        picture=picture,
        reading=READING,
        footer="Made by sweepd promote.",
    )


def _cells(result: ProgramResult) -> dict[str, Cell]:
    candidate = result.candidate
    values = candidate.values
    return {
        "trial": " ".join(map(str, sorted(candidate.trials))),
        "objective": f"{candidate.objective:+.4f}",
        "fresh mean": f"{sum(values) / len(values):+.4f}" if values else "-",
    }


def _about(study: ProgramStudy, promotion: ProgramPromotion) -> list[str]:
    if promotion.chosen is None:
        return []
    candidate = promotion.chosen.candidate
    command = " ".join(study.spec.command.split())  # it may have been typed on several lines
    lines = [
        f"Study {promotion.study} on the program {command!r}: {promotion.complete} "
        f"complete trials. {capital(candidate.name)} has the selected parameters: "
        f"{parameters_text(candidate.parameters)}. Evaluations of this command used, in this "
        f"registry: {promotion.looks}."
    ]
    score = promotion.chosen.score
    if score is not None and score.others:
        lines.append(
            f"It was chosen by hand. {capital(counted(score.others, 'other configuration'))} of the "
            "study had been measured on fresh seeds, so the intervals have the confidence of as many "
            "further evaluations."
        )
    fresh = candidate.fresh
    if fresh is not None and fresh.files:
        size = sum(part.size for _, part in fresh.files.values())
        lines.append(
            f"Its {counted(len(fresh.files), 'file')} ({size:,} bytes): what fresh seed {fresh.chosen} "
            f"of study {fresh.study[0]} wrote. Its value {fresh.values[fresh.chosen]:+.4g} is the "
            f"highest of {len(fresh.values)}, and therefore biased upwards."
        )
    return lines


def _means(score: Mapping[str, Any], who: str) -> ReportTable:
    """The means over fresh seeds, and the difference to the champion. score: `FreshScore.to_dict`."""
    own, champion = Interval.from_dict(score["mean"]), score["champion"]
    level = f"{100 * own.level:.4g}%"
    rows: list[Sequence[Cell]] = [[Styled(who, "own"), *_cell(own), _list(score["values"])]]
    if champion is not None:
        theirs = champion["values"]
        rows.append(
            [f"champion {champion['name']}", f"{sum(theirs) / len(theirs):.4g}", "", _list(theirs)]
        )
        rows.append(["difference", *_cell(Interval.from_dict(champion["difference"])), ""])
    return ReportTable(
        "Values on fresh seeds", ("", "mean", level, "values"), rows, texts=(0, 2, 3)
    )


def _cell(found: Interval) -> tuple[str, str]:
    bounds = "" if found.empty else found.bounds("{:+.4g}")
    return f"{found.value:.4g}", bounds


def _list(values: Sequence[float]) -> str:
    shown = " ".join(f"{value:.4g}" for value in values[:10])
    return f"{shown} …" if len(values) > 10 else shown


def _draw(score: FreshScore, name: str) -> Figure:
    from sweepd.deploy.programs.pictures import draw_values  # imports matplotlib

    return draw_values(score, name)


def program_facts(
    registry: Registry, bundle: ProgramBundle, places: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What `registry show` prints about a program's files. places: its slots."""
    manifest = bundle.manifest
    subject = program_key(manifest.program.command)
    return {
        "bundle": bundle.hash,
        "weights_sha256": bundle.members_sha256,
        "folder": str(registry.path(bundle.hash)),
        "slots": list(places),
        "program": manifest.program.model_dump(mode="json"),
        "origin": manifest.origin.model_dump(mode="json"),
        "fresh": manifest.fresh.model_dump(mode="json"),
        "metrics": manifest.metrics,
        "files": {name: part.model_dump(mode="json") for name, part in manifest.files.items()},
        "code_version": manifest.code_version,
        "look": manifest.gate.get("look"),
        "looks_now": registry.evaluations.count_panel(subject, PROGRAM),
        "score": manifest.gate.get("fresh"),
        "selection": manifest.gate.get("selection"),
        "findings": manifest.gate.get("findings", []),
    }


def program_sections(facts: Mapping[str, Any]) -> list[Section]:
    """A program's files: identity, gate, values and files. facts: as `program_facts` returns them."""
    files = [[name, f"{part['size']:,}", part["sha256"]] for name, part in facts["files"].items()]
    return [
        identity(facts, _identity(facts), "fresh seeds", "files"),
        *gate_findings(facts),
        *([_means(facts["score"], "this program")] if facts["score"] else []),
        ReportTable("Files", ("file", "bytes", "sha256"), files, texts=(0, 2)),
    ]


def _identity(facts: Mapping[str, Any]) -> list[tuple[str, Cell]]:
    program, origin, fresh = facts["program"], facts["origin"], facts["fresh"]
    chosen, values = fresh["chosen"], fresh["values"]
    trials = ", ".join(map(str, origin["trials"]))
    of = f"trial{'s' * (len(origin['trials']) > 1)} {trials}"
    return [
        ("program", program["command"]),
        ("parameters", parameters_text(program["parameters"])),
        ("selected by", f"study {origin['study']}, {of} (value {origin['objective_value']:+.4f})"),
        (
            "files of",
            f"study {origin['run']}, trial {origin['run_trial']}, fresh seed {chosen} (value "
            f"{values[chosen]:+.4f}, the highest of {len(values)}, so biased upwards)",
        ),
        ("started as", shlex.join(program["words"])),
        ("seed, budget", f"{fresh['seeds'][chosen]}, {program['budget']:,}"),
        ("folder", facts["folder"]),
        ("made with", f"sweepd {facts['code_version']}"),
    ]
