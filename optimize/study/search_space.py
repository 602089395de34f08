"""Search spaces: what a trial may vary, as a TOML file that a user can copy and edit.

A space has three tables: `[shape]`, one named after the algorithm (`[ppo]`), and `[env]`. Each key
is one parameter, described by one of

    { low = 1e-4, high = 2e-3, log = true }   a range (of integers if both ends are integers),
                                              optionally with `step`
    { low = 0.02, high = 0.3, off = 0.0 }     a range that can be switched off; a boolean
                                              `<name>_on` is sampled too
    { choices = [64, 128, 256] }              one of these values
    { value = 2 }                             this value in every trial

With `start` next to a range or choices, trial 0 has that value; the sampler draws its other
parameters. `[timeframe.<name>.<table>]` replaces single entries for studies on bars of that length.
A parameter that is not named keeps its default.

Parameters share one flat namespace, with the names of the environment's and the algorithm's
parameters (such as `EnvParams` and `PPOParams`). The discount is searched as `one_minus_gamma`,
since its distance from 1 matters on a logarithmic scale.
"""

from __future__ import annotations

import dataclasses
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from agents.algorithms.table import Algorithm, get_algorithm
from envs.crypto.data.timeframe import SECONDS
from envs.crypto.params import EnvParams
from envs.games.registry import get_game
from envs.support.errors import InputError
from envs.support.study_record import CRYPTO, StudySpec

Scalar = bool | int | float | str
PRESETS = ("wide", "large", "demo")
GAME_PRESETS = ("game",)
# Of games for which the algorithm's is not the best.
OWN_SPACES = {("bucket-brigade", "ppo"): "bucket-brigade-ppo.toml"}
# What the study fixes by flags of its own, so that no trial may vary it.
STUDY_LEVEL = frozenset(
    {"initial_cash", "episode_bars", "held_scale", "minimum_order", "fee", "slippage"}
)


class Suggest(Protocol):
    """The methods of `optuna.Trial` that are used here; `optuna.trial.FixedTrial` has them too."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = ..., log: bool = ...
    ) -> float: ...
    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = ..., log: bool = ...
    ) -> int: ...
    def suggest_categorical(self, name: str, choices: Any) -> Any: ...


@dataclass(frozen=True)
class Subject:
    """What a space is for: environment and algorithm determine names and bounds of parameters."""

    environment: str = CRYPTO
    algorithm: str = "ppo"

    @property
    def is_market(self) -> bool:
        """Whether the environment is a market, not a game."""
        return self.environment == CRYPTO

    @property
    def learner(self) -> Algorithm:
        """The algorithm."""
        return get_algorithm(self.algorithm)

    @property
    def env_params(self) -> Callable[..., Any]:
        """The dataclass of the environment's parameters."""
        return EnvParams if self.is_market else get_game(self.environment).params

    @property
    def tables(self) -> tuple[str, str, str]:
        """Names of a space's tables, in the order in which they are drawn."""
        return "shape", self.learner.table, "env"

    @property
    def presets(self) -> dict[str, str]:
        """Names of the included spaces, with their files."""
        if self.is_market and self.algorithm == "ppo":
            return {name: f"{name}.toml" for name in PRESETS}
        own = OWN_SPACES.get((self.environment, self.algorithm))
        return {name: own or f"{name}-{self.learner.table}.toml" for name in GAME_PRESETS}

    def names(self, table: str) -> dict[str, Any]:
        """Return the names that are allowed in `table`, with their defaults."""
        if table == "shape":
            extras = {} if self.is_market else self.learner.extras
            return {**self.learner.shape, **extras}
        settings: Any = self.env_params() if table == "env" else self.learner.params()
        names = {
            f.name: getattr(settings, f.name)
            for f in dataclasses.fields(settings)
            if f.name not in STUDY_LEVEL
        }
        if table != "env" and "gamma" in names:
            names["one_minus_gamma"] = 1.0 - float(names["gamma"])
        return names

    def check(self, table: str, name: str, value: Scalar) -> None:
        """Raise InputError, TypeError or ValueError if the value of a parameter is invalid."""
        if table != "shape":
            key, given = (
                ("gamma", 1.0 - float(value)) if name == "one_minus_gamma" else (name, value)
            )
            (self.env_params if table == "env" else self.learner.params)(**{key: given})


