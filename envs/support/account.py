"""The account that this process runs under. In a container it may have no name and no home directory."""

from __future__ import annotations

import getpass
import os
from pathlib import Path


def user_name() -> str:
    """The account's name, or `uid N` where the system knows no name for it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def home() -> Path | None:
    """The home directory; None where neither HOME nor the system's list of accounts names one."""
    try:
        return Path.home()
    except RuntimeError:
        return None
