"""Weights and states of other trials from which those of a study start."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sweepd.agents.networks.spec import NetSpec
from sweepd.agents.policy.members import Member, load_members
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.checkpoint import Checkpoint, State, read_checkpoint
from sweepd.optimize.study.study import Plan, StudyHandle

FORKED = "forked.safetensors"  # in the folder of a fork: the state that its trial continues


def weights_file(path: Path) -> dict[str, str]:
    """Return what a study records of a file of weights: its path and sha256."""
    return {"path": str(path.resolve()), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def initial_actors(
    handle: StudyHandle, actors_of: Callable[[Plan, Sequence[State]], list[Member]], plan: Plan
) -> list[Member]:
    """Return the actors from which a trial's members start; empty for the usual initialization.

    Args:
        handle: the study.
        actors_of: returns the actors in members' states, see `Trainer.actors_of`.
        plan: the trial.

    Raises:
        InputError: the file is missing, its bytes are not those that were recorded, or its networks
            have another shape.
    """
    weights: dict[str, Any] | None = None if handle.origin is None else handle.origin["weights"]
    if weights is None:
        return []
    path = Path(weights["path"])
    try:
        found = weights_file(path)
    except OSError as error:
        raise InputError(
            f"the weights {path} that run {handle.name} starts from cannot be read "
            f"({error.strerror})"
        ) from None
    if found["sha256"] != weights["sha256"]:
        raise InputError(
            f"the weights {path} that run {handle.name} starts from have been changed since their "
            "trial was scored"
        )
    if not path.name.startswith("checkpoint"):
        return load_members(path)
    members = [member.learner for member in read_checkpoint(path).members]
    return actors_of(plan, [member for member in members if member is not None])


def forked_state(handle: StudyHandle) -> Checkpoint | None:
    """Return the state that the trial of a fork continues; None in other studies.

    Raises:
        InputError: its file is missing, or its bytes are not those that were recorded.
    """
    if handle.fork is None:
        return None
    try:
        return read_checkpoint(handle.run_dir / FORKED, handle.fork["sha256"])
    except InputError as error:
        raise InputError(
            f"{error}; the sweepd fork command that made study {handle.name} writes it again"
        ) from None


def check_start(actor: Member, wanted: NetSpec) -> None:
    """Raise InputError if members cannot start from an actor, since their actors are others.

    The scale of observations may change: `clip` is that of the study.
    """
    differs = [
        f"{name} {given}, not {own}"
        for name, given in _compared(actor.spec).items()
        if given != (own := _compared(wanted)[name])
    ]
    if differs:
        raise InputError(f"the weights to start from are of a network of {'; '.join(differs)}")


def _compared(spec: NetSpec) -> dict[str, Any]:
    """Return the fields in which a network must equal those that start from it."""
    fields = {field.name: getattr(spec, field.name) for field in dataclasses.fields(spec)}
    if (items := spec.items) is not None:
        # Names and scales do not matter, and files that do not describe their members lack them.
        known = [name for name, _ in items.features]
        groups = [(group.count, *map(known.index, group.features)) for group in items.groups]
        facts = torch.tensor(items.facts, dtype=torch.float32).tolist()
        fields["items"] = items.vocabulary, groups, len(items.plain), facts
    del fields["clip"]
    return fields
