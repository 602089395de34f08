"""Games of two seats against opponents: seats, opponents, rewards and results per episode."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.envs.core.streams import Streams
from sweepd.envs.games.hockey.game import Hockey, HockeyParams
from sweepd.envs.games.hockey.players import PLAYERS
from sweepd.envs.games.opponents import Scripted, ScriptedPlayer, check_mixture
from sweepd.envs.games.tensor_game import NoParams, TensorGame
from sweepd.envs.support.errors import InputError
from sweepd.testing.host_sync import NoHostSync
from tests.envs.games.two_seats import (
    PURSUIT_PLAYERS,
    RPS_PLAYERS,
    STEPS,
    PlainDrawer,
    PlainHunter,
    PlainPursuit,
    PlainRepeater,
    PlainRockPaperScissors,
    PlainWanderer,
    Player,
    Pursuit,
    RockPaperScissors,
    Rules,
    Wind,
)

Mixture = tuple[dict[str, float], str]
PURSUIT_MIXTURES: list[Mixture] = [
    ({"hunter": 0.7, "wanderer": 0.3}, "either"),
    ({"wanderer": 1.0}, "second"),
    ({"hunter": 1.0}, "first"),
]
RPS_MIXTURES: list[Mixture] = [
    ({"repeater": 0.4, "drawer": 0.6}, "second"),
    ({"drawer": 1.0}, "either"),
]


def scripted(players: Mapping[str, ScriptedPlayer], mixtures: Sequence[Mixture]) -> Scripted:
    opponents = Scripted(players, len(mixtures))
    for member, (mixture, seat) in enumerate(mixtures):
        opponents.configure_member(member, mixture, seat)
    return opponents


def pursuit(
    mixtures: Sequence[Mixture] = PURSUIT_MIXTURES, games: int = 8, **options: Any
) -> Pursuit:
    winds = [Wind(0.2 + 0.3 * len(mixture)) for mixture, _ in mixtures]
    return Pursuit(winds, games, opponents=scripted(PURSUIT_PLAYERS, mixtures), **options)


def choose(obs: Tensor) -> Tensor:
    """Return actions that depend on the observations alone."""
    return (1e4 * obs[:, :2].sum(1).abs()).long() % 3


class PlainGame:
    """One row played by the definition: one episode after the other."""

    def __init__(
        self,
        rules: Rules,
        players: Sequence[Player],
        columns: tuple[int, int, int],
        mixture: Sequence[float],
        first: float,
        limit: int,
        decode: Callable[[int], Any],
    ) -> None:
        self.rules, self.players, self.columns = rules, players, columns
        self.mixture, self.first, self.limit, self.decode = mixture, first, limit, decode
        self.results = [[0, 0.0, 0] for _ in players]

    def _cut(self, uniforms: Sequence[float]) -> list[Sequence[float]]:
        """Return the numbers for start, move, seat, opponent, its beginning, its step."""
        start, move, own = self.columns
        parts, at = [], 0
        for size in (start, move, 1, 1, own, own):
            parts.append(uniforms[at : at + size])
            at += size
        assert at == len(uniforms)
        return parts

    def begin(self, uniforms: Sequence[float]) -> None:
        start, _, where, whom, beginning, _ = self._cut(uniforms)
        self.state, self.age, self.returns = self.rules.start(start), 0, [0.0, 0.0]
        self.seat = 0 if where[0] < self.first else 1
        self.opponent = next(
            k for k in range(len(self.mixture)) if whom[0] < sum(self.mixture[: k + 1])
        )
        self.memory = self.players[self.opponent].start(beginning)

    def see(self) -> list[float]:
        return self.rules.see(self.state, self.seat)

    def step(self, action: int, uniforms: Sequence[float]) -> tuple[float, bool, bool, list[float]]:
        """Return reward, terminated, truncated and the last observation."""
        _, move, _, _, _, acting = self._cut(uniforms)
        theirs, self.memory = self.players[self.opponent].act(
            self.rules.see(self.state, 1 - self.seat), self.memory, acting
        )
        controls = [self.decode(action), theirs]
        if self.seat == 1:
            controls.reverse()
        self.state, rewards, over = self.rules.move(self.state, controls, move)
        self.age += 1
        self.returns = [total + new for total, new in zip(self.returns, rewards, strict=True)]
        truncated, last, reward = (
            self.age >= self.limit and not over,
            self.see(),
            rewards[self.seat],
        )
        if over or truncated:
            mine, other = self.returns[self.seat], self.returns[1 - self.seat]
            points = 1.0 if mine > other else 0.5 if mine == other else 0.0
            result = self.results[self.opponent]
            result[0] += 1
            result[1] += points
            result[2] += points == 1.0
            self.begin(uniforms)
        return reward, over, truncated, last


def _plain_games(
    rules: Callable[[int], Rules],
    players: Sequence[Player],
    names: Sequence[str],
    columns: tuple[int, int, int],
    mixtures: Sequence[Mixture],
    limit: int,
    decode: Callable[[int], Any],
    games: int,
) -> list[PlainGame]:
    chances = {"first": 1.0, "second": 0.0, "either": 0.5}
    return [
        PlainGame(
            rules(member),
            players,
            columns,
            [mixture.get(name, 0.0) for name in names],
            chances[seat],
            limit,
            decode,
        )
        for member, (mixture, seat) in enumerate(mixtures)
        for _ in range(games)
    ]


def both(name: str, games: int) -> tuple[TensorGame, list[PlainGame]]:
    """Return a game as tensors and as plain Python."""
    if name == "pursuit":
        gusts = [0.2 + 0.3 * len(mixture) for mixture, _ in PURSUIT_MIXTURES]
        return pursuit(games=games), _plain_games(
            lambda member: PlainPursuit(gusts[member]),
            [PlainHunter(), PlainWanderer()],
            list(PURSUIT_PLAYERS),
            (2, 1, 1),
            PURSUIT_MIXTURES,
            12,
            lambda action: STEPS[action],
            games,
        )
    env = RockPaperScissors([NoParams()] * 2, games, opponents=scripted(RPS_PLAYERS, RPS_MIXTURES))
    return env, _plain_games(
        lambda _: PlainRockPaperScissors(),
        [PlainRepeater(), PlainDrawer()],
        list(RPS_PLAYERS),
        (1, 0, 2),
        RPS_MIXTURES,
        5,
        lambda action: action,
        games,
    )


@pytest.mark.parametrize("name", ["pursuit", "rock-paper-scissors"])
def test_games_equal_a_plain_loop(name: str) -> None:
    games, steps = 5, 150
    env, plain = both(name, games)
    members = env.num_members
    seeds = [11 + member for member in range(members)]
    obs = env.reset(seeds)
    env.draw(steps)
    streams = Streams(members)
    columns = env._numbers.buffers["uniforms"].shape[2]
    for member, seed in enumerate(seeds):
        streams.seed(member, seed)
    starts = [streams.member_uniform(m, 1, games, columns)[0] for m in range(members)]
    for row, (own, uniforms) in enumerate(zip(plain, torch.cat(starts).tolist(), strict=True)):
        own.begin(uniforms)
        assert obs[row].tolist() == pytest.approx(own.see(), abs=1e-6)
    later = torch.cat([streams.member_uniform(m, steps, games, columns) for m in range(members)], 1)
    ends = {"terminated": 0, "truncated": 0}
    for now in later.tolist():
        action = choose(obs)
        made = env.step(action)
        for row, own in enumerate(plain):
            reward, over, late, last = own.step(int(action[row]), now[row])
            assert float(made.reward[row]) == pytest.approx(reward, abs=1e-6)
            assert (bool(made.terminated[row]), bool(made.truncated[row])) == (over, late)
            ends["terminated"] += over
            ends["truncated"] += late
            if over or late:
                assert env.final_obs()[row].tolist() == pytest.approx(last, abs=1e-6)
            assert made.obs[row].tolist() == pytest.approx(own.see(), abs=1e-6)
        obs = made.obs
    assert ends["truncated"] > 20
    assert (ends["terminated"] > 20) == (name == "pursuit")
    for member in range(members):
        rows = plain[member * games : (member + 1) * games]
        for index, _ in enumerate(env.opponents.names):
            wanted = [sum(own.results[index][k] for own in rows) for k in range(3)]
            found = [float(total[member, index]) for total in env.results()]
            assert found == wanted
    assert float(env.results().games.sum()) == sum(ends.values())


def played(env: TensorGame, steps: int, member: int) -> list[Tensor]:
    """Return a member's trajectory."""
    found, obs = [], env.observe()
    rows = slice(member * env.envs_per_member, (member + 1) * env.envs_per_member)
    for step in range(steps):
        if step % 8 == 0:
            env.draw(8)
        made = env.step(choose(obs))
        obs = made.obs
        found += [part[rows].clone() for part in (*made, env.final_obs())]
    return [*found, *(total[member].clone() for total in env.results())]


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_member_is_the_same_in_any_slot_and_goes_on_to_the_bit() -> None:
    mixture = PURSUIT_MIXTURES[0]
    alone = pursuit([mixture])
    alone.reset([7])
    first, then = played(alone, 40, 0), played(alone, 40, 0)
    company = pursuit([PURSUIT_MIXTURES[1], PURSUIT_MIXTURES[2], mixture])
    company.reset([1, 2, 7])
    assert same(played(company, 40, 2), first)
    state = company.get_member(2)
    assert int((state["age"] > 0).sum()) > 0  # in the middle of episodes
    assert set(state["opponent"].tolist()) == {0, 1}
    assert all(tensor.device.type == "cpu" for tensor in state.values())
    # Another slot, whose member had another mixture, seat and results.
    other = pursuit([mixture, PURSUIT_MIXTURES[2]])
    other.reset([5, 6])
    played(other, 16, 1)
    other.configure_member(1, Wind(0.2 + 0.3 * len(mixture[0])))
    other.set_member(1, state)
    assert same(played(other, 40, 1), then)


