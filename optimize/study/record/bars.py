"""The bars of a study on a market, recovered from its spec."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sweepd.envs.crypto.data.bar_files import files_of, read_bars, select_files, stamp
from sweepd.envs.crypto.data.bars import Bars, load_bars
from sweepd.envs.crypto.data.jumps import find_jumps
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import counted
from sweepd.optimize.study.record.data_spec import AcceptedJump, DataSpec

TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"  # of `DataSpec.first` and `last`


def load_study_bars(
    data: DataSpec, folder: Path | None = None, newer: Callable[[str], None] = lambda _: None
) -> Bars:
    """Load the bars that a study was created with.

    The folder may have grown since: bars outside the study's range are cut off.

    Args:
        data: the bars as the study recorded them.
        folder: where the bars are now; by default where they were.
        newer: receives a sentence if the folder has newer bars.

    Raises:
        InputError: the folder does not contain the same bars.
    """
    folder = folder or Path(data.dir)
    files = files_of(folder, data.timeframe)
    if absent := [ticker for ticker in data.tickers if ticker not in files]:
        raise InputError(
            f"{folder} has no {data.timeframe} bars of {', '.join(absent)}, on which the study is "
            f"({', '.join(data.tickers)}); name the folder that has them with --data-dir"
        )
    # Jumps were refused or accepted when the study was created, and the fingerprint holds them.
    present = load_bars(folder, data.timeframe, data.tickers, accept_jumps=True)
    first, last = data.span
    bars = present.between(first, last)
    if bars.fingerprint != data.fingerprint:
        raise InputError(
            f"the bars in {folder} are not those of the study ({data.bars:,} bars from "
            f"{data.first} to {data.last}): {_difference(data, bars)}; name the folder that has them "
            "with --data-dir"
        )
    more = int((present.time > last).sum())
    if more:
        until = present.time_of(-1).strftime(TIME_FORMAT)
        newer(
            f"{folder} has {counted(more, 'newer bar')} to {until}; this study is frozen to "
            f"{data.last}"
        )
    return bars


def _difference(data: DataSpec, bars: Bars) -> str:
    """Say in what bars within the range of a study differ from what it recorded."""
    if not len(bars):
        return "there is none in this range"
    first, last = (bars.time_of(bar).strftime(TIME_FORMAT) for bar in (0, -1))
    if (first, last) != (data.first, data.last):
        return f"there are {len(bars):,}, from {first} to {last}"
    return "their prices, volumes or holes have other values"


def other_tickers(data: DataSpec, folder: Path | None = None) -> str:
    """Say which tickers a folder has besides those of a study; "" if none.

    Args:
        data: the bars as the study recorded them.
        folder: where the bars are now; by default where they were.
    """
    folder = folder or Path(data.dir)
    others = [one for one in files_of(folder, data.timeframe) if one not in data.tickers]
    if not others:
        return ""
    return (
        f"{folder} also has {', '.join(others)}; this study is on {', '.join(data.tickers)} alone"
    )


def accepted_jumps(folder: Path, bars: Bars) -> tuple[AcceptedJump, ...]:
    """Return what looks wrong in the files of bars that were loaded from a folder, in their range.

    It was accepted, for this study or by an earlier import, else the bars would have been refused.
    """
    files = select_files(folder, bars.timeframe, bars.tickers)
    return tuple(
        AcceptedJump(path.name, jump.row, stamp(jump.time), jump.words)
        for path in files.values()
        for jump in find_jumps(read_bars(path, bars.timeframe))
        if bars.time[0] <= jump.time <= bars.time[-1]
    )
