"""Stored events of a slot, for its own account alone: what another machine processes again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.live.events import (
    ChallengersAre,
    Commit,
    Event,
    Instruction,
    Started,
    restored_event,
)
from sweepd.deploy.trading.live.records import Changes
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import format_time
from sweepd.envs.support.errors import InputError


def own_event(kind: str, content: Mapping[str, Any], moment: int, bars: Bars) -> Event:
    """Return a stored event with its bar, without challengers, which change nothing here.

    Args:
        kind: name of its class.
        content: as it was stored.
        moment: open of the bar at which it was stored.
        bars: those that were stored, as they were seen.

    Raises:
        InputError: its bar is missing.
    """
    if kind == "BarClosed":
        place = int(np.searchsorted(bars.time, moment))
        if place == len(bars) or int(bars.time[place]) != moment:
            raise InputError(f"the bar of {format_time(moment)} is missing")
        return restored_event(kind, content, bar=ClosedBar.of(bars, place))
    event = restored_event(kind, content)
    if isinstance(event, Started):
        return replace(event, challengers=(), options=replace(event.options, arena=0))
    return ChallengersAre(()) if isinstance(event, ChallengersAre) else event


def committed(instructions: Sequence[Instruction]) -> Changes:
    """Return what instructions write, nothing if none of them commits."""
    return next((one.changes for one in instructions if isinstance(one, Commit)), Changes())
