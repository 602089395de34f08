"""Tabulated learning curves of hyperparameter configurations, for `search_replay.py`.

A folder has one folder per task, with two files:

    TASK/configs.parquet   index run_id; one column per hyperparameter, blank where it has no effect
    TASK/curves.parquet    run_id, seed, budget (environment steps), performance (NaN: failed)

Performance is scaled so that the task's worst and best final performance are 0 and 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.search_space import SearchSpace

Floats = NDArray[np.float64]
# Tasks with catastrophic results, which would make all others look equal: the lowest performance
# that counts, by the beginning of the task's name.
FLOORS = {"brax": -2000.0, "box2d": -200.0}
# Hyperparameters that determine the shape of a program, see the architecture's glossary.
SHAPE = ("minibatch_size", "buffer_batch_size")
FEW = 8  # a column with at most that many values is a choice


@dataclass(frozen=True)
class Column:
    """A hyperparameter of a table. blank: whether some configurations do not have it."""

    dimension: Dimension
    blank: bool

    @property
    def name(self) -> str:
        return self.dimension.name

    def places(self, values: Any) -> Floats:
        """Return the positions of values in the range or among the choices, from 0 to 1."""
        if self.dimension.choices:
            ordered = {value: i for i, value in enumerate(self.dimension.choices)}
            return np.array([ordered[value] for value in values]) / (len(ordered) - 1)
        numbers = np.asarray(values, dtype=np.float64)
        low, high = map(float, self.dimension.ends)
        if self.dimension.log:
            return np.asarray(np.log(numbers / low) / np.log(high / low))
        return np.asarray((numbers - low) / (high - low))

    def value(self, raw: Any) -> bool | int | float:
        """Return a value of the table as Optuna stores it."""
        if self.dimension.choices:
            return next(choice for choice in self.dimension.choices if choice == raw)
        return int(raw) if self.dimension.whole else float(raw)


@dataclass(frozen=True)
class Table:
    """The learning curves of one task.

    Attributes:
        name: of the task.
        curves: (configurations, seeds, checkpoints), scaled performance; failed runs have 0.
        failed: the same shape; whether the run had failed.
        shares: (checkpoints,), part of the largest budget at each checkpoint.
        columns: the hyperparameters.
        params: parameters of every configuration, as Optuna stores them.
        points: (configurations, columns), positions from 0 to 1; NaN where blank.
    """

    name: str
    curves: Floats
    failed: NDArray[np.bool_]
    shares: Floats
    columns: tuple[Column, ...]
    params: tuple[dict[str, Any], ...]
    points: Floats

    @property
    def truth(self) -> Floats:
        """Mean final performance of each configuration over all seeds, (configurations,)."""
        return np.asarray(self.curves[:, :, -1].mean(1))

    def checkpoint(self, share: float) -> int:
        """Return the index of the last checkpoint within a share of the budget; -1: none."""
        return int(np.searchsorted(self.shares, share + 1e-9)) - 1

    def space(self) -> SearchSpace:
        """Return the search space that spans the configurations, in the form of a study's."""
        tables: dict[str, dict[str, Dimension]] = {"shape": {}, "ppo": {}, "env": {}}
        for column in self.columns:
            tables["shape" if column.name in SHAPE else "ppo"][column.name] = column.dimension
        return SearchSpace(self.name, 1, tables)

    def nearest(self, params: dict[str, Any], free: NDArray[np.bool_]) -> int:
        """Return the nearest configuration among the free ones.

        A column counts only for configurations that have it.
        """
        asked = np.array([float(c.places([params[c.name]])[0]) for c in self.columns])
        gaps = np.nansum((self.points - asked) ** 2, axis=1)
        return int(np.argmin(np.where(free, gaps, np.inf)))


def load_tables(folder: Path, tasks: list[str] | None = None) -> list[Table]:
    """Read the tasks of a folder, in the order of their names; by default all.

    Raises:
        InputError: there is no such task, or a file has another form.
    """
    found = sorted(path.parent.name for path in folder.glob("*/curves.parquet"))
    if not found:
        raise InputError(f"--data {folder} has no folder with curves.parquet and configs.parquet")
    unknown = sorted(set(tasks or ()) - set(found))
    if unknown:
        raise InputError(f"--tasks {unknown[0]} is not in {folder}; it has {', '.join(found)}")
    return [load_table(folder / name) for name in found if not tasks or name in tasks]


def load_table(folder: Path) -> Table:
    """Read one task, see `load_tables`."""
    try:
        configs = pd.read_parquet(folder / "configs.parquet").sort_index()
        long = pd.read_parquet(folder / "curves.parquet")
        wide = long.pivot(index=["run_id", "seed"], columns="budget", values="performance")
        ids, seeds = configs.index, sorted(long["seed"].unique())
        # Runs that are missing count as failed.
        wide = wide.reindex(pd.MultiIndex.from_product([ids, seeds]))
    except (OSError, KeyError, ValueError) as error:
        raise InputError(f"the tables of {folder} cannot be read: {error}") from None
    raw = wide.to_numpy(np.float64).reshape(len(ids), len(seeds), -1)
    budgets = wide.columns.to_numpy(np.float64)
    columns = tuple(
        column for name in configs if (column := _column(str(name), configs[name])) is not None
    )
    points = np.full((len(ids), len(columns)), np.nan)
    for i, column in enumerate(columns):
        has = configs[column.name].notna().to_numpy()
        points[has, i] = column.places(configs[column.name][has].tolist())
    rows = configs.to_dict("records")
    params = tuple(
        {c.name: c.value(row[c.name]) for c in columns if not pd.isna(row[c.name])} for row in rows
    )
    name = folder.name
    scaled = _scaled(raw, next((v for k, v in FLOORS.items() if name.startswith(k)), -np.inf))
    return Table(name, scaled, np.isnan(raw), budgets / budgets[-1], columns, params, points)


def check_seeds(table: Table, seeds: int) -> None:
    """Raise InputError if no seeds of a table would be left to score a choice."""
    if seeds >= table.curves.shape[1]:
        raise InputError(
            f"the table {table.name} has {table.curves.shape[1]} seeds; a search that trains "
            f"{seeds} of them leaves none to score its choice"
        )


def _scaled(raw: Floats, floor: float) -> Floats:
    curves = np.maximum(raw, floor)  # NaN stays
    final = curves[:, :, -1]
    low, high = float(np.nanmin(final)), float(np.nanmax(final))
    if not high > low:
        raise InputError("all final performances of a table are equal")
    return np.asarray((np.where(np.isnan(curves), low, curves) - low) / (high - low))


def _column(name: str, values: pd.Series[Any]) -> Column | None:
    """Describe a hyperparameter by its values; None if there is only one."""
    present, blank = values.dropna(), bool(values.isna().any())
    distinct = sorted(present.unique().tolist())
    if len(distinct) < 2:
        return None
    if len(distinct) <= FEW:
        return Column(Dimension(name, choices=tuple(distinct)), blank)
    # A column with blanks has floats even where the values are integers.
    whole = all(float(value).is_integer() for value in distinct)
    low, high = (int(v) if whole else float(v) for v in (distinct[0], distinct[-1]))
    numbers = present.to_numpy(np.float64)
    log = low > 0 and _unevenness(np.log(numbers)) < _unevenness(numbers)
    return Column(Dimension(name, low=low, high=high, log=log), blank)


def _unevenness(values: Floats) -> float:
    """Return the largest distance of the distribution function from that of even spacing."""
    ordered = (np.sort(values) - values.min()) / (values.max() - values.min())
    return float(np.abs(ordered - np.linspace(0.0, 1.0, len(ordered))).max())
