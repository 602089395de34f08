"""Members of files that do not say what they are: described by the names and sizes of tensors.

Until files described their members, int64 tensors held what sizes do not tell: activation (1,), an
index in `NATIVE`; action_dims (choices,); image_shape (3,) and conv_strides; items.groups
(groups, 1 + features), the places of each group and which features its items have; seat_column (1,).
Two float32 ones did likewise: state_clip (1,) and items.facts (vocabulary, facts).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sweepd.agents.networks.activation import NATIVE
from sweepd.agents.networks.convolution import Filters
from sweepd.agents.networks.net import StateDict
from sweepd.agents.networks.spec import KINDS, NetSpec
from sweepd.envs.core.items import ItemGroup, Items
from sweepd.envs.support.errors import InputError

_WHOLE = {
    *("activation", "action_dims", "image_shape", "conv_strides", "items.groups", "seat_column")
}
_NUMBERS = {"state_clip", "items.facts"}
# By a tensor name, or its beginning, that no kind further down has.
_KINDS = {
    "net_s.": "ActorSAC",
    "net_adv1.": "QNetTwinDuel",
    "net_val1.": "QNetTwin",
    "net_adv.": "QNetDuel",
    "value_avg": "QNet",
    "action_std_log": "ActorPPO",
    "": "ActorDiscretePPO",
}


def described(tensors: Mapping[str, Tensor]) -> tuple[NetSpec, StateDict]:
    """Return the description of a member, and its tensors without those that describe it.

    Args:
        tensors: by the names of ElegantRL's modules, those of the head of this file among them.

    Raises:
        InputError: they are not those of a network.
    """
    own = {name: part for name, part in tensors.items() if name not in _WHOLE | _NUMBERS}
    told = {name: part for name, part in tensors.items() if name not in own}
    if wrong := [name for name in _WHOLE & set(told) if told[name].dtype != torch.int64]:
        raise InputError(f"{wrong[0]} is {told[wrong[0]].dtype}, not int64.")
    try:
        return _spec(own, told), own
    except (LookupError, ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"tensors {sorted(tensors)} are not those of one of ElegantRL's networks ({error})."
        ) from error


def _spec(own: Mapping[str, Tensor], told: Mapping[str, Tensor]) -> NetSpec:
    begins = next(begin for begin in _KINDS if any(name.startswith(begin) for name in own))
    kind = KINDS[_KINDS[begins]]
    [(head, (per_action, _)), *_] = kind.heads.items()
    widths = _widths(own, kind.trunk)
    *hidden, outputs = widths if head == kind.trunk else [*widths, *_widths(own, head)]
    whole = {name: part.tolist() for name, part in told.items() if name in _WHOLE}
    rnn = own.get("rnn.weight_ih")
    kernels = [own[f"conv.{index}.weight"] for index in range(len(whole.get("conv_strides", ())))]
    filters = tuple(
        Filters(len(kernel), kernel.shape[2], stride)
        for kernel, stride in zip(kernels, whole.get("conv_strides", ()), strict=True)
    )
    return NetSpec(
        kind=_KINDS[begins],
        columns=len(own["state_avg"]),
        actions=outputs // per_action,
        hidden=tuple(hidden),
        activation=dict(enumerate(NATIVE))[whole.get("activation", [0])[0]],
        clip=float(told["state_clip"]) if "state_clip" in told else None,
        image=tuple(whole["image_shape"]) if "image_shape" in whole else None,
        filters=filters,
        items=_items(own, told) if "items.groups" in told else None,
        item_width=len(own["items.bias"]) if "items.groups" in told else 0,
        cell="" if rnn is None else "gru" if len(rnn) == 3 * rnn.shape[1] else "lstm",
        choices=tuple(whole.get("action_dims", ())),
        autoregressive=any(name.startswith("chain.") for name in own),
        seat_column=whole["seat_column"][0] if "seat_column" in whole else None,
    )


def _widths(own: Mapping[str, Tensor], chain: str) -> list[int]:
    """Return the outputs of the layers of a chain, in order."""
    count = sum(name.startswith(f"{chain}.") and name.endswith(".bias") for name in own)
    return [len(own[f"{chain}.{2 * layer}.bias"]) for layer in range(count)]


def _items(own: Mapping[str, Tensor], told: Mapping[str, Tensor]) -> Items:
    """Return the layout of observations of items, without names and scales."""
    counts, *flags = told["items.groups"].mT.tolist()
    features = [str(feature) for feature in range(len(flags))]
    groups = tuple(
        ItemGroup(
            str(group),
            count,
            tuple(name for name, has in zip(features, present, strict=True) if has),
        )
        for group, (count, *present) in enumerate(zip(counts, *flags, strict=True))
    )
    used = sum(group.count * (1 + len(group.features)) for group in groups)
    return Items(
        len(own["items.embedding"]),
        groups,
        tuple((name, 1.0) for name in features),
        (1.0,) * (len(own["state_avg"]) - used),
        tuple(map(tuple, told["items.facts"].tolist())) if "items.facts" in told else (),
    )
