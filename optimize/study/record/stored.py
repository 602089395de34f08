"""What a study records in its database: `optimize` writes it and `deploy` reads it.

A study is described by a `StudySpec`, fixed when the study is created and stored as JSON under
`SPEC_KEY`. A trial is described by a `TrialRecord`, stored as trial attributes. Every key that
sweepd writes into an Optuna study is defined in this module.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from sweepd.envs.crypto.splits import CrossValidation
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.intervals import Interval
from sweepd.optimize.study.record.configurations import PBT, RACE, TRIALS, Selection
from sweepd.optimize.study.record.data_spec import AcceptedJump, DataSpec
from sweepd.optimize.study.record.programs import COMMAND as COMMAND
from sweepd.optimize.study.record.programs import command_of
from sweepd.optimize.study.record.programs import is_command as is_command
from sweepd.optimize.study.record.values import ValuedSpec

# Study attributes.
SPEC_KEY = "sweepd:spec"  # `StudySpec` as JSON
# Random id that distinguishes a study from a later one with its name or its row id.
UID_KEY = "sweepd:uid"
FOLDER_KEY = "sweepd:folder"  # of the study's files, see `sweepd.optimize.study.record.folder`
FLAGS_KEY = "sweepd:flags"  # flags of the `sweepd train` command that created the study
CREATED_KEY = "sweepd:created"  # time of creation, ISO 8601, UTC
LEAGUE_REPORT = "league.json"  # in a study's folder: the league's players, points, equilibrium
ORIGIN_KEY = "sweepd:origin"  # of a training run: the trial that it repeats, and its weights
PRIOR_KEY = "sweepd:prior"  # earlier studies, and what the search learns from them
_SOURCE = "sweepd:source:"  # before the random id of an earlier study, see `source_key`
TOTAL_KEY = "sweepd:total"  # number of finished trials that the last worker was asked for
PAUSE_KEY = "sweepd:paused"  # present while the study is paused
# Trial attributes that are written on their own; all others are fields of `TrialRecord`.
REASON_KEY = "sweepd:reason"
CHECKPOINT_KEY = "sweepd:checkpoint"  # newest checkpoint: path, sha256, rung and rollouts
# Opponents of a trial's training from the study's league: the players and their shares.
LEAGUE_KEY = "sweepd:league"
# Of a member of a population: the weights that it copied, and its hyperparameters from then on, see
# `sweepd.optimize.study.sampling.evolution.Change`.
CHANGES_KEY = "sweepd:changes"
BLOCKS_KEY = "sweepd:rung_%_blocks"  # of a trial: a pattern for SQL, see `blocks_key`
ATTEMPTS_KEY = "sweepd:attempts"  # attempts that ended with the death of a worker
CMA_GENERATION_KEY = "sweepd:cma_generation"  # system attribute: generation of the CMA-ES sampler

MEAN = "mean"  # `GameSpec.average`
CRYPTO = "crypto"  # the environment that is a market
_PREFIX = "sweepd:"
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
        kernels: what computes PPO's networks and updates, "torch" or the native kernels
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
        look_steps: steps per environment of the random play that determines the scaling.
        play: how members act in evaluations.
        curriculum: phases and opponents of the training, as `Curriculum.to_dict` returns them;
            empty where every seat is played by the present policy.
    """

    episodes: int
    centred: bool
    running_scale: bool
    look_steps: int
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


def source_key(uid: str) -> str:
    """Return the attribute of a study whose trials a space or enqueued parameters came from."""
    return f"{_SOURCE}{uid}"


def chosen_from(attributes: Mapping[str, Any]) -> int:
    """Return the number of finished trials of other studies that a study's parameters depend on.

    Args:
        attributes: of the study: a training run, one with a prior, or one with sources.
    """
    origin, prior = attributes.get(ORIGIN_KEY) or {}, attributes.get(PRIOR_KEY) or {}
    sources = [one for key, one in attributes.items() if key.startswith(_SOURCE)]
    finished: dict[str, int] = {}  # by the study's random id: a study counts once
    for study in (*prior.get("studies", ()), *sources):
        finished[study["uid"]] = max(finished.get(study["uid"], 0), int(study["finished"]))
    return int(origin.get("finished", 0)) + sum(finished.values())


def is_ours(attributes: Mapping[str, Any]) -> bool:
    """Return whether a finished trial with these attributes was finished by a worker of sweepd.

    A study is an ordinary Optuna study, to which any program can add trials with values of its
    own. Such trials are not judged.
    """
    return any(key.startswith(_PREFIX) for key in attributes)


def rung_scores(attributes: Mapping[str, Any], rung: int) -> list[float]:
    """Return a trial's scores per member at a rung (1 …); empty where they are not recorded."""
    return list(attributes.get(rung_key(rung), ()))


def rung_key(rung: int) -> str:
    """Return the attribute of a trial's scores at a rung."""
    return f"{_PREFIX}rung_{rung}_scores"


def blocks_key(rung: int) -> str:
    """Return the attribute of what is kept of a trial's episodes at a rung, see `block_means`.

    (members, blocks), at the rungs whose mean is the value of a trial in a race.
    """
    return BLOCKS_KEY.replace("%", str(rung))


