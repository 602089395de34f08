"""The tensors of a frozen member: one of ElegantRL's actors or value networks, told apart by names.

    ActorPPO                  net.*, action_std_log                           numbers
    ActorSAC                  net_s.*, net_a.0                                numbers
    ActorDiscretePPO          net.*                                           one choice
    the same for several      net.*, action_dims and, if autoregressive,      several choices
        chain.1.weight …
    QNet                      net.*, value_avg, value_std                     one choice
    QNetDuel, QNetTwin,       net_state.*, net_val.0 or net_val1.0 and        one choice
    QNetTwinDuel              net_val2.0, and net_adv.0 or …1.0 and …2.0, value_avg, value_std

All have state_avg and state_std (state_dim,), and state_clip (1,), the bound of the normalised
observations, where there is one (`sweepd.agents.networks.normaliser`). activation (1,) int64 is
there for another activation than ReLU: an index in `sweepd.agents.networks.activation.ACTIVATIONS`.
All tensors are float32 except the int64 ones named here.

- Several choices: action_dims (choices,) int64, the sizes of the choices, whose logits are side by
side. chain.k.weight (size of choice k, sizes of those before): what each chosen option of the
earlier choices adds to the logits of choice k.
- Images: conv.0.*, conv.1.*, … before all other layers, with ReLU after each; image_shape
(channels, height, width) and conv_strides, int64.
- Items that are looked up by id: items.embedding (vocabulary, width), items.bias, items.weight
(width, facts + features) and items.facts (vocabulary, facts) where there are any, and items.groups
(groups, 1 + features) int64: the places of each group, and which features its items have
(`sweepd.envs.core.items`, `sweepd.agents.networks.items`).
- Recurrent: rnn.weight_ih, rnn.weight_hh, rnn.bias_ih, rnn.bias_hh as in torch's GRUCell or
LSTMCell, before the last layer.
- Policies per seat: seat_column (1,) int64, a column of the observations, and all weights again as
seat1.net.0.weight, …: those of the second policy, which acts where that column is above 0.5
(`seats_of`). Only of ActorDiscretePPO, without images, recurrent layers and chain.

To act, each is a chain of linear layers with its activation between them, except that none follows
the last layer of the value networks' encoder. (A dueling network's state value and the second of two
values do not affect which action is best, and are not computed.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from sweepd.agents.networks.seats import SEAT_COLUMN, prefix_of
from torch import Tensor

from sweepd.agents.networks.activation import ACTIVATION, ACTIVATIONS, activation_of
from sweepd.agents.networks.items import item_inputs, item_sizes
from sweepd.agents.networks.normaliser import STATE_CLIP
from sweepd.envs.core.items import ItemGroup, Items
from sweepd.envs.support.errors import InputError

Member = Mapping[str, Tensor]
ACTION_DIMS, IMAGE_SHAPE, STRIDES = "action_dims", "image_shape", "conv_strides"
GROUPS, FACTS, EMBEDDING = "items.groups", "items.facts", "items.embedding"
CELL = ("rnn.weight_ih", "rnn.weight_hh", "rnn.bias_ih", "rnn.bias_hh")
SECOND = prefix_of(1)
# Tensors that both policies per seat have in common.
_COMMON = frozenset({"state_avg", "state_std", STATE_CLIP, ACTIVATION, ACTION_DIMS, GROUPS, FACTS})
_WHOLE = frozenset({ACTIVATION, ACTION_DIMS, IMAGE_SHAPE, STRIDES, GROUPS})  # int64
_STATE, _VALUE = frozenset({"state_avg", "state_std"}), frozenset({"value_avg", "value_std"})


@dataclass(frozen=True)
class NetworkKind:
    """How a kind of network acts.

    Attributes:
        acts: prefixes of the layers in order; the first may have any number of layers.
        others: further layers on the output of the first prefix.
        extras: names of other tensors.
        gives: its output: "logits", "means", "means and deviations" or "values".
    """

    acts: tuple[str, ...]
    others: tuple[str, ...] = ()
    extras: frozenset[str] = _STATE
    gives: str = "logits"

    @property
    def discrete(self) -> bool:
        return self.gives in {"logits", "values"}


_KINDS = {  # by a tensor name, or its beginning, that no kind further down has
    "net_s.": NetworkKind(("net_s", "net_a"), gives="means and deviations"),
    "net_adv1.": NetworkKind(
        ("net_state", "net_val1"), ("net_adv1", "net_val2", "net_adv2"), _STATE | _VALUE, "values"
    ),
    "net_val1.": NetworkKind(("net_state", "net_val1"), ("net_val2",), _STATE | _VALUE, "values"),
    "net_adv.": NetworkKind(("net_state", "net_val"), ("net_adv",), _STATE | _VALUE, "values"),
    "value_avg": NetworkKind(("net",), extras=_STATE | _VALUE, gives="values"),
    "action_std_log": NetworkKind(("net",), extras=_STATE | {"action_std_log"}, gives="means"),
    ACTION_DIMS: NetworkKind(("net",), extras=_STATE | {ACTION_DIMS}),
}


def kind_of(member: Member) -> NetworkKind:
    """Return a member's kind by its tensors' names, even if some are missing."""
    for beginning, kind in _KINDS.items():
        if any(name.startswith(beginning) for name in member):
            return kind
    return NetworkKind(("net",))


def seats_of(member: Member) -> tuple[Member, ...]:
    """Return the policies of a member as members: one, or that of each seat.

    Which one acts depends on the column of the observations that `seat_column_of` returns.
    """
    if SEAT_COLUMN not in member:
        return (member,)
    first = {
        name: part
        for name, part in member.items()
        if name != SEAT_COLUMN and not name.startswith(SECOND)
    }
    second = {name: part for name, part in first.items() if name in _COMMON}
    return first, second | {
        name.removeprefix(SECOND): part for name, part in member.items() if name.startswith(SECOND)
    }


def seat_column_of(member: Member) -> int | None:
    """Return the column that tells the seat; None for members with one policy."""
    return int(member[SEAT_COLUMN][0]) if SEAT_COLUMN in member else None


def clip_in(member: Member) -> float:
    """Return the bound of a member's normalised observations; infinite without one."""
    return float(member[STATE_CLIP].flatten()[0]) if STATE_CLIP in member else math.inf


