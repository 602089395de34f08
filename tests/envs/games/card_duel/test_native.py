"""The duel's compiled rules against torch's, to the bit."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum, IntFlag

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sweepd.envs.games.card_duel import cards, constants, layout, native, turns
from sweepd.envs.games.card_duel.cards import PRESETS
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.card_duel.masks import pack
from sweepd.envs.games.card_duel.players import PLAYERS
from sweepd.envs.games.card_duel.tables import Facts
from sweepd.envs.games.opponents import Opponents, Scripted
from sweepd.envs.native import build
from sweepd.envs.native.structs import c_constant, c_struct
from sweepd.envs.support.errors import RunError
from tests.envs.games.both import Both, assert_equal, native_threads

try:
    build.vector_flags(), build.compiler()
except build.BuildError as error:
    pytest.skip(f"no native code: {error}", allow_module_level=True)

HEADER = native.SOURCE.with_name("layout.h").read_text()
PARAMS = st.builds(
    CardDuelParams, st.sampled_from(("any", "preset", "random", *PRESETS)), st.booleans()
)


def test_sizes_and_names_are_those_of_python() -> None:
    python = {**vars(cards), **vars(constants), **vars(layout)}
    python |= {"CARDS": len(cards.CARDS), "EFFECTS": len(cards.Effect)}
    python |= {"PHASES": len(constants.Phase)}
    names = re.findall(r"^constexpr int (\w+) = \d+;", HEADER, re.MULTILINE)
    assert len(names) > 20
    assert {name: c_constant(native.SOURCE, name) for name in names} == {
        name: python[name] for name in names
    }
    assert c_constant(native.SOURCE, "OPENING_HAND") + 1 == turns.MOVE_UNIFORMS
    assert [*c_struct(native.SOURCE, "Facts").kinds] == [*Facts._fields]
    enums: list[type[IntEnum | IntFlag]] = [constants.Action, constants.Phase]
    for kind in (*enums, cards.Keyword, cards.Effect):
        assert members(kind.__name__) == {own.name: own.value for own in kind}
    assert members("Kind") == {"NONE": 0} | {own.name: own.value for own in cards.Kind}


def members(name: str) -> dict[str, int]:
    """Return the members of an enumeration of the header, by name."""
    found: dict[str, int] = {}
    [body] = re.findall(rf"enum {name} {{(.*?)}}", HEADER)
    for member in body.split(","):
        own, _, number = member.partition("=")
        found[own.strip()] = int(number) if number else len(found)
    return found


def test_positions_have_the_rows_of_python() -> None:
    side = fields("Side")
    attributes = [*layout.ATTRIBUTES]
    at = side.index(attributes[0])
    assert side[at : at + len(attributes)] == attributes
    side[at : at + len(attributes)] = ["bodies"]
    assert side == [*layout.SIDE_ROWS]
    assert fields("Position") == ["sides", *layout.SHARED_ROWS]


def fields(name: str) -> list[str]:
    [body] = re.findall(rf"^struct {name} {{\n(.*?)^}};", HEADER, re.MULTILINE | re.DOTALL)
    return re.findall(r"(\w+)(?:\[[^]]*\])?[,;]", body)


class Duels(Both[CardDuel]):
    """The same duels by compiled rules and by torch."""

    def __init__(
        self,
        params: list[CardDuelParams],
        games: int,
        seed: int,
        opponents: Callable[[], Opponents | None] = lambda: None,
        **options: bool,
    ) -> None:
        def make(native: bool) -> CardDuel:
            return CardDuel(params, games, opponents=opponents(), native=native, **options)

        super().__init__(make, seed)

    def actions(self, name: str = "random") -> Tensor:
        """Return legal actions of a scripted player; those of both are the same."""
        player, games = PLAYERS[name], self.envs[1].num_games
        uniforms = torch.rand(games, player.uniforms, dtype=torch.float64, generator=self.generator)
        memory = torch.zeros(games, player.memory)
        found = []
        for env in self.envs:
            view = env._look()
            assert view.legal is not None
            found.append(player.act(view.seen, memory, uniforms, view.legal)[0])
        assert_equal(*found, f"actions, step {self.steps}")
        return found[0]

    def compare(self) -> None:
        """Compare states, masks, faults, and what both seats see."""
        super().compare()
        compiled, torch_env = self.envs
        if self.steps:
            for name, own in torch_env.reached.items():
                assert_equal(compiled.reached[name], own, f"reached {name}, step {self.steps}")
        legal = compiled.native_rules
        assert isinstance(legal, native.NativeDuel)
        assert_equal(legal.legal(compiled.state), pack(torch_env.legal(torch_env.state)), "masks")
        for seat in (0, 1) if self.steps % 4 == 0 else ():
            seats = torch.full((compiled.num_games,), seat)
            seen = [env.active_rules.see(env.state, seats) for env in self.envs]
            assert_equal(*seen, f"seen by {seat}, step {self.steps}")


@settings(max_examples=4)
@given(
    st.lists(PARAMS, min_size=1, max_size=3),
    st.integers(1, 40),
    st.integers(0, 2**32 - 1),
    st.integers(1, 2),
)
def test_random_play_is_equal(
    params: list[CardDuelParams], games: int, seed: int, workers: int
) -> None:
    """With members that change, and checkpoints of compiled rules that torch continues."""
    both = Duels(params, games, seed)
    with native_threads(workers):
        for _ in range(15):
            both.step(both.actions())
        both.each("configure_member", 0, CardDuelParams("tides", mirrored=True))
        both.each("reset_member", 0, seed // 2)
        for _ in range(3):
            both.step(both.actions())
        both.exchange()
        for _ in range(5):
            both.step(both.actions())


def test_long_games_are_equal() -> None:
    """Until games have ended by all players' ways, over several tasks of two threads."""
    both = Duels([CardDuelParams(), CardDuelParams("random")], 140, 1)
    with native_threads(2):
        for _ in range(45):
            both.step(both.actions())
        for env in both.envs:
            env.state["decisions"].fill_(constants.DECISIONS - 20)
            env._known = None
        for _ in range(40):
            both.step(both.actions("random" if both.steps % 2 else "greedy"))
    assert both.ended[0] >= 280


