"""The compiled rules of Bucket Brigade against torch's, to the bit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sweepd.envs.games.bucket_brigade import native, rules, scenarios
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.scenarios import BucketParams, scenario
from sweepd.envs.native import build
from sweepd.envs.native.structs import c_constant
from tests.envs.games.both import Both, assert_equal, native_threads
from tests.envs.games.bucket_brigade.test_rules import random_actions, random_params

try:
    build.vector_flags(), build.compiler()
except build.BuildError as error:
    pytest.skip(f"no native code: {error}", allow_module_level=True)


def make(
    params: list[BucketParams], games: int, seed: int, *, together: int = 1, scaled: bool = True
) -> Both:
    rows = games * params[0].num_agents

    def one(native: bool) -> BucketBrigade:
        return BucketBrigade(params, rows, together=together, scaled=scaled, native=native)

    return Both(one, seed)


def play(both: Both, steps: int) -> None:
    """Play at random."""
    env = both.envs[0]
    assert isinstance(env, BucketBrigade)
    for _ in range(steps):
        both.step(random_actions(both.generator, env.num_envs, env.num_houses))


def test_constants_are_those_of_python() -> None:
    python = vars(scenarios) | vars(rules)
    for name in ("MAX_HOUSES", "MAX_AGENTS", "RUINED", "HOUSE", "MODE"):
        assert c_constant(native.SOURCE, name) == python[name]


@settings(max_examples=12)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(1, 12),
    st.integers(1, 6),
    st.integers(1, 3),
    st.integers(1, 80),
    st.booleans(),
    st.integers(1, 2),
)
def test_random_play_is_equal(
    seed: int, houses: int, agents: int, members: int, games: int, scaled: bool, workers: int
) -> None:
    """With members that change, and checkpoints of compiled rules that torch continues."""
    params = [random_params(seed + member, houses, agents) for member in range(members)]
    both = make(params, games, seed, scaled=scaled)
    with native_threads(workers):
        play(both, 12)
        both.each("configure_member", 0, random_params(seed + members, houses, agents))
        both.each("reset_member", 0, seed // 2)
        play(both, 4)
        both.exchange()
        play(both, 6)


def test_long_games_are_equal() -> None:
    """Until both kinds of ends, over several tasks of two threads."""
    params = [scenario("default", max_nights=14), scenario("default_continuous", max_nights=14)]
    both = make(params, 601, 1)
    with native_threads(2):
        play(both, 30)
    assert bool((both.ended > 100).all())


def test_shared_games_are_equal() -> None:
    """Rows that get other seats in every draw."""
    both = make([random_params(seed) for seed in (1, 1, 2, 2)], 5, 2, together=2)
    for _ in range(4):
        both.each("draw", 6)
        both.compare()
        play(both, 6)
    both.exchange()
    play(both, 3)


@pytest.mark.parametrize(
    ("choice", "number"), [(0, 10), (0, -1), (1, 2), (2, -(2**63)), (0, 2**63 - 1), (2, 256)]
)
def test_illegal_actions_are_equal(choice: int, number: int) -> None:
    both = make([BucketParams()] * 2, 3, 3, together=2)
    for at in range(4):
        action = random_actions(both.generator, both.envs[0].num_envs, 10)
        if at == 2:
            action[13, choice] = number
        both.step(action)
    assert "step 3" in both.error()
    both.stored()
    both.each("reset_member", 0, 5)
    both.each("reset_member", 1, 6)
    play(both, 1)
    assert not both.error()


def test_other_buffers_and_actions_are_taken() -> None:
    both = make([scenario("v2_minimal")], 5, 4)
    rows, size = both.envs[0].observe().shape
    for kind in (torch.int64, torch.int32):
        action = random_actions(both.generator, rows, 2).to(kind)
        for out in (torch.empty(rows, size).double(), torch.empty(rows, size + 3)[:, 2:-1]):
            both.step(action, (out, torch.empty(rows, size)))
            assert_equal(out.float(), both.envs[1].observe(), "out")
