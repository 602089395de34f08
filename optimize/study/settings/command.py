"""The settings that only studies of a program have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from sweepd.optimize.study.settings.seeds import SeedSettings
from sweepd.optimize.study.settings.setting import Panel, Setting


@dataclass(frozen=True)
class CommandSettings(SeedSettings):
    """Settings that only studies of a program (`--env command:…`) have."""

    jobs: Annotated[
        int | None,
        Setting(
            Panel.COMMAND,
            "Programs that run at once. Default: the number of GPUs, else 1.",
            most=4_096,
        ),
    ] = None
    job_memory: Annotated[
        float,
        Setting(
            Panel.COMMAND,
            "Resident memory in GiB of a program and all processes that it started, above which it "
            "is killed and its trial fails; 0: no limit.",
            min=0,
            fixes="job_memory",
        ),
    ] = 0.0
    job_minutes: Annotated[
        float,
        Setting(
            Panel.COMMAND,
            "Minutes after which a program is killed and its trial fails, without the time for "
            "which it is stopped at a rung; 0: no limit.",
            min=0,
            fixes="job_minutes",
        ),
    ] = 0.0
    job_grace: Annotated[
        float,
        Setting(
            Panel.COMMAND,
            "Seconds that a program has to end after SIGTERM, before it is killed.",
            min=0,
        ),
    ] = 10.0
