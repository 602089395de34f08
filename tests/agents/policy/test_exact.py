"""Exact best responses: against OpenSpiel, brute force, linear programs and published values."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

from sweepd.agents.policy.exact import (
    Plans,
    best_response,
    expected_returns,
    mixed,
    nash_conv,
    plans,
)
from sweepd.envs.games.game_tree import (
    Behaviour,
    Floats,
    GameTree,
    InformationSets,
    game_tree,
    is_enumerable,
)
from sweepd.envs.games.pairings import uniform_behaviour
from sweepd.envs.games.poker.kuhn import Kuhn
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.rules import State
from sweepd.envs.support.errors import InputError
from tests.envs.games.toys import RPS

GAMES = ("kuhn", "leduc")
# Of the first player in equilibrium: Kuhn, 1950; for Leduc poker, as solvers report it.
VALUES = {"kuhn": -1 / 18, "leduc": -0.0856064}


@functools.cache
def tree_of(name: str) -> GameTree:
    game = get_game(name)
    return game_tree(game, game.params())


def random_behaviour(seed: int, sharp: float = 1.0) -> Behaviour:
    """Draw Dirichlet probabilities for every observation; with a larger `sharp`, near 0 and 1."""
    known: dict[bytes, Floats] = {}
    rng = np.random.default_rng(seed)

    def behaviour(sets: InformationSets) -> Tensor:
        rows = []
        for seen, allowed in zip(sets.observations, sets.legal.numpy(), strict=True):
            key = seen.numpy().tobytes()
            if key not in known:
                drawn = np.where(allowed, rng.gamma(1.0 / sharp, size=len(allowed)) + 1e-12, 0.0)
                known[key] = drawn / drawn.sum()
            rows.append(known[key])
        return torch.from_numpy(np.stack(rows))

    return behaviour


def most_probable(behaviour: Behaviour) -> Behaviour:
    """Return the deterministic policy that takes the most probable options."""

    def chosen(sets: InformationSets) -> Tensor:
        return torch.nn.functional.one_hot(behaviour(sets).argmax(1), sets.options)

    return chosen


def open_spiel_policy(name: str, pair: tuple[Behaviour, Behaviour]) -> tuple[Any, Any]:
    """Return OpenSpiel's game, and its tabular policy with these behaviours at the two seats."""
    pyspiel = pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")
    from open_spiel.python.policy import TabularPolicy

    game = pyspiel.load_game(f"{name}_poker")
    table = TabularPolicy(game)
    for row, state in enumerate(table.states):
        seen = torch.tensor([state.information_state_tensor()])
        legal = torch.zeros(1, game.num_distinct_actions(), dtype=torch.bool)
        legal[0, state.legal_actions()] = True
        alone = InformationSets(seen, legal, np.zeros(1, np.int64), np.zeros(1, np.int64))
        shares = pair[state.current_player()](alone)
        table.action_probability_array[row] = shares[0].numpy()
    return game, table


@pytest.mark.parametrize("name", GAMES)
@settings(max_examples=4, deadline=None)
@given(
    seeds=st.tuples(st.integers(0, 2**32), st.integers(0, 2**32)),
    sharp=st.floats(0.5, 20.0),
    sampled=st.tuples(st.booleans(), st.booleans()),
)
def test_pairs_of_random_policies_have_the_values_of_open_spiel(
    name: str, seeds: tuple[int, int], sharp: float, sampled: tuple[bool, bool]
) -> None:
    drawn = [random_behaviour(seed, sharp) for seed in seeds]
    from_seed = [
        own if is_sampled else most_probable(own)
        for own, is_sampled in zip(drawn, sampled, strict=True)
    ]
    both = from_seed[0], from_seed[1]
    game, table = open_spiel_policy(name, both)
    from open_spiel.python.algorithms.expected_game_score import policy_value
    from open_spiel.python.algorithms.exploitability import nash_conv as theirs

    tree = tree_of(name)
    pair = plans(tree, both[0])[0], plans(tree, both[1])[1]
    found = theirs(game, table, return_only_nash_conv=False)
    assert nash_conv(tree, pair) == pytest.approx(found.nash_conv, abs=1e-9)
    values = policy_value(game.new_initial_state(), [table, table])
    assert expected_returns(tree, pair) == pytest.approx(values, abs=1e-9)
    gains = [best_response(tree, pair, seat) - values[seat] for seat in (0, 1)]
    assert gains == pytest.approx(found.player_improvements, abs=1e-9)


