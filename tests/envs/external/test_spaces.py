"""Layouts of observations and actions of any space."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.spaces.utils import flatten
from hypothesis import given, settings
from hypothesis import strategies as st

from sweepd.envs.external.actions import ActionLayout
from sweepd.envs.external.observations import ObservationLayout
from sweepd.envs.support.errors import InputError

SIZES = st.integers(1, 5)
SHAPES = st.lists(st.integers(1, 3), max_size=3).map(tuple)
FLOATS = st.sampled_from([np.float16, np.float32, np.float64])
WHOLE = st.sampled_from([np.uint8, np.int8, np.int16, np.uint16, np.int32, np.uint32, np.int64])
CHOICES = st.one_of(
    st.builds(lambda n, start: spaces.Discrete(n, start=start), SIZES, st.integers(-3, 3)),
    st.builds(spaces.MultiDiscrete, st.lists(SIZES, min_size=1, max_size=3)),
    st.builds(spaces.MultiBinary, SIZES),
)
NUMBERS = st.builds(lambda shape, dtype: spaces.Box(-2.0, 3.0, shape, dtype), SHAPES, FLOATS)
LEAVES = st.one_of(
    NUMBERS,
    CHOICES,
    st.builds(lambda shape, dtype: spaces.Box(0, 100, shape, dtype), SHAPES, WHOLE),
)


def nested(leaves: Any) -> Any:
    """Strategy of Dict and Tuple spaces, nested several levels deep."""
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3).map(
                spaces.Dict
            ),
            st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        ),
        max_leaves=6,
    )


def numbers(space: spaces.Space[Any], value: Any) -> list[float]:
    """Return Gymnasium's flat numbers, sorted, since the order of leaves differs here."""
    return sorted(np.asarray(flatten(space, value), dtype=np.float32).tolist())


@settings(max_examples=40)
@given(space=nested(LEAVES), seed=st.integers(0, 1000))
def test_observations_keep_every_number(space: spaces.Space[Any], seed: int) -> None:
    space.seed(seed)
    values = [space.sample() for _ in range(3)]
    layout = ObservationLayout(space)
    rows, singly = np.zeros(3, layout.dtype), np.zeros(3, layout.dtype)
    layout.writer(rows).all(values)
    for row, value in enumerate(values):
        layout.writer(singly).one(row, value)
    assert rows.tobytes() == singly.tobytes()
    flat = layout.unpack(torch.from_numpy(rows.view(np.uint8).reshape(3, -1)))
    assert flat.shape == (3, layout.size)
    assert flat.dtype == torch.float32
    for row, value in zip(flat, values, strict=True):
        assert sorted(row.tolist()) == numbers(space, value)


@pytest.mark.parametrize(
    "space", [spaces.Box(-1.0, 1.0, (3,), np.float32), spaces.Box(0, 255, (40, 40), np.uint8)]
)
def test_observations_without_conversion_are_views_of_the_buffer(space: spaces.Space[Any]) -> None:
    layout = ObservationLayout(space)
    rows = np.zeros(2, layout.dtype)
    flat = layout.unpack(torch.from_numpy(rows.view(np.uint8).reshape(2, -1)))
    layout.writer(rows).all([np.ones_like(space.sample())] * 2)
    assert flat.eq(1).all()


