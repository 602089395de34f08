"""Members of files that do not say what they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from sweepd.agents.networks.activation import NATIVE
from sweepd.agents.networks.convolution import filters_for
from sweepd.agents.networks.spec import CRITICS, KINDS, NetSpec
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import Member, load_members
from sweepd.envs.core.items import ItemGroup, Items
from sweepd.envs.support.errors import InputError

IMAGE = (2, 6, 7)
ITEMS = Items(
    vocabulary=5,
    groups=(ItemGroup("0", 3, ("0",)), ItemGroup("1", 2, ("0", "1")), ItemGroup("2", 1)),
    features=(("0", 1.0), ("1", 1.0)),
    plain=(1.0, 1.0),
    facts=tuple((0.5 * card, 1.0) for card in range(5)),
)
CHOICES, NUMBERS = "ActorDiscretePPO", "ActorPPO"
CASES: dict[str, dict[str, Any]] = {
    **{kind: {"kind": kind} for kind in KINDS if kind not in CRITICS},
    **{kind: {"kind": NUMBERS, "activation": kind} for kind in NATIVE},
    "a linear policy": {"kind": CHOICES, "hidden": ()},
    "a running scale": {"kind": "ActorSAC", "clip": 10.0},
    "one choice in a list": {"kind": CHOICES, "choices": (6,)},
    "choices": {"kind": CHOICES, "choices": (1, 2, 3)},
    "autoregressive": {"kind": CHOICES, "choices": (1, 2, 3), "autoregressive": True},
    "images": {"kind": NUMBERS, "columns": 84, "image": IMAGE, "filters": filters_for(IMAGE)},
    "items": {"kind": CHOICES, "columns": ITEMS.columns, "items": ITEMS, "item_width": 4},
    "ids alone": {
        "kind": NUMBERS,
        "columns": 2,
        "items": Items(5, (ItemGroup("0", 2),)),
        "item_width": 4,
    },
    "gru": {"kind": CHOICES, "cell": "gru"},
    "lstm": {"kind": NUMBERS, "cell": "lstm"},
    "per seat": {"kind": CHOICES, "choices": (3, 3), "seat_column": 1},
}


def member_of(**fields: Any) -> Member:
    """A member with random weights."""
    spec = NetSpec(**{"columns": 4, "actions": 6, "hidden": (5, 3), **fields})
    generator = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(s, generator=generator) for name, s in spec.shapes().items()}
    tensors |= {"state_avg": torch.zeros(spec.columns), "state_std": torch.ones(spec.columns)}
    return Member(spec, tensors)


def encoded(member: Member) -> dict[str, Tensor]:
    """The tensors of a member as files had them."""
    spec, found = member.spec, dict(member.tensors)
    if spec.activation != "relu":
        found["activation"] = torch.tensor([NATIVE.index(spec.activation)])
    if spec.clip is not None:
        found["state_clip"] = torch.tensor([spec.clip])
    if spec.choices:
        found["action_dims"] = torch.tensor(spec.choices)
    if spec.image is not None:
        found["image_shape"] = torch.tensor(spec.image)
        found["conv_strides"] = torch.tensor([own.stride for own in spec.filters])
    if spec.items is not None:
        names = [name for name, _ in spec.items.features]
        rows = [
            [group.count, *(int(name in group.features) for name in names)]
            for group in spec.items.groups
        ]
        found["items.groups"] = torch.tensor(rows)
        if spec.items.facts:
            found["items.facts"] = torch.tensor(spec.items.facts)
    if spec.seat_column is not None:
        found["seat_column"] = torch.tensor([spec.seat_column])
    return found


@pytest.mark.parametrize("case", CASES)
def test_they_are_described_by_their_tensors(tmp_path: Path, case: str) -> None:
    member = member_of(**CASES[case])
    old = {f"m000.{name}": part.contiguous() for name, part in encoded(member).items()}
    save_file(old, tmp_path / "members.safetensors")
    (found,) = load_members(tmp_path / "members.safetensors")
    assert found.spec == member.spec
    assert found.tensors.keys() == member.tensors.keys()
    assert all(torch.equal(part, member.tensors[name]) for name, part in found.tensors.items())
    obs = torch.arange(3 * member.spec.columns).view(3, -1) % 3
    actions = [FrozenPolicy([one]).act_batch(obs) for one in (member, found)]
    assert torch.equal(*actions)


def changed(case: str, **changes: Tensor | None) -> dict[str, Tensor]:
    given = {name.replace("__", "."): part for name, part in changes.items()}
    every = {**encoded(member_of(**CASES[case])), **given}
    return {name: part for name, part in every.items() if part is not None}


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"theta": torch.zeros(4)}, "not those of one of ElegantRL's networks"),
        (changed("choices", action_dims=torch.tensor([1.0, 2.0, 3.0])), "float32, not int64"),
        (changed("choices", action_dims=torch.tensor([1, 2])), "do not sum to 6 actions"),
        (changed("tanh", activation=torch.tensor([7])), "not those of one of ElegantRL's"),
        (changed("images", conv_strides=torch.tensor([2, 1])), "do not fit images"),
        (changed("images", image_shape=torch.tensor([2, 6, 8])), "84 columns, image"),
        (changed("images", conv__1__weight=None), "not those of one of ElegantRL's"),
        (changed("items", items__groups=torch.tensor([[0, 1, 1]])), "has 0 places"),
        (changed("items", items__facts=torch.zeros(4, 2)), "one row for each of the 5 ids"),
        (changed("per seat", seat_column=torch.tensor([4])), "which no observation has"),
        (changed("ActorSAC", state_avg=None), "not those of one of ElegantRL's"),
    ],
)
def test_tensors_of_no_network_are_refused(tensors: dict[str, Tensor], words: str) -> None:
    with pytest.raises(InputError, match=words):
        FrozenPolicy([Member.of_tensors(tensors)])


def test_what_their_sizes_contradict_is_refused_at_load(tmp_path: Path) -> None:
    member = member_of(**CASES["ActorSAC"])
    odd = replace(member.spec, actions=7).shapes()["net_a.0.bias"]
    tensors = {**member.tensors, "net_a.0.bias": torch.zeros(odd[0] - 1)}
    save_file({f"m000.{name}": part for name, part in tensors.items()}, tmp_path / "members")
    with pytest.raises(
        InputError, match=r"members: member 0 .* net_a.0.(weight|bias) has the shape"
    ):
        load_members(tmp_path / "members")
