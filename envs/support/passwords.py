"""Passwords of database URLs are hidden in output."""

from __future__ import annotations

import re

# Greedy, because a password may contain an @ that should have been written as %40.
_AFTER_USER = re.compile(r"(://[^:/@\s]*:)\S*@")
PARAMETERS = ("password", "passwd", "pwd", "sslpassword")
_PARAMETER = re.compile(rf"([?&](?:{'|'.join(PARAMETERS)})=)[^&\s]*", re.IGNORECASE)


def hide_password(text: str) -> str:
    """Replace the password of every database URL in a text by ***.

    Covers `scheme://user:password@host` and the parameter `?password=`, also in URLs that cannot
    be parsed.
    """
    return _PARAMETER.sub(r"\1***", _AFTER_USER.sub(r"\1***@", text))


def has_password(text: str) -> bool:
    """Whether `hide_password` would hide something."""
    return hide_password(text) != text
