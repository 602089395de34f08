"""Atomic file writes, and TOML files of users."""

from __future__ import annotations

import json
import os
import stat
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from sweepd.envs.support.errors import InputError


def write_atomic(path: Path, content: bytes | str | Callable[[Path], None]) -> None:
    """Write a file so that it appears complete or not at all: temporary file, fsync, rename.

    Args:
        path: the file. Missing folders are created.
        content: bytes, text (UTF-8), or a function that writes the file at the path it is given.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}.", suffix=f".tmp{path.suffix}"
    )
    temporary = Path(name)
    try:
        os.close(handle)
        if callable(content):
            content(temporary)
        else:
            temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)  # mkstemp creates files that only the owner can read
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_json(path: Path, head: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON object in a file if it has the entries of `head`; else an empty one.

    For caches: what cannot be read, or is of something else, is computed again.
    """
    with suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict) and found.items() >= head.items():
            return found
    return {}


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a file or folder renamed into it survives a power loss."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_toml(path: Path, source: str, expected: str) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: the file.
        source: what names the file in messages, such as "--config FILE".
        expected: what the user should name instead if it cannot be read.

    Raises:
        InputError: the file cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{source}: cannot be read ({error.strerror}); name {expected}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{source}: not valid TOML ({error})") from None


def folder_size(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder; 0 if it is not there."""
    total = 0
    for one in path.rglob("*") if path.is_dir() else (path,):
        with suppress(FileNotFoundError):  # another process deletes files meanwhile
            state = one.lstat()
            total += 0 if stat.S_ISDIR(state.st_mode) else state.st_size
    return total
