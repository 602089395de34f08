"""The folder of a study's files, located relative to its database so that both can be moved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.keys import FOLDER_KEY

RUNS = Path("runs")


def recorded_folder(url: str, folder: Path) -> str:
    """Return what a study records: its folder relative to the SQLite file, else only its name.

    Args:
        url: SQLAlchemy URL of the study's database.
        folder: the study's folder.
    """
    base = _database_folder(url)
    return folder.name if base is None else os.path.relpath(folder.resolve(), base)


def study_folder(url: str, attributes: Mapping[str, Any], runs_dir: Path | None = None) -> Path:
    """Return a study's folder as an absolute path. It need not exist.

    Args:
        url: SQLAlchemy URL of the study's database.
        attributes: user attributes of the study.
        runs_dir: the parent folder, if the user named one. By default the recorded path is
            resolved from the SQLite file; for other databases, from `runs`.

    Raises:
        InputError: the study records no folder.
    """
    if FOLDER_KEY not in attributes:
        raise InputError(
            "the study records no folder for its files: it was made by another version of sweepd; "
            "use that version, or choose another --study-name"
        )
    recorded, base = Path(attributes[FOLDER_KEY]), _database_folder(url)
    parent = RUNS if base is None else base / recorded.parent
    return ((runs_dir or parent) / recorded.name).resolve()


def _database_folder(url: str) -> Path | None:
    """Return the folder of the SQLite file; None for a database server."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    return Path(parsed.database).resolve().parent
