"""Wrappers of observations: what each makes, what it refuses, and which ones messages name."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import sweepd.wrappers
from sweepd.envs.external.describe import describe
from sweepd.envs.external.observations import ObservationLayout
from sweepd.envs.external.sources import FactorySource, GymSource
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.external.wrapping import WRAPPERS, find_wrapper, flags_of, wrap
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError, RunError
from tests.envs.external.samples import Counter, Tag
from tests.envs.external.shown import MISSIONS, Mission, Shown

IMAGE = spaces.Box(0, 255, (48, 40, 3), np.uint8)
GREY = spaces.Box(-1.0, 1.0, (40, 48), np.float32)


MIXED = spaces.Dict(
    {"image": IMAGE, "speed": spaces.Box(-2.0, 2.0, (2,)), "gear": spaces.Discrete(3)}
)
GRID = spaces.Dict(
    {"image": spaces.Box(0, 255, (7, 7, 3), np.uint8), "mission": Mission((), str)}  # type: ignore[arg-type]
)


def made(space: spaces.Space[Any], *texts: str) -> tuple[spaces.Space[Any], Any]:
    """Return the space and one observation of the wrapped environment, which belongs to it."""
    env = wrap(Shown(space, MISSIONS), texts)
    seen, _ = env.reset(seed=0)
    assert env.observation_space.contains(seen), seen
    stepped, *_ = env.step(1)
    assert env.observation_space.contains(stepped), stepped
    return env.observation_space, seen


def converted(space: spaces.Space[Any], text: str, observation: Any) -> Any:
    """Return one observation as a wrapper converts it."""
    return wrap(Shown(space), [text]).observation(observation)


def test_the_wrappers_import_no_torch() -> None:
    program = "import sys, sweepd.wrappers; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_wrapper_is_public_under_the_name_of_its_flag() -> None:
    for name, function in WRAPPERS.items():
        assert getattr(sweepd.wrappers, name.replace("-", "_")) is function


def test_one_hot_columns_of_choices_and_grids() -> None:
    assert converted(spaces.Discrete(4, start=2), "one-hot", 3).tolist() == [0, 1, 0, 0]
    pair = spaces.MultiDiscrete([2, 3])
    assert converted(pair, "one-hot", np.array([1, 2])).tolist() == [0, 1, 0, 0, 1]
    grid = spaces.Box(0, 255, (1, 2, 2), np.uint8)
    text = 'one-hot {"sizes": [2, 3]}'
    found = converted(grid, text, np.array([[[1, 0], [0, 2]]], np.uint8))
    assert found.tolist() == [0, 1, 1, 0, 0, 1, 0, 0, 0, 1]
    with pytest.raises(ValueError, match="value 7 at position 1 is not one of the 3 from 0"):
        converted(grid, text, np.array([[[1, 7], [0, 2]]], np.uint8))
    ids = spaces.Box(0, 2, (7, 7, 3), np.uint8)
    space, _ = made(spaces.Dict({"ids": ids, "n": GREY}), 'one-hot {"key": "ids"}')
    assert space["ids"].shape == (7 * 7 * 3 * 3,)  # type: ignore[index]
    sized = 'one-hot {"key": "image", "sizes": [11, 6, 3]}'
    assert wrap(Shown(GRID), [sized]).observation_space["image"].shape == (7 * 7 * 20,)


def test_tokens_have_a_code_for_unknown_words_and_one_for_none() -> None:
    text = 'tokens {"key": "mission", "words": ["go", "to", "the", "key", ","], "length": 6}'
    seen = {"image": np.zeros((7, 7, 3), np.uint8), "mission": "Go to the RED key"}
    assert converted(GRID, text, seen)["mission"].tolist() == [2, 3, 4, 1, 5, 0]
    long = {**seen, "mission": "go, go go go go go go"}
    assert converted(GRID, text, long)["mission"].tolist() == [2, 6, 2, 2, 2, 2]
    characters = spaces.Text(4, charset="ab")
    assert converted(characters, "tokens", "ba").tolist() == [3, 2, 0, 0]


def test_images_of_floats_become_bytes_between_their_bounds() -> None:
    image = np.full((40, 48), -1.0, np.float32)
    image[0, 0], image[0, 1] = 1.0, 0.0
    found = converted(GREY, "uint8", image)
    assert (found.dtype, found[0, 0], found[0, 1], found[1, 1]) == (np.uint8, 255, 128, 0)
    for low, high in ((-np.inf, np.inf), (0.0, np.inf)):
        with pytest.raises(InputError, match=r"--wrapper uint8: the wrapper uint8: .* no bounds"):
            made(spaces.Box(low, high, (40, 48)), "uint8")


def test_channels_come_first_and_stacked_frames_become_channels() -> None:
    image = np.random.default_rng(0).integers(0, 255, (48, 40, 3)).astype(np.uint8)
    assert (converted(IMAGE, "channels-first", image) == image.transpose(2, 0, 1)).all()
    space, _ = made(IMAGE, 'frame-stack {"frames": 2}')
    assert space.shape == (6, 48, 40)
    assert ObservationLayout(space).image_shape == (6, 48, 40)
    env = wrap(Shown(IMAGE), ["frame-stack"])
    first, _ = env.reset(seed=0)
    second, *_ = env.step(0)
    assert (second[:9] == first[3:]).all()
    assert (second[9:] != first[9:]).any()
    assert made(spaces.Box(-1.0, 1.0, (5,)), "frame-stack")[0].shape == (4, 5)


def test_numbers_become_planes_of_the_image() -> None:
    seen = {"image": np.ones((48, 40, 3), np.uint8), "speed": np.array([-2.0, 3.0]), "gear": 1}
    found = converted(MIXED, "planes", seen)
    assert found.shape == (8, 48, 40)
    assert found.dtype == np.uint8
    by_name = dict(zip(sorted(("gear", "speed")), (slice(3, 6), slice(6, 8)), strict=True))
    assert (found[:3] == 1).all()
    assert found[by_name["gear"], 0, 0].tolist() == [0, 255, 0]
    assert found[by_name["speed"], 5, 7].tolist() == [0, 255]  # clipped
    assert ObservationLayout(made(MIXED, "planes")[0]).image_shape == (8, 48, 40)
    unbounded = spaces.Dict({"image": GREY, "speed": spaces.Box(-np.inf, np.inf, (2,))})
    with pytest.raises(InputError, match="only with low and high"):
        made(unbounded, "planes")
    assert made(unbounded, 'planes {"low": -3, "high": 3}')[0].shape == (3, 40, 48)


def test_sequences_are_padded_and_cut() -> None:
    pairs = spaces.Sequence(spaces.Box(1.0, 2.0, (2,)))
    found = converted(pairs, 'pad {"length": 2}', (np.array([1.0, 2.0], np.float32),))
    assert (found["items"].tolist(), found["count"]) == ([[1.0, 2.0], [0.0, 0.0]], 1)
    four = tuple(np.full(2, 1.5, np.float32) for _ in range(4))
    assert converted(pairs, 'pad {"length": 2}', four)["count"] == 2
    made(pairs, 'pad {"length": 3}')
    made(spaces.Sequence(spaces.Discrete(4)), 'pad {"length": 3}')


def test_a_mask_stays_next_to_the_converted_observation() -> None:
    space = spaces.Dict({"observation": spaces.Discrete(3), "action_mask": spaces.MultiBinary(2)})
    seen = {"observation": 2, "action_mask": np.array([1, 0])}
    found = converted(space, "one-hot", seen)
    assert found["observation"].tolist() == [0, 0, 1]
    assert found["action_mask"].tolist() == [1, 0]


def test_parts_are_selected_at_any_depth() -> None:
    nest = spaces.Dict({"a": spaces.Dict({"b": spaces.Discrete(2), "c": GREY}), "d": IMAGE})
    assert made(nest, 'select {"keys": ["a/c"]}')[0] == GREY
    assert list(made(nest, 'select {"keys": ["d", "a/b"]}')[0]) == ["a/b", "d"]  # type: ignore[call-overload]
    pair = spaces.Tuple((spaces.Discrete(2), GREY))
    assert made(pair, 'uint8 {"key": "1"}')[0][1].dtype == np.uint8  # type: ignore[index]


@pytest.mark.parametrize(
    ("text", "space", "said"),
    [
        ("one_hot", GREY, "--wrapper 'one_hot' is not known; choose one of flatten, one-hot,"),
        ("flatten 3", GREY, "--wrapper flatten 3: the arguments must be a JSON object"),
        ("flatten {", GREY, "--wrapper flatten {: the arguments are not JSON"),
        ('uint8 {"keys": 1}', GREY, "TypeError: .*unexpected keyword argument 'keys'"),
        ('select {"keys": ["x"]}', MIXED, "there is no part 'x'; there are: gear, image, speed"),
        ('select {"keys": "image"}', MIXED, "keys 'image' must be a list"),
        ("one-hot", GREY, "has no choices"),
        ('tokens {"key": "mission"}', GRID, "give words, the vocabulary"),
        ('tokens {"words": ["a b"]}', spaces.Text(3), "'a b' of words is not one word"),
        ("flatten", spaces.Graph(GREY, None), "has no fixed number of columns"),
        ("pad", GREY, "missing 1 required positional argument: 'length'"),
        ("json:JSON", GREY, "the module json has nothing called 'JSON'"),
        (
            "json:__name__",
            GREY,
            "--wrapper json:__name__: 'json' is neither a function nor a class",
        ),
    ],
)
def test_wrong_wrappers_are_refused(text: str, space: spaces.Space[Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        made(space, text)


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (MIXED, ["planes"]),
        (GREY, ["uint8"]),
        (spaces.Box(-np.inf, np.inf, (40, 48, 3), np.float32), ["flatten"]),
        (spaces.Box(0, 255, (4, 40, 48, 3), np.uint8), ["channels-first"]),
        (
            GRID,
            [
                'tokens {"key": "mission", "words": [",", "ball", "go", "key", "pick", "please", '
                '"red", "the", "to", "up"], "length": 6}'
            ],
        ),
        (spaces.Text(5, charset="abc"), None),
        (spaces.Sequence(spaces.Box(0.0, 1.0, (2,))), None),
        (
            spaces.Dict({"graph": spaces.Graph(spaces.Box(0, 1, (1,)), None), "n": GREY}),
            ['select {"keys": ["n"]}', "uint8"],
        ),
        (
            spaces.Dict(
                {"a": spaces.Dict({"b": GREY}), "n": spaces.Graph(spaces.Discrete(2), None)}
            ),
            ['select {"keys": ["a/b"]}', "uint8"],
        ),
        (spaces.Dict({"a": IMAGE, "b": GREY, "c": spaces.Discrete(2)}), ['select {"keys": ["c"]}']),
    ],
)
def test_a_refused_space_names_wrappers_that_mend_it(
    space: spaces.Space[Any], named: list[str] | None
) -> None:
    source = FactorySource(lambda: Shown(space, MISSIONS if space is GRID else ()))
    with pytest.raises(InputError, match="add --wrapper ") as error:
        describe(source, {})
    flags = shlex.split(str(error.value).partition("; add ")[2])
    assert flags[::2] == ["--wrapper"] * (len(flags) // 2)
    if named is not None:
        assert flags[1::2] == named
    # The flags mend it as they are printed.
    assert describe(source, {"wrappers": flags[1::2]}).observations.size


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (-np.inf, np.inf),
        (np.zeros((60, 40), np.float32), np.arange(1, 2401, dtype=np.float32).reshape(60, 40)),
    ],
)
def test_a_table_of_numbers_without_common_bounds_is_no_image(low: Any, high: Any) -> None:
    table = spaces.Box(low, high, (60, 40), np.float32)
    layout = describe(FactorySource(lambda: Shown(table)), {}).observations
    assert (layout.size, layout.image_shape) == (2400, None)


def test_what_no_wrapper_mends_is_refused_without_one() -> None:
    graph = spaces.Graph(spaces.Box(0, 1, (1,)), None)
    with pytest.raises(InputError, match="Graph") as error:
        describe(FactorySource(lambda: Shown(graph)), {})
    assert "add" not in str(error.value)


def test_wrappers_of_ones_own_and_their_order() -> None:
    texts = [f"{__name__}:doubled", f'{__name__}:doubled {{"factor": 5}}']
    env = wrap(Counter(), texts)
    env.reset(seed=0)
    assert env.step(3)[0][2] == 30.0
    assert flags_of(texts) == f"--wrapper {texts[0]} --wrapper '{texts[1]}'"
    assert find_wrapper(texts[1]).arguments == {"factor": 5}


def doubled(env: gymnasium.Env[Any, Any], factor: int = 2) -> gymnasium.Env[Any, Any]:
    """Multiply observations."""
    return gymnasium.wrappers.TransformObservation(
        env, lambda seen: seen * factor, env.observation_space
    )


class Twice(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Repeats every action."""

    def step(self, action: Any) -> Any:
        self.env.step(action)
        return self.env.step(action)


