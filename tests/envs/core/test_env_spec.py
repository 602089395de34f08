"""The spec of an environment: what it refuses, and that it survives JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from pydantic import TypeAdapter

from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.env_spec import EnvSpec
from sweepd.envs.core.items import ItemGroup, Items
from sweepd.envs.games.tensor_game import NoParams, TensorGame
from sweepd.envs.support.errors import InputError
from tests.envs.games.toys import Nim

ITEMS = Items(
    vocabulary=2,
    groups=(ItemGroup("hand", 2, ("power",)), ItemGroup("row", 1)),
    features=(("power", 4.0),),
    plain=(1.0, 2.0),
    facts=((0.0,), (0.5,)),
)
BYTES: dict[str, Any] = {"state_dim": 7, "action_dim": 2, "if_discrete": True, "obs_dtype": "uint8"}


@pytest.mark.parametrize(
    ("traits", "words"),
    [
        ({"masked": True, "if_discrete": False}, "set if_discrete = True"),
        ({"action_dims": (1, 1), "if_discrete": False}, "set if_discrete = True"),
        ({"action_dims": (2, 3)}, r"sum to action_dim 2, not \(2, 3\)"),
        ({"action_dims": [1, 1]}, r"must be a tuple of sizes .* not \[1, 1\]"),
        ({"players": 2, "has_absent_agents": True}, "has_absent_agents must be false"),
        ({"state_dim": 0}, "state_dim must be a whole number of at least 1, not 0"),
        ({"privileged_dim": -1}, "privileged_dim must be a whole number of at least 0"),
        ({"masked": 1}, "masked must be true or false, not 1"),
        ({"obs_dtype": "float64"}, "obs_dtype must be 'float32' or 'uint8'"),
        ({"obs_dtype": "float32", "items": ITEMS}, "they are 'float32' and 7"),
        ({"obs_dtype": "float32", "image_shape": (1, 7, 1)}, "they are 'float32' and 7"),
        ({"privileged_dim": 1}, "privileged_dim must be 0 where obs_dtype is 'uint8'"),
        ({"image_shape": (1, 5, 5)}, "image_shape has 25 columns, which needs .* state_dim of 25"),
        (
            {"state_dim": 8, "items": ITEMS},
            "items has 7 columns, which needs .* they are 'uint8' and 8",
        ),
        ({"seat_column": 7}, "seat_column must be one of the 7 columns"),
        ({"seat_column": 6, "items": ITEMS}, "which items scale by 2; it must be a plain column"),
    ],
)
def test_traits_that_do_not_fit_together_are_refused(traits: dict[str, Any], words: str) -> None:
    EnvSpec(**BYTES)
    with pytest.raises(InputError, match=words):
        EnvSpec(**BYTES | traits)


@pytest.mark.parametrize("kind", [EnvSpec, Shape])
def test_a_spec_survives_json(kind: type[EnvSpec]) -> None:
    for more in ({"action_dims": (1, 1)}, {"items": ITEMS, "seat_column": 5}):
        spec = kind(**BYTES, **more)
        stored = json.dumps(asdict(spec))
        read = TypeAdapter(kind).validate_json(stored, strict=True)
        assert (read, hash(read)) == (spec, hash(spec))


def test_an_environments_attributes_make_its_spec() -> None:
    env = Nim([NoParams()] * 2, 3)
    spec = EnvSpec(
        state_dim=6,
        action_dim=6,
        if_discrete=True,
        action_dims=(3, 3),
        masked=True,
        players=2,
        obs_dtype="uint8",
        seat_column=4,
    )
    assert env.spec == spec
    shape = Shape.for_env(env, minibatch=8)
    assert {name: getattr(shape, name) for name in vars(spec)} == vars(spec)
    assert (shape.slots, shape.num_envs, shape.minibatch) == (2, 3, 8)

    class Unfinished(Nim):
        obs_dtype = "uint16"

    with pytest.raises(InputError, match="Unfinished: obs_dtype must be"):
        Unfinished([NoParams()], 3)

    class Sizeless(TensorGame):
        start = move = see = Nim.start  # type: ignore[assignment]

    with pytest.raises(InputError, match=r"Sizeless: .*missing .*'state_dim' and 'action_dim'"):
        Sizeless([NoParams()], 3)
