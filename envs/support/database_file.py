"""Checks and creation of SQLite database files that several processes share."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from filelock import FileLock

from sweepd.envs.support.errors import InputError

BUSY_TIMEOUT, READER_TIMEOUT = 60.0, 5.0  # seconds to wait for another program's lock
NETWORK_FILE_SYSTEMS = frozenset(
    {
        "nfs",
        "nfs4",
        "cifs",
        "smb3",
        "smbfs",
        "afs",
        "ceph",
        "glusterfs",
        "lustre",
        "beegfs",
        "gpfs",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.ceph-fuse",
        "fuse.s3fs",
        "fuse.rclone",
        "ncpfs",
        "davfs",
        "fuse.davfs",
    }
)


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system that holds `path` or its nearest existing parent.

    Args:
        path: a path that need not exist.
        mounts: content of /proc/self/mounts, for tests.

    Returns:
        The type as in /proc/self/mounts, or "" if it is unknown.
    """
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""
    resolved = path.resolve()
    best, kind = "", ""
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) >= 3:
            point = fields[1].replace("\\040", " ")
            if resolved.is_relative_to(point) and len(point) >= len(best):
                best, kind = point, fields[2]
    return kind


def check_sqlite_place(path: Path, what: str) -> None:
    """Check that a SQLite file can be written at `path`. Creates nothing.

    Args:
        path: the database file.
        what: the flag or words that precede the path in messages.

    Raises:
        InputError: `path` is on a network file system, where SQLite loses data, or the file (the
            folder, if there is no file yet) is write-protected.
    """
    kind = file_system_of(path)
    if kind in NETWORK_FILE_SYSTEMS:
        raise InputError(
            f"{what} {path} is on a network file system ({kind}), where SQLite loses data; "
            "put it on a local disk or use PostgreSQL"
        )
    nearest = next(place for place in (path, *path.absolute().parents) if os.path.exists(place))
    if not os.access(nearest, os.W_OK):
        raise _unusable(what, path, PermissionError(f"{nearest} is write-protected"))
    if nearest != path and not nearest.is_dir():
        raise _unusable(what, path, NotADirectoryError(f"{nearest} is not a folder"))


@contextmanager
def preparing_sqlite(path: Path, what: str, busy_timeout: float = BUSY_TIMEOUT) -> Iterator[None]:
    """Create the file if needed, in WAL mode, and lock out other processes within the block.

    Without the lock, the switch to WAL mode and the creation of tables are both races.

    Args:
        path: the database file.
        what: the flag or words that precede the path in messages.
        busy_timeout: seconds to wait for another program's lock.

    Raises:
        InputError: `path` is on a network file system, or the file cannot be used.
    """
    check_sqlite_place(path, what)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Without fallback: a lock file that counts by its existence would survive a killed process.
        lock = FileLock(path.with_name(path.name + ".lock"), fallback_to_soft=False).acquire()
    except OSError as error:
        raise _unusable(what, path, error) from None
    with lock:
        _use_wal(path, what, busy_timeout)
        yield


def connect_read_only(path: Path, busy_timeout: float = READER_TIMEOUT) -> sqlite3.Connection:
    """Open a database for reading, without creating or changing any file in its folder.

    In WAL mode, reading is possible while another program writes; in other modes, it waits for
    the writer's lock.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    address = f"file:{quote(str(path))}?mode=ro"
    connection = sqlite3.connect(address, timeout=busy_timeout, uri=True, check_same_thread=False)
    try:
        connection.execute("PRAGMA schema_version").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        # To read in WAL mode, SQLite needs the -wal and -shm files, which it cannot create in a
        # write-protected folder. If they are missing, no program has the database open, so it can
        # be read as an immutable file.
        if (
            path.with_name(path.name + "-wal").exists()
            or not path.is_file()
            or os.access(path.parent, os.W_OK)
        ):
            raise
        connection = sqlite3.connect(f"{address}&immutable=1", uri=True, check_same_thread=False)
    return connection


def _use_wal(path: Path, what: str, busy_timeout: float) -> None:
    """Switch the file to WAL mode, which is persistent, and check that it is writable."""
    try:
        connection = sqlite3.connect(path, timeout=busy_timeout)
        try:
            mode = connection.execute("PRAGMA journal_mode=WAL").fetchone()[0]
            # Takes the write lock, which fails if the file is locked or write-protected.
            connection.execute("BEGIN IMMEDIATE")
            connection.rollback()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise _unusable(what, path, error) from None
    if mode != "wal":
        raise InputError(
            f"{what} {path}: its file system does not support SQLite's WAL mode; put it on a local "
            "disk"
        )


def _unusable(what: str, path: Path, error: BaseException) -> InputError:
    reason = str(error).strip().splitlines()[0]
    return InputError(
        f"{what} {path} cannot be used ({reason}); name a SQLite file in a folder that you can "
        "write to"
    )
