"""What a finished trial leaves behind: its members, its paths as parquet, its metrics, and a picture of its equity."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from optuna.artifacts import FileSystemArtifactStore, upload_artifact
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial
from torch import Tensor

from agents.policy import save_members
from envs.crypto.metrics import Metrics, PathTrades, equity
from envs.files import write_atomic

ARTIFACTS = "artifacts"


def artifact_store(run_dir: Path) -> FileSystemArtifactStore:
    """Where a study's artifacts lie, for upload and for optuna-dashboard."""
    folder = run_dir / ARTIFACTS
    folder.mkdir(parents=True, exist_ok=True)
    return FileSystemArtifactStore(str(folder))


def write_trial(
    folder: Path,
    members: Sequence[dict[str, Tensor]],
    paths: PathTrades,
    metrics: Sequence[Metrics],
    times: NDArray[np.int64],
    title: str,
) -> dict[str, Any]:
    """Write `members.safetensors`, `paths.parquet`, `metrics.json` and `equity.png` into the trial's folder.

    members: one actor per fold. times: (T,) open of the bar of each column of the paths, seconds since the epoch.
    Returns {"path", "sha256"} of the members' file, the path relative to the run directory.
    """
    weights = folder / "members.safetensors"
    save_members(weights, members)
    frame = path_frame(paths, times)
    write_atomic(folder / "paths.parquet", lambda path: frame.to_parquet(path, index=False))
    write_atomic(folder / "metrics.json", json.dumps([m.to_dict() for m in metrics], indent=1))
    write_atomic(folder / "equity.png", lambda path: draw_equity(path, paths, times, title))
    return {"path": f"{folder.name}/{weights.name}", "sha256": hashlib.sha256(weights.read_bytes()).hexdigest()}


def path_frame(paths: PathTrades, times: NDArray[np.int64]) -> pd.DataFrame:
    """Paths below each other: columns path, date (UTC, bar open), returns, equal_weight, trades, fees, notional,
    exposure.
    """
    phi, count = paths.returns.shape
    columns: dict[str, Any] = {
        "path": np.repeat(np.arange(phi), count),
        "date": pd.to_datetime(np.tile(times, phi), unit="s", utc=True),
    }
    for name in ("returns", "equal_weight", "trades", "fees", "notional", "exposure"):
        columns[name] = getattr(paths, name).reshape(-1)
    return pd.DataFrame(columns)


def draw_equity(path: Path, paths: PathTrades, times: NDArray[np.int64], title: str) -> None:
    """Equity of every path, from 1, against equal weight over the same bars, on a logarithmic scale."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(9, 4.5), dpi=100)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.08, 0.08, 0.9, 0.84))
    dates = pd.to_datetime(times, unit="s", utc=True).to_numpy()
    stride = max(1, len(times) // 2000)
    for index, (own, equal) in enumerate(zip(paths.returns, paths.equal_weight, strict=True)):
        axes.plot(
            dates[::stride],
            equity(own)[1:][::stride],
            color="tab:blue",
            alpha=0.75,
            linewidth=1.1,
            label="policy, one line per path" if index == 0 else None,
        )
        if index == 0 or not np.array_equal(equal, paths.equal_weight[0]):
            axes.plot(
                dates[::stride],
                equity(equal)[1:][::stride],
                color="tab:gray",
                linewidth=1.3,
                label="equal weight" if index == 0 else None,
            )
    axes.set_yscale("log")
    # Plain numbers: matplotlib sets powers of ten as mathematics, which takes longer than all the rest of the picture.
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("value, start = 1")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left")
    figure.savefig(path, format="png")


def upload(run_dir: Path, folder: Path, trial: FrozenTrial, storage: BaseStorage) -> None:
    """Make the trial's picture and paths visible in optuna-dashboard. Raises TrialLost where the trial is no longer
    ours.
    """
    store = artifact_store(run_dir)
    for name in ("equity.png", "paths.parquet"):
        upload_artifact(artifact_store=store, file_path=str(folder / name), study_or_trial=trial, storage=storage)
