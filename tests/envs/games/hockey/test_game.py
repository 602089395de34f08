"""Hockey as an environment: starts, ends, rewards, views, members, and scripted players."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from sweepd.envs.games.hockey.game import Hockey, HockeyParams
from sweepd.envs.games.hockey.players import PLAYERS
from sweepd.envs.games.hockey.rules import DISCRETE_ACTIONS
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError, RunError
from sweepd.testing.host_sync import NoHostSync
from tests.envs.games.hockey.reference import Body
from tests.envs.games.hockey.reference import Hockey as ScalarHockey


def started(mode: str, games: int = 4000, **params: Any) -> Tensor:
    """Return what player 1 observes at the start of many games."""
    return Hockey([HockeyParams(mode=mode, **params)], 2 * games).reset(3)[::2]


def assert_fills(values: Tensor, low: float, high: float) -> None:
    """Check that values look uniform in a range."""
    assert low - 1e-4 <= float(values.min()) < low + 0.01 * (high - low)
    assert high - 0.01 * (high - low) < float(values.max()) <= high + 1e-4
    error = (high - low) / math.sqrt(12 * len(values))
    assert abs(float(values.mean()) - (low + high) / 2) < 4 * error


@pytest.mark.parametrize("mode", ["normal", "train_shooting", "train_defense"])
def test_starts(mode: str) -> None:
    seen = started(mode)
    assert torch.equal(seen[:, :6], torch.tensor([-3.0, 0, 0, 0, 0, 0]).expand(len(seen), -1))
    assert not seen[:, 8:12].any()  # player 2: angle, velocities
    assert not seen[:, 16:].any()
    if mode == "normal":
        assert torch.equal(seen[:, 6:8], torch.tensor([3.0, 0.0]).expand(len(seen), -1))
    else:
        assert_fills(seen[:, 6], 3 - 3.333, 3 + 1.667)
        assert_fills(seen[:, 7], -2, 2)
    x, y, vx, vy = seen[:, 12:16].unbind(1)
    if mode == "train_defense":
        assert_fills(x, 0, 3.333)
        assert_fills(y, -3.2, 3.2)
        torch.testing.assert_close(torch.hypot(vx, vy), torch.full_like(vx, 60.0))
        # Where the shot's line meets x = -5.
        assert_fills(y + vy / vx * (-5 - x), -0.75, 0.75)
        return
    assert not torch.stack((vx, vy)).any()
    assert_fills(y, -1, 1)
    assert_fills(x.abs(), 1, 2)
    share = float((x < 0).float().mean())
    assert share == 1.0 if mode == "train_shooting" else abs(share - 0.5) < 0.04


@pytest.mark.parametrize(
    ("params", "steps"),
    [
        ({}, 251),
        ({"mode": "train_shooting"}, 81),
        ({"mode": "train_defense"}, 81),
        ({"max_timesteps": 7}, 8),
    ],
)
def test_truncation(params: dict[str, Any], steps: int) -> None:
    env = Hockey([HockeyParams(**params)], 200)
    env.reset(1)
    still = torch.zeros(200, 4)
    playing = torch.ones(200, dtype=torch.bool)
    for step in range(1, steps + 1):
        before = env.observe()
        made = env.step(still)
        assert torch.equal(made.terminated[::2], made.terminated[1::2])
        playing &= ~made.terminated
        assert bool(made.truncated[playing].all()) == (step == steps)
    assert int(playing.sum()) > 20
    # The last observation is one step after the one before it, and the next game has begun.
    last = env.final_obs()[playing]
    moved = before[playing][:, 12:14] + 0.02 * last[:, 14:16]
    flying = ((last[:, 14:16] - before[playing][:, 14:16]).norm(dim=1)) < 0.1
    torch.testing.assert_close(last[flying][:, 12:14], moved[flying], atol=0.01, rtol=0.0)
    assert torch.equal(
        made.obs[playing][:, :2], torch.tensor([-3.0, 0.0]).expand(len(last), -1)
    ) or (params.get("mode", "normal") != "normal")


def scalar_games(env: Hockey, params: HockeyParams) -> list[ScalarHockey]:
    """Return the present games of an environment as scalar ones."""
    state = env.state
    games = []
    for row, counters, touching in zip(
        state["bodies"].double().tolist(),
        state["counters"].tolist(),
        state["touching"].tolist(),
        strict=True,
    ):
        x1, x2, y1, y2, angle1, angle2, vx1, vx2, vy1, vy2, omega1, omega2, *puck = row
        bodies = [
            Body(x1, y1, angle1, vx1, vy1, omega1),
            Body(-x2, -y2, angle2, -vx2, -vy2, omega2),
        ]
        x, y, vx, vy, omega = puck
        games.append(
            ScalarHockey(
                bodies,
                Body(x, y, 0.0, vx, vy, omega),
                params.keep_mode,
                params.time_limit,
                counters,
                touching,
            )
        )
    return games


@pytest.mark.parametrize(
    "params",
    [
        HockeyParams(closeness=0.5, touch=2.0, direction=3.0),
        HockeyParams(mode="train_shooting", closeness=0.0, touch=0.7),
        HockeyParams(keep_mode=False, max_timesteps=120, direction=-1.0),
    ],
)
def test_rewards_of_both_seats_equal_the_scalar_reference(params: HockeyParams) -> None:
    env = Hockey([params], 2 * 30)
    obs = env.reset(5)
    player, memory = PLAYERS["strong"], torch.zeros(60, 1)
    generator = torch.Generator().manual_seed(0)
    goals = touches = near = 0
    for _ in range(100):
        action, memory = player.act(obs, memory, torch.rand(60, 1, generator=generator))
        games = scalar_games(env, params)
        made = env.step(action)
        obs = made.obs
        for k, game in enumerate(games):
            first, second, caught, direction = game.step(
                action[2 * k : 2 * k + 2].flatten().tolist()
            )
            for seat, side, total in ((0, 1, first), (1, -1, second)):
                goal = 10.0 * side * game.winner
                expected = (
                    goal
                    + params.closeness * (total - goal)
                    + params.touch * caught[seat]
                    + params.direction * side * direction
                )
                assert float(made.reward[2 * k + seat]) == pytest.approx(expected, abs=2e-4)
                near += total != goal
            assert bool(made.terminated[2 * k]) == (game.winner != 0)
            goals += game.winner != 0
            touches += sum(caught)
    assert goals > 3
    assert near > 100
    assert touches > 10 if params.keep_mode else touches == 0


@pytest.mark.parametrize("keep_mode", [True, False])
def test_both_seats_see_the_same_game_mirrored(keep_mode: bool) -> None:
    env = Hockey([HockeyParams(keep_mode=keep_mode)], 2 * 30)
    obs = env.reset(2)
    generator = torch.Generator().manual_seed(3)
    signs = torch.tensor([-1.0, -1, 1, -1, -1, 1])
    held = 0
    for _ in range(120):
        one, two = obs[::2], obs[1::2]
        assert torch.equal(two[:, :6], one[:, 6:12] * signs)
        assert torch.equal(two[:, 6:12], one[:, :6] * signs)
        assert torch.equal(two[:, 12:16], -one[:, 12:16])
        assert torch.equal(two[:, 16:], one[:, 16:].flip(1))
        held += int((one[:, 16:] > 0).sum())
        # Drive towards the puck, and turn at random.
        action = torch.rand(60, env.action_dim, generator=generator) * 2 - 1
        action[:, :2] = obs[:, 12:14] - obs[:, :2]
        obs = env.step(action.clamp(-1, 1)).obs
    assert held > 50 if keep_mode else held == 0


def test_mirrored_games_give_mirrored_results() -> None:
    """Players who exchange their seats exchange observations and rewards."""
    envs = [Hockey([HockeyParams(direction=1.0, touch=1.0)], 2 * 50) for _ in range(2)]
    for env in envs:
        env.reset(4)
    state = envs[0].state
    swapped = state["bodies"].clone()
    swapped[:, :12] = state["bodies"][:, :12].view(-1, 6, 2).flip(2).flatten(1)
    swapped[:, 12:16] *= -1.0
    envs[1].state["bodies"].copy_(swapped)
    generator = torch.Generator().manual_seed(6)
    for _ in range(60):
        action = (torch.rand(50, 2, 4, generator=generator) * 2 - 1).round()
        one = envs[0].step(action.flatten(0, 1))
        two = envs[1].step(action.flip(1).flatten(0, 1))
        alive = ~(one.terminated | one.truncated)[::2]
        torch.testing.assert_close(
            one.reward.view(50, 2), two.reward.view(50, 2).flip(1), atol=1e-3, rtol=0.0
        )
        if not bool(alive.all()):
            return  # the next games differ
    pytest.fail("no game ended")


class NoHostTensors(TorchDispatchMode):
    """Raises where a tensor is made from Python numbers, which a device would wait for."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert "lift_fresh" not in str(func), f"{func} copies from the host"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("discrete", [True, False])
