"""The file of `sweepd run`: its tables, checked, as the settings and the space of a study.

[data]  dir, timeframe, tickers; or demo = true
[cv]    scheme, groups, test_groups, embargo_share
[train] budget (steps per fold), rungs, horizon, num_envs, slots, holdout, objective, seed,
        threads, precision, recipe, out (folder of results and checkpoints), start_from
        (folder or file: members.safetensors of a trial or bundle, or the checkpoint of a
        trial, as initial weights of the actors)
[shape] net_width, net_depth, minibatch, epochs
[ppo]   fields of `PPOParams`
[env]   fields of `EnvParams`
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import Field, create_model

from sweepd.envs.crypto.params import SHORTS, EnvParams
from sweepd.envs.crypto.scoring.metrics import OBJECTIVES
from sweepd.envs.crypto.splits import CrossValidation
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import read_toml
from sweepd.envs.support.validation import StrictModel, checked
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.study.settings.market import CostSettings
from sweepd.optimize.study.settings.setting import declared
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.space.subject import Subject

SUBJECT = Subject()  # what a run trains, and on what
LEARNER = SUBJECT.learner
DEFAULTS = Request()  # of a study
NOT_OF_A_STUDY = {"num_envs", "recipe", "out", "start_from"}  # keys of [train]

_COSTS = declared(CostSettings)  # of [env]; the others are parameters of the trial

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
    LEARNER.table: LEARNER.params,
    "env": _fields_of(EnvParams),
    "train": Train,
}


@dataclass(frozen=True)
class RunConfig:
    """A run as it is asked for.

    Attributes:
        name: of its study and its folder, unless others are asked for.
        tables: of the file, checked; [data] and [train] with their defaults.
        in_file: keys of all tables that the file has.
    """

    name: str
    tables: dict[str, dict[str, Any]]
    in_file: frozenset[str]

    @property
    def demo(self) -> bool:
        """Whether the bars are those of the demo market."""
        return bool(self.tables["data"]["demo"])

    @property
    def start_from(self) -> Path | None:
        """The weights to start from."""
        start = self.tables["train"]["start_from"]
        return None if start is None else Path(start)

    @property
    def space(self) -> SearchSpace:
        """The parameters of the trial, a space of constants."""
        own = {name: v for name, v in self.tables["env"].items() if name not in _COSTS}
        return SearchSpace.of_constants("run", {**self.tables, "env": own}, SUBJECT)

    def folder(self, out: Path | None) -> Path:
        """Return the folder of the run. out: that of the command line."""
        return Path(out or self.tables["train"]["out"] or Path("runs", self.name))

    def settings(
        self, name: str, out: Path, space: Path, gpu: str | None, track: tuple[str, ...]
    ) -> StudySettings:
        """Return the settings of the run's study.

        Args:
            name: of the study.
            out: folder of the run.
            space: file of its search space.
            gpu: `--gpu`.
            track: `--track`.

        Raises:
            InputError: no bars are named.
        """
        data, train = self.tables["data"], self.tables["train"]
        if not (data["dir"] or data["demo"]):
            raise InputError("[data] dir is missing: name a folder of bars, or set demo = true")
        costs = {name: value for name, value in self.tables["env"].items() if name in _COSTS}
        cv = CrossValidation(**self.tables["cv"])
        return StudySettings(
            study_name=name,
            n_trials=1,
            trials_per_batch=1,
            sampler="random",
            pruner="none",
            auto_deploy=False,
            data_dir=out / "data" if data["demo"] else Path(data["dir"]),
            timeframe=data["timeframe"],
            tickers=None if data["tickers"] is None else ",".join(data["tickers"]),
            search_space=str(space),
            cv=cv.scheme,
            groups=cv.groups,
            test_groups=cv.test_groups,
            embargo=cv.embargo_share,
            n_envs=train["num_envs"],
            **{name: value for name, value in train.items() if name not in NOT_OF_A_STUDY},
            recipe=train["recipe"],
            runs_dir=out,
            gpu=gpu,
            track=list(track),
            **costs,
        )

    def given(self, *, whole: bool) -> frozenset[str]:
        """Return the settings that count as given.

        Args:
            whole: all that the file may set, so that an existing run is compared with them, or
                those that it does set, so that the others fit them.
        """
        named = {
            "num_envs": "n_envs",
            "scheme": "cv",
            "embargo_share": "embargo",
            "dir": "data_dir",
        }
        keys: Set[str] = self.in_file
        if whole:
            keys = {key for table in TABLES.values() for key in table.model_fields}
            keys -= set() if self.tables["env"].get("allow_short") else set(SHORTS)
        known = declared(StudySettings).keys() - {"demo"}  # of [data], no preset
        return frozenset({named.get(key, key) for key in keys} & known | {"search_space"})


def read_config(path: Path) -> RunConfig:
    """Read the TOML file of a run.

    Raises:
        InputError: it cannot be read, or a table, key or value is unknown or wrong.
    """
    tables = read_toml(path, str(path), "a TOML file with [data], [train], [shape], [ppo], [env]")
    checked_tables = check_config(tables, str(path))
    name = re.sub(r"[^\w.+-]", "-", f"run-{path.stem}")[:100]
    in_file = frozenset(key for own in tables.values() for key in own)
    return RunConfig(name, checked_tables, in_file)


def check_config(config: Mapping[str, Any], source: str) -> dict[str, dict[str, Any]]:
    """Return all tables of a configuration; [data] and [train] with their defaults.

    Args:
        config: the tables that were given.
        source: the name of the file, for messages.

    Raises:
        InputError: a table, key or value is unknown or wrong.
    """
    unknown = sorted(config.keys() - TABLES.keys())
    if unknown:
        raise InputError(
            f"{source}: [{unknown[0]}] is not a table of a run; there are "
            f"{', '.join(f'[{table}]' for table in TABLES)}"
        )
    for table, model in TABLES.items():
        checked(model, config.get(table, {}), f"{source}: [{table}] ")
    tables = {table: dict(config.get(table, {})) for table in TABLES}
    tables["data"] = {**Data().model_dump(), **tables["data"]}
    tables["train"] = train = {**Train().model_dump(), **tables["train"]}
    if train["objective"] not in OBJECTIVES:
        raise InputError(
            f"{source}: [train] objective = {train['objective']!r} is not known; choose one of "
            f"{', '.join(OBJECTIVES)}"
        )
    try:
        declared(Request)["threads"].check("[train] threads =", train["threads"])
        CrossValidation(**tables["cv"])
        EnvParams(**tables["env"])
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    return tables
