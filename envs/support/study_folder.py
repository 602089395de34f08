"""Where the files of a study lie: found from its database, so that both can be moved or copied together."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from envs.support.errors import InputError
from envs.support.study_record import FOLDER_KEY, FORMER_FOLDER_KEY

RUNS = Path("runs")


def recorded_folder(url: str, folder: Path) -> str:
    """What a study records of its folder: its path relative to the SQLite file, or its name for another database.

    Args:
        url: SQLAlchemy URL of the study's database.
        folder: the study's folder.
    """
    base = _database_folder(url)
    return folder.name if base is None else os.path.relpath(folder.resolve(), base)


def study_folder(url: str, attributes: Mapping[str, Any], runs_dir: Path | None = None) -> Path:
    """The folder of a study, absolute. It need not exist.

    Args:
        url: SQLAlchemy URL of the study's database.
        attributes: user attributes of the study.
        runs_dir: the folder that holds the study's folder, where the user named one. By default the recorded path is
            followed from the SQLite file; for another database, the study's folder is looked for in `runs`.

    Raises:
        InputError: the study records no folder, so sweepd did not make it.
    """
    recorded, absolute = attributes.get(FOLDER_KEY), attributes.get(FORMER_FOLDER_KEY)
    if recorded is None and absolute is None:
        raise InputError(
            "the study records no folder for its files; it was not made by sweepd train"
        )
    name = Path(str(recorded or absolute)).name
    if runs_dir is not None:
        return (runs_dir / name).resolve()
    base = _database_folder(url)
    if recorded is not None:
        return ((RUNS if base is None else base / Path(str(recorded)).parent) / name).resolve()
    beside = ((RUNS if base is None else base) / name).resolve()
    # A copy of the whole folder must not write into the original, so the absolute path comes last.
    return Path(str(absolute)) if not beside.is_dir() and Path(str(absolute)).is_dir() else beside


def _database_folder(url: str) -> Path | None:
    """The folder of the SQLite file; None for a database server."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    return Path(parsed.database).resolve().parent
