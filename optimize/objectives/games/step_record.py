"""The steps that each environment made, where those that are ready first go on first.

Timing decides them, so a trial writes them to its folder. With them, parameters and seed, it can be
repeated to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sweepd.envs.external.ready_vec_env import STEPS
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic
from sweepd.optimize.study.checkpoint import State

FILE = "steps.safetensors"
NOTE = (
    "environments are stepped as they are ready: timing decides how many steps each makes in a "
    f"rollout, so a trial with the same seed can end with other numbers; its {FILE} repeats it"
)


def write_steps(folder: Path, states: Sequence[State | None]) -> None:
    """Write the steps of a trial's members, (rollouts, environments) int32 each.

    Args:
        folder: of the trial.
        states: of the members' environments, as `ReadyVecEnv.get_member` returns them.
    """
    made = {f"seed_{at}": state[STEPS].numpy() for at, state in enumerate(states) if state}
    write_atomic(folder / FILE, save(made))


def read_steps(folder: Path, members: int) -> list[NDArray[np.int32]]:
    """Return what `write_steps` wrote, by member.

    Raises:
        InputError: the file is missing or damaged.
    """
    path = folder / FILE
    try:
        found = load(path.read_bytes())
        return [found[f"seed_{at}"] for at in range(members)]
    except (OSError, KeyError, SafetensorError) as error:
        raise InputError(f"{path} cannot be read ({error})") from None
