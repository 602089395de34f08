"""The settings of `sweepd train`: every one is declared once, here.

The command line, `--config` files, keyword arguments in Python, checks of numbers, comparisons
with an existing study, the flags that reproduce a study and the reference page follow from these
declarations. A field is named as its flag, with _ in place of -. Upper limits of numbers are far above
any useful value, so that a typing error is refused at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sweepd.optimize.study.settings.command import CommandSettings
from sweepd.optimize.study.settings.common import CommonSettings
from sweepd.optimize.study.settings.game import GameSettings
from sweepd.optimize.study.settings.market import MarketSettings
from sweepd.optimize.study.settings.setting import Panel


@dataclass(frozen=True)
class StudySettings(CommandSettings, GameSettings, MarketSettings, CommonSettings):
    """All settings of `sweepd train`, for every kind of study.

    None: a default that depends on other settings, or a choice when the study is created.
    """

    panels: ClassVar = (None, *Panel)