def interval_key(rung: int) -> str:
    """Return the attribute of the interval of a trial's value at a rung, an `Interval` as JSON."""
    return f"{_PREFIX}rung_{rung}_interval"


def rung_interval(attributes: Mapping[str, Any], rung: int) -> Interval | None:
    """Return the interval of a trial's value at a rung (1 …); None where it is not recorded."""
    found = attributes.get(interval_key(rung))
    return None if found is None else Interval.from_dict(found)


@dataclass(frozen=True)
class RecordedFile:
    """A file of a trial. path: relative to the study's folder. sha256: of its content."""

    path: str
    sha256: str


def record_keys(*fields: str) -> list[str]:
    """Return the attributes in which these fields of `TrialRecord` are stored."""
    names = [*fields, *(("fold_scores", "seed_scores") if "scores" in fields else ())]
    return [_PREFIX + name for name in names]


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """What a worker records about a trial besides its parameters and its value.

    A field is None where it is not recorded.

    Attributes:
        seed: seed of the trial.
        shape: fields of the program's shape.
        env_params: parameters of the environment.
        learner_params: parameters of the algorithm.
        scores: one score per member; key `fold_scores` or `seed_scores`.
        path_scores: one score per back-test path, on a market.
        metrics: metrics of the last evaluation, by name.
        resampled: what the interval of the mean return resamples, of games.
        interval: name of that interval.
        warning: what is wrong with the game, such as a score outside its declared range.
        nash_conv: mean NashConv of the members, in games that are small enough to enumerate. Also
            one of the metrics; here so that tables of trials can be sorted by it.
        members: the file with the weights that were scored; recorded when the trial is complete.
        reason: why the trial failed, was pruned, or has another value than its scores suggest.
        num_envs: environments per member.
        device: "cpu", or the model of the GPU.
        steps_per_second: environment steps per second of the worker.
        seconds: training time of the trial, all attempts together.
        phases: per member, the number of rollouts after which each of its phases began.
        starts: of a program, per seed, the first step that each attempt to run it reported: after
            a kill, it went on from its own checkpoint, or started again.
    """

    seed: int | None = None
    shape: Mapping[str, Any] | None = None
    env_params: Mapping[str, Any] | None = None
    learner_params: Mapping[str, Any] | None = None
    scores: tuple[float, ...] | None = None
    path_scores: tuple[float, ...] | None = None
    metrics: Mapping[str, float] | None = None
    resampled: str | None = None
    interval: str | None = None
    warning: str | None = None
    nash_conv: float | None = None
    members: RecordedFile | None = None
    reason: str | None = None
    num_envs: int | None = None
    device: str | None = None
    steps_per_second: float | None = None
    seconds: float | None = None
    phases: Sequence[Sequence[int]] | None = None
    starts: Sequence[Sequence[int]] | None = None

    def to_attributes(self, spec: StudySpec) -> dict[str, Any]:
        """Return the recorded fields as attributes of a trial of this study.

        Metrics and scores are also attributes of their own, under their plain names.
        """
        learner = spec.algorithm.partition(":")[0]
        names = {"scores": f"{spec.member}_scores", "learner_params": f"{learner}_params"}
        attributes = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                own = dataclasses.asdict(value) if isinstance(value, RecordedFile) else value
                attributes[_PREFIX + names.get(field.name, field.name)] = own
        return attributes | self._scalars(spec)

    def _scalars(self, spec: StudySpec) -> dict[str, float]:
        """Return each metric and score as a number of its own, which optuna-dashboard can sort."""
        numbers = dict(self.metrics or {})
        numbers |= {
            f"{spec.member}_score_{index}": score for index, score in enumerate(self.scores or ())
        }
        # JSON has no NaN; a metric that is not finite is in the record only.
        return {
            name: float(number)
            for name, number in numbers.items()
            if isinstance(number, int | float) and math.isfinite(number)
        }

    def folder(self, number: int) -> str:
        """Return the folder of the files of this trial, in the study's folder."""
        members = self.members
        return f"trial-{number:05d}" if members is None else str(Path(members.path).parent)

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> Self:
        """Read the attributes of a trial of any study."""
        fields: dict[str, Any] = {}
        names = {field.name for field in dataclasses.fields(cls)}
        for key, value in attributes.items():
            name = key.removeprefix(_PREFIX)
            if not key.startswith(_PREFIX):
                continue
            if name in ("fold_scores", "seed_scores"):
                name = "scores"
            elif name.endswith("_params") and name != "env_params":
                name = "learner_params"
            if name in ("scores", "path_scores"):
                fields[name] = tuple(float(score) for score in value)
            elif name == "members":
                fields[name] = _recorded_file(value)
            elif name in names:
                fields[name] = value
        return cls(**fields)


def _recorded_file(value: Any) -> RecordedFile | None:
    if not isinstance(value, Mapping) or not {"path", "sha256"} <= set(value):
        return None
    return RecordedFile(str(value["path"]), str(value["sha256"]))