@dataclass(frozen=True)
class Dimension:
    """How one parameter is drawn: by a range (low, high), by choices, or as a constant value.

    Attributes:
        log: whether the range has a logarithmic scale.
        off: value of a range that is switched off; None if it cannot be.
        start: value in the first trial.
    """

    name: str
    low: float | int | None = None
    high: float | int | None = None
    log: bool = False
    step: float | int | None = None
    choices: tuple[Scalar, ...] = ()
    value: Scalar | None = None
    off: Scalar | None = None
    start: Scalar | None = None

    @property
    def whole(self) -> bool:
        """Whether the range is one of integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def suggest(self, trial: Suggest) -> dict[str, Scalar]:
        """Draw this parameter, and its switch if it has one.

        A parameter that is switched off is not drawn.
        """
        if self.value is not None:
            return {}
        if self.choices:
            return {self.name: trial.suggest_categorical(self.name, self.choices)}
        if self.off is not None:
            switch = f"{self.name}_on"
            if not trial.suggest_categorical(switch, (False, True)):
                return {switch: False}
            return {switch: True, self.name: self._range(trial)}
        return {self.name: self._range(trial)}

    def _range(self, trial: Suggest) -> Scalar:
        assert self.low is not None
        assert self.high is not None
        if self.whole:
            return trial.suggest_int(
                self.name, int(self.low), int(self.high), step=int(self.step or 1), log=self.log
            )
        return trial.suggest_float(
            self.name, float(self.low), float(self.high), step=self.step, log=self.log
        )

    def resolve(self, params: Mapping[str, Scalar]) -> Scalar:
        """Return the value that a trial with these parameters uses."""
        if self.value is not None:
            return self.value
        if self.off is not None and not params[f"{self.name}_on"]:
            return self.off
        return params[self.name]

    def highest(self) -> float:
        """Return the largest number that this parameter can have."""
        options = [self.value, self.off, self.high, *self.choices]
        return max(float(v) for v in options if isinstance(v, int | float))

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of a TOML file that describes this dimension."""
        if self.value is not None:
            return {"value": self.value}
        start = {} if self.start is None else {"start": self.start}
        if self.choices:
            return {"choices": list(self.choices), **start}
        described: dict[str, Any] = {"low": self.low, "high": self.high, **start}
        if self.log:
            described["log"] = True
        if self.step is not None:
            described["step"] = self.step
        if self.off is not None:
            described["off"] = self.off
        return described


@dataclass(frozen=True)
class Settings:
    """A trial's parameters as keyword arguments of the shape, the algorithm and the environment."""

    shape: dict[str, Any]
    learner: dict[str, Any]
    env: dict[str, Any]