def test_leaves_have_fixed_columns() -> None:
    space = spaces.Dict(a=spaces.Discrete(3, start=5), b=spaces.Box(-1.0, 1.0, (2,), np.float64))
    layout = ObservationLayout(space)
    rows = np.zeros(2, layout.dtype)
    layout.writer(rows).all(
        [{"a": 6, "b": np.array([0.5, -0.5])}, {"a": 5, "b": np.array([1.0, 0.0])}]
    )
    flat = layout.unpack(torch.from_numpy(rows.view(np.uint8).reshape(2, -1)))
    assert flat.tolist() == [[0.0, 1.0, 0.0, 0.5, -0.5], [1.0, 0.0, 0.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("shape", "image"),
    [
        ((40, 48, 3), (3, 40, 48)),
        ((4, 84, 84), (4, 84, 84)),
        ((60, 50), (1, 60, 50)),
        ((8, 8, 3), None),
    ],
)
def test_images_are_recognized_by_dtype_and_shape(
    shape: tuple[int, ...], image: tuple[int, ...] | None
) -> None:
    space = spaces.Box(0, 255, shape, np.uint8)
    layout = ObservationLayout(space)
    assert layout.image_shape == image
    picture = space.sample()
    rows = np.zeros(1, layout.dtype)
    layout.writer(rows).all([picture])
    flat = layout.unpack(torch.from_numpy(rows.view(np.uint8).reshape(1, -1)))
    if image is None:
        assert flat.dtype == torch.float32
        return
    assert flat.dtype == torch.uint8
    expected = np.moveaxis(picture, -1, 0) if shape[-1] == 3 else picture
    np.testing.assert_array_equal(flat.view(*image).numpy(), expected.reshape(image))


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (spaces.Box(-1.0, 1.0, (3,), np.float32), np.zeros(4, np.float32)),
        (spaces.Box(-1.0, 1.0, (3,), np.float32), 0.0),
        (spaces.Box(-1.0, 1.0, (3,), np.float32), "left"),
        (spaces.Discrete(3), np.zeros(2)),
        (spaces.Dict(a=spaces.Discrete(3), b=spaces.Discrete(3)), {"a": 1}),
        (spaces.Tuple((spaces.Discrete(3), spaces.MultiBinary(2))), (1,)),
    ],
)
def test_observations_outside_the_space_are_reported(space: spaces.Space[Any], value: Any) -> None:
    layout = ObservationLayout(space)
    writer = layout.writer(np.zeros(2, layout.dtype))
    with pytest.raises(ValueError, match="is not of the observation space"):
        writer.one(1, value)
    with pytest.raises(ValueError, match="not all are of the observation space"):
        writer.all([space.sample(), value])


@settings(max_examples=30)
@given(space=nested(CHOICES), seed=st.integers(0, 1000))
def test_choices_become_actions_of_the_space(space: spaces.Space[Any], seed: int) -> None:
    layout = ActionLayout(space)
    assert layout.discrete
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, layout.choices, (4, layout.width))
    for row, action in zip(rows, layout.decode(rows), strict=True):
        assert space.contains(action)
        assert chosen(space, action) == row.tolist()


def chosen(space: spaces.Space[Any], action: Any) -> list[int]:
    if isinstance(space, spaces.Dict):
        return [choice for name, part in space.items() for choice in chosen(part, action[name])]
    if isinstance(space, spaces.Tuple):
        return [
            choice for part, own in zip(space, action, strict=True) for choice in chosen(part, own)
        ]
    start = getattr(space, "start", 0)
    return (np.asarray(action) - start).reshape(-1).tolist()


@settings(max_examples=30)
@given(space=nested(NUMBERS), seed=st.integers(0, 1000))
def test_numbers_are_scaled_to_the_bounds(space: spaces.Space[Any], seed: int) -> None:
    layout = ActionLayout(space)
    assert not layout.discrete
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1.0, 1.0, (3, layout.width)).astype(np.float32)
    rows[0], rows[1] = -1.0, 1.0
    low, high, middle = (flatten(space, action) for action in layout.decode(rows))
    assert (low == -2.0).all()
    assert (high == 3.0).all()
    np.testing.assert_allclose(middle, -2.0 + (rows[2] + 1.0) * 2.5, atol=0.01)
    assert all(space.contains(action) for action in layout.decode(rows))


def test_decoded_actions_belong_to_the_action_space() -> None:
    layout = ActionLayout(spaces.Box(-1.0, 1.0, (2,), np.float32))
    rows = np.zeros((2, 2), np.float32)
    actions = layout.decode(rows)
    rows[:] = 1.0
    assert not actions[0].any()


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (1,)))), "mixes choices and numbers"),
        (spaces.Box(-np.inf, 1.0, (1,)), "no bounds"),
        (spaces.Box(0, 3, (1,), np.int64), "whole numbers"),
        (spaces.Text(3), "is not supported"),
    ],
)
def test_unsupported_action_spaces_are_refused(space: spaces.Space[Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        ActionLayout(space)


@pytest.mark.parametrize(
    "space", [spaces.Text(3), spaces.Dict(a=spaces.Sequence(spaces.Discrete(2)))]
)
def test_observations_without_a_size_are_refused(space: spaces.Space[Any]) -> None:
    with pytest.raises(InputError, match="spaces that can be learned from"):
        ObservationLayout(space)
