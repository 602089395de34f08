"""Descriptions of members: JSON that says, by name, what a saved member's tensors are.

In a member's state, which is a dict of tensors, a description is the tensor `DESCRIPTION`; in a
checkpoint it is in the header of the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.nested import differences

DESCRIPTION = "description"


def packed(description: Mapping[str, Any]) -> Tensor:
    """Return a description as the bytes of its JSON, uint8."""
    return torch.frombuffer(bytearray(json.dumps(description).encode()), dtype=torch.uint8)


def unpacked(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the description in a member's state.

    Raises:
        InputError: there is none.
    """
    if DESCRIPTION not in state:
        raise InputError(f"A member's state must hold {DESCRIPTION}.")
    found: dict[str, Any] = json.loads(bytes(state[DESCRIPTION].tolist()))
    return found


def differing(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return where descriptions differ, as "net_width is 64, not 32"; "" where they are equal."""
    found = differences(wanted, given)
    return ", ".join(f"{name} is {theirs!r}, not {own!r}" for name, own, theirs in found)
