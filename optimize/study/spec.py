"""What a study is, frozen when it is created: stored with the study as JSON, compared when a worker joins it."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from envs.crypto.metrics import objective_name
from envs.crypto.splits import CrossValidation
from envs.support.errors import InputError
from optimize.study.search_space import SearchSpace, Settings, Subject

SPEC_KEY = "sweepd:spec"
MANY_FOLDS, MOST_FOLDS = (
    45,
    128,
)  # a trial trains one member per fold: warn above the first, refuse above the second
# What may differ between the workers of a study: where the data lies (its fingerprint may not), CPU threads (results
# don't depend on them), and the kind of processor (results agree to rounding, and a worker says that it differs).
NOT_COMPARED = ("data.dir", "threads", "processor")


def code_version() -> str:
    """Version of the installed package, or the one in this checkout."""
    try:
        return importlib.metadata.version("sweepd")
    except importlib.metadata.PackageNotFoundError:
        return "0.1.0"


def torch_version() -> str:
    """torch's version, without the name of the build: results of different builds agree to rounding."""
    return torch.__version__.partition("+")[0]


@dataclass(frozen=True)
class DataSpec:
    """Which bars. `first` and `last` are the opens of the first and last bar, ISO 8601 UTC; fingerprint as
    `Bars.fingerprint`.
    """

    dir: str
    tickers: tuple[str, ...]
    timeframe: str
    fingerprint: str
    first: str
    last: str
    bars: int
    synthetic: bool


