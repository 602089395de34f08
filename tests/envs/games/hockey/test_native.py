"""The compiled rules of hockey against torch's, to the bit."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sweepd.envs.games.hockey import game, native, physics, rules
from sweepd.envs.games.hockey.game import MODES, Hockey, HockeyParams
from sweepd.envs.games.hockey.players import PLAYERS
from sweepd.envs.games.opponents import Opponents, Scripted
from sweepd.envs.native import build
from tests.envs.games.both import Both, assert_equal, native_threads

try:
    build.vector_flags(), build.compiler()
except build.BuildError as error:
    pytest.skip(f"no native code: {error}", allow_module_level=True)

WEIGHTS = st.floats(-2, 2)


def test_constants_are_those_of_python() -> None:
    python: dict[str, Any] = {**vars(physics), **vars(rules), **vars(game)}
    python |= {"FACES": len(physics.FACE_TABLE), "CORNERS": len(physics.OUTLINE)}
    python["CORRECTIONS"] = physics.MOST_CORRECTIONS
    found: dict[str, float] = {}
    for file in sorted(native.SOURCE.parent.glob("[!l]*")):
        for line in re.findall(r"^constexpr (?:int|double) (.*);", file.read_text(), re.MULTILINE):
            for name, formula in re.findall(r"(\w+) = ([^,]+)", line):
                # Formulas are of numbers and of constants before them.
                found[name] = eval(formula, {"__builtins__": {}}, found)
    layout = {"COORDINATES", "NOTES"}
    assert len(found) > 35
    assert {name: python[name] for name in found.keys() - layout} == {
        name: number for name, number in found.items() if name not in layout
    }


def make(
    params: list[HockeyParams], games: int, seed: int, *, against: bool = False, **options: bool
) -> Both:
    def opponents() -> Opponents | None:
        return Scripted(PLAYERS, len(params)) if against else None

    rows = games if against else 2 * games
    return Both(
        lambda native: Hockey(params, rows, native=native, opponents=opponents(), **options), seed
    )


def actions(both: Both, most: float = 1.0) -> Tensor:
    """Return random actions."""
    env = both.envs[0]
    if env.if_discrete:
        return torch.randint(env.action_dim, (env.num_envs,), generator=both.generator)
    return most * (2 * torch.rand(env.num_envs, env.action_dim, generator=both.generator) - 1)


def play(both: Both, steps: int) -> None:
    """Play at random, with every action several times, so that players come to the puck."""
    for at in range(steps):
        if at % 6 == 0:
            action = actions(both)
        both.step(action)


@settings(max_examples=8)
@given(
    st.lists(
        st.builds(
            HockeyParams,
            st.sampled_from(MODES),
            max_timesteps=st.integers(0, 30),
            closeness=WEIGHTS,
            touch=WEIGHTS,
            direction=WEIGHTS,
        ),
        min_size=1,
        max_size=3,
    ),
    st.booleans(),
    st.booleans(),
    st.integers(1, 40),
    st.integers(0, 2**32 - 1),
    st.integers(1, 2),
)
def test_random_play_is_equal(
    params: list[HockeyParams], keep_mode: bool, discrete: bool, games: int, seed: int, workers: int
) -> None:
    """With members that change, and checkpoints of compiled rules that torch continues."""
    form = {"keep_mode": keep_mode, "discrete": discrete}
    both = make([HockeyParams(**(vars(own) | form)) for own in params], games, seed)
    with native_threads(workers):
        play(both, 14)
        both.each("configure_member", 0, HockeyParams("train_defense", **form))
        both.each("reset_member", 0, seed // 2)
        play(both, 4)
        both.exchange()
        play(both, 6)


def test_long_games_are_equal() -> None:
    """Until all kinds of ends, over several tasks of two threads."""
    both = make([HockeyParams(), HockeyParams("train_defense", touch=1.0)], 301, 1)
    with native_threads(2):
        play(both, 120)
    assert bool((both.ended > 100).all())


@pytest.mark.parametrize("keep_mode", [True, False])
def test_moves_from_any_state_are_equal(keep_mode: bool) -> None:
    """Overlaps of rackets and puck, fast bodies, corners, walls and goals."""
    games, generator = 3001, torch.Generator().manual_seed(2)
    both = make([HockeyParams(keep_mode=keep_mode)], games, 2)
    drawn = torch.randn(games, 17, generator=generator)
    x, y = drawn[:, :2], drawn[:, 2:4]
    drawn[::7, 8:10] *= 20.0  # too fast: limited
    drawn[::5, 14:16] *= 5.0
    bodies = torch.cat((2 * x - 2, 2 * y, 0.6 * drawn[:, 4:6], 6 * drawn[:, 6:12]), 1)
    spread = torch.tensor([3.0, 2.0, 30.0, 30.0, 50.0]) * drawn[:, 12:]
    near = torch.arange(games) % 3 == 0  # pucks at or within player 1's racket
    spread[near, :2] = bodies[near][:, [0, 2]] + 0.25 * drawn[near, 12:14]
    state = {
        "bodies": torch.cat((bodies, spread), 1),
        "counters": torch.randint(0, 16, (games, 2), generator=generator),
        "touching": torch.rand(games, 2, generator=generator) < 0.3,
        "scored": torch.zeros(games),
    }
    for env in both.envs:
        for name, own in state.items():
            env.state[name].copy_(own)
    for _ in range(3):
        both.step(actions(both))
    assert int(both.ended[0]) > 30


def test_games_against_scripted_players_are_equal() -> None:
    params = [HockeyParams("train_shooting"), HockeyParams("train_defense", max_timesteps=20)]
    both = make(params, 30, 3, against=True, outcome_rewards=True)
    play(both, 90)
    assert bool((both.ended > 10).all())
    both.exchange()
    for one, other in zip(*(env.results() for env in both.envs), strict=True):
        assert_equal(one, other, "results")


@pytest.mark.parametrize("against", [False, True])
@pytest.mark.parametrize("number", [1.5, -2.0, float("nan"), float("-inf")])
def test_illegal_actions_are_equal(number: float, against: bool) -> None:
    both = make([HockeyParams()] * 2, 5, 4, against=against)
    for at in range(6):
        action = actions(both)
        if at == 3:
            action[7 if not against else 6, 2] = number
        both.step(action)
    assert "step 4" in both.error()
    both.stored()
    both.each("reset_member", 0, 5)
    both.each("reset_member", 1, 6)
    both.step(actions(both))
    assert not both.error()


def test_other_buffers_and_actions_are_taken() -> None:
    both = make([HockeyParams()], 9, 5)
    for kind in (torch.float32, torch.float64, torch.float16, torch.int64):
        for transposed in (False, True):
            action = actions(both).to(kind)
            if transposed:
                action = action.t().contiguous().t()
            both.step(action, (torch.empty(18, 18).t(), torch.empty(18, 18)))
