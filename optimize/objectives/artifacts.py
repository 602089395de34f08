"""Files of a finished trial: its members, its back-test paths and metrics, and its artifacts."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import mimetypes
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from optuna.artifacts import ArtifactMeta
from optuna.storages import BaseStorage

from sweepd.envs.crypto.scoring.metrics import TRADE_COLUMNS, Metrics, PathTrades, equity
from sweepd.envs.support.files import write_atomic
from sweepd.optimize.study.record.trials import RecordedFile

ARTIFACTS = "artifacts"
PREFIX = "artifacts:"  # of the attributes that optuna-dashboard reads


def write_trial(
    folder: Path, paths: PathTrades, metrics: Sequence[Metrics], times: NDArray[np.int64]
) -> None:
    """Write `paths.parquet` and `metrics.json` into the trial's folder.

    Args:
        folder: the trial's folder.
        paths: back-test paths of T bars.
        metrics: metrics of each path.
        times: (T,) open of each bar of the paths, in seconds since the epoch.
    """
    frame = path_frame(paths, times)
    write_atomic(folder / "paths.parquet", lambda path: frame.to_parquet(path, index=False))
    write_atomic(folder / "metrics.json", json.dumps([m.to_dict() for m in metrics], indent=1))


def scored_file(path: Path) -> RecordedFile:
    """Return the record of a file in a trial's folder."""
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return RecordedFile(f"{path.parent.name}/{path.name}", sha256)


def path_frame(paths: PathTrades, times: NDArray[np.int64]) -> pd.DataFrame:
    """Return the paths as a table, one after the other.

    Columns: path, date (open of the bar, UTC), returns, equal_weight, trades, fees, notional,
    exposure.
    """
    phi, count = paths.returns.shape
    columns: dict[str, Any] = {
        "path": np.repeat(np.arange(phi), count),
        "date": pd.to_datetime(np.tile(times, phi), unit="s", utc=True),
    }
    for name in TRADE_COLUMNS:
        columns[name] = getattr(paths, name).reshape(-1)
    return pd.DataFrame(columns)


def draw_equity(folder: Path, title: str) -> None:
    """Draw `equity.png` from `paths.parquet`.

    It shows the equity of every path, starting at 1, and that of equal weight on the same bars, on
    a logarithmic scale.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    frame = pd.read_parquet(
        folder / "paths.parquet", columns=["path", "date", "returns", "equal_weight"]
    )
    figure = Figure(figsize=(9, 4.5), dpi=100)
    axes = figure.add_axes((0.08, 0.08, 0.9, 0.84))
    first_equal: NDArray[np.float64] | None = None
    for _, rows in frame.groupby("path"):
        # About 2,000 points per curve: more than the picture has columns.
        stride = max(1, len(rows) // 2000)
        # Plain numpy dates: matplotlib takes dates with a time zone one by one.
        dates = rows["date"].dt.tz_localize(None).to_numpy()[::stride]
        own, equal = (
            equity(rows[name].to_numpy())[1:][::stride] for name in ("returns", "equal_weight")
        )
        label = "policy, one line per path" if first_equal is None else None
        axes.plot(dates, own, color="tab:blue", alpha=0.75, linewidth=1.1, label=label)
        if first_equal is None or not np.array_equal(equal, first_equal):
            label = "equal weight" if first_equal is None else None
            axes.plot(dates, equal, color="tab:gray", linewidth=1.3, label=label)
        first_equal = equal if first_equal is None else first_equal
    axes.set_yscale("log")
    # Plain numbers: matplotlib typesets powers of ten, which takes longer than the whole picture.
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("value, start = 1")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    write_atomic(folder / "equity.png", lambda path: figure.savefig(path, format="png"))


def announcements(names: Sequence[str]) -> dict[str, str]:
    """Return the system attributes by which optuna-dashboard finds files of a trial's folder.

    `sweepd.optimize.objectives.trial_files` opens them. `optuna.artifacts.upload_artifact` would
    copy them.
    """
    described = map(_described, names)
    return {PREFIX + own: text for own, text in described}


def attach_files(storage: BaseStorage, study_id: int, folder: Path, names: Sequence[str]) -> None:
    """Make files of a study's folder its artifacts, in place of earlier ones of the same names."""
    kept = {
        json.loads(text)["filename"]: key.removeprefix(PREFIX)
        for key, text in storage.get_study_system_attrs(study_id).items()
        if key.startswith(PREFIX)
    }
    store = folder / ARTIFACTS
    store.mkdir(parents=True, exist_ok=True)
    for name in names:
        own, described = _described(name)
        own = kept.get(name, own)
        # The file first: the dashboard shows what is recorded.
        write_atomic(store / own, (folder / name).read_bytes())
        if name not in kept:
            storage.set_study_system_attr(study_id, PREFIX + own, described)


def _described(name: str) -> tuple[str, str]:
    """Return a new artifact's id, and its description as optuna-dashboard reads it."""
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    meta = ArtifactMeta(artifact_id=str(uuid.uuid4()), filename=name, mimetype=kind, encoding=None)
    return meta.artifact_id, json.dumps(dataclasses.asdict(meta))