@dataclass(frozen=True)
class SearchSpace:
    """A search space, with the entries of its timeframe applied.

    `tables[table][name]` is a `Dimension`.
    """

    name: str
    version: int
    tables: dict[str, dict[str, Dimension]]
    subject: Subject = Subject()

    @property
    def dimensions(self) -> list[Dimension]:
        """All dimensions, in the order in which they are drawn."""
        return [
            dimension for table in self.subject.tables for dimension in self.tables[table].values()
        ]

    @property
    def start(self) -> dict[str, Scalar]:
        """Parameters of the first trial that the space sets; the sampler draws the others."""
        start: dict[str, Scalar] = {}
        for dimension in self.dimensions:
            if dimension.start is None:
                continue
            switched_on = dimension.off is None or dimension.start != dimension.off
            start |= {} if dimension.off is None else {f"{dimension.name}_on": switched_on}
            start |= {dimension.name: dimension.start} if switched_on else {}
        return start

    @property
    def shape_names(self) -> tuple[str, ...]:
        """Sampled parameters that determine a program's shape."""
        return tuple(d.name for d in self.tables["shape"].values() if d.value is None)

    @property
    def max_lookback(self) -> int:
        """Longest lookback of any trial; observations are padded to it."""
        dimension = self.tables["env"].get("lookback")
        return int(dimension.highest()) if dimension else EnvParams().lookback

    def suggest(self, trial: Suggest) -> dict[str, Scalar]:
        """Draw all parameters of an Optuna trial, those of the shape first.

        Returns:
            The flat parameters, as Optuna stores them.
        """
        params: dict[str, Scalar] = {}
        for dimension in self.dimensions:
            params.update(dimension.suggest(trial))
        return params

    def shape_of(self, params: Mapping[str, Scalar]) -> dict[str, Any]:
        """Return all shape parameters of a trial, including constants and defaults."""
        chosen = {
            name: dimension.resolve(params) for name, dimension in self.tables["shape"].items()
        }
        return {**self.subject.learner.shape, **chosen}

    def resolve(self, params: Mapping[str, Scalar]) -> Settings:
        """Return the settings of a trial with these parameters.

        Raises:
            InputError: a parameter of this space is missing, as in a trial that was enqueued for
                another space.
        """
        try:
            _, *others = self.subject.tables
            learner, env = (
                {n: d.resolve(params) for n, d in self.tables[table].items()} for table in others
            )
            shape = self.shape_of(params)
        except KeyError as missing:
            raise InputError(
                f"parameter {missing} of search space {self.name!r} is not among the trial's "
                "parameters"
            ) from None
        if "one_minus_gamma" in learner:
            learner["gamma"] = 1.0 - float(learner.pop("one_minus_gamma"))
        return Settings(shape=shape, learner=learner, env=env)

    def validate(self, params: Mapping[str, Scalar]) -> None:
        """Raise InputError if a parameter is not in this space, as in an enqueued trial."""
        for dimension in self.dimensions:
            value = params.get(dimension.name)
            if value is None or dimension.value is not None:
                continue
            if dimension.choices and value not in dimension.choices:
                raise InputError(
                    f"{dimension.name} = {value!r} is not one of "
                    f"{', '.join(map(str, dimension.choices))}"
                )
            if not dimension.choices and not float(dimension.low or 0) <= float(value) <= float(
                dimension.high or 0
            ):
                raise InputError(
                    f"{dimension.name} = {value!r} lies outside {dimension.low} … {dimension.high}"
                )

    @property
    def minibatches(self) -> tuple[int, ...]:
        """Possible minibatches that must divide a rollout; none for algorithms with replay."""
        if "epochs" not in self.subject.learner.shape:
            return ()
        default = self.subject.learner.shape["minibatch"]
        dimension = self.tables["shape"].get("minibatch", Dimension("minibatch", value=default))
        return tuple(int(v) for v in (dimension.choices or (dimension.value,)) if v is not None)

    def around(self, params: Mapping[str, Scalar], share: float = 0.2) -> SearchSpace:
        """Return the space `narrow` around the parameters of a trial.

        Shape and choices are constant. Ranges keep `share` of their width on both sides.
        """
        tables: dict[str, dict[str, Dimension]] = {}
        for table in self.subject.tables:
            tables[table] = {n: _narrow(d, params, share) for n, d in self.tables[table].items()}
        return SearchSpace(f"narrow:{self.name}", self.version, tables, self.subject)

    def to_dict(self) -> dict[str, Any]:
        """Return the space as tables, for `from_dict`."""
        described: dict[str, Any] = {"name": self.name, "version": self.version}
        return described | {
            t: {n: d.to_dict() for n, d in self.tables[t].items()} for t in self.subject.tables
        }

    @staticmethod
    def from_dict(
        described: Mapping[str, Any],
        subject: Subject = Subject(),
        timeframe: str | None = None,
        source: str = "search space",
    ) -> SearchSpace:
        """Build a space and check it.

        Args:
            described: the tables of a TOML file.
            subject: environment and algorithm.
            timeframe: length of the bars, for the entries that depend on it.
            source: name of the space in messages.

        Raises:
            InputError: an entry is invalid.
        """
        every = subject.tables
        unknown = set(described) - {"name", "version", "description", "timeframe", *every}
        if unknown:
            raise InputError(
                f"{source}: unknown key {sorted(unknown)[0]!r}; a space has name, version, "
                f"{', '.join(f'[{table}]' for table in every)} and [timeframe]"
            )
        name, version = described.get("name"), described.get("version")
        if not isinstance(name, str) or not isinstance(version, int):
            raise InputError(
                f"{source}: name (text) and version (a whole number) are needed at the top"
            )
        entries = {table: dict(described.get(table, {})) for table in every}
        overrides = described.get("timeframe", {})
        for frame, replaced in overrides.items():
            if frame not in SECONDS:
                raise InputError(
                    f"{source}: [timeframe.{frame}] is not a timeframe; choose of "
                    f"{', '.join(SECONDS)}"
                )
            for table in replaced:
                if table not in every:
                    raise InputError(
                        f"{source}: [timeframe.{frame}.{table}] should be one of {', '.join(every)}"
                    )
                if frame == timeframe:
                    entries[table] |= replaced[table]
        tables = {
            table: {n: _dimension(source, subject, table, n, e) for n, e in entries[table].items()}
            for table in every
        }
        minibatch = tables["shape"].get("minibatch")
        if minibatch is not None and minibatch.low is not None:
            raise InputError(
                f"{source}: [shape] minibatch must be choices or a value, since it must divide a "
                "rollout"
            )
        if {"gamma", "one_minus_gamma"} <= set(tables[every[1]]):
            raise InputError(f"{source}: [{every[1]}] has both gamma and one_minus_gamma; keep one")
        lookback = tables["env"].get("lookback")
        if lookback is not None and not (
            lookback.whole or lookback.choices or lookback.value is not None
        ):
            raise InputError(f"{source}: [env] lookback must be whole numbers")
        space = SearchSpace(name, version, tables, subject)
        _probe(source, space)
        return space

    @staticmethod
    def of_study(spec: StudySpec) -> SearchSpace:
        """Return the search space of a study."""
        return SearchSpace.from_dict(spec.space, Subject(spec.environment, spec.algorithm))


