"""What a study on a market records of its bars."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class AcceptedJump:
    """Bars that look wrong and were taken, see `sweepd.envs.crypto.data.jumps`.

    Attributes:
        file: name of the file in the folder.
        row: of the bar, counted from 0; of the first one after a change that stays.
        time: open of the bar, UTC, as in messages.
        found: what looks wrong, with the values.
    """

    file: str
    row: int
    time: str
    found: str


@dataclass(frozen=True)
class DataSpec:
    """The bars of a study.

    Attributes:
        dir: folder of the bars when the study was created.
        tickers: assets, in the order of the observation's columns.
        timeframe: length of a bar, such as "1h".
        fingerprint: `Bars.fingerprint`.
        first: open of the first bar, ISO 8601, UTC.
        last: open of the last bar, ISO 8601, UTC.
        bars: number of bars.
        synthetic: whether the bars were generated.
        accepted_jumps: bars that look wrong and were taken (`--accept-jumps`), by file and row.
    """

    dir: str
    tickers: tuple[str, ...]
    timeframe: str
    fingerprint: str
    first: str
    last: str
    bars: int
    synthetic: bool
    accepted_jumps: tuple[AcceptedJump, ...] = ()

    @property
    def span(self) -> tuple[int, int]:
        """Opens of the first and the last bar, in seconds since the epoch."""
        first, last = map(datetime.fromisoformat, (self.first, self.last))
        return int(first.timestamp()), int(last.timestamp())
