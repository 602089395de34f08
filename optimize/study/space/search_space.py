"""Search spaces: what a trial may vary, and how its parameters become settings.

A space has three tables: `shape`, one named after the algorithm (`ppo`), and `env`; that of a program
has one, `params`. Parameters of all tables share one flat namespace, with the names of the
environment's and the algorithm's parameters (such as `EnvParams` and `PPOParams`). The discount is
searched as `one_minus_gamma`, since its distance from 1 matters on a logarithmic scale.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from optuna.trial import BaseTrial

from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.games.curriculum import Curriculum
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.subject import MARKET_PPO, Scalar, Subject


@dataclass(frozen=True)
class Settings:
    """A trial's parameters as keyword arguments of the shape, the algorithm and the environment."""

    shape: dict[str, Any]
    learner: dict[str, Any]
    env: dict[str, Any]


@dataclass(frozen=True)
class SearchSpace:
    """A search space, with the entries of its timeframe applied.

    `tables[table][name]` is a `Dimension`. `curriculum` has the file's phases and `study` its
    defaults of flags, which a study keeps in its spec, not in the stored space.
    """

    name: str
    version: int
    tables: dict[str, dict[str, Dimension]]
    subject: Subject = MARKET_PPO
    curriculum: Curriculum | None = None
    study: Mapping[str, int | str] = field(default_factory=dict)

    @classmethod
    def of_constants(
        cls, name: str, values: Mapping[str, Mapping[str, Any]], subject: Subject
    ) -> SearchSpace:
        """Return a space of constants, by table and name."""
        tables = {
            table: {one: Dimension(one, value=value) for one, value in values[table].items()}
            for table in subject.tables
        }
        return cls(name, 1, tables, subject)

    def constants_to_toml(self) -> str:
        """Return a space of constants as a file for `--search-space`."""
        described = self.to_dict()
        lines = [f"{key} = {json.dumps(described.pop(key))}" for key in ("name", "version")]
        for table, entries in described.items():
            lines += ["", f"[{table}]"]
            lines += [
                f"{name} = {{ value = {json.dumps(own['value'])} }}"
                for name, own in entries.items()
            ]
        return "\n".join(lines) + "\n"

    @property
    def dimensions(self) -> list[Dimension]:
        """All dimensions, in the order in which they are drawn."""
        return [
            dimension for table in self.subject.tables for dimension in self.tables[table].values()
        ]

    @property
    def start(self) -> dict[str, Scalar]:
        """Parameters of the first trial that the space sets; the sampler draws the others."""
        return {name: value for own in self.dimensions for name, value in own.start_params.items()}

    @property
    def shape_names(self) -> tuple[str, ...]:
        """Sampled parameters that determine a program's shape."""
        return tuple(d.name for d in self.tables.get("shape", {}).values() if d.value is None)

    @property
    def max_lookback(self) -> int:
        """Longest lookback of any trial; observations are padded to it."""
        dimension = self.tables.get("env", {}).get("lookback")
        numbers = dimension.values if dimension else [EnvParams().lookback]
        return int(max(float(v) for v in numbers))

    @property
    def minibatches(self) -> tuple[int, ...]:
        """Possible minibatches that must divide a rollout; none for algorithms with replay."""
        shape = self.subject.shape
        if "epochs" not in shape:
            return ()
        dimension = self.tables["shape"].get("minibatch")
        return tuple(int(v) for v in (dimension.values if dimension else [shape["minibatch"]]))

    @property
    def recurrent(self) -> bool:
        """Whether networks of some trials have a recurrent layer."""
        dimension = self.tables.get("shape", {}).get("recurrent")
        return dimension is not None and any(dimension.values)

    def suggest(self, trial: BaseTrial) -> dict[str, Scalar]:
        """Draw all parameters of an Optuna trial, those of the shape first.

        Returns:
            The flat parameters, as Optuna stores them.
        """
        # The order is fixed: a sampler draws from one generator, and the shape comes first since a
        # batch fixes it.
        params: dict[str, Scalar] = {}
        for dimension in self.dimensions:
            params.update(dimension.suggest(trial))
        return params

    def shape_of(self, params: Mapping[str, Scalar]) -> dict[str, Any]:
        """Return all shape parameters of a trial, including constants and defaults."""
        return {**self.subject.shape, **self._resolve_table("shape", params)}

    def arithmetic(self, params: Mapping[str, Scalar]) -> float:
        """Return about how much arithmetic a trial's gradient steps need, in an arbitrary unit.

        Args:
            params: at least the sampled parameters of the shape.
        """
        shape = self.shape_of(params)
        layers = shape.get("net_width", 1) ** 2 * shape.get("net_depth", 1)
        # PPO passes over its rollout `epochs` times. Others draw `updates` minibatches for each
        # rollout. The units differ, but a space has one algorithm.
        drawn = shape.get("updates", 1) * shape.get("minibatch", 1)
        return float(layers * shape.get("epochs", drawn))

    def _resolve_table(self, table: str, params: Mapping[str, Scalar]) -> dict[str, Any]:
        return {name: own.resolve(params) for name, own in self.tables.get(table, {}).items()}

    def resolve(self, params: Mapping[str, Scalar]) -> Settings:
        """Return the settings of a trial with these parameters.

        Raises:
            InputError: a parameter of this space is missing, as in a trial that was enqueued for
                another space.
        """
        try:
            shape = self.shape_of(params)
            learner = self._resolve_table(self.subject.learner_table, params)
            env = self._resolve_table("env", params)
        except KeyError as missing:
            raise InputError(
                f"parameter {missing} of search space {self.name!r} is not among the trial's "
                "parameters"
            ) from None
        # The algorithm knows only gamma; the search draws its distance from 1.
        if "one_minus_gamma" in learner and not self.subject.free:
            learner["gamma"] = 1.0 - float(learner.pop("one_minus_gamma"))
        return Settings(shape=shape, learner=learner, env=env)

    def validate(self, params: Mapping[str, Scalar]) -> None:
        """Raise InputError if a parameter is not in this space, as in an enqueued trial."""
        for dimension in self.dimensions:
            dimension.validate(params)

    def fixed_params(self, values: Mapping[str, Any]) -> dict[str, Scalar]:
        """Return the parameters of a trial that is to use these values.

        Args:
            values: of some or all dimensions that are not constant, by name; a range that can be
                off takes that value, too.

        Raises:
            InputError: a name is not such a dimension, or a value cannot be drawn from it.
        """
        drawn = {own.name: own for own in self.dimensions if own.value is None}
        fixed: dict[str, Scalar] = {}
        for name, value in values.items():
            if name not in drawn:
                constant = name in {own.name for own in self.dimensions}
                near = difflib.get_close_matches(name, drawn, 1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(drawn)}"
                raise InputError(
                    f"{name!r} is constant in search space {self.name!r}"
                    if constant
                    else f"{name!r} is not a parameter of search space {self.name!r}; {hint}"
                )
            drawn[name].validate_value(value)
            fixed |= drawn[name].fixed_params(value)
        return fixed

    def around(self, params: Mapping[str, Scalar], share: float = 0.2) -> SearchSpace:
        """Return the space `narrow` around the parameters of a trial.

        Shape and choices are constant. Ranges keep `share` of their width on both sides.
        """
        tables = {
            table: {name: own.around(params, share) for name, own in self.tables[table].items()}
            for table in self.subject.tables
        }
        return SearchSpace(f"narrow:{self.name}", self.version, tables, self.subject)

    def to_dict(self) -> dict[str, Any]:
        """Return the space as tables, for `parse_space`."""
        described: dict[str, Any] = {"name": self.name, "version": self.version}
        return described | {
            t: {n: d.to_dict() for n, d in self.tables[t].items()} for t in self.subject.tables
        }
