"""Options that several deployment commands share."""

from __future__ import annotations

from typing import Annotated

import typer

# Help of arguments that name a bundle.
REFERENCE = "SLOT (its champion), SLOT@previous, SLOT@3, the beginning of a hash, or a folder."
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