def test_a_reset_with_a_seed_begins_results_again() -> None:
    env = pursuit()
    env.reset([1, 2, 3])
    played(env, 40, 0)
    before = [total.clone() for total in env.results()]
    env.reset_member(1)
    assert same(list(env.results()), before)
    env.reset_member(1, 9)
    assert all(float(total[1].sum()) == 0.0 for total in env.results())
    assert same([total[::2] for total in env.results()], [total[::2] for total in before])


def test_seats_and_opponents_follow_the_mixture() -> None:
    games = 4_000
    mixtures: list[Mixture] = [
        ({"drawer": 0.25, "repeater": 0.75}, "either"),
        ({"drawer": 1.0}, "first"),
        ({"repeater": 1.0}, "second"),
    ]
    env = RockPaperScissors([NoParams()] * 3, games, opponents=scripted(RPS_PLAYERS, mixtures))
    env.reset(3)

    def check() -> None:
        own = [env.get_member(member) for member in range(3)]
        for state, (mixture, seat) in zip(own, mixtures, strict=True):
            for name, share in (
                ("seat", {"first": 0.0, "second": 1.0, "either": 0.5}[seat]),
                ("opponent", mixture.get("drawer", 0.0)),
            ):
                error = 4 * math.sqrt(share * (1 - share) / games)
                assert float(state[name].double().mean()) == pytest.approx(share, abs=error)
        # Seat and opponent are independent.
        both_one = float((own[0]["seat"] * own[0]["opponent"]).double().mean())
        assert both_one == pytest.approx(0.125, abs=4 * math.sqrt(0.125 * 0.875 / games))

    check()
    before = env.get_member(0)
    for _ in range(5):
        env.step(choose(env.observe()))
    check()
    # Of what changes with probability 0.5 and 2 * 0.25 * 0.75.
    for name, share in (("seat", 0.5), ("opponent", 0.375)):
        changed = float((env.get_member(0)[name] != before[name]).double().mean())
        assert changed == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / games))


