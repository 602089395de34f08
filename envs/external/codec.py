"""Between the spaces of an environment and the rows that networks read and write.

`SpaceCodec` is what a policy needs to act in an environment outside a study: observations of the
space become a network's inputs, and its outputs become actions of the space, as in training. It can
be written to JSON, so a bundle acts where the environment is not installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from sweepd.envs.external.actions import ActionLayout
from sweepd.envs.external.describe import Description, EnvKind
from sweepd.envs.external.observations import MASK, OBSERVATION, ObservationLayout
from sweepd.envs.support.errors import InputError, RunError

Space = gymnasium.spaces.Space[Any]


@dataclass(frozen=True)
class SpaceCodec:
    """Reads observations of one space, and gives actions of another.

    Attributes:
        observation_space: of one environment, or one agent.
        action_space: of one environment, or one agent.
        masks_in_info: whether `info["action_mask"]` says which actions are legal.
    """

    observation_space: Space
    action_space: Space
    masks_in_info: bool = False

    @classmethod
    def of(cls, what: Description) -> SpaceCodec:
        """Return the codec of an external environment."""
        observation, masked = what.observations.space, what.kind is EnvKind.MASKED
        if masked:  # without what `InfoMask` added
            assert isinstance(observation, spaces.Dict)
            observation = observation[OBSERVATION]
        return cls(observation, what.actions.space, masked)

    @cached_property
    def observations(self) -> ObservationLayout:
        """How observations are laid out in rows."""
        # Masks in `info` are no part of the observation; see `InfoMask`.
        actions = None if self.masks_in_info else self.actions
        return ObservationLayout(self.observation_space, actions)

    @cached_property
    def actions(self) -> ActionLayout:
        """How actions are laid out in rows."""
        return ActionLayout(self.action_space)

    def batch_size(self, observation: Any) -> int | None:
        """Return the number of observations in a batch; None for a single one.

        Raises:
            RunError: it is neither one observation of the space nor a batch of them.
        """
        counts: set[int | None] = set()
        for leaf in self.observations.leaves:
            shape = np.shape(_part(observation, leaf.path, self.observation_space))
            if shape == leaf.shape:
                counts.add(None)
            elif shape[1:] == leaf.shape:
                counts.add(int(shape[0]))
            else:
                where = f" at {'/'.join(map(str, leaf.path))}" if leaf.path else ""
                raise RunError(
                    f"the observation{where} has the shape {shape}; the space has {leaf.shape}, "
                    f"and a batch has (n, {', '.join(map(str, leaf.shape))})"
                )
        if len(counts) != 1:
            raise RunError(f"the parts of the observation have different numbers of rows: {counts}")
        return counts.pop()

    def read(self, observation: Any) -> tuple[NDArray[Any], NDArray[np.bool_] | None]:
        """Return a network's inputs, and the flags of legal options.

        Args:
            observation: one of the space, or a batch as Gymnasium's vector environments return it.

        Returns:
            (n, columns) float32 or, of images, uint8; and (n, options) bool, or None without masks
            in the observation. n is 1 for a single observation.

        Raises:
            RunError: it is not of the space: its shape, its type, a choice that the space does not
                have, or a number that is not finite.
        """
        layout, size = self.observations, self.batch_size(observation)
        rows = np.zeros(1 if size is None else size, layout.dtype)
        for leaf, field in zip(layout.leaves, layout.fields(rows), strict=True):
            value = np.asarray(_part(observation, leaf.path, self.observation_space))
            wanted = field.dtype
            if not np.can_cast(value.dtype, wanted, "same_kind") and not _is_exact(value, wanted):
                raise RunError(
                    f"the observation has the type {value.dtype}, which cannot be converted to the "
                    f"{wanted} of the space"
                )
            field[...] = value
            _check_values(field, leaf.choices, leaf.start)
        inputs = layout.unpack(torch.from_numpy(rows.view(np.uint8).reshape(len(rows), -1)))
        return inputs.numpy(), layout.flags(rows) if layout.masked else None

    def legal(self, info: Mapping[str, Any] | None, size: int | None) -> NDArray[np.bool_]:
        """Return the flags of legal options from an `info`: (n, options) bool.

        Raises:
            RunError: there is no `info`, or it has no mask of the right shape.
        """
        options = sum(self.actions.choices)
        if info is None or MASK not in info:
            raise RunError(
                f'this environment says in info["{MASK}"] which actions are legal: give the info '
                "of the observation, too: action(observation, info)"
            )
        mask = np.asarray(info[MASK])
        rows = 1 if size is None else size
        if mask.size != rows * options:
            raise RunError(f'info["{MASK}"] has the shape {mask.shape}; expected {options} flags')
        flags: NDArray[np.bool_] = mask.reshape(rows, options) != 0
        return flags

    def write(self, actions: NDArray[Any], *, batch: bool) -> Any:
        """Return actions of the space from a network's actions.

        Args:
            actions: (n, width) numbers in [-1, 1] or choices; of a single choice also (n,).
            batch: whether to return a batch as vector environments take it; else n is 1.
        """
        rows = actions.reshape(len(actions), -1).astype(self.actions.dtype)
        if batch:
            return self.actions.decode_batch(rows)
        return self.actions.decode(rows)[0]

    def to_dict(self) -> dict[str, Any]:
        """Return the spaces for JSON; see `from_dict`."""
        return {
            "observation": _to_dict(self.observation_space),
            "action": _to_dict(self.action_space),
            "masks_in_info": self.masks_in_info,
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> SpaceCodec:
        """Return the codec that `to_dict` described.

        Raises:
            InputError: it describes none.
        """
        try:
            return cls(
                _from_dict(content["observation"]),
                _from_dict(content["action"]),
                bool(content["masks_in_info"]),
            )
        except (KeyError, TypeError, ValueError, AssertionError) as error:
            raise InputError(f"the description of the spaces is damaged: {error!r}") from error


def _part(observation: Any, path: tuple[str | int, ...], space: Space) -> Any:
    try:
        for key in path:
            observation = observation[key]
    except (KeyError, IndexError, TypeError) as error:
        where = "/".join(map(str, path))
        raise RunError(f"the observation has no part {where}, which {space} has") from error
    return observation


def _is_exact(value: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether a conversion keeps all values; flags and small numbers come in many types."""
    if value.dtype.kind not in "biu":
        return False
    return bool((value.astype(dtype) == value).all())


