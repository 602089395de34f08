"""The candidate of a study on a program: its selected parameters, run on fresh seeds."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from optuna.trial import FrozenTrial, TrialState

from sweepd.deploy.programs.bundle import ProgramBundle
from sweepd.deploy.programs.manifest import (
    FOLDER,
    FreshPart,
    OriginPart,
    ProgramManifest,
    ProgramPart,
)
from sweepd.deploy.programs.rules import FreshScore, ProgramEvidence
from sweepd.deploy.promotion.promotion import GateResult, Promotion
from sweepd.deploy.promotion.studies import GateStudy, where_flags
from sweepd.deploy.registry.bundle_files import (
    FilePart,
    check_file,
    describe_file,
    finite,
    new_bundle,
    sha256,
)
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import counted
from sweepd.envs.support.intervals import FEW
from sweepd.envs.support.invocation import program
from sweepd.optimize.study.record.configurations import Configuration, violations
from sweepd.optimize.study.record.fresh import fresh_runs, run_name
from sweepd.optimize.study.record.reader import StudyReader, judged_trials
from sweepd.optimize.study.record.specs import CommandSpec
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.record.values import broken_words


class ProgramStudy(GateStudy):
    """A study on a program. Raises InputError for other studies."""

    spec: CommandSpec

    def __init__(self, study: StudyReader) -> None:
        if not isinstance(study.spec, CommandSpec):
            raise InputError(
                f"study {study.name!r} is on {study.spec.environment!r}, which is no program"
            )
        super().__init__(study)

    def configuration(self, trial: int | None) -> Configuration | None:
        """The selected configuration, or that of a trial; None if no trial is complete.

        Raises:
            InputError: that trial is not COMPLETE.
        """
        asked = self.asked(trial)
        if not asked:
            return None
        found = self.spec.selection.configurations(self.complete)
        return next(one for one in found if asked[0] in one.trials)

    def others_measured(self, candidate: ProgramCandidate) -> int:
        """Return how many other configurations were measured on fresh seeds.

        A user who names a trial may have chosen it by these results; where the study's own selection
        is judged, they played no part, and do not count.
        """
        if candidate.configuration.best_trial == self.complete[0]:
            return 0
        configurations = self.spec.selection.configurations(self.complete)
        others = [one for one in configurations if one.best_trial.number not in candidate.trials]
        known = set(self.storage.study_ids())
        return sum(
            any(run_name(self.name, trial.number) in known for trial in one.trials)
            and any(row.judged for run in fresh_runs(self, one) for row in run.rows.read())
            for one in others
        )


@dataclass(frozen=True)
class FreshFiles:
    """The files of the run with the highest value of those on fresh seeds.

    Attributes:
        study: name and unique id of the study of the runs.
        trial: its trial.
        values: of the runs.
        seeds: of their programs.
        chosen: index of the run whose files these are.
        words: of its program.
        files: path and record of its files, by their path in a bundle; None if they are not known.
        metrics: the further numbers that were reported last, means over the runs.
        broken: constraints that the run does not meet, in words; None without constraints.
        faults: what is wrong with the files, in sentences.
    """

    study: tuple[str, str]
    trial: int
    values: tuple[float, ...]
    seeds: tuple[int, ...] = ()
    chosen: int = 0
    words: tuple[str, ...] = ()
    files: Mapping[str, tuple[Path, FilePart]] | None = None
    metrics: Mapping[str, float] | None = None
    broken: tuple[str, ...] | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class ProgramCandidate:
    """The parameters that a study selected.

    Attributes:
        configuration: its trials.
        parameters: of the program.
        fresh: what its program did on fresh seeds; None if that was not measured.
        failures: why its programs failed there; None if they were not started.
        measure: the command that measures it on fresh seeds.
    """

    configuration: Configuration
    parameters: Mapping[str, Any]
    fresh: FreshFiles | None
    failures: tuple[str, ...] | None
    measure: str

    @property
    def trials(self) -> tuple[int, ...]:
        """Numbers of its trials, best value first."""
        return tuple(trial.number for trial in self.configuration.trials)

    @property
    def name(self) -> str:
        """The candidate in words."""
        first, *others = map(str, sorted(self.trials))
        if not others:
            return f"trial {first}"
        return f"the configuration of trials {', '.join([first, *others[:-1]])} and {others[-1]}"

    @property
    def objective(self) -> float:
        """The value that it was selected by."""
        return self.configuration.value

    @property
    def values(self) -> tuple[float, ...]:
        """Its values on fresh seeds."""
        return () if self.fresh is None else self.fresh.values

    def evidence(self) -> ProgramEvidence:
        """The evidence for the first stage of the gate."""
        faults = None if self.fresh is None else self.fresh.faults
        broken = None if self.fresh is None else self.fresh.broken
        return ProgramEvidence(self.measure, faults, self.failures, self.values, broken)

    def describe(self, score: FreshScore | None) -> dict[str, Any]:
        """Its own part of a result's JSON."""
        fresh = self.fresh
        return {
            "trials": sorted(self.trials),
            "parameters": dict(self.parameters),
            "fresh": None
            if fresh is None
            else {"study": fresh.study[0], "values": list(fresh.values), "chosen": fresh.chosen},
            "score": None if score is None else score.to_dict(),
        }


ProgramResult: TypeAlias = GateResult[ProgramCandidate, FreshScore, ProgramBundle]
ProgramPromotion: TypeAlias = Promotion[ProgramResult]


