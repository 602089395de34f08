"""Recurrent networks in games in turns: a state per game and player, and sequences of each player."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO, PPOParams
from sweepd.agents.engine.recurrent_states import PlayerStates, learned_shape
from sweepd.agents.engine.transitions import Transitions
from sweepd.agents.networks.recurrence import GATES, Memory
from sweepd.agents.networks.shape import Shape
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.card_duel.layout import Board
from sweepd.envs.games.tensor_game import NoParams, State
from sweepd.envs.native.build import VARIABLE
from tests.agents.algorithms.test_update import NoHostReads
from tests.agents.engine.test_turns import nim, start
from tests.agents.helpers import assert_same, member_params
from tests.agents.networks.plain import Plain
from tests.agents.networks.test_gradients import check_gradients
from tests.envs.games.signals import Signals

KINDS = pytest.mark.parametrize("kind", list(GATES))


@KINDS
def test_a_rollout_is_that_of_one_cell_per_seat(kind: str) -> None:
    """Against torch's cells, one decision at a time: outputs, values, and the states at the end."""
    env = nim(2)
    ppo = start(env, {0: 0, 1: 3}, horizon=20, minibatch=20, recurrent=kind, bptt=5)
    ppo.train(env, 2)
    ppo.population.averaged[:] = False  # so that the exported weights are those of the rollout
    rollout = ppo.rollout
    before = rollout.states.memory.clone()
    assert bool(before.any())
    with torch.no_grad():
        rollout.collect(env, ppo.streams)
    columns, checked = ppo.population.actor.spec.memory, 0
    obs, mover = rollout.transitions.obs, rollout._present.long().argmax(-1)
    for member in range(2):
        nets = ppo.population.pair.nets
        exported = zip(nets, ppo.export_member(member), strict=True)
        actor, critic = (Plain.of(net.spec, tensors) for net, tensors in exported)
        for row in range(4):
            states = before[:, member, row].view(2, 2, 1, columns).clone()
            for step in range(21):
                seat, seen = int(mover[member, step, row]), obs[member, step, row].float()
                found = []
                for which, network in enumerate((actor, critic)):
                    memory = Memory(states[which, seat])
                    with torch.no_grad():
                        output, after = network(network.normalised(seen[None]), memory)
                    assert after is not None
                    if step < 20:
                        states[which, seat] = after
                    found.append(output[0])
                if step < 20:
                    made = rollout._outputs[member, step, row]
                    torch.testing.assert_close(made, found[0], atol=1e-5, rtol=1e-4)
                    if rollout._terminated[member, step, row]:
                        states.zero_()
                        checked += 1
                value = rollout._values[member, step, row]
                torch.testing.assert_close(value, found[1][0], atol=1e-5, rtol=1e-4)
            own = rollout.states.memory[:, member, row].view(2, 2, 1, columns)
            torch.testing.assert_close(own, states, atol=1e-5, rtol=1e-4)
    assert checked > 10


WIDTH = 2
decisions = st.tuples(st.integers(0, 1), st.booleans())
games = st.integers(1, 5).flatmap(
    lambda blocks: st.integers(1, 4).flatmap(
        lambda bptt: st.tuples(
            st.just(bptt),
            st.lists(
                st.lists(decisions, min_size=blocks * bptt, max_size=blocks * bptt),
                min_size=2,
                max_size=4,
            ),
        )
    )
)


@settings(deadline=None, max_examples=200)
@given(games)
def test_sequences_hold_each_players_decisions_in_order(drawn: Any) -> None:
    """The states are told apart by the step that they follow, and those at the start are negative."""
    bptt, rows = drawn
    slots, steps = 2, len(rows[0])
    envs = len(rows)
    shape = Shape(
        state_dim=1,
        action_dim=2,
        if_discrete=True,
        players=2,
        slots=slots,
        num_envs=envs,
        horizon=steps,
        minibatch=bptt,
        net_width=WIDTH,
        recurrent="gru",
        bptt=bptt,
    )
    made = Transitions.empty(shape, (slots, steps + 1, envs), 0, torch.device("cpu"))
    states = PlayerStates(shape, WIDTH, made)
    for _ in range(2):  # a second rollout must not see the first one
        states.memory.copy_(-1.0 - torch.arange(2 * WIDTH).div(WIDTH, rounding_mode="floor"))
        states.begin()
        for step in range(steps):
            mover = torch.tensor([row[step][0] for row in rows]).expand(slots, envs)
            over = torch.tensor([row[step][1] for row in rows]).expand(slots, envs)
            states.before(step, mover.unsqueeze(-1) == torch.arange(2))
            states.after([torch.full((slots, envs, WIDTH), 1.0 + step)] * 2)
            states.end(step, over, torch.zeros_like(over))
            made.obs[:, step, :, 0] = 1.0 + step
            made.flags[:, step, :, 0] = True
        states.order()
        learned = states.learned
        assert learned.obs.shape[1] == learned_shape(shape).horizon + 1
        assert int(learned.valid.sum()) == slots * steps * envs  # type: ignore[union-attr]
        for row, own in enumerate(rows):
            for player in (0, 1):
                played = [step for step in range(steps) if own[step][0] == player]
                cut = [played[first : first + bptt] for first in range(0, len(played), bptt)]
                for sequence in cut:
                    check_sequence(states, shape, row, own, player, played, sequence)


def check_sequence(
    states: PlayerStates, shape: Shape, row: int, own: Any, player: int, played: Any, sequence: Any
) -> None:
    """Find a sequence by its first decision, and compare all of it in the last slot."""
    learned, valid = states.learned, states.learned.valid
    assert valid is not None
    [place] = (
        place
        for place in range(0, learned.obs.shape[1] - 1, shape.bptt)
        if valid[-1, place, row] and learned.obs[-1, place, row] == 1 + sequence[0]
    )
    for offset in range(shape.bptt):
        at = (-1, place + offset, row)
        assert bool(valid[at]) == (offset < len(sequence))
        if offset < len(sequence):
            step = sequence[offset]
            assert float(learned.obs[at]) == 1 + step
            # Whether the player decides for the first time in an episode of this rollout.
            ended = [earlier for earlier in range(step) if own[earlier][1]]
            first = bool(ended) and not any(last > ended[-1] for last in played if last < step)
            assert bool(learned.starts[at]) == first
    ended = any(own[earlier][1] for earlier in range(sequence[0]))
    previous = [step for step in played if step < sequence[0]]
    since = previous and not any(own[at][1] for at in range(previous[-1], sequence[0]))
    wanted = 1.0 + previous[-1] if since else (0.0 if ended else -1.0 - player)
    kept = learned.memory[:, -1, place // shape.bptt * shape.num_envs + row]
    assert kept.tolist() == [[wanted] * WIDTH] * 2


@KINDS
def test_a_rollout_equals_a_second_forward_pass_over_its_sequences(kind: str) -> None:
    env = nim(2)
    ppo = start(env, {0: 0, 1: 1}, horizon=24, recurrent=kind, bptt=4, minibatch=96)
    ppo.train(env, 1)
    rollout = ppo.rollout
    with torch.no_grad():
        rollout.collect(env, ppo.streams)
        rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"])
        rollout.states.order()
        seen = 0
        for first in (0, 4):  # 28 sequences, of which a minibatch has 24
            order = torch.arange(first, first + 24).expand(2, 1, -1)
            rows = rollout.index.batches(order)[0]
            step = ppo._minibatch(rows, torch.zeros(2, dtype=torch.bool), stop_early=False)
            valid = ppo._batch.valid
            assert valid is not None
            assert bool(valid.any(1).all() & ~valid.all())
            same = torch.zeros_like(step.log_ratio[valid])
            torch.testing.assert_close(step.log_ratio[valid], same, rtol=0.0, atol=2e-5)
            seen += int(valid.sum())
    assert seen > 150


@KINDS
def test_gradients_are_those_of_autograd_on_the_same_sequences(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        env = nim(2)
        sizes = {"minibatch": 24, "recurrent": kind, "bptt": 6, "net_width": 9}
        check_gradients(start(env, {0: 0, 1: 3}, **sizes), env, monkeypatch)
    finally:
        torch.set_default_dtype(torch.float32)


@KINDS
def test_native_kernels_learn_what_torch_learns(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def trained() -> PPO:
        env = nim(2)
        ppo = start(env, {0: 0, 1: 3}, recurrent=kind, bptt=4)
        ppo.train(env, 2)
        return ppo

    ours = trained()
    monkeypatch.setenv(VARIABLE, "torch")
    theirs = trained()
    assert (ours._native is None, theirs._native is None) == (False, True)
    one, other = ours.population.flat, theirs.population.flat
    torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-3)


@KINDS
@torch.no_grad()
def test_neither_rollout_nor_update_reads_a_value_on_the_host(kind: str) -> None:
    env = nim(2)
    ppo = start(env, {0: 0, 1: 1}, recurrent=kind, bptt=4)
    with NoHostReads():
        ppo.rollout.collect(env, ppo.streams)
        ppo._update(ppo.rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"]))


def test_places_that_stay_free_do_not_matter() -> None:
    """Neither what an earlier rollout left there, nor the states of a member that diverged."""

    def trained(*, poison: bool) -> dict[str, Tensor]:
        env = nim(2)
        ppo = start(env, {0: 0, 1: 3}, recurrent="gru", bptt=4)
        if poison:
            for part in (ppo.rollout.states.learned.memory, ppo.rollout.states.learned.side):
                part.fill_(torch.nan)
        ppo.train(env, 2)
        return ppo.get_member(1)

    assert_same(trained(poison=False), trained(poison=True))


class Reshuffled(CardDuel):
    """A card duel in which whatever a seat may not know is another thing at each of its looks."""

    replaced = 0

    def _other(self, state: State, seat: Tensor) -> State:
        """Return a state with the opponent's hand and deck exchanged, and the own deck shuffled."""
        numbers = torch.Generator().manual_seed(self.replaced)
        before = state["cells"].t().contiguous()
        board = Board(before.clone())
        for game, own in enumerate(
            (seat != self.mover(state)).long().tolist()
        ):  # 0: the one to move
            hand, deck = int(board.held[1 - own, game]), int(board.left[1 - own, game])
            places = board.hand[1 - own, :hand, game], board.deck[1 - own, :deck, game]
            hidden = torch.cat(places)[torch.randperm(hand + deck, generator=numbers)]
            for place, cards in zip(places, hidden.split((hand, deck)), strict=True):
                place.copy_(cards)
            rest = board.deck[own, : int(board.left[own, game]), game]
            rest.copy_(rest[torch.randperm(len(rest), generator=numbers)])
        self.replaced += int((board.cells != before).sum())
        return {**state, "cells": board.cells.t()}

    def see(self, state: State, seat: Tensor) -> Tensor:
        return super().see(self._other(state, seat), seat)

    def mask(self, state: State, chosen: Tensor) -> Tensor:
        return super().mask(self._other(state, self.mover(state)), chosen)


@KINDS
def test_nothing_hidden_is_remembered(kind: str) -> None:
    """With other cards in the opponent's hand and deck at every look, training has the same bits."""

    def trained(game: type[CardDuel]) -> tuple[CardDuel, PPO]:
        env = game([CardDuelParams()] * 2, 3, native=False)
        sizes = {"net_width": 16, "horizon": 16, "minibatch": 24, "recurrent": kind, "bptt": 4}
        ppo = PPO(Shape.for_env(env, **sizes))
        assert env.spec.items is not None
        std = torch.tensor(env.spec.items.scales())
        for slot in range(2):
            ppo.add_member(slot, member_params(slot), slot, 8, torch.zeros(env.state_dim), std)
        env.reset([5, 6])
        ppo.begin(env.observe())
        ppo.train(env, 4)
        return env, ppo

    env, plain = trained(CardDuel)
    blind, other = trained(Reshuffled)
    assert isinstance(blind, Reshuffled)
    assert blind.replaced > 10_000
    assert bool(plain.rollout.states.memory.any())
    for slot in range(2):
        assert_same(plain.get_member(slot), other.get_member(slot))
        assert_same(env.get_member(slot), blind.get_member(slot))


@pytest.mark.parametrize(
    ("recurrent", "least", "most"), [("gru", 0.97, 1.0), ("lstm", 0.97, 1.0), ("", 0.4, 0.6)]
)
def test_only_recurrent_networks_solve_a_signalling_game(
    recurrent: str, least: float, most: float
) -> None:
    """With three seeds each; half of the cards are named by chance."""
    env, rollouts = Signals([NoParams()] * 3, 32), 100
    sizes = {"net_width": 32, "net_depth": 1, "horizon": 48, "minibatch": 192, "epochs": 4}
    ppo = PPO(Shape.for_env(env, recurrent=recurrent, bptt=4, **sizes))
    params = PPOParams(
        learning_rate=1e-2, lr_schedule="linear", entropy_coef=0.1, gamma=1.0, gae_lambda=1.0
    )
    columns = env.state_dim
    for slot in range(3):
        ppo.add_member(slot, params, slot, rollouts, torch.zeros(columns), torch.ones(columns))
    env.reset([0, 1, 2])
    ppo.begin(env.observe())
    reward = ppo.train(env, rollouts)[-1].reward  # mean over decisions, of which a game has six
    for score in (6 * reward).tolist():
        assert least <= score <= most
