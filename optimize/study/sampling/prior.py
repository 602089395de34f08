"""Configurations of earlier studies, as the race's model takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sweepd.optimize.study.sampling.cube import Cube


@dataclass(frozen=True)
class Known:
    """A configuration of an earlier study.

    Attributes:
        study: number of the study, from 1 on.
        params: parameters of the present space, as Optuna stores them.
        value: mean over seeds; the values of a study have mean 0 and variance 1.
        seeds: number of its runs.
    """

    study: int
    params: Mapping[str, Any]
    value: float
    seeds: int


class Earlier:
    """Configurations of earlier studies as arrays.

    Args:
        cube: the present space.
        known: the configurations; at least one.

    Attributes:
        features: (configurations, columns and the number of the study).
        values: (configurations,).
        seeds: (configurations,).
    """

    def __init__(self, cube: Cube, known: Sequence[Known]) -> None:
        places = cube.features(np.array([cube.place(one.params) for one in known]))
        studies = np.array([one.study for one in known], dtype=np.float64)
        self.features = np.concatenate([places, studies[:, None]], axis=1)
        self.values = np.array([one.value for one in known])
        self.seeds = np.array([one.seeds for one in known])


def read_known(record: Mapping[str, Any] | None) -> list[Known]:
    """Return the configurations in a study's record; none without one."""
    return [] if record is None else [Known(**one) for one in record["configurations"]]