def test_other_shares_count_from_the_next_episode() -> None:
    env = pursuit([({"hunter": 1.0}, "first")], 64)
    env.reset(2)
    opponents = env.opponents
    for _ in range(2):
        env.step(choose(env.observe()))
    opponents.configure_member(0, {"wanderer": 1.0}, "second")
    ended = torch.zeros(64, dtype=torch.bool)
    for _ in range(20):
        made = env.step(choose(env.observe()))
        ended |= made.terminated | made.truncated
        state = env.get_member(0)
        assert torch.equal(state["opponent"] == 1, ended)
        assert torch.equal(state["seat"] == 1, ended)
    assert bool(ended.all())


def test_an_opponent_without_a_share_is_never_drawn() -> None:
    """Not even where the cumulative shares do not reach the number, by rounding."""
    opponents = Scripted(dict.fromkeys("abcdefgh", PURSUIT_PLAYERS["hunter"]), 1)
    mixture = dict.fromkeys("bcd", 0.1) | {"e": 0.7}
    opponents.configure_member(0, mixture)
    env = Pursuit([Wind()], 2, opponents=opponents)
    env.reset(0)
    begun = torch.ones(2, dtype=torch.bool)
    env._seats.begin(begun, torch.tensor([[0.0, 0.0], [1.0 - 2.0**-53] * 2], dtype=torch.float64))
    assert env.get_member(0)["opponent"].tolist() == [1, 4]


