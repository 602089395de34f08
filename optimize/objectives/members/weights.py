"""Weights of other networks from which those of a study start."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sweepd.agents.networks.net import StateDict
from sweepd.agents.policy.frozen import load_members
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.checkpoint import State, read_checkpoint
from sweepd.optimize.study.study import Plan, StudyHandle


def weights_file(path: Path) -> dict[str, str]:
    """Return what a study records of a file of weights: its path and sha256."""
    return {"path": str(path.resolve()), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def initial_actors(
    handle: StudyHandle, actors_of: Callable[[Plan, Sequence[State]], list[StateDict]], plan: Plan
) -> list[StateDict]:
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