def layers_of(member: Member) -> list[tuple[str, str]]:
    """Return the layers from input to output ("net.0", "net.2", …), each with the activation after it.

    "" where there is none.
    """
    names, kind = _acting_layers(member), activation_of(member)
    straight = {*_layers(member, "net_state")[-1:], *names[-1:]}
    return [(name, "" if name in straight else kind) for name in names]


def convolutions_of(member: Member) -> list[tuple[str, int]]:
    """Return the names of the convolutions ("conv.0", …) and their strides."""
    strides = member[STRIDES].tolist() if STRIDES in member else []
    return [(f"conv.{index}", stride) for index, stride in enumerate(strides)]


def recurrent_size(member: Member) -> int:
    """Return the size of a member's recurrent state: its width, or twice that (LSTM), or 0."""
    if CELL[0] not in member:
        return 0
    gates, width = member[CELL[0]].shape
    return width if gates == 3 * width else 2 * width


def items_of(member: Member) -> Items | None:
    """Return the layout of a member's observations of items, without names and scales.

    `state_std` has the scales.
    """
    if GROUPS not in member:
        return None
    features = [str(feature) for feature in range(member[GROUPS].shape[1] - 1)]
    groups = tuple(
        ItemGroup(
            str(group), count, tuple(name for name, has in zip(features, flags, strict=True) if has)
        )
        for group, (count, *flags) in enumerate(member[GROUPS].tolist())
    )
    used = sum(group.count * (1 + len(group.features)) for group in groups)
    return Items(
        len(member[EMBEDDING]),
        groups,
        tuple((name, 1.0) for name in features),
        (1.0,) * (member["state_avg"].numel() - used),
        tuple(map(tuple, member[FACTS].tolist())) if FACTS in member else (),
    )


def sizes_of(member: Member) -> tuple[int, ...]:
    """Return the sizes of the choices of an action, also of a single one; () for numbers."""
    if not kind_of(member).discrete:
        return ()
    return tuple(member[ACTION_DIMS].tolist()) if ACTION_DIMS in member else (_outputs(member),)


