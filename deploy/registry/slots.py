"""Names of deployment slots, and names that are made from them, of files and of orders."""

from __future__ import annotations

import hashlib

from sweepd.envs.support.errors import InputError

LONGEST_SLOT = 100  # bytes; file names and order ids contain the slot's name
_FORBIDDEN = "/\\@"  # files are named after slots, and `slot@3` is a version
_DIGITS = 10  # length of the digest in a shortened name


def is_slot_name(name: str) -> bool:
    """Whether a new slot may have this name."""
    return (
        name.isprintable()  # refuses control characters and bytes that are not UTF-8
        and 0 < len(name.encode()) <= LONGEST_SLOT
        and name == name.strip()
        and name[0] not in ".-"
        and not any(sign in _FORBIDDEN for sign in name)
    )


def check_slot(name: str) -> str:
    """Return the name if a new slot may have it.

    Raises:
        InputError: the name is invalid.
    """
    if not is_slot_name(name):
        shown = name if len(name) <= LONGEST_SLOT else f"{name[:LONGEST_SLOT]}…"
        raise InputError(
            f"slot {shown!r}: a slot's name is 1 to {LONGEST_SLOT} bytes long, without / \\ @ and "
            "control characters, and does not begin with a dot, a dash or a space, like crypto-1h"
        )
    return name


def slot_name(text: str) -> str:
    """Make a valid slot name from any text.

    A valid name is returned as it is. Other texts are shortened to their valid characters and get
    a digest of the whole text, so different texts have different names.
    """
    if is_slot_name(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:_DIGITS]
    readable = "".join(
        "-" if sign in _FORBIDDEN else sign for sign in text if sign.isprintable()
    ).lstrip(".- ")
    start = readable.encode()[: LONGEST_SLOT - _DIGITS - 1].decode(errors="ignore").rstrip(" -")
    return f"{start}-{digest}" if start else digest