def _narrow(dimension: Dimension, params: Mapping[str, Scalar], share: float) -> Dimension:
    if dimension.value is not None:
        return dimension
    value = dimension.resolve(params)
    if dimension.choices or (dimension.off is not None and value == dimension.off):
        return Dimension(dimension.name, value=value)
    assert dimension.low is not None
    assert dimension.high is not None
    low, high, at = float(dimension.low), float(dimension.high), float(value)
    if dimension.log:
        reach = share * math.log(high / low)
        low, high = max(low, at * math.exp(-reach)), min(high, at * math.exp(reach))
    else:
        reach = share * (high - low)
        low, high = max(low, at - reach), min(high, at + reach)
    if dimension.whole:
        return Dimension(
            dimension.name,
            low=math.floor(low),
            high=math.ceil(high),
            log=dimension.log,
            step=dimension.step,
        )
    return Dimension(dimension.name, low=low, high=high, log=dimension.log, step=dimension.step)


def _dimension(source: str, subject: Subject, table: str, name: str, entry: Any) -> Dimension:
    names = subject.names(table)
    where = f"{source}: [{table}] {name}"
    if name not in names:
        raise InputError(f"{where} is not a parameter; choose of {', '.join(sorted(names))}")
    if not isinstance(entry, Mapping):
        raise InputError(
            f"{where} = {entry!r} should be a table: {{ low, high }}, {{ choices }} or {{ value }}"
        )
    unknown = set(entry) - {"low", "high", "log", "step", "off", "start", "choices", "value"}
    if unknown:
        raise InputError(
            f"{where} has the unknown key {sorted(unknown)[0]!r}; use low, high, log, step, off, "
            "start, choices or value"
        )
    kinds = [k for k in ("low", "choices", "value") if k in entry]
    if len(kinds) != 1:
        raise InputError(f"{where} needs exactly one of low and high, choices, or value")
    start = entry.get("start")
    if kinds == ["value"]:
        if start is not None and start != entry["value"]:
            raise InputError(
                f"{where} start = {start!r} differs from its only value {entry['value']!r}; leave "
                "it out"
            )
        return Dimension(name, value=entry["value"])
    if kinds == ["choices"]:
        choices = entry["choices"]
        if (
            not isinstance(choices, list)
            or not choices
            or not all(isinstance(c, bool | int | float | str) for c in choices)
        ):
            raise InputError(f"{where} choices = {choices!r} should be a list of values")
        if start is not None and start not in choices:
            raise InputError(f"{where} start = {start!r} is not one of its choices")
        if len(choices) == 1:
            return Dimension(name, value=choices[0])
        return Dimension(name, choices=tuple(choices), start=start)
    low, high = entry["low"], entry.get("high")
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (low, high))
    if not numbers or not low < high or (entry.get("log") and low <= 0):
        raise InputError(
            f"{where} low = {low!r}, high = {high!r} should be numbers with low < high (and low > "
            "0 on a log scale)"
        )
    dimension = Dimension(
        name,
        low=low,
        high=high,
        log=bool(entry.get("log", False)),
        step=entry.get("step"),
        off=entry.get("off"),
        start=start,
    )
    if start is not None and start != dimension.off:
        _check_start(where, dimension)
    return dimension