def episode(wrappers: list[str], length: int = 6) -> int:
    """Return the steps of an episode of CartPole with a limit, within wrappers."""
    env = ExternalVecEnv(
        "gym:MountainCar-v0", [{"wrappers": wrappers, "max_episode_steps": length}], 1
    )
    env.reset(0)
    for count in range(1, 20):
        step = env.step(env.faults().long())
        if bool(step.truncated[0]):
            env.close()
            return count
    raise AssertionError("no end")


def test_a_limit_of_steps_counts_those_of_the_environment_within_wrappers() -> None:
    assert episode([]) == episode(['frame-stack {"frames": 2}']) == 6
    # Wrappers of others may repeat actions: the limit is that of the environment itself.
    assert episode([f"{__name__}:Twice"]) == 3


def test_the_agents_of_a_pettingzoo_environment_are_converted() -> None:
    plain = describe(FactorySource(Tag), {})
    both = describe(FactorySource(Tag), {"wrappers": ["flatten"]})
    assert both.kind == plain.kind
    env = ExternalVecEnv(FactorySource(Tag), [{"wrappers": ["flatten"]}], both.rows)
    assert env.reset(0).shape == (both.rows, both.observations.size)
    env.close()
    with pytest.raises(InputError, match="frame-stack is for a "):
        describe(FactorySource(Tag), {"wrappers": ["frame-stack"]})


