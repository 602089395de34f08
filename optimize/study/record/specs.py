"""What a study is: its `StudySpec`, fixed when the study is created, and stored as JSON.

The key is `SPEC_KEY` (`sweepd.optimize.study.record.keys`).
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from sweepd.envs.crypto.splits import CrossValidation
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.configurations import PBT, RACE, TRIALS, Selection
from sweepd.optimize.study.record.data_spec import AcceptedJump, DataSpec
from sweepd.optimize.study.record.keys import BLOCKS_KEY
from sweepd.optimize.study.record.programs import command_of, is_command
from sweepd.optimize.study.record.values import ValuedSpec

MEAN = "mean"  # `GameSpec.average`
CRYPTO = "crypto"  # the environment that is a market
# How a policy acts: it takes its most probable action, or draws from its probabilities.
Play = Literal["deterministic", "sampled"]


def code_version() -> str:
    """Return the version of the installed package, or that of this source tree."""
    try:
        return importlib.metadata.version("sweepd")
    except importlib.metadata.PackageNotFoundError:
        return "0.1.0"


def torch_version() -> str:
    """Return torch's version without its build tag: results of builds agree to rounding."""
    import torch  # not at the top: a record is read without torch

    return torch.__version__.partition("+")[0]


@dataclass(frozen=True, kw_only=True)
class StudySpec(ValuedSpec, ABC):
    """Everything that determines a trial's numbers, given its parameters and its number.

    Attributes:
        member: name of a trial's members, "fold" or "seed".
        repeats: whether the members of a trial repeat it with other seeds.
        unit: what the progress of a member is counted in.
        has_networks: whether members are networks that sweepd trains.
        environment: "crypto", the name of a game, "command:" and a program, or "python:" and a
            training function.
        algorithm: name in `sweepd.agents.algorithms.table`.
        env: environment parameters that all trials share.
        budget: environment steps per member, spent in `rungs` equal parts.
        num_envs: environments per member.
        horizon: steps per rollout and environment.
        slots: members per program (G).
        trials_per_batch: trials that a worker asks for at once (K).
        space: the search space, as `SearchSpace.to_dict` returns it.
        threads: torch's CPU threads, unless a worker is given another number; results do not
            depend on it.
        precision: precision of matrix products, see `sweepd.agents.networks.precision`.
        processor: `sweepd.agents.algorithms.identity.processor_kind` of the machine that created
            the study. Results on other kinds agree to rounding.
        kernels: what computes networks and updates, "torch 4" or also the native kernels
            (`sweepd.agents.native.choice.chosen`); the same for all workers.
        search: "trials", or "pbt": the trials of a batch are a population.
    """

    member: ClassVar[str]
    repeats: ClassVar[bool]
    unit: ClassVar[str] = "rollout"
    has_networks: ClassVar[bool] = True

    environment: str
    algorithm: str
    env: dict[str, Any]
    budget: int
    rungs: int
    num_envs: int
    horizon: int
    slots: int
    trials_per_batch: int
    sampler: str
    pruner: str
    seed: int
    space: dict[str, Any]
    threads: int
    precision: str = "fp32"
    processor: str
    kernels: str
    search: str = TRIALS
    code_version: str = dataclasses.field(default_factory=code_version)
    torch_version: str = dataclasses.field(default_factory=torch_version)

    @property
    @abstractmethod
    def about(self) -> str:
        """The study in a few words."""

    @property
    def objective_text(self) -> str:
        """What the objective of a trial is, in a few words."""
        return self.objective

    @property
    @abstractmethod
    def timeframe(self) -> str | None:
        """Length of a bar; None for a game."""

    @property
    def synthetic(self) -> bool:
        """Whether the study is on a generated market."""
        return False

    @property
    def solved(self) -> float | None:
        """Score from which the task counts as solved, if there is one."""
        return None

    @property
    @abstractmethod
    def rung_text(self) -> str:
        """What the value of a rung is, in a few words."""

    def member_names(self, count: int) -> list[str]:
        """Return the names of a trial's first `count` members."""
        return [f"{self.member} {index}" for index in range(count)]

    @property
    def data_tags(self) -> dict[str, str]:
        """What identifies the data of the study, for trackers."""
        return {}

    @property
    def selection(self) -> Selection:
        """How trials are compared."""
        return Selection(self.sampler == RACE, signs=self.signs, choose=self.choose)

    @property
    def evolves(self) -> bool:
        """Whether trials copy weights from each other (population-based training)."""
        return self.search == PBT

    @property
    def transitions(self) -> int:
        """Environment steps of one member in one rollout."""
        return self.num_envs * self.horizon

    @property
    def rollouts(self) -> int:
        """Rollouts of one member over the whole budget, rounded up, at least one per rung."""
        return max(self.rungs, -(-self.budget // self.transitions))

    def rung_end(self, rung: int) -> int:
        """Return the number of rollouts after which rung `rung` (1 … rungs) is reached."""
        # Rounded per rung, so that rungs differ by at most one rollout and the last ends the budget.
        return round(self.rollouts * rung / self.rungs)

    def to_json(self) -> str:
        """Return the spec as JSON, for `from_json`."""
        return json.dumps(self.without_unused(dataclasses.asdict(self)), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> StudySpec:
        """Read a spec that `to_json` wrote.

        Raises:
            InputError: the spec was written by an incompatible version.
        """
        try:
            described = ValuedSpec.with_tuples(json.loads(text))
            if is_command(described["environment"]):
                return CommandSpec(**_fitting(CommandSpec, described))
            if described["environment"] != CRYPTO:
                return GameSpec(**_fitting(GameSpec, described))
            data = _fitting(DataSpec, _fitting(CryptoSpec, described).pop("data"))
            tickers = tuple(data.pop("tickers"))
            jumps = tuple(AcceptedJump(**one) for one in data.pop("accepted_jumps"))
            own = DataSpec(tickers=tickers, accepted_jumps=jumps, **data)
            return CryptoSpec(data=own, **described)
        except (TypeError, KeyError, ValueError, AttributeError) as error:
            raise InputError(
                f"the study was made by another version of sweepd ({error}); use that version, "
                "or choose another --study-name"
            ) from None


def _fitting(kind: type[Any], described: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec as they are; ValueError that names those that do not fit."""
    fields = dataclasses.fields(kind)
    required = {
        field.name
        for field in fields
        if field.default is field.default_factory is dataclasses.MISSING
    }
    if lacking := sorted(required - described.keys()):
        raise ValueError(f"its record lacks {', '.join(lacking)}")
    if unknown := sorted(described.keys() - {field.name for field in fields}):
        raise ValueError(f"its record has {', '.join(unknown)}")
    return described


@dataclass(frozen=True, kw_only=True)
class CryptoSpec(StudySpec):
    """A study on a market; the members of a trial are its cross-validation folds.

    Attributes:
        recipe: name, version and memory (in bars) of the feature recipe.
        cv: fields of `CrossValidation`.
        holdout: share of the bars that is set aside, at the end.
        first_bar: index of the earliest bar at which a policy decides.
        max_lookback: longest lookback of any trial; observations are padded to it.
    """

    member, repeats = "fold", False

    data: DataSpec
    recipe: dict[str, Any]
    cv: dict[str, Any]
    holdout: float
    first_bar: int
    max_lookback: int

    @property
    def objective_text(self) -> str:
        return f"{self.objective}, mean over paths - 0.1 deviations"

    @property
    def timeframe(self) -> str:
        return self.data.timeframe

    @property
    def rung_text(self) -> str:
        return f"{self.objective}, mean over folds"

    def member_names(self, count: int) -> list[str]:
        """Return a fold's number and the groups it is tested on."""
        groups = CrossValidation(**self.cv).tested()
        return [
            f"{name} (test {'+'.join(map(str, tested))})"
            for name, tested in zip(super().member_names(count), groups, strict=False)
        ]

    @property
    def data_tags(self) -> dict[str, str]:
        return {
            "data_fingerprint": self.data.fingerprint,
            "timeframe": self.data.timeframe,
            "tickers": ",".join(self.data.tickers),
        }

    @property
    def synthetic(self) -> bool:
        return self.data.synthetic

    @property
    def about(self) -> str:
        return (
            f"{self.environment}, {len(self.data.tickers)} tickers, {self.data.timeframe}, "
            f"{self.cv['scheme']}, {self.budget:,} steps per fold"
        )


@dataclass(frozen=True, kw_only=True)
class SeedSpec(StudySpec):
    """A study whose members repeat a trial with other seeds.

    Attributes:
        seeds: members per trial.
        own_episodes: whether every member is evaluated on episodes of its own, as fresh seeds are.
        average: what the value of a trial is over its members: always `MEAN`.
    """

    member, repeats = "seed", True

    seeds: int
    own_episodes: bool = False
    average: str

    @property
    def timeframe(self) -> None:
        return None

    @property
    def rung_text(self) -> str:
        return f"{self.objective}, {self.average} over seeds"


@dataclass(frozen=True, kw_only=True)
class CommandSpec(SeedSpec):
    """A study of a program, which runs once per seed and reports its steps and values.

    A rollout is one step, as the program counts them: `num_envs` and `horizon` are 1.

    Attributes:
        job_memory: most resident memory of a program and its descendants in GiB; 0: no limit.
        job_minutes: longest time that a program may run; 0: no limit.
    """

    unit = "step"
    has_networks = False

    own_episodes: bool = True
    average: str = MEAN
    processor: str = ""  # results do not depend on these two
    kernels: str = ""
    job_memory: float = 0.0
    job_minutes: float = 0.0

    @property
    def selection(self) -> Selection:
        racing = self.sampler == RACE
        rungs = self.rungs if racing else None
        return Selection(racing, rungs, signs=self.signs, choose=self.choose)

    @property
    def command(self) -> str:
        """The words of the program, with names of parameters in braces."""
        return command_of(self.environment)

    @property
    def about(self) -> str:
        return f"{self.environment}, {'1 seed' if self.seeds == 1 else f'{self.seeds} seeds'}"


@dataclass(frozen=True, kw_only=True)
class GameSpec(SeedSpec):
    """A study on a game; the members of a trial are `seeds` policies trained alike.

    Members of a game with several players train together, against each other.

    Attributes:
        episodes: episodes per member in an evaluation that decides; the same ones for all trials,
            unless they are `own_episodes`.
        score_range: `VecEnv.score_range` of the game; of points, (0, 1).
        solved: score from which the game counts as solved, if there is one.
        centred: how observations are scaled, see `random_play`: always True.
        running_scale: whether the scale follows the observations of each member's own training.
        async_envs: K where environments are stepped as they are ready (`Shape.async_envs`): members
            have K times `num_envs`. Above 1, timing decides how many steps each makes, which a trial
            records. 0: all are stepped together.
        look_steps: steps per environment of the random play that determines the scaling.
        play: how members act in evaluations.
        curriculum: phases and opponents of the training, as `Curriculum.to_dict` returns them;
            empty where it has one phase, and every seat is played by the present policy.
    """

    episodes: int
    centred: bool
    running_scale: bool
    look_steps: int
    async_envs: int = 0
    play: Play = "deterministic"
    curriculum: dict[str, Any] = dataclasses.field(default_factory=dict)
    score_range: tuple[float, float] | None = None
    solved: float | None = None

    def __post_init__(self) -> None:
        if self.score_range is not None:  # a list in JSON
            low, high = self.score_range
            object.__setattr__(self, "score_range", (low, high))  # frozen class

    @property
    def selection(self) -> Selection:
        racing = self.sampler == RACE
        rungs = self.rungs if racing else None
        return Selection(
            racing, rungs, BLOCKS_KEY, self.score_range, signs=self.signs, choose=self.choose
        )

    def decides(self, rung: int) -> bool:
        """Return whether the search uses the evaluation at a rung (1 …)."""
        every = self.evolves or self.pruner != "none"
        return every or rung >= self.rungs or self.selection.settled(rung)

    @property
    def about(self) -> str:
        sampled = ", sampled play" if self.play == "sampled" else ""
        seeds = "1 seed" if self.seeds == 1 else f"{self.seeds} seeds"
        return f"{self.game}, {self.algorithm}, {seeds}, {self.budget:,} steps per seed{sampled}"

    @property
    def game(self) -> str:
        """The game's name with the settings of --scenario and --env-param."""
        settings = ", ".join(f"{name} {value}" for name, value in self.env.items())
        return f"{self.environment} ({settings})" if settings else self.environment
