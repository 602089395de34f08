"""Seeds derived from other seeds."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: int | str) -> int:
    """Derive a 63-bit seed from numbers and names.

    The first 8 bytes of a SHA-256, without the sign bit. Parts are hashed with their types and
    lengths, so ("a", "b") and ("ab",), or 1 and "1", give different seeds.
    """
    # Not `hash`, which differs between processes, and not arithmetic on seeds, which lets the
    # streams of neighbouring seeds coincide.
    digest = hashlib.sha256()
    for part in parts:
        text = str(part)
        digest.update(f"{type(part).__name__}:{len(text)}:{text};".encode())
    return int.from_bytes(digest.digest()[:8], "big") >> 1