def read_candidate(configuration: Configuration, study: ProgramStudy) -> ProgramCandidate:
    """Read a configuration, what it did on fresh seeds, and the files of the best run there."""
    record = TrialRecord.from_attributes(configuration.best_trial.user_attrs)
    fresh, failures = None, list[str]()
    started = False
    for run, found in _finished(study, configuration):
        started = True
        if found.state == TrialState.COMPLETE:
            fresh = fresh or _read_files(run, found)
            continue
        reason = TrialRecord.from_attributes(found.user_attrs).reason or found.state.name
        failures.append(f"study {run.name}, trial {found.number}: {reason}")
    trial = f"{study.name}#{configuration.best_trial.number}"
    words = ["run", "--trial", trial, "--seeds", str(FEW), *where_flags(study)]
    command = f"{program()} {shlex.join(words)}"
    return ProgramCandidate(
        configuration,
        record.learner_params or configuration.best_trial.params,
        fresh,
        tuple(failures) if started else None,
        command,
    )


def _finished(
    study: ProgramStudy, configuration: Configuration
) -> Iterator[tuple[StudyReader, FrozenTrial]]:
    """Yield the finished trials that ran the configuration on fresh seeds, and their studies.

    The seeds of a training run were not seen by the selection, so it is its own evidence.
    """
    if study.origin is not None:
        yield from ((study, trial) for trial in configuration.trials)
        failed = (one for one in study.trials() if one.state == TrialState.FAIL)
        yield from ((study, trial) for trial in failed)
        return
    for run in fresh_runs(study, configuration):
        found = [one for one in run.trials() if one.state in (TrialState.COMPLETE, TrialState.FAIL)]
        complete = judged_trials(found)
        yield from (
            (run, trial) for trial in found if trial in complete or trial.state == TrialState.FAIL
        )


def _read_files(run: StudyReader, trial: FrozenTrial) -> FreshFiles:
    """Read the files of the program with the highest value, and find what is wrong with them."""
    record = TrialRecord.from_attributes(trial.user_attrs)
    values = record.scores or ()
    found = violations(trial)
    broken = tuple(broken_words({text: by}) for text, by in found.items() if by > 0.0)
    own = FreshFiles((run.name, run.uid), trial.number, values, broken=broken if found else None)
    if not values or record.members is None:
        return _faulty(own, "the run did not record its values and the list of its files")
    listed = run.run_dir / record.members.path
    try:
        content = listed.read_bytes()
    except OSError as error:
        return _faulty(own, f"the list of files {listed} cannot be read: {error.strerror or error}")
    if sha256(content) != record.members.sha256:
        return _faulty(own, f"the list of files {listed} has been changed since the run ended")
    described = json.loads(content)
    if "seeds" not in described:
        return _faulty(own, f"the list of files {listed} was made by an earlier version of sweepd")
    chosen = max(range(len(values)), key=lambda index: values[index])
    start = f"seed-{chosen}/out/"
    faults, files = list[str](), dict[str, tuple[Path, FilePart]]()
    for one in described["files"]:
        if not one["path"].startswith(start):
            continue
        path = listed.parent / one["path"]
        part = FilePart(sha256=one["sha256"], size=one["bytes"])
        files[f"{FOLDER}/{one['path'].removeprefix(start)}"] = path, part
        try:
            one["path"].encode()
            check_file(f"its file {path}", describe_file(path), part)
        except UnicodeEncodeError:
            faults.append(f"the name of its file {one['path']!r} is not UTF-8")
        except OSError as error:
            faults.append(f"its file {path} cannot be read: {error.strerror or error}")
        except InputError as error:
            faults.append(str(error))
    return FreshFiles(
        own.study,
        own.trial,
        values,
        tuple(one["seed"] for one in described["seeds"]),
        chosen,
        tuple(described["seeds"][chosen]["words"]),
        files,
        record.metrics,
        own.broken,
        tuple(faults),
    )


def _faulty(own: FreshFiles, fault: str) -> FreshFiles:
    return FreshFiles(own.study, own.trial, own.values, faults=(fault,))


def build_bundle(
    candidate: ProgramCandidate, study: ProgramStudy, gate: dict[str, Any]
) -> ProgramBundle:
    """The bundle of a candidate with this gate report.

    Raises:
        InputError: it has no files, or not those that were written; no limit changes that.
    """
    fresh = candidate.fresh
    if fresh is None or fresh.files is None or fresh.faults:
        why = fresh.faults[0] if fresh is not None else f"measure it first: {candidate.measure}"
        raise InputError(f"{candidate.name} cannot be deployed: {why}")
    (run, run_uid), spec = fresh.study, study.spec
    manifest = ProgramManifest(
        program=ProgramPart(
            command=spec.command,
            words=fresh.words,
            parameters=finite(candidate.parameters),
            budget=spec.budget,
        ),
        origin=OriginPart(
            study=study.name,
            study_uid=study.uid,
            trial=candidate.trials[0],
            trials=tuple(sorted(candidate.trials)),
            objective_value=candidate.objective,
            run=run,
            run_uid=run_uid,
            run_trial=fresh.trial,
        ),
        fresh=FreshPart(values=fresh.values, seeds=fresh.seeds, chosen=fresh.chosen),
        metrics={"describes": f"means over {counted(len(fresh.values), 'fresh seed')}"}
        | finite(fresh.metrics or {}),
        gate=gate,
        code_version=spec.code_version,
        torch_version=spec.torch_version,
        files={name: part for name, (_, part) in fresh.files.items()},
    )
    return new_bundle(
        ProgramBundle, manifest, {name: path for name, (path, _) in fresh.files.items()}
    )
