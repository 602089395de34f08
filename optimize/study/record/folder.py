"""The folder of a study's files, located relative to its database so that both can be moved."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.stored import FOLDER_KEY, FORMER_FOLDER_KEY

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
        InputError: the study records no folder, so sweepd did not create it.
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
    nearby = ((RUNS if base is None else base) / name).resolve()
    # The absolute path comes last: a copied study must not write into the original's folder.
    return Path(str(absolute)) if not nearby.is_dir() and Path(str(absolute)).is_dir() else nearby


def _database_folder(url: str) -> Path | None:
    """Return the folder of the SQLite file; None for a database server."""
    parsed = make_url(url)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        return None
    return Path(parsed.database).resolve().parent