def _check_values(field: NDArray[Any], choices: tuple[int, ...], start: tuple[int, ...]) -> None:
    if field.dtype.kind == "f" and not np.isfinite(field).all():
        rows = field.reshape(len(field), -1)
        row, column = np.argwhere(~np.isfinite(rows))[0].tolist()
        raise RunError(
            f"column {column} of the observation is {rows[row, column]}, which is not finite; clip "
            "or replace it"
        )
    if choices:
        option = field.reshape(len(field), -1) - np.array(start)
        if not ((option >= 0) & (option < np.array(choices))).all():
            raise RunError(
                f"the observation has a choice that its space does not have: it has "
                f"{list(choices)} options from {list(start)}"
            )


def _to_dict(space: Space) -> dict[str, Any]:
    kind = type(space).__name__
    if isinstance(space, spaces.Dict):
        return {"kind": kind, "parts": {name: _to_dict(part) for name, part in space.items()}}
    if isinstance(space, spaces.Tuple):
        return {"kind": kind, "parts": [_to_dict(part) for part in space]}
    if isinstance(space, spaces.Discrete):
        return {"kind": kind, "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        start = np.broadcast_to(space.start, space.nvec.shape)
        return {
            "kind": kind,
            "nvec": space.nvec.tolist(),
            "start": start.tolist(),
            "dtype": str(space.dtype),
        }
    if isinstance(space, spaces.MultiBinary):
        return {"kind": kind, "n": space.n if isinstance(space.n, int) else list(space.shape)}
    assert isinstance(space, spaces.Box)
    return {
        "kind": kind,
        "shape": list(space.shape),
        "dtype": str(space.dtype),
        "low": _bounds(space.low),
        "high": _bounds(space.high),
    }


def _bounds(values: NDArray[Any]) -> Any:
    """Return equal bounds as one number; JSON has no infinity, which is text."""
    flat = values.reshape(-1).tolist()
    listed = [value if np.isfinite(value) else str(value) for value in flat]
    return listed[0] if len(set(listed)) == 1 else listed


def _from_dict(content: Mapping[str, Any]) -> Space:
    kind, parts = content["kind"], content.get("parts")
    if kind == "Dict":
        return spaces.Dict({name: _from_dict(part) for name, part in content["parts"].items()})
    if kind == "Tuple":
        return spaces.Tuple([_from_dict(part) for part in parts or ()])
    if kind == "Discrete":
        return spaces.Discrete(content["n"], start=content["start"])
    if kind == "MultiDiscrete":
        dtype = np.dtype(content["dtype"]).type
        return spaces.MultiDiscrete(content["nvec"], dtype=dtype, start=content["start"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(content["n"])
    if kind != "Box":
        raise ValueError(f"there is no space of the kind {kind}")
    shape, dtype = tuple(content["shape"]), np.dtype(content["dtype"])
    low, high = (
        np.broadcast_to(
            np.array(content[name], np.float64 if dtype.kind == "f" else None).reshape(
                shape if isinstance(content[name], list) else ()
            ),
            shape,
        ).astype(dtype)
        for name in ("low", "high")
    )
    return spaces.Box(low, high, shape, dtype.type)