def check_members(members: Sequence[Member], source: str = "the policy") -> tuple[int, int]:
    """Check that members are valid and fit together.

    Args:
        members: the members.
        source: where they come from, for the message.

    Returns:
        (state_dim, action_dim).

    Raises:
        InputError: naming the source, the member and what is wrong.
    """
    if not members:
        raise InputError(f"{source} has no members.")
    dims: tuple[int, int] | None = None
    for index, member in enumerate(members):
        fault = _fault(member)
        if fault is not None:
            raise InputError(f"{source}: member {index} {fault}.")
        if kind_of(member).discrete != kind_of(members[0]).discrete:
            raise InputError(f"{source}: some members choose among actions, and some give numbers.")
        own = (member["state_avg"].numel(), _outputs(member))
        if dims is not None and own != dims:
            first = f"member 0 maps {dims[0]} to {dims[1]}"
            raise InputError(
                f"{source}: member {index} maps {own[0]} inputs to {own[1]} actions, but {first}."
            )
        if sizes_of(member) != sizes_of(members[0]):
            sizes = f"{sizes_of(member)}, but member 0 of {sizes_of(members[0])}"
            raise InputError(f"{source}: member {index} makes choices of {sizes}.")
        dims = own
    # At least one member, so the loop has run.
    assert dims is not None
    return dims


def _layers(member: Member, prefix: str) -> list[str]:
    count = sum(name.startswith(f"{prefix}.") and name.endswith(".weight") for name in member)
    return [f"{prefix}.{index}" for index in range(0, 2 * count, 2)]


def _outputs(member: Member) -> int:
    """Return the numbers of an action, or the options of all its choices."""
    kind = kind_of(member)
    count = member[f"{_layers(member, kind.acts[-1])[-1]}.bias"].numel()
    return count // 2 if kind.gives == "means and deviations" else count


def _fault(member: Member) -> str | None:
    """Return why a dict of tensors is not a member, as the end of a sentence; None if it is one."""
    if SEAT_COLUMN in member:
        return _seats_fault(member)
    # Each check relies on those before it: sizes can only be compared once all tensors are there.
    checks = _names_fault, _values_fault, _images_fault, _items_fault, _shapes_fault, _choices_fault
    for check in checks:
        fault = check(member)
        if fault is not None:
            return fault
    return None


def _seats_fault(member: Member) -> str | None:
    extra = sorted(_COMMON & {name.removeprefix(SECOND) for name in member if SECOND in name})
    if extra:
        return f"has {extra} of its own in the second seat's policy"
    first, second = seats_of(member)
    for whose, policy in (("", first), (" in the second seat's policy", second)):
        fault = _fault(policy)
        if fault is not None:
            return f"{fault}{whose}"
    sizes = [{name: part.shape for name, part in policy.items()} for policy in (first, second)]
    if sizes[0] != sizes[1]:
        return "has policies of different sizes for its seats"
    if kind_of(first).gives != "logits" or {IMAGE_SHAPE, CELL[0]} & set(first):
        return "has a policy for each seat, which must be plain networks of logits"
    if _autoregressive(first):
        return "has a policy for each seat, whose choices must not depend on each other"
    column = member[SEAT_COLUMN]
    if column.dtype != torch.int64 or column.shape != (1,):
        return f"has {SEAT_COLUMN} of shape {tuple(column.shape)} as {column.dtype}, not (1,) int64"
    if not 0 <= int(column[0]) < member["state_avg"].numel():
        return f"has {SEAT_COLUMN} {int(column[0])}, which no observation has"
    return None


def _names_fault(member: Member) -> str | None:
    kind, layers = kind_of(member), _acting_layers(member)
    heads = [f"{prefix}.0" for prefix in (*kind.acts[1:], *kind.others)]
    wanted = {f"{layer}.{part}" for layer in {*layers, *heads} for part in ("weight", "bias")}
    wanted |= kind.extras | ({STATE_CLIP, ACTIVATION} & set(member))
    if IMAGE_SHAPE in member:
        count = sum(name.startswith("conv.") and name.endswith(".weight") for name in member)
        wanted |= {IMAGE_SHAPE, STRIDES}
        wanted |= {f"conv.{index}.{part}" for index in range(count) for part in ("weight", "bias")}
    if any(name.startswith("items.") for name in member):
        wanted |= {GROUPS, EMBEDDING, "items.bias"} | {FACTS} & set(member)
        if FACTS in member or (GROUPS in member and member[GROUPS].shape[1:] != (1,)):
            wanted.add("items.weight")
    recurrent = any(name.startswith("rnn.") for name in member)
    if recurrent and kind.acts == ("net",) and len(layers) > 1:
        wanted |= set(CELL)
    if _autoregressive(member):
        wanted |= {f"chain.{choice}.weight" for choice in range(1, member[ACTION_DIMS].numel())}
    if _layers(member, kind.acts[0]) and set(member) == wanted:
        return None
    missing, extra = sorted(wanted - set(member)), sorted(set(member) - wanted)
    return f"lacks {missing} and has {extra} too many" if layers else "has no layer"


