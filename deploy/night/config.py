"""The file of `sweepd loop`: what a slot's nights do.

    slot = "crypto-1h"
    [bars]    source, exchange, dir, tickers, timeframe, start
    [study]   n-trials, hours, enqueue; all other keys are flags of `sweepd train`
    [arena]   seats, term, spacing (days)
    [refit]   weeks
    [defend]  games; of games, in place of [bars], [arena] and [refit]
    [disk]    gb, studies
    [report]  notify, folder

A night keeps a copy of the settings that it began with.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from sweepd.deploy.registry.slots import check_slot
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import read_toml
from sweepd.envs.support.passwords import has_password
from sweepd.envs.support.validation import StrictModel, checked

LONGEST = 18.0  # hours of a study: the night ends before the next one begins
# Flags of `train` that the night sets itself.
_OWN = ("study_name", "try_first", "demo", "smoke", "auto_deploy", "alongside", "config")
_OF_BARS = ("data_dir", "timeframe", "tickers", "holdout")
Count = Annotated[int, Field(ge=1)]


class BarsPart(StrictModel):
    """[bars]: where the slot's bars come from. source: folder leaves them to another program."""

    source: Literal["alpaca", "ccxt", "folder"] = "alpaca"
    exchange: str | None = None
    dir: str
    tickers: list[str] = Field(min_length=1)
    timeframe: str
    start: str | None = None

    @model_validator(mode="after")
    def _effects(self) -> BarsPart:
        if self.exchange is not None and self.source != "ccxt":
            raise ValueError('exchange is for source = "ccxt"; leave it out')
        if self.start is not None and self.source == "folder":
            raise ValueError("start has no effect, since nothing is downloaded; leave it out")
        return self


class StudyPart(StrictModel):
    """[study]: the study of a night. All keys besides the fields are flags of `sweepd train`.

    Attributes:
        n_trials: total of its trials.
        hours: after which its worker is asked to stop; the study is then judged as it is.
        enqueue: number of the best trials of the night before that it tries after trial 0.
    """

    model_config = ConfigDict(extra="allow")

    n_trials: Count = 40
    hours: float = Field(default=6.0, gt=0.0, le=LONGEST)
    enqueue: int = Field(default=0, ge=0)

    @property
    def flags(self) -> dict[str, Any]:
        """Flags of `sweepd train`, by field name."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _own_flags(self) -> StudyPart:
        for name, value in self.flags.items():
            if name in _OWN:
                raise ValueError(f"{name} is set by the night; leave it out")
            if isinstance(value, Mapping):
                raise ValueError(f"{name} is a table; every key must be a flag with a value")
            if value is False:
                raise ValueError(f"{name} = false is the default; leave it out")
            if isinstance(value, str) and has_password(value):
                raise ValueError(
                    f"{name} contains a password, which would be recorded; use PGPASSWORD"
                )
        return self


class ArenaPart(StrictModel):
    """[arena]: how many challengers trade, for how long they keep their seat, and how often a new
    one enters; term and spacing in days."""

    seats: Count = 8
    term: Count = 56
    spacing: Count = 7


class RefitPart(StrictModel):
    """[refit]: after how many weeks the champion's parameters are trained on newer bars; 0: never."""

    weeks: int = Field(default=8, ge=0)


class DefendPart(StrictModel):
    """[defend]: games of a candidate against the champion, at most, in one night."""

    games: Count = 20_000


class DiskPart(StrictModel):
    """[disk]: bounds of what the nights keep: gigabytes, and studies whose weights all stay."""

    gb: float = Field(default=20.0, gt=0.0)
    studies: Count = 14


class ReportPart(StrictModel):
    """[report]: whether it is sent (see docs/how_to/notifications.md), and its folder."""

    notify: bool = True
    folder: str = "reports"


class NightConfig(StrictModel):
    """The whole file. What is None is not done."""

    slot: str
    bars: BarsPart | None = None
    study: StudyPart | None = None
    arena: ArenaPart | None = None
    refit: RefitPart | None = None
    defend: DefendPart | None = None
    disk: DiskPart = DiskPart()
    report: ReportPart = ReportPart()

    @model_validator(mode="before")
    @classmethod
    def _defaults(cls, given: Any) -> Any:
        """Markets have an arena and refits, games a defence, also where the file has no table."""
        if isinstance(given, dict):
            usual = ["arena"] if given.get("bars") is not None else ["defend"]
            usual += ["refit"] if {"bars", "study"} <= given.keys() else []
            return {name: {} for name in usual} | given
        return given

    @model_validator(mode="after")
    def _effects(self) -> NightConfig:
        check_slot(self.slot)
        if self.bars is None:
            if self.study is None:
                raise InputError("[bars] and [study] are missing: the night would do nothing")
            for name in ("arena", "refit"):
                if getattr(self, name) is not None:
                    raise InputError(f"[{name}] is for markets, which have [bars]; leave it out")
        else:
            if self.study is None and self.refit is not None:
                raise InputError("[refit] trains in the night's study; add [study] or leave it out")
            if self.defend is not None:
                raise InputError("[defend] is for games, which have no [bars]; leave it out")
            for name in self.study.flags if self.study is not None else ():
                if name in _OF_BARS:
                    raise InputError(f"[study] {name}: [bars] decides; leave it out")
        return self

    @property
    def record(self) -> dict[str, Any]:
        """All settings as plain data; `NightConfig.of` reads them."""
        return self.model_dump(mode="json")

    @staticmethod
    def of(record: Mapping[str, Any]) -> NightConfig:
        """Return recorded settings."""
        return checked(NightConfig, dict(record), "the night's record: ")


def read_config(path: Path) -> NightConfig:
    """Read the file of `sweepd loop`. Keys are written with - or _, as in `train --config`.

    Raises:
        InputError: it cannot be read, or a key or value is wrong.
    """
    table = read_toml(path, f"CONFIG {path}", "a file as in docs/how_to/run_every_night.md")
    return checked(NightConfig, _plain(table), f"CONFIG {path}: ")


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name.replace("-", "_"): _plain(value) if isinstance(value, Mapping) else value
        for name, value in table.items()
    }


def changed(before: NightConfig, now: NightConfig) -> list[str]:
    """Return the names of the settings that differ, such as [study] n_trials."""
    old, new = before.record, now.record
    names = []
    for table in new:
        one, other = old[table], new[table]
        if not (isinstance(one, dict) and isinstance(other, dict)):
            names += [table if table == "slot" else f"[{table}]"] if one != other else []
            continue
        keys = sorted(one.keys() | other.keys())
        names += [f"[{table}] {key}" for key in keys if one.get(key) != other.get(key)]
    return names
