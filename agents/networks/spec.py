"""What a network is: a JSON description, from which the names and shapes of its tensors follow.

The kinds are ElegantRL's classes, whose tensors have the same names and shapes:

    ActorPPO            net.0, net.2, …; action_std_log             means of a Gaussian before tanh
    ActorDiscretePPO    net.0, net.2, …                             logits of all choices
    CriticPPO           net.0, net.2, …                             a value
    ActorSAC            net_s.0, …, net_a.0                         means and log deviations
    CriticTwin          net.0, …, of observation and action         two values
    QNet                net.0, net.2, …                             a value of each option
    QNetDuel, QNetTwin, net_state.0, …, net_val.0, net_adv.0, or    likewise, of one or two networks
        QNetTwinDuel    net_val1.0, net_adv1.0, …                   (ElegantRL swaps val and adv)

Every network has state_avg and state_std, and those of values value_avg and value_std. Further
tensors, of PPO's networks:

- convolutions of images: conv.0.weight, conv.0.bias, … as in torch's Conv2d, ReLU after each;
- items that are looked up by id: items.embedding, items.weight (where ids have facts or items
  features), items.bias (`sweepd.agents.networks.items`);
- entities that one shared layer reads: entities.weight, entities.bias
  (`sweepd.agents.networks.entities`);
- a recurrent layer before the last one: rnn.weight_ih, … as in torch's GRUCell or LSTMCell;
- autoregressive choices: chain.k.weight (size of choice k, sizes of those before), what each chosen
  option of the earlier choices adds to the logits of choice k;
- policies per seat: all weights again as seat1.net.0.weight, …

What follows each hidden layer, also with weights of its own, is an entry of a table
(`sweepd.agents.networks.activation`). Any other new layer is a module of its own: the parts it needs
of a description, and its forward pass in `sweepd.agents.networks.net`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from sweepd.agents.networks import activation, convolution, entities, items, recurrence
from sweepd.agents.networks.activation import ACTIVATIONS, RELU
from sweepd.agents.networks.convolution import Filters
from sweepd.agents.networks.normaliser import clip_of
from sweepd.agents.networks.part import Part, aligned
from sweepd.agents.networks.shape import PER_SEAT, Shape
from sweepd.envs.core.entities import Entities
from sweepd.envs.core.items import Items
from sweepd.envs.support.errors import InputError

MEANS, MEANS_AND_DEVIATIONS, LOGITS, VALUES = "means", "means and deviations", "logits", "values"
SECOND_SEAT = "seat1."
STATE, VALUE = ("state_avg", "state_std"), ("value_avg", "value_std")


class Kind(NamedTuple):
    """A class of networks.

    Attributes:
        trunk: chain of the hidden layers.
        heads: chains on the last hidden layer, each with its outputs per number (or option) of an
            action, and further ones. The first acts. Of the trunk itself: its last layer.
        gives: what the outputs are.
        grouped: whether the flat tensor has actors' and critics' common parts first.
        linear_top: whether there is no activation after the last hidden layer.
    """

    trunk: str
    heads: dict[str, tuple[int, int]]
    gives: str
    grouped: bool = False
    linear_top: bool = False


KINDS = {
    "ActorPPO": Kind("net", {"net": (1, 0)}, MEANS, grouped=True),
    "ActorDiscretePPO": Kind("net", {"net": (1, 0)}, LOGITS, grouped=True),
    "CriticPPO": Kind("net", {"net": (0, 1)}, VALUES, grouped=True),
    "ActorSAC": Kind("net_s", {"net_a": (2, 0)}, MEANS_AND_DEVIATIONS),
    "CriticTwin": Kind("net", {"net": (0, 2)}, VALUES),
    "QNet": Kind("net", {"net": (1, 0)}, VALUES),
    "QNetDuel": Kind("net_state", {"net_val": (1, 0), "net_adv": (0, 1)}, VALUES, linear_top=True),
    "QNetTwin": Kind(
        "net_state", {"net_val1": (1, 0), "net_val2": (1, 0)}, VALUES, linear_top=True
    ),
    "QNetTwinDuel": Kind(
        "net_state",
        {"net_val1": (1, 0), "net_adv1": (0, 1), "net_val2": (1, 0), "net_adv2": (0, 1)},
        VALUES,
        linear_top=True,
    ),
}
CRITICS = ("CriticPPO", "CriticTwin")


@dataclass(frozen=True, kw_only=True)
class NetSpec:
    """What a network is.

    Attributes:
        kind: one of `KINDS`.
        columns: columns of an observation that it reads.
        actions: numbers of an action, or options of all its choices together.
        hidden: widths of the hidden layers.
        activation: after each of them, one of `ACTIVATIONS`.
        clip: bound of the normalised observations; None: there is none.
        image: (channels, height, width) of observations that are images, flattened; None: they are
            numbers.
        filters: the convolutions of images.
        items: layout of observations with items that are looked up by id; None: there are none.
        item_width: numbers that encode an item.
        entities: columns of things of a kind; None: there are none, or the first layer reads them.
        entity_width: numbers that encode an entity, a multiple of 16.
        cell: "gru" or "lstm" for a recurrent layer, else "".
        choices: sizes of the choices of an action of several; () for a single one, or numbers.
        autoregressive: whether a choice depends on the earlier ones.
        seat_column: column of observations that is above 0.5 where the second of two policies acts;
            None: there is one policy.

    Raises:
        InputError: the fields do not fit together.
    """

    kind: str
    columns: int
    actions: int
    hidden: tuple[int, ...]
    activation: str = RELU
    clip: float | None = None
    image: tuple[int, int, int] | None = None
    filters: tuple[Filters, ...] = ()
    items: Items | None = None
    item_width: int = 0
    entities: Entities | None = None
    entity_width: int = 0
    cell: str = ""
    choices: tuple[int, ...] = ()
    autoregressive: bool = False
    seat_column: int | None = None

    def __post_init__(self) -> None:
        for wrong, problem in self._problems():
            if wrong:
                raise InputError(f"a network's description is not valid: {problem}")
        if self.image is not None:
            convolution.planes(self.image, self.filters)  # raises, where filters do not fit

    def _problems(self) -> list[tuple[bool, str]]:
        plain = self.kind in {"ActorPPO", "ActorDiscretePPO", "CriticPPO"}
        extras = [self.image, self.items, self.entities, self.cell, self.choices, self.seat_column]
        sizes = [self.columns, self.actions, *self.hidden, *self.choices]
        return [
            (self.kind not in KINDS, f"there is no kind {self.kind!r}"),
            (self.activation not in ACTIVATIONS, f"there is no activation {self.activation!r}"),
            (min(sizes) < 1, f"sizes {sizes}, all of which must be at least 1"),
            (not self.hidden and bool(self.items or self.entities or self.cell),
             "items, entities and recurrent layers need a hidden layer"),
            (self.clip is not None and not self.clip > 0, f"clip {self.clip}, which is not above 0"),
            (not plain and any(part not in (None, "", ()) for part in extras),
             f"{self.kind} has neither images, items, entities, cells, choices nor policies per seat"),
            (bool(self.choices) and sum(self.choices) != self.actions,
             f"choices {list(self.choices)} that do not sum to {self.actions} actions"),
            (self.autoregressive and len(self.choices) < 2, "autoregressive, without choices"),
            (bool(self.cell) and self.cell not in recurrence.GATES, f"no cell {self.cell!r}"),
            ((self.image is None) != (not self.filters) or
             (self.image is not None and math.prod(self.image) != self.columns),
             f"{self.columns} columns, image {self.image} and filters {list(self.filters)}"),
            (self.items is not None and (self.items.columns != self.columns or self.item_width < 1),
             f"{self.columns} columns, and items that do not fill them"),
            (self.entities is not None and
             (self.entity_width < 1 or bool(self.entity_width % entities.ROUND or self.items or self.image)),
             f"entities with entity_width {self.entity_width}, items {self.items} and image {self.image}"),
            (self.seat_column is not None and not 0 <= self.seat_column < self.columns,
             f"seat_column {self.seat_column}, which no observation has"),
        ]  # fmt: skip

    @classmethod
    def from_dict(cls, described: Any) -> NetSpec:
        """Return the network that `to_dict` described.

        Raises:
            InputError: it describes none.
        """
        # Not at the top: screens that read no description do without it.
        from pydantic import ValidationError

        known = {field.name for field in dataclasses.fields(cls)}
        if isinstance(described, dict) and (unknown := sorted(set(described) - known)):
            raise InputError(f"a network's description has {unknown}, which this version lacks")
        try:
            found: NetSpec = _reader().validate_json(json.dumps(described))
            return found
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise InputError(
                f"a network's description is not valid: {place or 'it'}: {first['msg']}"
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """Describe the network in JSON's types; fields with their defaults are left out."""
        every = dataclasses.asdict(self)
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: value for name, value in every.items() if value != defaults[name]}

    @classmethod
    def of(cls, kind: str, shape: Shape, columns: int | None = None) -> NetSpec:
        """Return the network of this kind in a program's members.

        Args:
            kind: one of `KINDS`.
            shape: the program's.
            columns: that it reads; None: those of actors.
        """
        image = shape.image_shape
        return cls(
            kind=kind,
            columns=shape.state_dim if columns is None else columns,
            actions=shape.action_dim,
            hidden=tuple(shape.net_dims),
            activation=shape.activation,
            clip=clip_of(shape),
            image=image,
            filters=() if image is None else convolution.filters_for(image),
            items=shape.items,
            item_width=0 if shape.items is None else shape.item_width,
            entities=shape.entities if shape.entity_width else None,
            entity_width=shape.entity_width,
            cell=shape.recurrent,
            choices=shape.action_dims,
            autoregressive=shape.autoregressive and kind == "ActorDiscretePPO",
            seat_column=shape.seat_column if shape.policies == PER_SEAT else None,
        )

    # How it acts.

    @property
    def gives(self) -> str:
        """What the outputs are: means, means and deviations, logits, or values."""
        return KINDS[self.kind].gives

    @property
    def discrete(self) -> bool:
        """Whether actions are choices."""
        return self.gives in (LOGITS, VALUES)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Options of each choice, also of a single one; () where actions are numbers."""
        return (self.choices or (self.actions,)) if self.discrete else ()

    @property
    def linear_top(self) -> bool:
        """Whether there is no activation after the last hidden layer."""
        return KINDS[self.kind].linear_top

    @property
    def memory(self) -> int:
        """Numbers of the recurrent state; 0 without one."""
        return recurrence.state_size(self.cell, self.hidden[-1]) if self.cell else 0

    # Its tensors. (Cached: every forward pass reads their names.)

    @property
    def policies(self) -> int:
        """Policies of a member: one, or one for each of two seats."""
        return 1 if self.seat_column is None else 2

    @functools.cached_property
    def inputs(self) -> int:
        """Inputs of the first hidden layer."""
        if self.image is not None:
            return convolution.features(self.image, self.filters)
        if self.items is not None:
            return items.item_inputs(self.items, self.item_width)
        if self.entities is not None:
            return entities.entity_inputs(self.entities, self.entity_width, self.columns)
        return self.columns + (self.actions if self.kind == "CriticTwin" else 0)

    @functools.cached_property
    def trunk(self) -> list[str]:
        """Names of the hidden layers."""
        return [f"{KINDS[self.kind].trunk}.{2 * layer}" for layer in range(len(self.hidden))]

    @functools.cached_property
    def heads(self) -> dict[str, int]:
        """The layers on the last hidden one, each with its outputs; the first acts."""
        kind = KINDS[self.kind]
        return {
            f"{name}.{2 * len(self.hidden) if name == kind.trunk else 0}": (
                per_action * self.actions + others
            )
            for name, (per_action, others) in kind.heads.items()
        }

    @property
    def normalisers(self) -> dict[str, int]:
        """The tensors of the normalisers, each with its size."""
        values = self.gives == VALUES
        return dict.fromkeys(STATE, self.columns) | dict.fromkeys(VALUE if values else (), 1)

    def parts(self) -> list[Part]:
        """Return the weights of a policy in their order in a flat tensor."""
        return list(_parts(self))

    @property
    def size(self) -> int:
        """P, the floats of a policy in a flat tensor, with padding (always 0)."""
        return sum(aligned(part.rows * part.columns) for part in _parts(self))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of a member's tensors, as its module has them."""
        own = {part.name: part.shape for part in _parts(self)}
        for _ in range(1, self.policies):
            own |= {SECOND_SEAT + name: shape for name, shape in own.items()}
        return own | {name: (size,) for name, size in self.normalisers.items()}