def _values_fault(member: Member) -> str | None:
    for name, tensor in member.items():
        right = torch.int64 if name in _WHOLE else torch.float32
        if tensor.dtype != right:
            return f"has {name} as {tensor.dtype}, not {str(right).removeprefix('torch.')}"
        if not bool(torch.isfinite(tensor).all()):
            return f"has values in {name} that are not finite"
    return None


def _shapes_fault(member: Member) -> str | None:
    for name, shape in _shapes(member).items():
        if tuple(member[name].shape) != shape or 0 in shape:
            return f"has {name} of shape {tuple(member[name].shape)}, where {shape} fits the rest"
    if not bool((member["state_std"] > 0).all()):
        return "has values in state_std that are not above zero"
    if ACTIVATION in member and not 0 <= int(member[ACTIVATION][0]) < len(ACTIVATIONS):
        return f"has {ACTIVATION} {int(member[ACTIVATION][0])}, which this version does not know"
    if clip_in(member) <= 0:
        return f"has {STATE_CLIP} {clip_in(member)}, which is not above zero"
    return None


def _choices_fault(member: Member) -> str | None:
    kind, last = kind_of(member), _acting_layers(member)[-1]
    if kind.gives == "means and deviations" and member[f"{last}.bias"].numel() % 2:
        return "has an odd number of outputs, where means and deviations belong"
    if ACTION_DIMS not in member:
        return None
    sizes, options = member[ACTION_DIMS].tolist(), _outputs(member)
    if min(sizes) < 1 or sum(sizes) != options:
        return (
            f"has action_dims {sizes}, which are not sizes of choices that sum to the "
            f"{options} outputs"
        )
    for choice in range(1, len(sizes) if _autoregressive(member) else 0):
        weight, fits = member[f"chain.{choice}.weight"], (sizes[choice], sum(sizes[:choice]))
        if tuple(weight.shape) != fits:
            return (
                f"has chain.{choice}.weight of shape {tuple(weight.shape)}, where {fits} fits "
                "the rest"
            )
    return None


def _acting_layers(member: Member) -> list[str]:
    """Return the names of the layers from input to output."""
    return [name for prefix in kind_of(member).acts for name in _layers(member, prefix)]


def _autoregressive(member: Member) -> bool:
    return ACTION_DIMS in member and any(name.startswith("chain.") for name in member)


def _shapes(member: Member) -> dict[str, tuple[int, ...]]:
    """Return the shapes that fit the observations' columns and the layers' sizes."""
    kind, layers = kind_of(member), _acting_layers(member)
    columns = member["state_avg"].numel()
    shapes: dict[str, tuple[int, ...]] = {"state_avg": (columns,), "state_std": (columns,)}
    rows = encoded = math.prod(_planes(member)[-1]) if IMAGE_SHAPE in member else columns
    items = items_of(member)
    if items is not None:
        width = member["items.bias"].numel()
        embedding, (known, _), _ = item_sizes(items, width)
        shapes |= {EMBEDDING: embedding, "items.bias": (width,)}
        shapes |= {"items.weight": (width, known)} if known else {}
        rows = encoded = item_inputs(items, width)
    for layer in layers:
        weight = member[f"{layer}.weight"]
        columns = weight.shape[0] if weight.dim() == 2 else 0
        shapes |= {f"{layer}.weight": (columns, rows), f"{layer}.bias": (columns,)}
        if layer == layers[-1] and CELL[0] in member:
            gates = 4 * rows if member[CELL[0]].shape[:1] == (4 * rows,) else 3 * rows
            shapes |= {name: (gates, rows) if "weight" in name else (gates,) for name in CELL}
        rows = columns
        if layer.startswith(f"{kind.acts[0]}."):
            encoded = columns
    for prefix in kind.others:
        columns = 1 if prefix.startswith("net_adv") else rows
        shapes |= {f"{prefix}.0.weight": (columns, encoded), f"{prefix}.0.bias": (columns,)}
    shapes |= {name: (1,) for name in (STATE_CLIP, ACTIVATION) if name in member}
    if "action_std_log" in member:
        shapes["action_std_log"] = (1, rows)
    if ACTION_DIMS in member:
        shapes[ACTION_DIMS] = (member[ACTION_DIMS].numel(),)
    return shapes | dict.fromkeys(kind.extras & _VALUE, (1,))


