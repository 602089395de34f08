"""What a worker trains may be deleted under it: the study, or the file of its database."""

from __future__ import annotations

import os
from pathlib import Path

from envs.support.errors import RunError


class StudyGone(RunError):
    """The study, or its database, was deleted while this process worked on it."""


class DatabaseFile:
    """The file of a SQLite database. Of a database on a server there is none, and nothing is checked.

    An open connection goes on writing into a deleted file without an error, and a new one makes a new file.
    """

    def __init__(self, url: str) -> None:
        self._path = Path(url.removeprefix("sqlite:///")) if url.startswith("sqlite:///") else None
        self._identity: tuple[int, int] | None = None

    def remember(self) -> None:
        """From now on the file that is there is the right one."""
        self._identity = self._present()

    def check(self) -> None:
        """Raise StudyGone where the file was deleted, moved or replaced."""
        if self._identity is None:
            return
        try:
            present = self._present()
        except OSError:  # EIO, EACCES, ESTALE: nothing says that it was deleted
            return
        if present is None:
            raise StudyGone(
                f"the database {self._path} was deleted or moved while this process worked on it"
            )
        if present != self._identity:
            raise StudyGone(
                f"the database {self._path} was replaced by another file while this process worked on it"
            )

    def _present(self) -> tuple[int, int] | None:
        """(device, inode); None without a file. Raises OSError where that cannot be seen."""
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino
