"""Games in turns, and games with several choices and masks, as environments."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import sweepd.commands
from sweepd.envs.core.streams import Streams
from sweepd.envs.games.opponents import Scripted
from sweepd.envs.games.play import random_actions
from sweepd.envs.games.tensor_game import NoParams, State, TensorGame
from sweepd.envs.support.errors import InputError, RunError
from tests.envs.games.toys import NIM, NIM_PLAYERS, Grabber, Nim, PlainNim

MIXTURES = [({"grabber": 0.4, "drifter": 0.6}, "either"), ({"grabber": 1.0}, "second")]


def against(mixtures: Sequence[Any] = MIXTURES, games: int = 6, **options: Any) -> Nim:
    opponents = Scripted(NIM_PLAYERS, len(mixtures))
    for member, (mixture, seat) in enumerate(mixtures):
        opponents.configure_member(member, mixture, seat)
    return Nim([NoParams()] * len(mixtures), games, opponents=opponents, **options)


def choose(env: TensorGame, obs: Tensor) -> Tensor:
    """Return legal actions that depend on the observations alone."""
    mark = obs.double() @ torch.arange(1.0, obs.shape[1] + 1, dtype=torch.float64)
    chosen = torch.zeros(len(obs), 0, dtype=torch.int64)
    for _ in env.spec.action_dims:
        options = env.action_mask(chosen)
        count = mark.long() % options.sum(1).clamp(min=1)
        at = ((options.cumsum(1) - 1 == count.unsqueeze(1)) & options).byte().argmax(1)
        chosen = torch.cat((chosen, at.unsqueeze(1)), 1)
    return chosen


def test_games_equal_a_plain_loop() -> None:
    members, games, steps = 2, 5, 120
    env = NIM.make([NoParams()] * members, games, together=1, device="cpu")
    assert isinstance(env, Nim)
    assert (env.num_envs, env.spec.players, env.action_dim) == (10, 2, 6)
    assert not env.spec.has_absent_agents
    obs = env.reset([3, 4])
    assert obs.dtype == torch.uint8
    streams = Streams(members)
    for member, seed in enumerate((3, 4)):
        streams.seed(member, seed)
    numbers = [streams.member_uniform(m, 1, games, 7)[0] for m in range(members)]
    plain = [PlainNim(own) for own in torch.cat(numbers).tolist()]
    later = torch.cat([streams.member_uniform(m, steps, games, 7) for m in range(members)], 1)
    env.draw(steps)
    generator = torch.Generator().manual_seed(0)
    ages, ends, limits, twice = [0] * 10, 0, 0, 0
    for now in later.tolist():
        mover = env.to_move().tolist()
        for row, game in enumerate(plain):
            assert mover[row] == game.mover
            assert obs[row].tolist() == game.see(game.mover)
        action = random_actions(env, generator)
        masks = [env.action_mask(action[:, :choice]).tolist() for choice in range(2)]
        made = env.step(action)
        for row, game in enumerate(plain):
            own = action[row].tolist()
            assert [mask[row] for mask in masks] == [game.mask(own[:k]) for k in range(2)]
            rewards, over = game.move(own, now[row][6])
            ages[row] += 1
            limits += not over and ages[row] == 5
            over |= ages[row] == 5
            assert made.reward[row].tolist() == pytest.approx(rewards)
            assert bool(made.terminated[row]) == over
            twice += not over and mover[row] == game.mover
            if over:
                plain[row], ages[row], ends = PlainNim(now[row]), 0, ends + 1
        assert not bool(made.truncated.any())
        obs = made.obs
    env.check()
    assert min(ends - limits, limits, twice) > 5


def test_games_against_opponents_equal_a_plain_loop() -> None:
    """The opponents: grabber (index 0) and drifter (1), whose memory is the first column."""
    members, games, steps = 2, 6, 200
    env = against()
    assert (env.spec.players, env.spec.has_absent_agents) == (1, True)
    obs = env.reset([8, 9])
    streams = Streams(members)
    for member, seed in enumerate((8, 9)):
        streams.seed(member, seed)
    numbers = [streams.member_uniform(m, 1, games, 13)[0] for m in range(members)]
    later = torch.cat([streams.member_uniform(m, steps, games, 13) for m in range(members)], 1)
    env.draw(steps)
    first, chance = [0.5, 0.0], [0.4, 1.0]

    class Row:
        def __init__(self, member: int, uniforms: list[float]) -> None:
            self.game, self.age, self.returns = PlainNim(uniforms), 0, [0.0, 0.0]
            self.seat = 0 if uniforms[7] < first[member] else 1
            self.opponent = 0 if uniforms[8] < chance[member] else 1
            self.grabs = 0

        def theirs(self, uniforms: list[float]) -> list[int]:
            game = self.game
            if self.opponent == 0:
                pile = next(k for k in range(3) if game.piles[k])
                self.grabs += 1
                return [pile, 0 if self.grabs == 1 else min(3, game.piles[pile]) - 1]
            chosen: list[int] = []
            for number in uniforms[11:]:
                legal = [k for k, right in enumerate(game.mask(chosen)) if right]
                chosen.append(legal[int(number * len(legal))])
            return chosen

    plain = [Row(row // games, own) for row, own in enumerate(torch.cat(numbers).tolist())]
    results = torch.zeros(3, members, 2, dtype=torch.float64)
    absences = 0
    for now in later.tolist():
        present = env.present().tolist()
        action = choose(env, obs)
        made = env.step(action)
        for row, own in enumerate(plain):
            game, member = own.game, row // games
            assert present[row] == (game.mover == own.seat)
            absences += not present[row]
            wanted = game.see(own.seat) if present[row] else [0] * 6
            assert obs[row].tolist() == wanted
            move = action[row].tolist() if present[row] else own.theirs(now[row])
            rewards, over = game.move(move, now[row][6])
            own.age += 1
            own.returns = [a + b for a, b in zip(own.returns, rewards, strict=True)]
            assert float(made.reward[row]) == pytest.approx(rewards[own.seat])
            assert bool(made.terminated[row]) == (over or own.age == 5)
            if over or own.age == 5:
                ahead = own.returns[own.seat] - own.returns[1 - own.seat]
                points = 0.5 + 0.5 * ((ahead > 0) - (ahead < 0))
                results[:, member, own.opponent] += torch.tensor([1, points, points == 1.0])
                plain[row] = Row(member, now[row])
        obs = made.obs
    env.check()
    assert absences > steps
    assert all(torch.equal(a, b) for a, b in zip(env.results(), results, strict=True))
    assert bool((results[0] > 10).sum() == 3)


def test_an_illegal_action_stops_its_game_and_prints_the_position(
    capsys: pytest.CaptureFixture[str],
) -> None:
    env = Nim([NoParams()] * 2, 3)
    obs = env.reset(2)
    for _ in range(2):
        obs = env.step(choose(env, obs)).obs
    env.check()
    before = obs[4].clone()
    piles, mover = before[:3].tolist(), int(env.to_move()[4])
    action = choose(env, obs)
    action[4] = torch.tensor([1, 7])
    made = env.step(action)
    assert made.reward[4].tolist() == [0.0, 0.0]
    saved = env.get_member(1)
    for _ in range(12):  # the others go on
        made = env.step(choose(env, made.obs))
        assert torch.equal(made.obs[4], before)
        assert not bool(made.terminated[4])
    assert env.faults().tolist() == [False] * 4 + [True, False]
    sentence = (
        rf"row 4 \(member 1, env 1\) got an illegal action in step 3: seat {mover} gave \[1, 7\], "
        rf"and 7 is not legal for choice 1 \(from 0\): .*\. The position before it: piles "
        rf"{re.escape(str(piles))}, seat {mover} to move"
    )
    with pytest.raises(RunError, match=sentence) as error:
        env.check()
    assert str(error.value) in capsys.readouterr().err
    # The fault is part of the member.
    other = Nim([NoParams()], 3)
    other.reset(0)
    other.set_member(0, saved)
    assert other.faults().tolist() == [False, True, False]
    with pytest.raises(RunError, match=r"row 1 .*gave \[1, 7\]"):
        other.check()
    other.reset_member(0)
    other.check()


def test_an_empty_mask_is_reported() -> None:
    class Stuck(Nim):
        def mask(self, state: State, chosen: Tensor) -> Tensor:
            return super().mask(state, chosen) & (state["piles"].sum(1, keepdim=True) > 4)

    env = Stuck([NoParams()], 20)
    obs = env.reset(0)
    for _ in range(6):
        obs = env.step(choose(env, obs)).obs
    with pytest.raises(RunError, match=r"no option is legal\. The position before it: piles"):
        env.check()


def test_illegal_actions_of_opponents_are_reported() -> None:
    class Cheat(Grabber):
        def act(self, *given: Any) -> tuple[Tensor, Tensor]:
            action, memory = super().act(*given)
            return torch.where(memory > 1, 3, action), memory

    opponents = Scripted({"cheat": Cheat()}, 1)
    env = Nim([NoParams()], 20, opponents=opponents)
    obs = env.reset(0)
    for _ in range(9):
        obs = env.step(choose(env, obs)).obs
    with pytest.raises(RunError, match=r"opponent cheat \(seat [01]\) gave \[3, 3\], and 3 is not"):
        env.check()


def test_outcomes_as_rewards() -> None:
    env = Nim([NoParams()], 40, outcome_rewards=True)
    obs, paid = env.reset(0), 0
    for _ in range(20):
        made = env.step(choose(env, obs))
        assert not bool(made.reward[~made.terminated].any())
        assert bool((made.reward[made.terminated].sum(1) == 1.0).all())
        paid += int(made.terminated.sum())
        obs = made.obs
    assert paid > 20


class Lights(TensorGame):
    """Switch off both lamps of a row of three; a lamp that is off cannot be chosen again."""

    state_dim, action_dims, if_discrete, masked, max_step = 3, (3, 2), True, True, 6

    def start(self, uniforms: Tensor) -> State:
        return {"on": torch.ones(len(uniforms), 3, dtype=torch.bool, device=uniforms.device)}

    def mask(self, state: State, chosen: Tensor) -> Tensor:
        if chosen.shape[-1] == 0:
            return state["on"]
        # The second option only with the first lamp.
        first = chosen[..., :1] == 0
        return torch.cat((torch.ones_like(first), first), -1)

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        del uniforms
        on = state["on"].scatter(-1, action[..., :1], False)
        reward = action[..., 1].double()
        over = on.flatten(1).sum(1) <= on.flatten(1).shape[1] // 3
        return {"on": on}, reward, over

    def see(self, state: State) -> Tensor:
        return state["on"].float()


class Both(Lights):
    """Two rows of lamps, one for each seat, at the same time."""

    seats = 2

    def start(self, uniforms: Tensor) -> State:
        return {"on": torch.ones(len(uniforms), 2, 3, dtype=torch.bool, device=uniforms.device)}


class FirstLamp:
    """Takes the first lamp that is on, with option 1 where that is legal."""

    uniforms = memory = 0

    def start(self, uniforms: Tensor) -> Tensor:
        return uniforms[:, :0]

    def act(self, obs: Tensor, memory: Tensor, uniforms: Tensor, legal: Any) -> Any:  # noqa: ARG002
        lamp = legal(torch.zeros(len(obs), 0, dtype=torch.int64)).byte().argmax(1, keepdim=True)
        return torch.cat((lamp, (legal(lamp).sum(1, keepdim=True) - 1)), 1), memory


@pytest.mark.parametrize("seats", [1, 2])
def test_masks_where_all_seats_act_at_once(seats: int) -> None:
    env = (Lights if seats == 1 else Both)([NoParams()] * 2, 4 * seats)
    assert env.action_dim == 5
    obs = env.reset(0)
    generator = torch.Generator().manual_seed(1)
    for _ in range(12):
        action = random_actions(env, generator)
        rows = torch.arange(env.num_envs)
        assert torch.equal(env.action_mask(action[:, :0]), obs.bool())
        assert bool((obs[rows, action[:, 0]] == 1).all())
        assert torch.equal(env.action_mask(action[:, :1])[:, 1], action[:, 0] == 0)
        made = env.step(action)
        going = ~(made.terminated | made.truncated)
        off = obs.scatter(1, action[:, :1], 0.0)
        assert torch.equal(made.obs[going], off[going])
        assert torch.equal(made.reward, action[:, 1].float())
        obs = made.obs
    env.check()
    action = random_actions(env, generator)
    action[seats] = torch.tensor([2, 1])
    env.step(action)
    assert env.faults().nonzero().flatten().tolist() == list(range(seats, 2 * seats))
    with pytest.raises(RunError, match=r"seat 0 gave \[2, 1\].* legal are 0\. The position .*on "):
        env.check()


def test_masks_of_opponents_at_the_same_time() -> None:
    opponents = Scripted({"first": FirstLamp()}, 1)
    opponents.configure_member(0, {"first": 1.0}, "either")
    env = Both([NoParams()], 30, opponents=opponents)
    env.reset(0)
    generator = torch.Generator().manual_seed(1)
    seat = env.get_member(0)["seat"]
    assert set(seat.tolist()) == {0, 1}
    env.step(random_actions(env, generator))
    on = env.get_member(0)["state_on"]
    other = on[torch.arange(30), 1 - seat]
    assert other.tolist() == [[False, True, True]] * 30
    assert torch.equal(env.observe(), on[torch.arange(30), seat].float())
    env.check()


def test_what_does_not_fit_together_is_refused() -> None:
    class Three(Nim):
        seats = 3

    class Numbers(Nim):
        if_discrete = False

    class Coded(Nim):
        def decode(self, action: Tensor) -> Tensor:
            return action

    class Flat(Nim):
        def mask(self, state: State, chosen: Tensor) -> Tensor:
            return super().mask(state, chosen).any(1)

    class Floats(Nim):
        def see(self, state: State, seat: Tensor) -> Tensor:
            return super().see(state, seat).float()

    class Nobody(Nim):
        def mover(self, state: State) -> Tensor:
            return super().mover(state).double()

    class Beyond(Nim):
        seat_column = 6

    class Hides(Nim):
        seat_column = 3  # the secret

    for kind, sentence in (
        (Three, "games in turns have two"),
        (Numbers, "set if_discrete = True"),
        (Coded, "overrides decode"),
        (Flat, r"Flat\.mask returns the shape \(4,\) of torch\.bool for choice 0"),
        (Floats, "returns torch.float32, and its obs_dtype is 'uint8'"),
        (Nobody, r"Nobody\.mover returns the shape \(4,\) of torch.float64"),
        (Beyond, "Beyond: seat_column must be one of the 6 columns of observations, not 6"),
        (Hides, r"column 3 \(seat_column\) must be 0 for one seat and 1 for the other"),
    ):
        with pytest.raises(InputError, match=sentence):
            kind([NoParams()], 4)


@pytest.mark.extra
def test_it_is_searched_promoted_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With opponents that are policies in a second phase, and against itself in the terminal."""
    app = sweepd.commands.build_app()
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> str:
        done = CliRunner().invoke(
            app, [str(word) for word in words], env={"COLUMNS": "160"}, catch_exceptions=False
        )
        assert done.exit_code == 0, done.output
        return done.output

    phases = [
        {"opponents": {"giver": 1.0}, "share": 0.3},
        {"opponents": {"self": 0.5, "past": 0.5}, "share": 0.7},
    ]
    name = "tests.envs.games.toys:EASY_NIM"
    sizes = ("--budget", 16_384, "--episodes", 8, "--n-envs", 32, "--horizon", 32, "--slots", 2)
    rest = ("--seeds", 1, "--n-trials", 2, "--threads", 1, "--rungs", 1, "--no-auto-deploy")
    said = run(
        "train", "--env", name, "--study-name", "nim", "--phases", json.dumps(phases), *sizes, *rest
    )
    assert "phase 2 of 2 began" in said
    assert "against giver: won, drawn, lost" in said
    said = run("promote", "--study-name", "nim")
    assert "PROMOTED" in said
    said = run("play", "--opponent", "self", "--episodes", 2)
    assert re.search(r"piles \[\d, \d, \d\], seat [01] to move", said)
    assert "against self" in said