class Foraging(gymnasium.Env[Any, Any]):
    """Two agents in a Tuple: each gets its own action as reward and sees that of the other."""

    observation_space = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3)))
    action_space = spaces.Tuple((spaces.Discrete(3), spaces.Discrete(3)))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._count = 0
        return (0, 0), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, Any, dict[str, Any]]:
        self._count += 1
        first, second = action
        over = self._count == 3
        return (second, first), [float(first), float(second)], over, [False, False], {}


def test_agents_in_a_tuple_become_agents_of_a_parallel_environment() -> None:
    source = FactorySource(Foraging)
    with pytest.raises(InputError, match=r"rewards are a list, .*; add --wrapper agents$"):
        describe(source, {})
    what = describe(source, {"wrappers": ["agents"]})
    assert (what.kind.name, what.rows, what.observations.size) == ("PARALLEL", 2, 3)
    env = ExternalVecEnv(source, [{"wrappers": ["agents"]}], 2)
    env.reset(0)
    step = env.step(torch.tensor([1, 2]))
    assert step.reward.tolist() == [1.0, 2.0]
    assert step.obs.argmax(1).tolist() == [2, 1]
    env.step(torch.tensor([0, 0]))
    assert env.step(torch.tensor([0, 0])).terminated.all()
    env.close()
    with pytest.raises(InputError, match="a Tuple with one space for each agent; they are Box"):
        wrap(Counter(), ["agents"])


