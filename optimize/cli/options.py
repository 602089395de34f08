"""Options that several search commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sweepd.envs.support.database_url import STORAGE_VARIABLE, warn_of_password

StudyName = Annotated[str, typer.Argument(help="Name of the study.")]
Storage = Annotated[
    str | None,
    typer.Option(
        envvar=STORAGE_VARIABLE,
        callback=warn_of_password,
        help="Database of the studies, as for train.",
    ),
]
RunsDir = Annotated[
    Path | None, typer.Option(help="Directory of the studies' files, as for train.")
]
# With a default.
SomeRunsDir = Annotated[Path, typer.Option(help="Directory of the studies' files, as for train.")]
