"""Checkpoints of trials: one safetensors file each, written atomically.

What is not a tensor is JSON in the header, the descriptions of the members included
(`safetensors.safe_open(path, "pt").metadata()["sweepd"]`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from sweepd.agents.engine.description import DESCRIPTION, packed, unpacked
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic

FORMAT = 3
State = dict[str, Tensor]


@dataclass
class MemberState:
    """One member between two rollouts.

    Attributes:
        learner: result of `Program.get_member`; None before the first rollout.
        env: result of `VecEnv.get_member`; None before the first rollout.
        rollouts: number of rollouts done.
    """

    learner: State | None = None
    env: State | None = None
    rollouts: int = 0


@dataclass
class Checkpoint:
    """A trial between two rollouts.

    Attributes:
        members: one per fold or seed.
        rung: number of rungs reached.
        seconds: training time so far, all attempts together.
        note: identity of the trial (number, seed, parameters), checked when it is resumed.
        curves: by rollout since the last rung, one row of the algorithm's curves per member that
            has done that rollout.
        evaluations: by rollout, the values of evaluations beside rungs; None: not finite.
    """

    members: list[MemberState]
    rung: int = 0
    seconds: float = 0.0
    note: dict[str, Any] = field(default_factory=dict)
    curves: dict[int, list[list[float]]] = field(default_factory=dict)
    evaluations: dict[int, float | None] = field(default_factory=dict)

    @property
    def begun(self) -> bool:
        """Whether a member has been trained."""
        return self.rollouts > 0

    @property
    def rollouts(self) -> int:
        """The rollouts of all members together. Every rollout of a member increases it."""
        return sum(member.rollouts for member in self.members)

    def all_at(self, rollouts: int) -> bool:
        """Return whether every member has done this number of rollouts."""
        return all(member.rollouts == rollouts for member in self.members)

    @property
    def progress(self) -> tuple[int, int]:
        """Rollouts and rung, by which checkpoints of a trial are ordered."""
        return self.rollouts, self.rung

    def at(self, unit: str) -> str:
        """Say "rollout 12", or "rollouts 8 to 12" if some members are ahead. unit: "rollout"."""
        fewest = min(member.rollouts for member in self.members)
        most = max(member.rollouts for member in self.members)
        return f"{unit} {most}" if fewest == most else f"{unit}s {fewest} to {most}"


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> str:
    """Write a checkpoint and return the sha256 of the file."""
    content = checkpoint_bytes(checkpoint)
    write_atomic(path, content)
    return hashlib.sha256(content).hexdigest()


def checkpoint_bytes(checkpoint: Checkpoint) -> bytes:
    """Return the content of a checkpoint's file."""
    tensors: State = {}
    for fold, member in enumerate(checkpoint.members):
        for part, state in (("learner", member.learner), ("env", member.env)):
            for name, tensor in (state or {}).items():
                if name != DESCRIPTION:
                    tensors[f"{fold}.{part}.{name}"] = tensor.detach().cpu().contiguous()
    tensors |= _packed(checkpoint.curves)
    described = {
        "format": FORMAT,
        "rung": checkpoint.rung,
        "seconds": checkpoint.seconds,
        "note": checkpoint.note,
        "rollouts": [member.rollouts for member in checkpoint.members],
        "members": [member.learner and unpacked(member.learner) for member in checkpoint.members],
    }
    if checkpoint.evaluations:
        described["evaluations"] = sorted(checkpoint.evaluations.items())
    # safetensors cannot store an empty file.
    return save(  # as arrays: three times as fast as tensors, with the same bytes
        {name: one.numpy() for name, one in (tensors or {"empty": torch.zeros(1)}).items()},
        metadata={"sweepd": json.dumps(described, sort_keys=True)},
    )


def read_checkpoint(path: Path, sha256: str | None = None) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        InputError: the file is missing, damaged, of another format, or does not have this sha256.
    """
    try:
        if sha256 is not None and hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
            raise InputError(f"{path} is not the checkpoint that was recorded (its hash differs)")
        with safe_open(str(path), framework="pt") as file:
            described = json.loads((file.metadata() or {})["sweepd"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 -- not a mapping
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not a checkpoint of sweepd ({error})") from None
    if described.get("format") != FORMAT:
        raise InputError(
            f"{path} is a checkpoint of format {described.get('format')!r}; this version reads "
            f"format {FORMAT}"
        )
    members = [
        MemberState(_part(tensors, fold, "learner"), _part(tensors, fold, "env"), int(rollouts))
        for fold, rollouts in enumerate(described["rollouts"])
    ]
    for member, description in zip(members, described["members"], strict=True):
        if member.learner is not None:
            member.learner[DESCRIPTION] = packed(description)
    rung, seconds, note = (
        int(described["rung"]),
        float(described["seconds"]),
        dict(described["note"]),
    )
    evaluations = {int(at): value for at, value in described.get("evaluations", ())}
    return Checkpoint(members, rung, seconds, note, _unpacked(tensors), evaluations)


def _packed(curves: Mapping[int, list[list[float]]]) -> State:
    rows = [row for at in sorted(curves) for row in curves[at]]
    if not rows:
        return {}
    counts = [[at, len(curves[at])] for at in sorted(curves)]
    return {
        "curves.counts": torch.tensor(counts),
        "curves.rows": torch.tensor(rows, dtype=torch.float64),
    }


def _unpacked(tensors: Mapping[str, Tensor]) -> dict[int, list[list[float]]]:
    if "curves.counts" not in tensors:
        return {}
    rollouts, counts = tensors["curves.counts"].T.tolist()
    parts = torch.split(tensors["curves.rows"], counts)
    return {at: part.tolist() for at, part in zip(rollouts, parts, strict=True)}


def _part(tensors: Mapping[str, Tensor], fold: int, part: str) -> State | None:
    prefix = f"{fold}.{part}."
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    } or None
