"""New networks equal ElegantRL's to the bit for the same seed, and load into them."""

from __future__ import annotations

import elegantrl.agents.net as elegantrl
import pytest
import torch
from torch import nn

from sweepd.agents.networks.initial import new_weights, own_weights, seeded
from sweepd.agents.networks.net import check_tensors
from sweepd.agents.networks.portable import OrthogonalInDouble
from sweepd.agents.networks.spec import KINDS, NetSpec
from tests.agents.networks.nets import FURTHER
from tests.agents.networks.plain import CELLS


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("hidden", "columns", "actions"), [((64, 64), 5, 2), ((7,), 1, 1), ((32, 16, 8), 24, 6)]
)
@pytest.mark.parametrize("in_double", [False, True])
def test_weights_are_elegantrls(
    kind: str, hidden: tuple[int, ...], columns: int, actions: int, in_double: bool
) -> None:
    spec = NetSpec(kind=kind, columns=columns, actions=actions, hidden=hidden)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        own = new_weights(spec)
        after = torch.rand(1)
        torch.manual_seed(3)
        module: nn.Module = getattr(elegantrl, kind)(list(hidden), columns, actions)
        assert torch.equal(torch.rand(1), after)  # as many numbers were drawn
        if in_double:
            with seeded(3):
                own = new_weights(spec)
            torch.manual_seed(3)
            with OrthogonalInDouble():
                module = getattr(elegantrl, kind)(list(hidden), columns, actions)
    theirs = module.state_dict()
    assert own.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(own[name], tensor), name
    check_tensors(spec, own)


@pytest.mark.parametrize("spec", FURTHER.values(), ids=FURTHER)
def test_further_layers_begin_as_torchs(spec: NetSpec) -> None:
    """Drawn after all others, in this order."""
    with seeded(3):
        new_weights(spec)
        own = own_weights(spec)
    modules: dict[str, nn.Module] = {}
    with seeded(3):
        new_weights(spec)
        for index, filters in enumerate(spec.filters):
            channels = spec.filters[index - 1].channels if index else (spec.image or (0,))[0]
            modules[f"conv.{index}"] = nn.Conv2d(channels, filters.channels, filters.kernel)
        if spec.cell:
            modules["rnn"] = CELLS[spec.cell](spec.hidden[-1], spec.hidden[-1])
        if spec.items is not None:
            table = nn.Embedding(spec.items.vocabulary, spec.item_width, padding_idx=0).weight
            assert torch.equal(own.pop("items.embedding"), table)
            if known := spec.items.fact_count + len(spec.items.features):
                modules["items"] = nn.Linear(known, spec.item_width)
            else:
                assert not own.pop("items.bias").any()
        if spec.entities is not None:
            modules["entities"] = nn.Linear(spec.entities.width, spec.entity_width)
    for choice in range(1, len(spec.choices)):
        if spec.autoregressive:
            assert not own.pop(f"chain.{choice}.weight").any()  # independent at first
    theirs = {
        f"{name}.{part}": tensor
        for name, module in modules.items()
        for part, tensor in module.state_dict().items()
    }
    assert own.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert torch.equal(own[name], tensor), name
