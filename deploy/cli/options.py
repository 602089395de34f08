"""Texts that several deployment commands share."""

from __future__ import annotations

from typing import Annotated

import typer

# Help of arguments that name a bundle.
REFERENCE = "SLOT (its champion), SLOT@previous, SLOT@3, the beginning of a hash, or a folder."
Reason = Annotated[str, typer.Option("--reason", help="Reason for the slot's history.")]
MANUAL = "by the operator"
