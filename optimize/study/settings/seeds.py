"""The settings of studies whose trials are repeated with other seeds: games and commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sweepd.optimize.study.settings.setting import Panel, Setting


@dataclass(frozen=True)
class SeedSettings:
    """Settings of studies whose trials are repeated with other seeds."""

    fresh_seeds: Annotated[
        int,
        Setting(
            Panel.STUDY,
            "Games of one player and commands: once the study is complete, train the selected parameters with "
            "this many seeds that the selection has not seen; 0: do not.",
            least=0,
            most=1_024,
        ),
    ] = 5
    seeds: Annotated[
        int,
        Setting(
            Panel.ENVIRONMENT,
            "Games and commands: members (training seeds) per trial. Default: 4; 1 if --sampler auto "
            "takes race.",
            show_default=False,
            fixes="seeds",
            most=1_024,
            in_space=True,
        ),
    ] = 4
