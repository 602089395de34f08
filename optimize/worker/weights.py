"""Weights of a trial from which the networks of a training run start."""

from __future__ import annotations

import hashlib
from pathlib import Path

from sweepd.agents.networks.weights import StateDict
from sweepd.agents.policy.frozen import load_members
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.study import StudyHandle


def initial_actors(handle: StudyHandle) -> list[StateDict]:
    """Return the actors from which a study's members start; empty for the usual initialization.

    Raises:
        InputError: the file is missing, or its bytes are not those that were scored.
    """
    weights = None if handle.origin is None else handle.origin["weights"]
    if weights is None:
        return []
    path = Path(weights["path"])
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(
            f"the weights {path} that run {handle.name} starts from cannot be read "
            f"({error.strerror})"
        ) from None
    if digest != weights["sha256"]:
        raise InputError(
            f"the weights {path} that run {handle.name} starts from have been changed since their "
            "trial was scored"
        )
    return load_members(path)