@settings(max_examples=3)
@given(st.integers(0, 2**32 - 1), st.integers(0, 10), st.data())
def test_illegal_actions_are_equal(seed: int, step: int, data: st.DataObject) -> None:
    """Games with one stop; the others go on, also after the member with the fault is replaced."""
    both = Duels([CardDuelParams()] * 2, 6, seed)
    wrong = st.one_of(st.integers(-2, 11), st.sampled_from((-(2**63), 2**63 - 1, 2**32)))
    illegal = data.draw(st.tuples(st.integers(0, 5), st.integers(0, 2), wrong))
    for at in range(13):
        action = both.actions()
        if at == step:
            game, choice, option = illegal
            action[game, choice] = option
        both.step(action)
    both.stored()
    both.error()
    for env in both.envs:
        env.reset_member(0, 5)
        env.check()
    for _ in range(3):
        both.step(both.actions())


def test_an_illegal_action_is_seen_in_its_step() -> None:
    env = CardDuel([CardDuelParams()], 3, debug=True)
    assert env.native
    env.reset(0)
    env.step(torch.zeros(3, 3, dtype=torch.int64))
    with pytest.raises(RunError, match=r"env 1.* step 2: .* gave \[0, 0, 1\], and 1 is not legal"):
        env.step(torch.tensor([[0, 0, 0], [0, 0, 1], [0, 0, 0]]))


def test_games_against_scripted_players_are_equal() -> None:
    def opponents() -> Opponents:
        return Scripted(PLAYERS, 2)

    both = Duels(
        [CardDuelParams(), CardDuelParams("shoal")], 20, 3, opponents, outcome_rewards=True
    )
    for _ in range(45):
        both.step(both.actions())
        assert_equal(*(env.present() for env in both.envs), "present")
    for name, one, other in zip(
        both.envs[1].results()._fields, *(env.results() for env in both.envs), strict=True
    ):
        assert_equal(one, other, name)
    assert int(both.envs[1].results().games.sum()) == both.ended[0] > 0
    both.stored()


def test_masks_of_any_choices_are_equal() -> None:
    both = Duels([CardDuelParams()], 60, 4)
    for _ in range(20):
        both.step(both.actions())
        chosen = torch.randint(0, 10, (60, 2), generator=both.generator)
        for count in (0, 1, 2):
            masks = [env.action_mask(chosen[:, :count]) for env in both.envs]
            assert_equal(*masks, f"mask {count}, step {both.steps}")


def test_masks_of_numbers_that_are_no_option_are_empty() -> None:
    env = CardDuel([CardDuelParams()], 4)
    env.reset(0)
    numbers = torch.tensor([-1, 11, 2**40, -(2**63)])
    kinds = torch.stack((numbers, torch.zeros(4, dtype=torch.int64)), 1)
    for chosen in (kinds[:, :1], kinds, kinds.flip(1)):
        assert not env.action_mask(chosen).any()
    with pytest.raises(ValueError, match="the choices are of 3 games, not of 4"):
        env.action_mask(kinds[:3])


def test_positions_of_torch_and_other_layouts_are_taken() -> None:
    """Games last, columns of other tensors, and actions and numbers that are not contiguous."""
    both = Duels([CardDuelParams()], 70, 5)
    for _ in range(30):
        action = both.actions()
        if both.steps % 2:
            action = action.t().contiguous().t()
        else:
            both.envs[0].state["cells"] = both.envs[0].state["cells"].t().contiguous().t()
        both.step(action)
    uniforms = torch.rand(6, 70, dtype=torch.float64, generator=both.generator).t()
    action = both.actions()
    moved = [env.active_rules.move(env.state, action, uniforms)[0] for env in both.envs]
    assert_equal(*(state["cells"] for state in moved), "cells")
