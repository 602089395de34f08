"""The trial whose parameters are exported, as its study recorded it. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial
from safetensors import SafetensorError, safe_open

from sweepd.envs.external.wrapping import KEY as WRAPPERS
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.trials import TrialRecord

GYM = "gym:"  # before the id of a Gymnasium environment
# Fields of a shape that a search space may leave out, with their values then.
SHAPE_DEFAULTS: Mapping[str, Any] = {
    "activation": "relu",
    "recurrent": "",
    "bptt": 16,
    "item_width": 16,
    "entity_width": 0,
    "policies": "shared",
}

_NUMBERS = ("ActorPPO", "ActorSAC")  # kinds of networks whose actions are numbers


@dataclass(frozen=True)
class NetworkFacts:
    """What a trial's file of weights tells of its networks.

    Attributes:
        discrete: whether actions are choices.
        action_dim: numbers of an action, or options of all choices together.
        image: whether observations are images.
    """

    discrete: bool
    action_dim: int
    image: bool


class Recorded(dict[str, Any]):
    """What a trial recorded, by name; a name that it lacks is an InputError."""

    def __missing__(self, name: str) -> Any:
        raise InputError(
            f"the trial has not recorded its {name}: it was trained by another version of sweepd"
        )


@dataclass(frozen=True)
class NamedStudy:
    """A study as `sweepd.load_policy` takes it, see `sweepd.deploy.api.policy.OpenStudy`."""

    name: str
    storage: str
    runs_dir: Path | None


@dataclass(frozen=True)
class Source:
    """A trial.

    Attributes:
        study: name of its study.
        trial: the trial.
        spec: what the study was created with.
        record: what the worker wrote down.
        network: facts about its networks; None where its weights are not here.
        changed_with: what changed its parameters during its training; "": nothing.
    """

    study: str
    trial: FrozenTrial
    spec: Any
    record: TrialRecord
    network: NetworkFacts | None
    changed_with: str = ""

    @property
    def name(self) -> str:
        """The trial as commands take it."""
        return f"{self.study}#{self.trial.number}"

    @property
    def algorithm(self) -> str:
        """Name of its algorithm."""
        return str(self.spec.algorithm)

    @property
    def of_program(self) -> bool:
        """Whether the study is of a program (`--env command:…`)."""
        return not self.spec.has_networks

    @property
    def environment_id(self) -> str:
        """Its environment as Gymnasium calls it; of other environments their name in sweepd."""
        return str(self.spec.environment).removeprefix(GYM)

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments with which an environment of Gymnasium is made."""
        return {name: value for name, value in self._arguments.items() if name != WRAPPERS}

    @property
    def wrappers(self) -> list[str]:
        """What the environment is wrapped in, as `--wrapper` takes it."""
        return list(self._arguments.get(WRAPPERS, ()))

    @property
    def _arguments(self) -> dict[str, Any]:
        pairs = (self.record.env_params or {}).get("arguments", ())
        return {str(name): value for name, value in pairs}

    @property
    def values(self) -> Recorded:
        """All hyperparameters by their names in sweepd, with the sizes of rollouts and networks.

        Besides: `steps`, the environment steps of a member's whole rollouts; `discrete` and
        `action_dim`, None where they are not known.
        """
        spec, facts = self.spec, self.network
        found = {
            **SHAPE_DEFAULTS,
            **(self.record.shape or {}),
            **(self.record.learner_params or {}),
            "num_envs": spec.num_envs,
            "horizon": spec.horizon,
            "steps": spec.rollouts * spec.transitions,
            "running_scale": getattr(spec, "running_scale", False),
            "discrete": None if facts is None else facts.discrete,
            "action_dim": None if facts is None else facts.action_dim,
        }
        return Recorded(found)


def find_source(study: StudyReader, number: str) -> Source:
    """Return a trial of a study.

    Args:
        study: the study.
        number: number of the trial; "": the best one.

    Raises:
        InputError: there is no such trial, or it has not been trained.
    """
    if not number:
        best = study.best_trial()  # has not all attributes
        if best is None:
            raise InputError(
                f"{study.name}: no trial is complete; name one that has been trained: "
                f"{study.name}#NUMBER"
            )
        number = str(best.number)
    trials = study.trials()
    found = next((one for one in trials if str(one.number) == number), None)
    if found is None:
        raise InputError(
            f"{study.name}#{number}: the study has no such trial; it has {len(trials)}, numbered "
            "from 0"
        )
    record = TrialRecord.from_attributes(found.user_attrs)
    if record.learner_params is None:
        raise InputError(f"{study.name}#{found.number} has not been trained: it has no parameters")
    network = None
    if record.members is not None and study.spec.has_networks:
        network = _network(study.run_dir / record.members.path)
    return Source(study.name, found, study.spec, record, network, study.changes_with)


def _network(path: Path) -> NetworkFacts | None:
    """Read what the first member of a file is; None if the file is not there or does not tell."""
    try:
        with safe_open(path, framework="numpy") as file:
            told = (file.metadata() or {}).get("sweepd")
        if told is not None:
            spec = json.loads(told)[0]
        else:
            # Not at the top: it needs torch, and new files tell.
            from sweepd.agents.policy.members import load_members

            spec = load_members(path)[0].spec.to_dict()
    except (OSError, SafetensorError, InputError):
        return None
    return NetworkFacts(spec["kind"] not in _NUMBERS, spec["actions"], "image" in spec)