def specs_of(shape: Shape) -> tuple[NetSpec, NetSpec]:
    """Return what the actors and critics of a PPO program are."""
    kind = "ActorDiscretePPO" if shape.if_discrete else "ActorPPO"
    return NetSpec.of(kind, shape), NetSpec.of("CriticPPO", shape, shape.obs_dim)


@functools.cache
def _reader() -> Any:
    """Return pydantic's reader of descriptions, whose making takes 8 ms."""
    from pydantic import TypeAdapter

    return TypeAdapter(NetSpec)


@functools.cache
def _parts(spec: NetSpec) -> tuple[Part, ...]:
    parts = convolution.parts(spec.image, spec.filters)
    parts += items.parts(spec.items, spec.item_width)
    parts += entities.parts(spec.entities, spec.entity_width)
    inputs = spec.inputs
    for layer, (name, width) in enumerate(zip(spec.trunk, spec.hidden, strict=True)):
        parts += _linear(name, inputs, width, ("hidden" if layer else "first", "bias"))
        parts += activation.parts(spec.activation, name, width)
        inputs = width
    parts += recurrence.parts(spec.cell, inputs)
    for name in _in_module_order(spec.heads):
        parts += _linear(name, inputs, spec.heads[name], ("out", "out bias"))
    if spec.kind == "ActorPPO":
        parts.append(Part("action_std_log", 1, spec.actions, "deviation", (1, spec.actions)))
    if spec.autoregressive:
        earlier = accumulate(spec.choices)
        for choice, (before, size) in enumerate(zip(earlier, spec.choices[1:], strict=False), 1):
            parts.append(Part(f"chain.{choice}.weight", before, size, "chain"))
    # The native kernels' digests depend on the order, in which they add squares.
    if KINDS[spec.kind].grouped:
        parts.sort(key=lambda part: _GROUPS.index(part.group))
    return tuple(parts)


# First what actors and critics have in common, then what they have of their own.
_GROUPS = (
    *("hidden", "bias", "filters", "filter bias", "cell", "items", "entities", "activation"),
    *("first", "out", "out bias", "deviation", "chain"),
)


def _linear(name: str, inputs: int, outputs: int, groups: tuple[str, str]) -> list[Part]:
    return [
        Part(f"{name}.weight", inputs, outputs, groups[0]),
        Part(f"{name}.bias", 1, outputs, groups[1]),
    ]


def _in_module_order(heads: dict[str, int]) -> Sequence[str]:
    """Return heads as ElegantRL's modules have them: of each network, the level ("adv") first."""
    return sorted(heads, key=lambda name: (name[-3] if name[-3:-2].isdigit() else "", name))