def test_a_step_does_not_synchronize(discrete: bool) -> None:
    env = Hockey([HockeyParams(discrete=discrete)] * 2, 4, native=False)
    env.reset(1)
    env.draw(4)
    actions = torch.zeros(8, dtype=torch.int64) if discrete else torch.zeros(8, 4)
    env.step(actions)  # makes constants
    with NoHostSync(), NoHostTensors():
        for _ in range(3):
            env.step(actions)


def test_forms_of_observations_and_actions() -> None:
    for keep_mode, discrete, state_dim, action_dim in (
        (True, False, 18, 4),
        (False, False, 16, 3),
        (True, True, 18, 8),
        (False, True, 16, 7),
    ):
        env = Hockey([HockeyParams(keep_mode=keep_mode, discrete=discrete)], 4)
        assert (env.state_dim, env.action_dim, env.if_discrete) == (state_dim, action_dim, discrete)
        assert env.reset(0).shape == (4, state_dim)


@pytest.mark.parametrize("keep_mode", [True, False])
def test_discrete_actions_are_continuous_ones(keep_mode: bool) -> None:
    coded = Hockey([HockeyParams(keep_mode=keep_mode, discrete=True)], 2 * 20)
    plain = Hockey([HockeyParams(keep_mode=keep_mode)], 2 * 20)
    assert torch.equal(coded.reset(1), plain.reset(1))
    table = torch.tensor(DISCRETE_ACTIONS)[:, : plain.action_dim]
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        action = torch.randint(0, coded.action_dim, (40,), generator=generator)
        one, two = coded.step(action), plain.step(table[action])
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_illegal_actions_are_reported() -> None:
    env = Hockey([HockeyParams()] * 2, 4)
    env.reset(0)
    actions = torch.zeros(8, 4)
    env.step(actions)
    env.check()
    actions[5, 2] = torch.nan
    env.step(actions)
    assert env.faults().nonzero().flatten().tolist() == [5]
    assert torch.isfinite(env.observe()).all()
    with pytest.raises(RunError, match="row 5 "):
        env.check()
    choices = Hockey([HockeyParams(discrete=True)], 4)
    choices.reset(0)
    choices.step(torch.tensor([0, 8, 3, 7]))
    with pytest.raises(RunError, match="from 0 to 7"):
        choices.check()


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"mode": "attack"}, "hockey mode 'attack' is not one of normal, train_shooting"),
        ({"keep_mode": "yes"}, "keep_mode is 'yes', not a bool"),
        ({"discrete": 1}, "discrete is 1, not a bool"),
        ({"max_timesteps": -1}, "max_timesteps is -1; it must be a whole number"),
        ({"max_timesteps": 2.5}, "max_timesteps is 2.5"),
        ({"closeness": math.nan}, "closeness is nan; it must be a number"),
        ({"touch": "much"}, "touch is 'much'"),
        ({"direction": True}, "direction is True"),
    ],
)
def test_bad_parameters_are_one_sentence(params: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as raised:
        get_game("hockey").params(**params)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_members_of_different_forms_are_refused() -> None:
    with pytest.raises(InputError, match="the same keep_mode and discrete"):
        Hockey([HockeyParams(), HockeyParams(discrete=True)], 4)
    env = Hockey([HockeyParams()], 4)
    with pytest.raises(InputError, match="must be the environment's"):
        env.configure_member(0, HockeyParams(keep_mode=False))
    with pytest.raises(InputError, match="3 envs are not a multiple"):
        Hockey([HockeyParams()], 3)


def scalar_player(obs: list[float], phase: float, *, strong: bool) -> list[float]:
    """Return the actions of a scripted player, from the rules."""
    x, y, angle, *velocity = obs[:6]
    puck_x, puck_y, puck_vx, puck_vy = obs[12:16]
    target = [-3.5, 0.0]
    if puck_vx < 0.5:
        target[1] = puck_y
        distance = math.hypot(x - puck_x, y - puck_y)
        if x < puck_x and abs(y - puck_y) < 0.5:
            target = [puck_x + 0.2, puck_y + 0.1 * puck_vy * distance]
    target.append(math.pi / 3 * math.sin(phase))
    kp, kd = (10.0 if strong else 0.5), 0.5
    actions = []
    for wanted, here, speed, share, near in zip(
        target, (x, y, angle), velocity, (1, 5, 2), (0.1, 0.1, 1.0), strict=True
    ):
        error = wanted - here
        brakes = abs(error / (speed + 0.01)) < near
        actions.append(min(max(error * kp / share - speed * brakes * kd, -1.0), 1.0))
    if len(obs) == 18:
        actions.append(1.0 if 0 < obs[16] < 7 else 0.0)
    return actions


@pytest.mark.parametrize("size", [18, 16])
@pytest.mark.parametrize("name", ["weak", "strong"])
def test_scripted_players_equal_scalar_ones(name: str, size: int) -> None:
    rng = random.Random(1)
    seen = []
    for _ in range(3000):
        places = [rng.uniform(-4, 4), rng.uniform(-3, 3), rng.uniform(-1.2, 1.2)]
        speeds = [rng.gauss(0, rng.choice((0.1, 5))) for _ in range(3)]
        puck = [
            rng.uniform(-4, 4),
            places[1] + rng.gauss(0, 0.7),
            *(rng.gauss(0, 3), rng.gauss(0, 9)),
        ]
        counters = [float(rng.choice((0, 0, 2, 6, 7, 15))), 0.0]
        seen.append([*places, *speeds, *[0.0] * 6, *puck, *counters][:size])
    obs = torch.tensor(seen, dtype=torch.float64)
    uniforms = torch.rand(3000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    memory = PLAYERS[name].start(uniforms[:, :1])
    torch.testing.assert_close(memory, math.pi * uniforms[:, :1])
    actions, after = PLAYERS[name].act(obs, memory, uniforms[:, 1:])
    phases = (memory + 0.2 * uniforms[:, 1:]).flatten()
    torch.testing.assert_close(after.flatten(), phases)
    expected = [
        scalar_player(own, phase, strong=name == "strong")
        for own, phase in zip(seen, phases.tolist(), strict=True)
    ]
    torch.testing.assert_close(actions, torch.tensor(expected, dtype=torch.float64))
