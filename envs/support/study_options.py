"""Options by which commands of search and deployment find studies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweepd.envs.support.database_url import STORAGE_VARIABLE, warn_of_password

Storage = Annotated[
    str | None,
    typer.Option(
        envvar=STORAGE_VARIABLE,
        callback=warn_of_password,
        help="Database of the studies, as for train.",
    ),
]
RunsDir = Annotated[Path | None, typer.Option(help="Folder of the studies' files, as for train.")]