@pytest.mark.parametrize("outcome_rewards", [False, True])
def test_a_step_does_not_synchronize(outcome_rewards: bool) -> None:
    hockey = Hockey(
        [HockeyParams(discrete=True)] * 2,
        3,
        opponents=Scripted(PLAYERS, 2),
        outcome_rewards=outcome_rewards,
    )
    for env in (pursuit(outcome_rewards=outcome_rewards), hockey):
        env.reset(1)
        env.draw(4)
        action = torch.zeros(env.num_envs, dtype=torch.int64)
        with NoHostSync():
            for _ in range(4):
                env.step(action)


def test_outcomes_as_rewards() -> None:
    """The same games pay their outcome at the end; without opponents, to both seats."""
    envs = [pursuit(games=6), pursuit(games=6, outcome_rewards=True)]
    for env in envs:
        env.reset(5)
    paid = 0.0
    for _ in range(60):
        plain, judged = (env.step(choose(env.observe())) for env in envs)
        assert torch.equal(plain.obs, judged.obs)
        done = judged.terminated | judged.truncated
        assert not bool(judged.reward[~done].any())
        assert set(judged.reward[done].tolist()) <= {0.0, 0.5, 1.0}
        paid += float(judged.reward.sum())
    assert float(envs[1].results().points.sum()) == paid > 10.0
    both_seats = RockPaperScissors([NoParams()], 200, outcome_rewards=True)
    both_seats.reset(0)
    # Rock against paper, scissors or rock in all rounds.
    action = torch.stack((torch.zeros(100), torch.arange(100) % 3), 1).long().flatten()
    for step in range(5):
        made = both_seats.step(action)
        assert bool(made.reward.any()) == (step == 4)
    pairs = made.reward.view(100, 2)
    assert pairs[:3].tolist() == [[0.5, 0.5], [0.0, 1.0], [1.0, 0.0]]
    assert torch.equal(pairs.sum(1), torch.ones(100))


@pytest.mark.parametrize(("keep_mode", "discrete"), [(True, False), (False, True)])
def test_hockey_is_judged_by_goals(keep_mode: bool, discrete: bool) -> None:
    """Strong against weak, or a player that stands still, from either seat."""
    games = 60
    params = HockeyParams(keep_mode=keep_mode, discrete=discrete)
    opponents = Scripted(PLAYERS, 1)
    opponents.configure_member(0, {"strong": 1.0})
    env = Hockey([params], games, opponents=opponents, outcome_rewards=True)
    obs = env.reset(4)
    memory = PLAYERS["weak"].start(torch.rand(games, 1))
    points, open_games = 0.0, torch.ones(games, dtype=torch.bool)
    while bool(open_games.any()):
        action, memory = PLAYERS["weak"].act(obs, memory, torch.rand(games, 1))
        if discrete:
            action = torch.zeros(games, dtype=torch.int64)
        made = env.step(action)
        # In the member's frame the other's goal is on the right.
        puck, goal = env.final_obs()[:, 12], made.terminated
        assert torch.equal(made.reward[goal], (puck[goal] > 0).float())
        assert bool((made.reward[made.truncated] == 0.5).all())
        points += float(made.reward[open_games].sum())
        open_games &= ~(goal | made.truncated)
        obs = made.obs
    env.check()
    assert points < 0.5 * games  # strong is stronger
    assert float(env.results().games[0, 0]) == 0.0  # weak is no opponent here


