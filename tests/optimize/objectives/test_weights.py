"""Which networks the members of a study may start from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sweepd.agents.networks.spec import NetSpec
from sweepd.agents.policy.members import Member
from sweepd.envs.core.items import ItemGroup, Items
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.members.weights import check_start

ITEMS = Items(3, (ItemGroup("hand", 2, ("cost",)),), (("cost", 8.0),), (2.0,), ((0.3,),) * 3)
SPEC = NetSpec(
    kind="ActorDiscretePPO", columns=5, actions=4, hidden=(8,), items=ITEMS, item_width=2
)
# As a file tells them that does not describe its members.
NAMELESS = Items(
    3, (ItemGroup("0", 2, ("0",)),), (("0", 1.0),), (1.0,), ((float(torch.tensor(0.3)),),) * 3
)


def started(spec: NetSpec, wanted: NetSpec = SPEC) -> None:
    check_start(Member(spec, {}), wanted)


def test_equal_networks_may_have_another_scale_of_observations_and_nameless_items() -> None:
    started(SPEC)
    started(replace(SPEC, clip=10.0))
    started(SPEC, replace(SPEC, clip=10.0))
    started(replace(SPEC, items=NAMELESS))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"activation": "tanh"}, "a network of activation tanh, not relu"),
        ({"hidden": (8, 8)}, r"hidden \(8, 8\), not \(8,\)"),
        ({"actions": 5, "cell": "gru"}, "actions 5, not 4; cell gru, not "),
        ({"items": replace(ITEMS, facts=((1.0,),) * 3)}, "items .*, not "),
        ({"items": replace(ITEMS, groups=(ItemGroup("hand", 2),), plain=(1.0,) * 3)}, "items"),
        ({"items": None}, "items None, not "),
    ],
)
def test_other_networks_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        started(replace(SPEC, **changes))
