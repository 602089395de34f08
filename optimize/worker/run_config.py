"""The configuration of one training run: the tables of a TOML file, checked.

[data]  dir, timeframe, tickers; or demo = true
[cv]    scheme, groups, test_groups, embargo_share
[train] budget (steps per fold), rungs, horizon, num_envs, slots, holdout, objective, seed,
        threads, precision, recipe, out (folder of results and checkpoints), start_from
        (folder or file: the checkpoint of a run or study, to continue exactly; or
        members.safetensors of a trial or bundle, as initial weights of the actors)
[shape] net_width, net_depth, minibatch, epochs
[ppo]   fields of `PPOParams`
[env]   fields of `EnvParams`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import Field, create_model

from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.crypto.scoring.metrics import OBJECTIVES
from sweepd.envs.crypto.splits import CrossValidation
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import read_toml
from sweepd.envs.support.validation import StrictModel, checked
from sweepd.optimize.experiments.request import Request
from sweepd.optimize.study.record.stored import objective_name
from sweepd.optimize.study.settings.setting import declared
from sweepd.optimize.study.space.subject import Subject

SUBJECT = Subject()  # what a run trains, and on what
LEARNER = SUBJECT.learner
DEFAULTS = Request()  # of a study
NOT_OF_A_STUDY = {"num_envs", "recipe", "out", "start_from"}  # keys of [train]

Count = Annotated[int, Field(ge=1)]
Place = Annotated[Path, Field(strict=False)]  # text, too


class Data(StrictModel):
    """[data]: the bars."""

    dir: Place | None = None
    timeframe: str = "1h"
    tickers: list[str] | None = None
    demo: bool = False


class Train(StrictModel):
    """[train]: all but `NOT_OF_A_STUDY` are fields of a study's request, with its defaults."""

    budget: Count = DEFAULTS.budget
    rungs: Count = DEFAULTS.rungs
    horizon: Count = DEFAULTS.horizon
    slots: Count | None = DEFAULTS.slots
    holdout: float = DEFAULTS.holdout
    objective: str = DEFAULTS.objective
    seed: int = DEFAULTS.seed
    threads: Count | None = DEFAULTS.threads
    precision: str = DEFAULTS.precision
    num_envs: Count | None = None
    recipe: str | None = None
    out: Place | None = None
    start_from: Place | None = None


def _table_of(name: str, types: Mapping[str, Any], defaults: Mapping[str, Any]) -> Any:
    given: dict[str, Any] = {key: (types[key], default) for key, default in defaults.items()}
    return create_model(name, __base__=StrictModel, **given)


def _fields_of(params: Any) -> Any:
    """Return the model of a table with the fields of a dataclass."""
    defaults = {field.name: field.default for field in fields(params)}
    return _table_of(params.__name__, get_type_hints(params), defaults)


TABLES: Mapping[str, type[StrictModel]] = {
    "data": Data,
    "cv": _fields_of(CrossValidation),
    "shape": _table_of("Shape", dict.fromkeys(LEARNER.shape, Count), LEARNER.shape),
    LEARNER.table: _fields_of(LEARNER.params),
    "env": _fields_of(EnvParams),
    "train": Train,
}


def read_config(path: Path) -> dict[str, Any]:
    """Read the TOML file of a run. Raises InputError if it cannot be read."""
    tables = "a TOML file with [data], [train], [shape], [ppo], [env]"
    return read_toml(path, str(path), tables)


def check_config(config: Mapping[str, Any], source: str) -> dict[str, dict[str, Any]]:
    """Return all tables of a configuration; [data] and [train] with their defaults.

    Args:
        config: the tables that were given.
        source: the name of the file, for messages; "" without one.

    Raises:
        InputError: a table, key or value is unknown or wrong.
    """
    file = f"{source}: " if source else ""
    unknown = sorted(config.keys() - TABLES.keys())
    if unknown:
        raise InputError(
            f"{file}[{unknown[0]}] is not a table of a run; there are "
            f"{', '.join(f'[{table}]' for table in TABLES)}"
        )
    for table, model in TABLES.items():
        checked(model, config.get(table, {}), f"{file}[{table}] ")
    tables = {table: dict(config.get(table, {})) for table in TABLES}
    tables["data"] = {**Data().model_dump(), **tables["data"]}
    tables["train"] = train = {**Train().model_dump(), **tables["train"]}
    if objective_name(train["objective"]) not in OBJECTIVES:
        raise InputError(
            f"{file}[train] objective = {train['objective']!r} is not known; choose one of "
            f"{', '.join(OBJECTIVES)}"
        )
    try:
        declared(Request)["threads"].check("[train] threads =", train["threads"])
        LEARNER.params(**tables[LEARNER.table])
        CrossValidation(**tables["cv"])
        EnvParams(**tables["env"])
    except InputError as error:
        raise InputError(f"{file}{error}") from None
    return tables