@pytest.mark.parametrize("name", GAMES)
@settings(max_examples=2, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    shares=st.lists(st.floats(0.05, 1.0), min_size=2, max_size=3),
    sampled=st.booleans(),
)
def test_mixtures_have_the_values_of_open_spiel(
    name: str, seed: int, shares: list[float], sampled: bool
) -> None:
    weights = np.array(shares) / sum(shares)
    drawn = [random_behaviour(seed + index, sharp=4.0) for index in range(len(shares))]
    members = drawn if sampled else [most_probable(own) for own in drawn]
    tree = tree_of(name)
    found = nash_conv(tree, mixed([plans(tree, member) for member in members], weights))
    assert found == pytest.approx(open_spiel_mixture(name, members, weights), abs=1e-9)


def open_spiel_mixture(name: str, members: Sequence[Behaviour], weights: Floats) -> float:
    """Return OpenSpiel's NashConv of a mixture of policies."""
    tables = [open_spiel_policy(name, (member, member)) for member in members]
    from open_spiel.python.algorithms.exploitability import nash_conv as theirs
    from open_spiel.python.algorithms.policy_aggregator import PolicyAggregator

    game, both = tables[0][0], [[table for _, table in tables]] * 2
    together = PolicyAggregator(game).aggregate([0, 1], both, [weights, weights])
    return float(theirs(game, together, use_cpp_br=False))


def test_best_responses_in_kuhn_poker_are_those_of_all_deterministic_policies() -> None:
    tree = tree_of("kuhn")
    sets = len(tree.players[0].legal)
    every = [plans(tree, chooses(options)) for options in itertools.product((0, 1), repeat=sets)]
    for seed in range(5):
        pair = plans(tree, random_behaviour(seed))
        for seat in (0, 1):
            returns = []
            for own in every:
                replaced = (own[0], pair[1]) if seat == 0 else (pair[0], own[1])
                returns.append(expected_returns(tree, replaced)[seat])
            assert best_response(tree, pair, seat) == pytest.approx(max(returns), abs=1e-12)


def chooses(options: tuple[int, ...]) -> Behaviour:
    """Make one choice in every information set, in the order of the tree."""

    def behaviour(sets: InformationSets) -> Tensor:
        return torch.nn.functional.one_hot(torch.tensor(options), sets.options)

    return behaviour


def maximin(tree: GameTree, seat: int) -> tuple[Floats, float]:
    """Return a seat's plan with the highest guaranteed return, and that return.

    The linear program of the sequence form: maximise the value of the opponent's root under the
    constraints that no decision of the opponent pays the seat less than the value of its set.
    """
    own, other = tree.players[seat], tree.players[1 - seat]
    count, sets = own.sequences, len(other.before)
    at_least = np.zeros((other.sequences, count + 1 + sets))
    ends = tree.sequences[:, 1 - seat], tree.sequences[:, seat]
    np.add.at(at_least, ends, -tree.chance * tree.returns[:, seat])
    at_least[0, count] = 1.0
    for index, before in enumerate(other.before):
        at_least[before, count + 1 + index] -= 1.0
        for option in np.flatnonzero(other.legal[index]):
            at_least[1 + index * other.options + option, count + 1 + index] += 1.0
    flow, sums = np.zeros((1 + len(own.before), at_least.shape[1])), np.zeros(1 + len(own.before))
    flow[0, 0] = sums[0] = 1.0
    for index, before in enumerate(own.before):
        flow[1 + index, before] = -1.0
        flow[1 + index, 1 + index * own.options + np.flatnonzero(own.legal[index])] = 1.0
    goal = np.zeros(at_least.shape[1])
    goal[count] = -1.0
    bounds = [(0.0, None)] * count + [(None, None)] * (1 + sets)
    found = linprog(goal, at_least, np.zeros(other.sequences), flow, sums, bounds)
    return found.x[:count], -found.fun