class PlainBasicPlayer:
    """The scripted hockey player as the rules describe it, in one game."""

    def __init__(self, kp: float, phase: float) -> None:
        self.kp, self.phase = kp, phase

    def act(self, obs: Sequence[float], uniform: float) -> list[float]:
        self.phase += 0.2 * uniform
        x, y, angle, vx, vy, omega = obs[:6]
        puck_x, puck_y, puck_vx, puck_vy = obs[12:16]
        target = (-3.5, 0.0)
        if puck_vx < 0.5:
            distance = math.hypot(x - puck_x, y - puck_y)
            if x < puck_x and abs(y - puck_y) < 0.5:
                target = (puck_x + 0.2, puck_y + 0.1 * puck_vy * distance)
            else:
                target = (-3.5, puck_y)
        aim = (*target, math.pi / 3 * math.sin(self.phase))
        action = []
        for goal, at, speed, gain, near in zip(
            aim, (x, y, angle), (vx, vy, omega), (1.0, 0.2, 0.5), (0.1, 0.1, 1.0), strict=True
        ):
            brake = 1.0 if abs((goal - at) / (speed + 0.01)) < near else 0.0
            force = (goal - at) * self.kp * gain - speed * brake * 0.5
            action.append(max(-1.0, min(1.0, force)))
        if len(obs) == 18:
            action.append(1.0 if 0 < obs[16] < 7 else 0.0)
        return action


@pytest.mark.parametrize("keep_mode", [True, False])
def test_hockey_players_equal_a_scalar_version(keep_mode: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    games, names = 200, list(PLAYERS)
    opponents = Scripted(PLAYERS, 1)
    chosen = torch.arange(games) % 2
    begin = torch.rand(games, 1, generator=generator, dtype=torch.float64)
    memory = opponents.begin(begin)
    gains = {"weak": 0.5, "strong": 10.0}
    plain = [PlainBasicPlayer(gains[names[k % 2]], math.pi * float(begin[k])) for k in range(games)]
    scale = torch.tensor([3.0, 2.0, 1.0, 4.0, 4.0, 3.0] * 2 + [3.0, 2.0, 5.0, 5.0])
    for _ in range(20):
        obs = torch.randn(games, 16, generator=generator) * scale
        if keep_mode:
            obs = torch.cat((obs, torch.randint(0, 16, (games, 2), generator=generator)), 1)
        uniforms = torch.rand(games, 1, generator=generator, dtype=torch.float64)
        controls, memory = opponents.act(obs, chosen, memory, uniforms)
        for k in range(games):
            wanted = plain[k].act(obs[k].double().tolist(), float(uniforms[k]))
            assert controls[k].tolist() == pytest.approx(wanted, abs=1e-4)


def test_mixtures_that_are_wrong() -> None:
    names = ("weak", "strong")
    for mixture, seat, sentence in (
        ({"weak": 1.0}, "left", "seat 'left' is not one of first, second, either"),
        ({"medium": 1.0}, "first", "opponent 'medium' is not one of weak, strong"),
        ({"weak": 0.5, "strong": 0.4}, "first", "add up to 0.9; they must add up to 1"),
        ({"weak": -0.5, "strong": 1.5}, "first", "the share of opponent weak is -0.5"),
        ({"weak": math.nan}, "first", "the share of opponent weak is nan"),
        ({}, "either", "add up to 0"),
    ):
        with pytest.raises(InputError, match=sentence):
            check_mixture(mixture, seat, names)
    with pytest.raises(InputError, match="different names"):
        Scripted({}, 1)


def test_games_that_have_no_opponents() -> None:
    class Alone(RockPaperScissors):
        seats = 1

    assert Alone.game().versus is None
    with pytest.raises(InputError, match="only games of two"):
        Alone([NoParams()], 2, opponents=Scripted(RPS_PLAYERS, 1))
    with pytest.raises(ValueError, match="without opponents"):
        RockPaperScissors([NoParams()], 2).results()
    with pytest.raises(InputError, match="for 1 members"):
        RockPaperScissors([NoParams()] * 2, 2, opponents=Scripted(RPS_PLAYERS, 1))


def test_a_game_makes_environments_with_opponents() -> None:
    game = RockPaperScissors.game(scripted=lambda _: RPS_PLAYERS)
    params = game.params()
    assert game.make([params] * 2, 4, together=1, device="cpu").num_envs == 16
    opponents = Scripted(game.scripted(params), 2)
    assert game.versus is not None
    env = game.versus([params] * 2, 4, together=1, device="cpu", opponents=opponents)
    assert (env.num_envs, env.envs_per_member) == (8, 4)
    env.reset(0)
    env.step(torch.zeros(8, dtype=torch.int64))
    assert env.results().games.shape == (2, 2)
