"""Descriptions of networks: their JSON, the tensors that follow, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import elegantrl.agents.net as elegantrl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweepd.agents.networks.activation import ACTIVATIONS
from sweepd.agents.networks.convolution import Filters
from sweepd.agents.networks.part import offsets
from sweepd.agents.networks.spec import KINDS, NetSpec
from sweepd.envs.support.errors import InputError
from tests.agents.networks.nets import ASSETS, BOARD, EVERY, LAYOUTS, spec

SIZES = st.integers(1, 9)


@st.composite
def specs(draw: st.DrawFn) -> NetSpec:
    """Any valid description."""
    kind = draw(st.sampled_from(list(KINDS)))
    changes: dict[str, Any] = {
        "columns": draw(SIZES),
        "actions": draw(SIZES),
        "hidden": tuple(draw(st.lists(SIZES, min_size=1, max_size=3))),
        "activation": draw(st.sampled_from(list(ACTIVATIONS))),
        "clip": draw(st.none() | st.floats(0.1, 1e9)),
    }
    if "PPO" in kind:
        inputs = draw(st.sampled_from(["numbers", "image", *LAYOUTS]))
        if inputs == "image":
            image = draw(st.tuples(SIZES, st.integers(2, 6), st.integers(2, 6)))
            filters = (Filters(draw(SIZES), 2, 1), Filters(draw(SIZES), 1, draw(SIZES)))
            columns = image[0] * image[1] * image[2]
            changes |= {"image": image, "filters": filters, "columns": columns}
        elif inputs in LAYOUTS:
            changes |= {"items": LAYOUTS[inputs], "item_width": draw(SIZES)}
            changes["columns"] = LAYOUTS[inputs].columns
        changes["cell"] = draw(st.sampled_from(["", "gru", "lstm"]))
        if draw(st.booleans()):
            choices = tuple(draw(st.lists(SIZES, min_size=2, max_size=4)))
            changes |= {"choices": choices, "actions": sum(choices)}
            changes["autoregressive"] = draw(st.booleans())
        if draw(st.booleans()):
            changes["seat_column"] = draw(st.integers(0, changes["columns"] - 1))
    return NetSpec(kind=kind, **changes)


@given(specs())
def test_a_description_survives_json(own: NetSpec) -> None:
    again = NetSpec.from_dict(json.loads(json.dumps(own.to_dict())))
    assert again == own
    assert again.shapes() == own.shapes()
    assert hash(again) == hash(own)


@given(specs())
def test_tensors_lie_on_cache_lines_one_after_the_other(own: NetSpec) -> None:
    parts, end = own.parts(), 0
    for part, start in zip(parts, offsets(parts).values(), strict=True):
        assert start % 16 == 0
        assert 0 <= start - end < 16
        end = start + part.rows * part.columns
    assert 0 <= own.size - end < 16
    names = [part.name for part in parts]
    assert len(set(names)) == len(names)


def test_defaults_are_left_out() -> None:
    own = NetSpec(kind="QNet", columns=3, actions=2, hidden=(4,))
    assert own.to_dict() == {"kind": "QNet", "columns": 3, "actions": 2, "hidden": (4,)}


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_are_elegantrls(kind: str) -> None:
    """In the modules' order, and with all that differs in how they act."""
    own = spec(kind, hidden=(8, 7, 6))
    module = getattr(elegantrl, kind)([8, 7, 6], 5, 4)
    theirs = {name: tuple(part.shape) for name, part in module.state_dict().items()}
    assert own.shapes() == theirs
    assert own.discrete == (
        kind in {"ActorDiscretePPO", "QNet"} or "QNet" in kind or "Critic" in kind
    )


WRONG: dict[str, dict[str, Any]] = {
    "there is no kind 'ActorTD3'": {"kind": "ActorTD3"},
    "there is no activation 'gelu'": {"activation": "gelu"},
    r"sizes \[0, 4, 8, 7\]": {"columns": 0},
    r"sizes \[5, -1, 8, 7\]": {"actions": -1},
    "clip 0.0, which is not above 0": {"clip": 0.0},
    "clip nan": {"clip": float("nan")},
    "QNet has neither images": {"kind": "QNet", "cell": "gru"},
    "ActorSAC has neither images": {"kind": "ActorSAC", "seat_column": 0},
    r"choices \[2, 3\] that do not sum to 4": {"choices": (2, 3)},
    "autoregressive, without choices": {"autoregressive": True},
    "no cell 'rnn'": {"cell": "rnn"},
    r"5 columns, image \(1, 5, 5\)": {"image": (1, 5, 5), "filters": (Filters(1, 1, 1),)},
    r"25 columns, image \(1, 5, 5\) and filters \[\]": {"image": (1, 5, 5), "columns": 25},
    "items that do not fill them": {"items": BOARD, "item_width": 3},
    "entities with entity_width 8": {"entities": ASSETS, "columns": 9, "entity_width": 8},
    "entities with entity_width 0": {"entities": ASSETS, "columns": 9},
    "seat_column 5, which no observation has": {"seat_column": 5},
}


@pytest.mark.parametrize("words", WRONG)
def test_what_does_not_fit_is_refused(words: str) -> None:
    with pytest.raises(InputError, match=f"description is not valid: .*{words}"):
        spec(**WRONG[words])


def test_filters_that_do_not_fit_an_image_are_refused() -> None:
    with pytest.raises(InputError, match="do not fit images"):
        spec(columns=25, image=(1, 5, 5), filters=(Filters(4, 8, 4),))


@pytest.mark.parametrize(
    ("described", "words"),
    [
        (None, "it: "),
        ([], "it: "),
        ({"kind": "QNet"}, "columns: Field required"),
        (spec().to_dict() | {"hidden": "wide"}, "hidden: "),
        (spec().to_dict() | {"columns": 5.5}, "columns: "),
        (spec().to_dict() | {"kind": 7}, "kind: "),
        (spec().to_dict() | {"kind": "Other"}, "there is no kind 'Other'"),
        (spec().to_dict() | {"filters": [[1, 2]]}, "filters.0"),
        (spec().to_dict() | {"colour": "red"}, "colour"),
        (spec().to_dict() | {"items": {"vocabulary": 1, "groups": []}}, "vocabulary of 2 to 256"),
    ],
)
def test_json_of_something_else_is_refused(described: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        NetSpec.from_dict(described)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 300) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@given(st.sampled_from(list(EVERY.values())), st.data())
def test_a_changed_description_is_refused_or_another_network(
    own: NetSpec, data: st.DataObject
) -> None:
    described = json.loads(json.dumps(own.to_dict()))
    name = data.draw(st.sampled_from(sorted(described)))
    value = data.draw(JSON)
    try:
        found = NetSpec.from_dict({**described, name: value})
    except InputError:
        return
    assert found == replace(own, **{name: getattr(found, name)})
    assert found.shapes()
