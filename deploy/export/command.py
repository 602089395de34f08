"""`sweepd export`: parameters and policy of a trial for other libraries."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sweepd.deploy.cli.options import REFERENCE
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.loading import loading
from sweepd.envs.support.study_options import RunsDir, Storage

if TYPE_CHECKING:
    from sweepd.deploy.export.source import Source


class Format(StrEnum):
    """What a trial is exported to."""

    SB3 = "sb3"
    CLEANRL = "cleanrl"
    ZOO3 = "zoo3"
    JSON = "json"
    ONNX = "onnx"
    TORCH = "torch"
    FREQTRADE = "freqtrade"


SUFFIXES = {Format.ONNX: ".onnx", Format.TORCH: ".pt2"}  # of policies, which go to a file


@takes_flags
def export_command(
    where: RegistryFlags,
    trial: Annotated[
        str,
        typer.Argument(
            metavar="STUDY#NUMBER",
            help="The trial; STUDY without a number is its best trial. For freqtrade also "
            f"{REFERENCE}",
        ),
    ],
    to: Annotated[
        Format,
        typer.Option(
            help="Parameters: sb3 (a script for Stable-Baselines3), zoo3 (an entry of its model "
            "zoo), cleanrl (a command line), json. Policy: onnx, torch (torch.export, and the "
            "weights as safetensors), freqtrade (a strategy, its weights and a configuration)."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write. Default: standard output; of a policy STUDY-NUMBER.onnx or .pt2. "
            "freqtrade: folder of the three files; default: this one."
        ),
    ] = None,
    member: Annotated[
        int | None,
        typer.Option(
            min=0, help="onnx, torch: one fold or seed alone. Default: what promotion would deploy."
        ),
    ] = None,
    storage: Storage = None,
    runs_dir: RunsDir = None,
) -> None:
    """Export the parameters or the policy of a trial for another library.

    Parameters get the names of that library, and are converted where it defines them differently.
    What has no counterpart is said on standard error, and in a comment of the file.

    A policy has its normaliser inside, and gives actions of the environment. It is written only if
    it gives the same actions as the policy that promotion would score.

    A strategy of freqtrade decides as the bundle does. What freqtrade cannot do is refused.
    """
    with loading():
        from sweepd.deploy.export.source import find_source
        from sweepd.optimize.study.record.database import open_to_read, storage_url
        from sweepd.optimize.study.record.reader import StudyReader
    url = storage_url(storage, runs_dir)
    if to is Format.FREQTRADE:
        _refuse_member(member, to)
        _write_strategy(trial, where, url, out or Path(), runs_dir)
        return
    if where != RegistryFlags.from_environment():
        raise InputError(f"--deployments and --registry are for --to freqtrade, not {to}")
    name, _, number = trial.partition("#")
    source = find_source(StudyReader(open_to_read(url), name, runs_dir), number)
    if to in SUFFIXES:
        _write_policy(source, to, url, out, member, runs_dir)
        return
    _refuse_member(member, to)
    text, notes = _parameters(source, to)
    for note in notes:
        typer.echo(note, err=True)
    if out is None:
        typer.echo(text, nl=False)
    else:
        _write(out, text)


def _refuse_member(member: int | None, to: Format) -> None:
    if member is not None:
        raise InputError(f"--member {member} is for --to onnx and torch, not {to}")


def _parameters(source: Source, to: Format) -> tuple[str, list[str]]:
    """Return the text of an export, and what it says on standard error."""
    with loading():
        from sweepd.deploy.export import cleanrl, record, sb3
    write: dict[Format, Callable[[Source], str]] = {
        Format.SB3: sb3.script,
        Format.ZOO3: sb3.zoo_entry,
        Format.CLEANRL: cleanrl.command,
        Format.JSON: record.described,
    }
    notes: dict[Format, Callable[[Source], list[str]]] = {
        Format.SB3: sb3.notes_of,
        Format.ZOO3: sb3.zoo_notes,
        Format.CLEANRL: cleanrl.notes_of,
    }
    text = write[to](source)
    return text, notes[to](source) if to in notes else []


def _write(out: Path, text: str) -> None:
    try:
        write_atomic(out, text)
    except OSError as error:
        raise InputError(f"--out {out} cannot be written ({error.strerror})") from None


def _write_policy(
    source: Source,
    to: Format,
    url: str,
    out: Path | None,
    member: int | None,
    runs_dir: Path | None,
) -> None:
    if source.of_program:
        raise InputError(
            f"{source.name} is of a program, whose policy is what it wrote into SWEEPD_OUT; --to json "
            "has its parameters"
        )
    suffix = SUFFIXES[to]
    path = out or Path(f"{source.study}-{source.trial.number}{suffix}")
    if path.suffix != suffix:
        raise InputError(f"--out {path}: the name must end in {suffix}")
    with loading():
        from sweepd.deploy.api.policy import load_policy
        from sweepd.deploy.export.network import acting, write_onnx, write_torch
        from sweepd.deploy.export.source import NamedStudy
    policy = load_policy(NamedStudy(source.study, url, runs_dir), source.trial.number)
    if member is not None:
        policy = policy.member(member)
    module = acting(policy, source.name)
    write = write_onnx if to is Format.ONNX else write_torch
    try:
        written = write(module, path, source.name)
    except OSError as error:
        raise InputError(f"--out {path} cannot be written ({error.strerror})") from None
    if getattr(source.spec, "play", "") == "sampled":
        typer.echo(
            "the study draws actions from its policies; the file gives the most probable ones",
            err=True,
        )
    for file in written:
        typer.echo(str(file))


def _write_strategy(
    word: str, where: RegistryFlags, url: str, folder: Path, runs_dir: Path | None
) -> None:
    """Write a strategy for freqtrade of what a word names: a trial, or a bundle."""
    with loading():
        from sweepd.deploy.export.freqtrade import class_name, write_strategy
        from sweepd.deploy.gates import load_bundle, load_reference, named_trial
    if "#" in word:
        found = named_trial(word, url, runs_dir)
    elif Path(word).is_dir():  # needs no registry
        found, word = load_bundle(Path(word)), Path(word).resolve().name
    else:
        found = load_reference(where.open(), word)
    try:
        paths, notes = write_strategy(found, class_name(word), folder)
    except OSError as error:
        raise InputError(f"--out {folder} cannot be written ({error.strerror})") from None
    for note in notes:
        typer.echo(note, err=True)
    for path in paths:
        typer.echo(str(path))
