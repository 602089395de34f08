"""What an environment is for a learner: its observations, its actions, and who acts in a row."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from sweepd.envs.core.entities import Entities
from sweepd.envs.core.items import Items
from sweepd.envs.support.errors import InputError

if TYPE_CHECKING:
    import torch

FLOAT, BYTES = "float32", "uint8"


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """What decides the tensors and the networks that a learner needs for an environment.

    It is the one list of these traits: an environment has them as attributes of the same names, from
    which `VecEnv.spec` is made, and `sweepd.agents.networks.shape.Shape` is one with more fields.
    `dataclasses.asdict` makes it JSON, and pydantic's `TypeAdapter` reads that.

    Attributes:
        state_dim: number of observation columns that policies read.
        action_dim: number of action components, or of options of all choices if actions are
            discrete.
        if_discrete: whether actions are choices rather than numbers.
        action_dims: sizes of the choices of a multi-discrete action, else (). Their sum is
            `action_dim`, and actions are (num_envs, choices) int64.
        masked: whether choices may be illegal; `VecEnv.action_mask` then tells which are legal.
        players: number of players that act in turns in every row; `VecEnv.to_move` tells whose turn
            it is. 1 if every row is one player's.
        has_absent_agents: whether rows may lack an agent; `VecEnv.present` tells which have one.
        privileged_dim: number of trailing observation columns that only critics may read.
        obs_dtype: type of observations: "float32", or "uint8" of images and of numbers from 0 to
            255.
        image_shape: (channels, height, width) if observations are images: uint8, flattened in that
            order. None otherwise.
        items: how the columns are laid out, if observations are bytes with items that networks look
            up by id. None otherwise.
        entities: which columns describe several things of a kind, which networks may read by one
            shared layer. None if there are none.
        seat_column: column of observations that tells which seat's they are, for learners with a
            policy for each seat: 0 for one, 1 for the other. None if there is none.

    Raises:
        InputError: the traits do not fit together.
    """

    state_dim: int
    action_dim: int
    if_discrete: bool = False
    action_dims: tuple[int, ...] = ()
    masked: bool = False
    players: int = 1
    has_absent_agents: bool = False
    privileged_dim: int = 0
    obs_dtype: str = FLOAT
    image_shape: tuple[int, int, int] | None = None
    items: Items | None = None
    entities: Entities | None = None
    seat_column: int | None = None

    def __post_init__(self) -> None:
        self._check_types()
        self._check_actions()
        self._check_observations()

    def _check_types(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in ("privileged_dim", "entity_width", "async_envs") else 1
            if field.type == "int" and (not isinstance(value, int) or value < least):
                raise InputError(
                    f"{field.name} must be a whole number of at least {least}, not {value!r}."
                )
            if field.type == "bool" and not isinstance(value, bool):
                raise InputError(f"{field.name} must be true or false, not {value!r}.")

    def _check_actions(self) -> None:
        if (self.masked or self.action_dims) and not self.if_discrete:
            raise InputError(
                "masks (masked) and several choices (action_dims) need actions that are choices; set "
                "if_discrete = True."
            )
        sizes = self.action_dims
        if not isinstance(sizes, tuple) or (sizes and sum(sizes) != self.action_dim):
            raise InputError(
                f"action_dims must be a tuple of sizes that sum to action_dim {self.action_dim}, not "
                f"{sizes!r}."
            )
        if self.players > 1 and self.has_absent_agents:
            raise InputError("has_absent_agents must be false where several players act in turns.")

    def _check_observations(self) -> None:
        if self.obs_dtype not in (FLOAT, BYTES):
            raise InputError(
                f"obs_dtype must be {FLOAT!r} or {BYTES!r}, a text, not {self.obs_dtype!r}."
            )
        if self.obs_dtype == BYTES and self.privileged_dim:
            raise InputError(f"privileged_dim must be 0 where obs_dtype is {BYTES!r}.")
        image = None if self.image_shape is None else math.prod(self.image_shape)
        items = None if self.items is None else self.items.columns
        for name, columns in (("image_shape", image), ("items", items)):
            if columns is not None and (self.obs_dtype, self.state_dim) != (BYTES, columns):
                raise InputError(
                    f"{name} has {columns} columns, which needs obs_dtype {BYTES!r} and a state_dim "
                    f"of {columns}; they are {self.obs_dtype!r} and {self.state_dim}."
                )
        if self.entities is not None:
            self.entities.order(self.state_dim)
            if self.obs_dtype == BYTES:
                raise InputError(f"entities need obs_dtype {FLOAT!r}.")
        column = self.seat_column
        if column is not None and not 0 <= column < self.state_dim:
            raise InputError(
                f"seat_column must be one of the {self.state_dim} columns of observations, not "
                f"{column!r}."
            )
        if column is not None and self.items and self.items.scales()[column] != 1.0:
            raise InputError(
                f"seat_column is {column}, which items scale by {self.items.scales()[column]:g}; it "
                "must be a plain column of scale 1."
            )

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of options of each choice of an action; () where actions are numbers."""
        # A single choice has no `action_dims`, since environments then take (rows,) actions.
        return (self.action_dims or (self.action_dim,)) if self.if_discrete else ()

    @property
    def obs_dim(self) -> int:
        """Columns of an observation: those of the actor, then the privileged ones."""
        return self.state_dim + self.privileged_dim

    @property
    def byte_obs(self) -> bool:
        """Whether observations are bytes without being images."""
        return self.obs_dtype == BYTES and self.image_shape is None

    @property
    def torch_dtype(self) -> torch.dtype:
        """`obs_dtype` as torch's. float32 is torch's default type, unless tests set another."""
        import torch  # not at the top: env workers start faster without

        return torch.uint8 if self.obs_dtype == BYTES else torch.get_default_dtype()