def _images_fault(member: Member) -> str | None:
    if IMAGE_SHAPE not in member:
        return None
    sizes, strides = member[IMAGE_SHAPE], member[STRIDES]
    weights = [
        member[f"conv.{index}.weight"]
        for index in range(strides.numel())
        if f"conv.{index}.weight" in member
    ]
    one_dimensional = sizes.shape == (3,) and strides.dim() == 1
    if not one_dimensional or not weights or int(min(sizes.min(), strides.min())) < 1:
        return (
            f"has image_shape {sizes.tolist()} and conv_strides {strides.tolist()}, which make no "
            "convolutions"
        )
    if f"conv.{strides.numel()}.weight" in member or len(weights) < strides.numel():
        return f"has conv_strides {strides.tolist()}, which are not one for each convolution"
    if any(weight.dim() != 4 or weight.shape[2] != weight.shape[3] for weight in weights):
        return "has convolutions whose filters are not square"
    channels = int(sizes[0])
    for index, weight in enumerate(weights):
        bias = member[f"conv.{index}.bias"]
        if weight.shape[1] != channels or bias.shape != weight.shape[:1]:
            return (
                f"has conv.{index}.weight of shape {tuple(weight.shape)}, which does not fit the "
                "rest"
            )
        channels = weight.shape[0]
    if min(min(plane) for plane in _planes(member)) < 1:
        return f"has convolutions that are larger than its images of {sizes.tolist()}"
    if member["state_avg"].numel() != math.prod(sizes.tolist()):
        return (
            f"has state_avg of {member['state_avg'].numel()} pixels, not those of images of "
            f"{sizes.tolist()}"
        )
    return None


def _items_fault(member: Member) -> str | None:
    if GROUPS not in member:
        return None
    groups, embedding = member[GROUPS], member[EMBEDDING]
    if groups.dim() != 2 or 0 in groups.shape or embedding.dim() != 2:
        return "has items.groups or items.embedding of another form than a table"
    flags = groups[:, 1:]
    if int(groups[:, 0].min()) < 1 or bool(((flags != 0) & (flags != 1)).any()):
        return f"has items.groups {groups.tolist()}, which are not numbers of places and flags"
    widths = (1 + flags.sum(1)).repeat_interleave(groups[:, 0])
    if int(widths.sum()) > member["state_avg"].numel():
        return (
            f"has state_avg of {member['state_avg'].numel()} columns, and its items have "
            f"{int(widths.sum())}"
        )
    if FACTS in member and (member[FACTS].dim() != 2 or len(member[FACTS]) != len(embedding)):
        return f"has items.facts of shape {tuple(member[FACTS].shape)}, not a row for each id"
    try:
        items_of(member)
    except InputError as error:
        return f"has items that are not valid: {error}"
    ids = widths.cumsum(0) - widths
    if bool((member["state_avg"][ids] != 0).any() or (member["state_std"][ids] != 1).any()):
        return "has a normaliser that changes the ids of items"
    return None


def _planes(member: Member) -> list[tuple[int, int, int]]:
    """Return the image's shape and the output shape of each convolution."""
    channels, height, width = member[IMAGE_SHAPE].tolist()
    planes = [(channels, height, width)]
    for name, stride in convolutions_of(member):
        channels, _, kernel, _ = member[f"{name}.weight"].shape
        height, width = ((side - kernel) // stride + 1 for side in (height, width))
        planes.append((channels, height, width))
    return planes
