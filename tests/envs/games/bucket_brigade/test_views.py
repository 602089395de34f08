"""Bucket Brigade's views for Gymnasium and PettingZoo, and its rendering."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import MultiDiscrete
from gymnasium.utils.env_checker import check_env

from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.players import ScriptedPolicy
from sweepd.envs.games.bucket_brigade.render import Scene, as_frame, as_text, name, scene
from sweepd.envs.games.bucket_brigade.scenarios import scenario
from sweepd.envs.games.bucket_brigade.views import ParallelView, SeatView
from sweepd.envs.gymnasium_view import BUCKET_BRIGADE_ID, register
from sweepd.envs.support.errors import InputError, RunError

SHORT = scenario("hard", min_nights=2, max_nights=6)


# ---- Gymnasium ----


@pytest.mark.parametrize("scaled", [True, False])
def test_one_seat_passes_gymnasiums_check(scaled: bool) -> None:
    register()
    env = gymnasium.make(
        BUCKET_BRIGADE_ID, scenario="rest_trap", seat=2, company="coordinator", scaled=scaled
    )
    with pytest.warns(UserWarning, match="infinity"):  # reward sizes have no bounds
        check_env(env.unwrapped, skip_render_check=True)


def test_one_seat_equals_the_game_with_baseline_players() -> None:
    seat = SeatView(SHORT, seat=1, company="hero")
    obs, _ = seat.reset(seed=3)
    whole = BucketBrigade(SHORT, 4)
    seen, company = whole.reset(3), ScriptedPolicy("hero", whole.encoder, derive_seed("company", 3))
    over = False
    while not over:
        np.testing.assert_array_equal(obs, seen[1])
        action = company(seen)
        action[1] = torch.tensor([4, 1, 0])
        made = whole.step(action)
        obs, reward, terminated, truncated, _ = seat.step(np.array([4, 1, 0]))
        over = terminated or truncated
        seen = whole.final_obs() if over else made.obs
        assert (reward, terminated, truncated) == (
            float(made.reward[1]),
            bool(made.terminated[1]),
            bool(made.truncated[1]),
        )
    np.testing.assert_array_equal(obs, seen[1])
    with pytest.raises(InputError, match="the seat is 4; it must be a whole number from 0 to 3"):
        SeatView(SHORT, seat=4)
    with pytest.raises(InputError, match="'nobody' is not known"):
        SeatView(SHORT, company="nobody")


def test_the_vector_view_has_a_row_per_seat() -> None:
    register()
    env = gymnasium.make_vec(BUCKET_BRIGADE_ID, num_envs=8, scenario="hard", max_nights=3)
    assert env.single_action_space == MultiDiscrete(np.array([10, 2, 2]))
    assert env.action_space.shape == (8, 3)
    obs, _ = env.reset(seed=7)
    assert env.observation_space.contains(obs)
    for night in range(1, 7):
        obs, reward, _, truncated, infos = env.step(env.action_space.sample())
        assert reward.shape == (8,)
        assert truncated.all() == (night % 3 == 0)
        if truncated.any():
            assert infos["final_obs"][0].shape == obs[0].shape
    with pytest.raises(RunError, match="choice 1"):
        env.step(np.full((8, 3), 2))


# ---- PettingZoo ----


def test_the_parallel_api_passes_pettingzoos_test() -> None:
    parallel_test = pytest.importorskip("pettingzoo.test", reason="pettingzoo is not installed")
    parallel_test.parallel_api_test(ParallelView(SHORT), num_cycles=40)


def test_all_agents_leave_with_the_game() -> None:
    env = ParallelView(SHORT, scaled=False)
    assert env.agents == []
    obs, infos = env.reset(seed=1)
    assert (
        list(obs)
        == list(infos)
        == env.agents
        == env.possible_agents
        == [f"agent_{i}" for i in range(4)]
    )
    assert all(env.observation_space(agent).contains(obs[agent]) for agent in env.agents)
    again = ParallelView(SHORT, scaled=False).reset(seed=1)[0]
    assert all(np.array_equal(obs[agent], again[agent]) for agent in env.agents)
    whole = BucketBrigade(SHORT, 4, scaled=False)
    whole.reset(1)
    nights = 0
    while env.agents:
        actions = {agent: env.action_space(agent).sample() for agent in env.agents}
        seen, rewards, terminated, truncated, infos = env.step(actions)
        made = whole.step(torch.from_numpy(np.stack(list(actions.values()))))
        nights += 1
        assert list(rewards.values()) == made.reward.tolist()
        ended = [terminated[agent] or truncated[agent] for agent in env.possible_agents]
        assert ended == [not env.agents] * 4
        assert list(infos) == list(seen) == env.possible_agents
        expected = whole.final_obs() if not env.agents else made.obs
        np.testing.assert_array_equal(np.stack(list(seen.values())), expected.numpy())
    assert 3 <= nights <= 6
    assert env.step({}) == ({}, {}, {}, {}, {})
    assert env.state().shape == (10 + 16 + 12,)
    assert (env.num_agents, env.max_num_agents, env.unwrapped) == (0, 4, env)


# ---- pictures ----

FIRE = Scene(
    (0, 1, 2, 0, 0, 0, 0, 0, 0, 0),
    ((1, 1, 1), (1, 0, 1), (2, 0, 0), (9, 1, 0)),
    3,
    (1.0, -2.5, 0.0, 7.25),
)


def test_a_night_as_text() -> None:
    text = as_text(FIRE)
    assert text.splitlines()[0] == "night 3"
    for cell in ("0.", "1*Ab", "2xc", "9.D", "5."):
        assert cell in text
    assert "A works at 1, signals work  +1.0" in text
    assert "B rests at 1, signals work  -2.5" in text
    assert "D works at 9, signals rest  +7.2" in text
    quiet = as_text(FIRE._replace(night=0))
    assert "no agent has acted yet" in quiet
    assert "1*Ab" not in quiet


@pytest.mark.parametrize(("houses", "agents"), [(1, 1), (2, 5), (3, 4), (10, 4), (31, 30)])
def test_no_house_hides_another(houses: int, agents: int) -> None:
    shown = Scene((1,) * houses, tuple((agent % houses, 1, 0) for agent in range(agents)), 1)
    text = as_text(shown)
    for house in range(houses):
        here = "".join(name(agent) for agent in range(agents) if agent % houses == house)
        assert f"{house}*{here}" in text
    assert as_frame(shown, 200).shape == (200, 200, 3)


def test_a_frame_shows_what_happens() -> None:
    frame = as_frame(FIRE)
    assert (frame.shape, frame.dtype) == ((480, 480, 3), np.uint8)
    same = as_frame(FIRE)
    assert np.array_equal(frame, same)
    for changed in (
        FIRE._replace(houses=(1, *FIRE.houses[1:])),
        FIRE._replace(acts=((1, 0, 1), *FIRE.acts[1:])),
        FIRE._replace(acts=((1, 1, 0), *FIRE.acts[1:])),
        FIRE._replace(night=4),
    ):
        assert not np.array_equal(frame, as_frame(changed))


def test_views_render_the_night_that_ended_too() -> None:
    env = ParallelView(SHORT, render_mode="ansi")
    assert env.render() is None
    env.reset(seed=0)
    assert "night 0" in str(env.render())
    night = 0
    while env.agents:
        env.step({agent: np.array([3, 1, 1]) for agent in env.agents})
        night += 1
        text = str(env.render())
        assert text.startswith(f"night {night}\n")
        assert "3xABCD" in text or "3.ABCD" in text or "3*ABCD" in text
    frame = SeatView(SHORT, render_mode="rgb_array")
    frame.reset(seed=0)
    assert frame.render().shape == (480, 480, 3)
    with pytest.raises(InputError, match="render mode is 'human'"):
        ParallelView(SHORT, render_mode="human")


def test_a_scene_shows_the_present_game() -> None:
    env = BucketBrigade(SHORT, 8)
    env.reset(0)
    env.step(torch.tensor([[agent, 1, 0] for agent in range(8)]))
    shown = scene(env, 1, [1.0, 2.0, 3.0, 4.0])
    assert shown.night == 1
    assert shown.acts == tuple((agent, 1, 0) for agent in range(4, 8))
    assert list(shown.houses) == env.state["houses"][:, 1].tolist()
    assert shown.rewards == (1.0, 2.0, 3.0, 4.0)
