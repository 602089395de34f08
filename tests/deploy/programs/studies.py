"""Finished studies of a small program that writes files, with fresh seeds."""

from __future__ import annotations

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
    script: Path | None = None,
    trials: int = 2,
    fresh_seeds: int = 5,
    **settings: Any,
) -> ProgramStudy:
    """A finished study whose trials have about this value.

    Args:
        folder: of its files and its database.
        value: of the parameter.
        text: of the program.
        script: folder of the program, which its command names; by default that of the study.
        trials: number of trials.
        fresh_seeds: seeds on which its selection is measured.
        settings: of the spec.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = program(script or folder, text)
    params = {"lr": {"low": value, "high": value + 0.001}}
    handle = command_study(folder, "", params, command=command, **settings)
    work_on(handle, trials, fresh_seeds=fresh_seeds)
    handle.storage.engine.dispose()
    return opened(folder)


def opened(folder: Path) -> ProgramStudy:
    """The study of a folder."""
    return ProgramStudy(find_study("s", storage_url(None, folder / "runs")))