@pytest.mark.parametrize("name", GAMES)
def test_solutions_of_the_linear_program_are_not_exploitable(name: str) -> None:
    tree = tree_of(name)
    (first, value), (second, other) = maximin(tree, 0), maximin(tree, 1)
    assert value == pytest.approx(VALUES[name], abs=1e-7)
    assert other == pytest.approx(-VALUES[name], abs=1e-7)
    assert nash_conv(tree, (first, second)) == pytest.approx(0.0, abs=1e-7)
    assert expected_returns(tree, (first, second)) == pytest.approx([value, -value], abs=1e-7)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1 / 3])
def test_kuhns_family_of_equilibria_has_no_best_response(alpha: float) -> None:
    """The first player bets J with alpha and K with 3 alpha, and calls with Q with alpha + 1/3."""
    bets = {
        # (seat, card): the probabilities of a bet at its first and second decision
        (0, 0): (alpha, 0.0),
        (0, 1): (0.0, alpha + 1 / 3),
        (0, 2): (3 * alpha, 1.0),
    }
    # The second player, by card: after a pass, after a bet.
    answers = {0: (1 / 3, 0.0), 1: (0.0, 1 / 3), 2: (1.0, 1.0)}

    def behaviour(sets: InformationSets) -> Tensor:
        rows = []
        for seen in sets.observations.tolist():
            card = seen[2:5].index(1.0)
            later = seen[7:11] != [0.0] * 4  # there was a second decision
            bet = bets[0, card][later] if seen[0] else answers[card][seen[6] == 1.0]
            rows.append([1.0 - bet, bet])
        return torch.tensor(rows, dtype=torch.float64)

    tree = tree_of("kuhn")
    own = plans(tree, behaviour)
    assert nash_conv(tree, own) == pytest.approx(0.0, abs=1e-12)
    assert expected_returns(tree, own) == pytest.approx([-1 / 18, 1 / 18])


def test_a_mixture_is_not_the_mean_of_its_behaviours() -> None:
    tree = tree_of("leduc")
    members = [random_behaviour(seed, sharp=5.0) for seed in (1, 2)]

    def mean(sets: InformationSets) -> Tensor:
        return (members[0](sets) + members[1](sets)) / 2

    every = [plans(tree, member) for member in members]
    mixture = mixed(every, [0.5, 0.5])
    assert abs(nash_conv(tree, mixture) - nash_conv(tree, plans(tree, mean))) > 0.05
    # The return of a mixture is the mean over the pairs that may be drawn.
    drawn = [expected_returns(tree, (a[0], b[1])) for a in every for b in every]
    assert expected_returns(tree, mixture) == pytest.approx(np.mean(drawn, axis=0), abs=1e-12)


def test_numbers_that_are_no_policies_are_refused() -> None:
    tree = tree_of("leduc")
    with pytest.raises(InputError, match="illegal options"):
        plans(tree, lambda sets: torch.full(sets.legal.shape, 1 / 3))
    for wrong in (0.9, float("nan")):
        with pytest.raises(InputError, match="sum to 1"):
            plans(tree, lambda sets, wrong=wrong: wrong * uniform_behaviour(sets))
    with pytest.raises(InputError, match="shape"):
        plans(tree, lambda sets: uniform_behaviour(sets)[:, :2])
    own: Plans = plans(tree, uniform_behaviour)
    with pytest.raises(InputError, match="weights must sum to 1"):
        mixed([own, own], [0.5, 0.4])
    with pytest.raises(InputError, match="must be 2 numbers"):
        mixed([own, own], [1.0])


def test_other_games_are_not_enumerable() -> None:
    for game in (RPS, get_game("hockey"), get_game("cartpole")):
        assert not is_enumerable(game, game.params())
        with pytest.raises(InputError, match="not a game in turns that lists all its deals"):
            game_tree(game, game.params())


class Forgetful(Kuhn):
    """Kuhn poker without the decisions in the observations."""

    def see(self, state: State, seat: Tensor) -> Tensor:
        seen = super().see(state, seat)
        seen[:, 5:] = 0.0
        return seen


class Shuffled(Kuhn):
    """Kuhn poker that asks for random numbers at every decision."""

    uniforms_per_move = 1


def test_games_without_perfect_recall_or_with_later_chance_are_refused() -> None:
    for kind, words in ((Forgetful, "all that the player has seen"), (Shuffled, "chance in deals")):
        game = kind.game()
        with pytest.raises(InputError, match=words):
            game_tree(game, game.params())