def test_agents_in_a_tuple_are_seats_of_one_game() -> None:
    game = get_game(f"{__name__}:Foraging")
    assert game.seats(game.params(wrappers=["agents"])) == 2
    registered = get_game("gym:tests.envs.external.registering:tests/Counter-v0")
    assert registered.seats(registered.params(wrappers=["flatten"])) == 1


def test_vector_environments_are_wrapped_one_by_one() -> None:
    with pytest.raises(InputError, match=r"wrap the single environments instead \(gym:ID\)"):
        describe(GymSource("CartPole-v1", batched=2), {"wrappers": ["flatten"]})


def test_values_outside_of_the_space_end_the_run_with_the_reason() -> None:
    class Wrong(Shown):
        def _show(self) -> Any:
            return np.full((1, 2), 9, np.uint8)

    grid = spaces.Box(0, 9, (1, 2), np.uint8)
    wrappers = ['one-hot {"sizes": [3, 3]}']
    source = FactorySource(lambda: Wrong(grid))
    env = ExternalVecEnv(source, [{"wrappers": wrappers}], 1)
    with pytest.raises(RunError, match="one-hot: value 9 at position 0 is not one of the 3 from 0"):
        env.reset(0)
    env.close()


def test_texts_that_are_json_stay_json() -> None:
    arguments: Mapping[str, Any] = {"key": "mission", "words": ["don"], "length": 2}
    found = find_wrapper(f"tokens {json.dumps(arguments)}")
    assert found.arguments == arguments