@dataclass(frozen=True, kw_only=True)
class StudySpec(ABC):
    """Everything that decides the numbers of a trial, given its parameters and its number: what is common to all
    environments.

    environment: "crypto", or a game's name. algorithm: as in `agents.algorithms.table`. env: settings that every trial
    shares (names of the environment's parameters). budget: environment steps per member, spent in `rungs` parts.
    num_envs: environments per member. slots: members per program (G). trials_per_batch: trials asked for at once (K).
    space: the whole search space. precision: of matrix products (`agents.networks.precision`). threads: of torch on the CPU, for
    workers that are not given a number; results don't depend on it. processor: what the study was made on, as
    `agents.algorithms.identity.processor_kind` names it; "" in studies of earlier versions. Results on another kind agree to
    rounding.
    """

    environment: str
    algorithm: str
    env: dict[str, Any]
    budget: int
    rungs: int
    num_envs: int
    horizon: int
    slots: int
    trials_per_batch: int
    objective: str
    sampler: str
    pruner: str
    seed: int
    space: dict[str, Any]
    threads: int
    precision: str = "fp32"
    processor: str = ""
    code_version: str = dataclasses.field(default_factory=code_version)
    torch_version: str = dataclasses.field(default_factory=torch_version)

    @property
    @abstractmethod
    def members(self) -> int:
        """Members of one trial."""

    @property
    @abstractmethod
    def about(self) -> str:
        """The study in a few words."""

    @property
    def transitions(self) -> int:
        """Environment steps of one member in one rollout."""
        return self.num_envs * self.horizon

    @property
    def rollouts(self) -> int:
        """Rollouts of one member over the whole budget (rounded up, at least one per rung)."""
        return max(self.rungs, -(-self.budget // self.transitions))

    def rung_end(self, rung: int) -> int:
        """Rollouts done when rung `rung` (1 … rungs) is reached; equal parts of the budget."""
        return round(self.rollouts * rung / self.rungs)

    @property
    def search_space(self) -> SearchSpace:
        return SearchSpace.from_dict(self.space, Subject(self.environment, self.algorithm))

    def env_settings(self, settings: Settings) -> dict[str, Any]:
        """Keyword arguments of the environment's parameters for a trial: the study's and its own."""
        return {**self.env, **settings.env}

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> StudySpec:
        """Raises InputError where the study was written by another version that describes studies differently."""
        described = json.loads(text)
        try:
            if described["environment"] != "crypto":
                return GameSpec(**described)
            data = described.pop("data")
            return CryptoSpec(
                data=DataSpec(**{**data, "tickers": tuple(data["tickers"])}), **described
            )
        except (TypeError, KeyError) as error:
            raise InputError(
                f"this study was made by another version of sweepd ({error}); use that version, or another --study-name"
            ) from None


@dataclass(frozen=True, kw_only=True)
class CryptoSpec(StudySpec):
    """A study on a market; a trial's members are its folds.

    recipe: name, version and memory (bars) of the feature recipe. cv: fields of `CrossValidation`. first_bar: earliest
    decision bar.
    """

    data: DataSpec
    recipe: dict[str, Any]
    cv: dict[str, Any]
    holdout: float
    first_bar: int
    max_lookback: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "objective", objective_name(self.objective))  # the class is frozen

    @property
    def members(self) -> int:
        return self.cross_validation.folds

    @property
    def about(self) -> str:
        return (
            f"{self.environment}, {len(self.data.tickers)} tickers, {self.data.timeframe}, {self.cv['scheme']}, "
            f"{self.budget:,} steps per fold"
        )

    @property
    def cross_validation(self) -> CrossValidation:
        return CrossValidation(**self.cv)


@dataclass(frozen=True, kw_only=True)
class GameSpec(StudySpec):
    """A study on a game; a trial's members are `seeds` policies trained alike, or together where the game is one of
    several players. episodes: played by each of them whenever a trial is judged, the same ones for all trials. centred:
    how observations are scaled (`random_play`); False in studies made before it was recorded. look_steps: of the random
    play by which they are scaled, of each environment; 0 before it was chosen.
    """

    seeds: int
    episodes: int
    centred: bool = False
    look_steps: int = 256

    @property
    def members(self) -> int:
        return self.seeds

    @property
    def about(self) -> str:
        return f"{self.game}, {self.algorithm}, {self.seeds} seeds, {self.budget:,} steps per seed"

    @property
    def game(self) -> str:
        """Which game: its name, and what was given with --scenario and --env-param."""
        settings = ", ".join(f"{name} {value}" for name, value in self.env.items())
        return f"{self.environment} ({settings})" if settings else self.environment


def check_folds(cv: CrossValidation, budget: int) -> str | None:
    """A warning where a trial has very many folds. Raises InputError where it has more than any machine should train.

    budget: environment steps per fold.
    """
    if cv.folds <= MANY_FOLDS:
        return None
    tests = f" and --test-groups {cv.test_groups}" if cv.scheme == "cpcv" else ""
    costs = (
        f"--groups {cv.groups}{tests} make {cv.folds:,} folds: every trial would train {cv.folds:,} members, "
        f"{cv.folds * budget:,} steps in all"
    )
    if cv.folds > MOST_FOLDS:
        advice = (
            "use --groups 5 to 10 with --test-groups 2"
            if cv.scheme == "cpcv"
            else "use --groups 5 to 10"
        )
        raise InputError(f"{costs}; at most {MOST_FOLDS} folds are allowed: {advice}")
    return f"{costs}; --groups 5 to 10 are usual"


def differences(frozen: StudySpec, now: StudySpec) -> list[tuple[str, Any, Any]]:
    """(dotted name, frozen value, value now) of everything that differs and matters."""
    ours, theirs = _flat(json.loads(frozen.to_json())), _flat(json.loads(now.to_json()))
    absent = "nothing"
    return [
        (name, ours.get(name, absent), theirs.get(name, absent))
        for name in sorted(set(ours) | set(theirs))
        if ours.get(name, absent) != theirs.get(name, absent) and name not in NOT_COMPARED
    ]


def refuse_other(study_name: str, frozen: StudySpec, now: StudySpec) -> None:
    """Raise InputError naming the first difference between the study as it was frozen and what was asked for."""
    found = differences(frozen, now)
    if found:
        # A difference in a flag is named before those in what follows from it.
        name, was, given = min(
            found,
            key=lambda d: (d[0].startswith(("data.f", "data.l", "data.b", "first_bar")), d[0]),
        )
        also = f" ({len(found) - 1} more differ)" if len(found) > 1 else ""
        raise InputError(
            f"study {study_name!r} was created with {name} = {_short(was)}, and now it is {_short(given)}{also}; "
            "leave that as it was, or choose another --study-name"
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if isinstance(value, Mapping):
        flat: dict[str, Any] = {}
        for key, inner in value.items():
            flat |= _flat(inner, f"{prefix}.{key}" if prefix else str(key))
        return flat
    return {prefix: value}
