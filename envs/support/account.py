"""The user account of this process. In a container it may have no name and no home directory."""

from __future__ import annotations

import getpass
import os
import socket
from pathlib import Path


def user_name() -> str:
    """Return the account's name, or `uid N` if the system has no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def user_at_host() -> str:
    """Return user@host, as records name who did something."""
    return f"{user_name()}@{socket.gethostname()}"


def home() -> Path | None:
    """Return the home directory, or None if neither HOME nor the account database names one."""
    try:
        return Path.home()
    except RuntimeError:
        return None
