"""Finished studies of a small program that writes files, with fresh seeds."""

from __future__ import annotations

import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

from sweepd.deploy.programs.candidates import ProgramStudy
from sweepd.deploy.promotion.studies import find_study
from sweepd.optimize.study.record.database import storage_url
from tests.optimize.objectives.command.programs import command_study, program, work_on

SLOT = "program"
# Its value is the parameter, and a little luck of the seed. It writes a model that depends on both.
TEXT = """
out, seed = env["SWEEPD_OUT"], int(env["SWEEPD_SEED"])
value = params["lr"] + (seed % 1000) / 1e5
os.makedirs(out + "/deep", exist_ok=True)
open(out + "/model.bin", "wb").write(repr((params["lr"], seed)).encode())
open(out + "/deep/empty", "wb").close()
report(1, value, loss=1.0 - value)
"""


def study_of(
    folder: Path,
    value: float = 0.5,
    *,
    text: str = TEXT,
    trials: int = 2,
    fresh_seeds: int = 5,
    **settings: Any,
) -> ProgramStudy:
    """A finished study whose trials have about this value; programs of one text are one program.

    Args:
        folder: of its files and its database.
        value: of the parameter.
        text: of the program.
        trials: number of trials.
        fresh_seeds: seeds on which its selection is measured.
        settings: of the spec.
    """
    key = tuple(sorted(settings.items()))
    shutil.copytree(_finished(value, text, trials, fresh_seeds, key), folder)
    return opened(folder)


@functools.cache
def _finished(
    value: float, text: str, trials: int, fresh_seeds: int, settings: tuple[tuple[str, Any], ...]
) -> Path:
    """The folder of a study, which is worked on once: its programs take a second."""
    folder, command = _new_folder(), _command(text)
    params = {"lr": {"low": value, "high": value + 0.001}}
    handle = command_study(folder, "", params, command=command, **dict(settings))
    work_on(handle, trials, fresh_seeds=fresh_seeds)
    handle.storage.engine.dispose()
    return folder


@functools.cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    """What this process's studies are copied from."""
    return tempfile.TemporaryDirectory()


@functools.cache
def _command(text: str) -> str:
    """The command of a program with this text."""
    return program(_new_folder(), text)


def _new_folder() -> Path:
    return Path(tempfile.mkdtemp(dir=_kept().name))


def opened(folder: Path) -> ProgramStudy:
    """The study of a folder."""
    return ProgramStudy(find_study("s", storage_url(None, folder / "runs")))
