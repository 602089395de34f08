"""Texts that several deployment commands share."""

from __future__ import annotations

# Help of arguments that name a bundle.
REFERENCE = "SLOT (its champion), SLOT@previous, SLOT@3, the beginning of a hash, or a folder."
