"""Detection of a study, or of its database file, that was deleted during training."""

from __future__ import annotations

import os

from sweepd.envs.support.database_url import sqlite_path
from sweepd.envs.support.errors import RunError


class StudyGone(RunError):
    """The study, or its database, was deleted while this process worked on it."""


class DatabaseFile:
    """The file of a SQLite database; for a database server nothing is checked.

    An open connection keeps writing into a deleted file without an error, and a new connection
    creates a new file.
    """

    def __init__(self, url: str) -> None:
        self._path = sqlite_path(url)
        self._identity: tuple[int, int] | None = None

    def remember(self) -> None:
        """Record the identity of the present file, for `check`."""
        self._identity = self._present()

    def check(self) -> None:
        """Raise StudyGone if the file was deleted, moved or replaced."""
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
                f"the database {self._path} was replaced by another file while this process worked "
                "on it"
            )

    def _present(self) -> tuple[int, int] | None:
        """Return (device, inode), None without a file.

        Raises:
            OSError: the file cannot be inspected.
        """
        if self._path is None:
            return None
        try:
            found = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_dev, found.st_ino