def _check_start(where: str, dimension: Dimension) -> None:
    """Raise InputError if a range does not contain its `start`."""
    start, low, high = dimension.start, dimension.low, dimension.high
    if isinstance(start, bool | str) or not isinstance(start, float | int):
        raise InputError(f"{where} start = {start!r} should be a number")
    assert low is not None
    assert high is not None
    if not low <= start <= high:
        raise InputError(f"{where} start = {start!r} lies outside {low} … {high}")
    step = dimension.step or (1 if dimension.whole else None)
    if step is not None:
        steps = (start - low) / step
        if abs(steps - round(steps)) > 1e-8:
            raise InputError(
                f"{where} start = {start!r} is not {low} plus a multiple of its step {step}"
            )


def _probe(source: str, space: SearchSpace) -> None:
    """Raise InputError if the engine refuses an end of a range or a choice."""
    for table in space.subject.tables:
        for name, dimension in space.tables[table].items():
            for value in (
                dimension.low,
                dimension.high,
                dimension.off,
                dimension.value,
                *dimension.choices,
            ):
                if value is None:
                    continue
                try:
                    space.subject.check(table, name, value)
                except (InputError, TypeError, ValueError) as error:
                    raise InputError(f"{source}: [{table}] {name} = {value!r}: {error}") from None


def read_space(
    path: Path, subject: Subject = Subject(), timeframe: str | None = None
) -> SearchSpace:
    """Read a space from a TOML file."""
    try:
        described = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"--search-space {path}: cannot be read ({error.strerror}); name a preset "
            f"({', '.join(subject.presets)}) or a TOML file"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--search-space {path}: not valid TOML ({error})") from None
    return SearchSpace.from_dict(described, subject, timeframe, str(path))


def preset_text(name: str, subject: Subject = Subject()) -> str:
    """Return the TOML text of a preset, to copy and edit."""
    return (
        resources.files("optimize")
        .joinpath(f"spaces/{subject.presets[name]}")
        .read_text(encoding="utf-8")
    )


def load_space(
    name: str, subject: Subject = Subject(), timeframe: str | None = None
) -> SearchSpace:
    """Return a space by the name of a preset or the path of a file.

    `optimize.worker.freeze.resolve_space` handles `narrow:…`, which needs a study.
    """
    if name in subject.presets:
        return SearchSpace.from_dict(
            tomllib.loads(preset_text(name, subject)), subject, timeframe, f"preset {name}"
        )
    if not name.endswith(".toml") and not Path(name).exists():
        raise InputError(
            f"--search-space {name!r} is neither a preset ({', '.join(subject.presets)}, "
            "narrow:STUDY[#TRIAL]) nor a TOML file"
        )
    return read_space(Path(name), subject, timeframe)
