"""Frozen members, and the file that holds those of a policy.

A file is safetensors, with tensors `m000.net.0.weight`, … of member 0, `m001.…` of member 1, and so
on. Its metadata has under "sweepd" what each member is (`sweepd.agents.networks.spec`), a JSON list.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from sweepd.agents.engine.program import Program
from sweepd.agents.networks.net import check_tensors
from sweepd.agents.networks.spec import CRITICS, NetSpec
from sweepd.agents.policy import undescribed
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic

METADATA = "sweepd"
_MOST = 999
_KEY = re.compile(r"m(\d{3})\.(.+)")


class Member(NamedTuple):
    """An actor, or a network of values, with fixed weights.

    Attributes:
        spec: what it is.
        tensors: float32, by the names of `NetSpec.shapes`.
    """

    spec: NetSpec
    tensors: Mapping[str, Tensor]

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor]) -> Member:
        """Return the member of tensors without a description, see `undescribed`."""
        return cls(*undescribed.described(tensors))


def actor_of(program: Program, slot: int) -> Member:
    """Return a copy of the actor in a slot of a program."""
    return Member(program.actor_spec, program.export_member(slot)[0])


def check_members(members: Sequence[Member], source: str = "the policy") -> None:
    """Check that members are valid and fit together.

    Args:
        members: the members.
        source: where they come from, for the message.

    Raises:
        InputError: naming the source, the member and what is wrong.
    """
    if not members:
        raise InputError(f"{source} has no members.")
    first = members[0].spec
    for index, member in enumerate(members):
        if fault := _fault(member) or _misfit(member.spec, first):
            raise InputError(f"{source}: member {index} {fault}.")


def _fault(member: Member) -> str | None:
    """Return why a member is not valid, as the end of a sentence."""
    spec, tensors = member
    if spec.kind in CRITICS:
        return f"is a {spec.kind}, which does not act"
    plain = spec.kind == "ActorDiscretePPO" and not spec.cell and not spec.autoregressive
    if spec.seat_column is not None and not plain:
        return "has a policy for each seat, and is recurrent, autoregressive or one of numbers"
    try:
        check_tensors(spec, tensors)
    except InputError as error:
        return f"is not as it is described: {str(error).removesuffix('.')}"
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32:
            return f"has {name} as {tensor.dtype}, not float32"
        if not bool(torch.isfinite(tensor).all()):
            return f"has values in {name} that are not finite"
    avg, std = tensors["state_avg"], tensors["state_std"]
    if not bool((std > 0).all()):
        return "has values in state_std that are not above zero"
    fixed = [] if spec.items is None else spec.items.id_columns()
    fixed += [] if spec.seat_column is None else [spec.seat_column]
    if bool((avg[fixed] != 0).any() or (std[fixed] != 1).any()):
        return "has a normaliser that changes the ids of items or the column of the seat"
    return None


def _misfit(spec: NetSpec, first: NetSpec) -> str | None:
    """Return why a member does not fit the first one, as the end of a sentence."""
    if spec.discrete != first.discrete:
        gives = ["gives numbers", "chooses among actions"]
        return f"{gives[spec.discrete]}, but member 0 {gives[first.discrete]}"
    if (spec.columns, spec.actions) != (first.columns, first.actions):
        return (
            f"maps {spec.columns} inputs to {spec.actions} actions, but member 0 maps "
            f"{first.columns} to {first.actions}"
        )
    if spec.sizes != first.sizes:
        return f"makes choices of {spec.sizes}, but member 0 of {first.sizes}"
    return None


def save_members(path: Path, members: Sequence[Member]) -> None:
    """Write members to a file, atomically. Equal members give equal bytes.

    Raises:
        InputError: a member is not valid, or there are too many.
    """
    check_members(members, str(path))
    if len(members) > _MOST:
        raise InputError(f"{path}: {len(members)} members are too many; at most {_MOST} fit.")
    # Sorted names and contiguous tensors: bundles are hashed by their bytes.
    described = json.dumps([member.spec.to_dict() for member in members], sort_keys=True)
    tensors = numbered([member.tensors for member in members])
    write_atomic(path, save_tensors(tensors, {METADATA: described}))


def numbered(members: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return copies of members' tensors by their names in a file."""
    return {
        f"m{index:03d}.{name}": tensor.detach().cpu().contiguous().clone()
        for index, tensors in enumerate(members)
        for name, tensor in sorted(tensors.items())
    }


def load_members(path: Path) -> list[Member]:
    """Read and check the members of a file, in order.

    Raises:
        InputError: naming the file, and the member and tensor that are wrong.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from error
    return read_members(content, str(path))


def read_members(content: bytes, source: str) -> list[Member]:
    """Read and check the members in the bytes of a file, in order.

    Args:
        content: the bytes.
        source: the file's name, for messages.

    Raises:
        InputError: naming the file, and the member and tensor that are wrong.
    """
    members, described = split_file(content, source)
    try:
        found = _described(members, described)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error
    check_members(found, source)
    return found


def chosen_members(content: bytes, chosen: Sequence[int], source: str) -> bytes:
    """Return the bytes of a file with some of the members of another one, in this order.

    Raises:
        InputError: it is not such a file, or has fewer members.
    """
    members, described = split_file(content, source)
    if max(chosen) >= len(members):
        raise InputError(f"{source} holds {len(members)} members, none numbered {max(chosen)}.")
    tensors = numbered([members[index] for index in chosen])
    if not isinstance(described, list):
        return save_tensors(tensors)
    text = json.dumps([described[index] for index in chosen], sort_keys=True)
    return save_tensors(tensors, {METADATA: text})


def split_file(content: bytes, source: str) -> tuple[list[dict[str, Tensor]], Any]:
    """Return the tensors of each member of a file, of any program, and its description of them.

    Raises:
        InputError: it is not such a file.
    """
    try:
        named = load_tensors(content)
        size = int.from_bytes(content[:8], "little")
        metadata = json.loads(content[8 : 8 + size]).get("__metadata__", {})
        described = json.loads(metadata.get(METADATA, "null"))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{source} is not a safetensors file, or is damaged: {error}.") from error
    members: dict[int, dict[str, Tensor]] = {}
    for key, tensor in named.items():
        match = _KEY.fullmatch(key)
        if match is None:
            raise InputError(
                f"{source}: {key!r} is not a member's tensor; names look like 'm000.net.0.weight'."
            )
        members.setdefault(int(match[1]), {})[match[2]] = tensor
    # A gap means that a part of the file is missing.
    if sorted(members) != list(range(len(members))):
        raise InputError(
            f"{source}: members are numbered {sorted(members)}; they must be numbered from 0 "
            "without gaps."
        )
    return [members[index] for index in range(len(members))], described


def _described(members: Sequence[dict[str, Tensor]], described: Any) -> list[Member]:
    if described is None:
        return [Member.of_tensors(tensors) for tensors in members]
    if not isinstance(described, list) or len(described) != len(members):
        raise InputError(f"its metadata do not describe its {len(members)} members.")
    return [
        Member(NetSpec.from_dict(spec), tensors)
        for spec, tensors in zip(described, members, strict=True)
    ]
