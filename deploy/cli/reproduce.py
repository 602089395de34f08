"""`sweepd reproduce`: train a champion again, and compare."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from sweepd.deploy.gates import gate_of_kind, load_reference, named_trial
from sweepd.deploy.promotion.gate import Verification
from sweepd.deploy.promotion.sections import short
from sweepd.deploy.promotion.terminal import sections_view
from sweepd.deploy.registry.bundle_files import MEMBERS_FILE, StoredBundle, TrainedTrial, sha256
from sweepd.deploy.registry.flags import AsJson, RegistryFlags
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.loading import loading
from sweepd.envs.support.study_options import RunsDir, Storage
from sweepd.envs.support.terminal import Terminal, printable
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.folder import RUNS
from sweepd.optimize.study.record.retrained import Retrained

REPORT = "reproduction.json"  # in the folder of the command


# Takes study, its id, number of the trial and a folder, and where things are; see the entry point.
Retrain = Callable[..., Retrained | None]


@takes_flags
def reproduce_command(
    context: typer.Context,
    where: RegistryFlags,
    bundle: Annotated[
        str | None,
        typer.Argument(
            help="SLOT (its champion), SLOT@previous, SLOT@3, the beginning of a hash, a folder, or "
            "STUDY#TRIAL. Default: the only champion."
        ),
    ] = None,
    storage: Storage = None,
    runs_dir: RunsDir = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder of bars. Default: that of the study.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the new files. Default: reproduce-HASH in the runs folder."),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="Index of a GPU, or cpu. Default: as it was trained, the first GPU or the CPU."
        ),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads used by torch. Default: the study's.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train a champion or a trial again from its record, compare the weights, and score them.

    Its trial is trained with the recorded parameters, seed, bars and opponents. On the same kind of
    processor, with the same versions, the weights are the same bytes; otherwise, what differs is
    named. The numbers of the search and of the gate are computed again and compared. Study and
    registry are only read, and no evaluation is counted.

    Ctrl-C writes a checkpoint; the same command continues. The exit code is 1 if the weights are
    others.
    """
    is_trial = bundle is not None and "#" in bundle
    opened = where.open(create=is_trial)  # a trial needs no registry
    with loading():
        if is_trial:
            assert bundle is not None
            loaded = named_trial(bundle, storage_url(storage, runs_dir), runs_dir)
        else:
            loaded = load_reference(opened, bundle)
        gate = gate_of_kind(loaded.kind)
    trials = loaded.trained
    folder = out or (runs_dir or RUNS) / f"reproduce-{loaded.name}"
    places = {"storage": storage, "runs_dir": runs_dir, "data_dir": data_dir}
    found: list[Retrained] = []
    for trial in trials:
        own = folder / f"trial-{trial.trial:05d}"
        made = context.obj.retrain(
            trial.study, trial.study_uid, trial.trial, own, **places, gpu=gpu, threads=threads
        )
        if made is None:
            typer.echo("stopped by a signal. Run the same command to continue.", err=as_json)
            return
        found.append(made)
    files = [(made.folder / MEMBERS_FILE).read_bytes() for made in found]
    again = loaded.retrained(files)
    with loading():
        score = _score(lambda: gate.verify(opened, again, data_dir))
    content = _content(loaded, again, trials, found, score)
    write_atomic(folder / REPORT, json.dumps(content, indent=1) + "\n")
    for made in found:  # they were kept in case that a later step is interrupted
        made.checkpoint.unlink(missing_ok=True)
    if as_json:
        typer.echo(json.dumps(content, indent=1))
    else:
        _show(loaded, trials, found, score)
    if not content["same"]:
        raise RunError(_other(loaded, found))
    if not as_json:
        typer.echo(
            printable(f"{loaded.name} is reproduced: its weights are the same bytes ({folder})")
        )


def _score(verify: Callable[[], Verification]) -> Verification | InputError:
    """Score the new weights; the error says why that is not possible, as without a hold-out."""
    try:
        return verify()
    except InputError as error:
        return error


def _content(
    bundle: StoredBundle[Any],
    again: StoredBundle[Any],
    trials: Sequence[TrainedTrial],
    found: Sequence[Retrained],
    score: Verification | InputError,
) -> dict[str, Any]:
    """Return the result for JSON."""
    files = {
        name: {"then": part.sha256, "now": sha256(again.files[name])}
        for name, part in bundle.manifest.files.items()
    }
    return {
        "bundle": bundle.hash,
        "same": all(one["then"] == one["now"] for one in files.values()),
        "files": files,
        "trials": [
            {
                "study": trial.study,
                "trial": trial.trial,
                "weights": {"then": made.recorded, "now": made.sha256},
                "value": {"then": made.value_then, "now": made.value},
                "scores": {"then": list(made.scores_then), "now": list(made.scores)},
                "differs": list(made.differs),
            }
            for trial, made in zip(trials, found, strict=True)
        ],
        "score": {"error": str(score)} if isinstance(score, InputError) else dict(score.content),
    }


def _show(
    bundle: StoredBundle[Any],
    trials: Sequence[TrainedTrial],
    found: Sequence[Retrained],
    score: Verification | InputError,
) -> None:
    """Print what was compared."""
    for trial, made in zip(trials, found, strict=True):
        same = "the same" if made.sha256 == made.recorded else "other"
        lines = [
            f"trial {trial.trial} of study {trial.study}: {same} weights, sha256 "
            f"{short(made.recorded)} then, {short(made.sha256)} now",
            f"  objective {made.value_then:+.6g} then, {made.value:+.6g} now"
            + _largest(made.scores_then, made.scores),
            *(f"  differs: {one}" for one in made.differs),
        ]
        typer.echo(printable("\n".join(lines)))
    if isinstance(score, InputError):
        typer.echo(printable(f"not scored again: {score}"))
        return
    if score.sections:
        Terminal().print(sections_view(score.sections))
    said = "every number as the gate recorded it" if score.agrees else score.difference
    typer.echo(printable(f"score of {bundle.name}: {said}"))


def _largest(then: Sequence[float], now: Sequence[float]) -> str:
    if len(then) != len(now):
        return ""
    apart = max((abs(a - b) for a, b in zip(then, now, strict=True)), default=0.0)
    return f"; members' scores differ by at most {apart:.2g}"


def _other(bundle: StoredBundle[Any], found: Sequence[Retrained]) -> str:
    why = "; ".join(dict.fromkeys(one for made in found for one in made.differs))
    return f"the weights of {bundle.name} are not the same bytes: " + (
        why or "nothing that is recorded differs, so report this with the file reproduction.json"
    )
