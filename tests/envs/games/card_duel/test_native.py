"""The duel's compiled rules against torch's, to the bit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
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
from sweepd.envs.native import build, threads
from sweepd.envs.native.structs import c_constant, c_struct
from sweepd.envs.support.errors import RunError

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


@contextmanager
def native_threads(count: int) -> Iterator[None]:
    """Let native code use as many threads, and torch one."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        with threads.torch_on_one(native=True):
            yield
    finally:
        torch.set_num_threads(before)


def bits(tensor: Tensor) -> Tensor:
    """Return floats as whole numbers, so that 0 and -0 differ."""
    return tensor.view(torch.int32) if tensor.dtype == torch.float32 else tensor


def assert_equal(one: Tensor, other: Tensor, what: object) -> None:
    assert one.dtype == other.dtype, what
    assert torch.equal(bits(one), bits(other)), what


class Both:
    """The same games by compiled rules and by torch."""

    def __init__(
        self,
        params: list[CardDuelParams],
        games: int,
        seed: int,
        opponents: Callable[[], Opponents | None] = lambda: None,
        **options: bool,
    ) -> None:
        self.compiled, self.torch = self.envs = [
            CardDuel(params, games, opponents=opponents(), native=native, **options)
            for native in (True, False)
        ]
        assert [env.native for env in self.envs] == [True, False]
        self.generator = torch.Generator().manual_seed(seed)
        self.ended = self.steps = 0
        for env in self.envs:
            env.reset(seed)

    def actions(self, name: str = "random") -> Tensor:
        """Return legal actions of a scripted player; those of both are the same."""
        player, games = PLAYERS[name], self.torch.num_games
        uniforms = torch.rand(games, player.uniforms, dtype=torch.float64, generator=self.generator)
        memory = torch.zeros(games, player.memory)
        found = []
        for env in self.envs:
            view = env._look()
            assert view.legal is not None
            found.append(player.act(view.seen, memory, uniforms, view.legal)[0])
        assert_equal(*found, f"actions, step {self.steps}")
        return found[0]

    def step(self, action: Tensor) -> None:
        """Make a step, and compare all that it leads to."""
        self.steps += 1
        steps = [env.step(action) for env in self.envs]
        for name, one, other in zip(steps[0]._fields, *steps, strict=True):
            assert_equal(one, other, f"{name}, step {self.steps}")
        self.ended += int(steps[0].terminated.sum())
        self.compare()

    def compare(self) -> None:
        """Compare states, masks, faults, and what both seats see."""
        compiled, torch_env = self.envs
        for part in ("state", "reached"):
            for name, own in getattr(torch_env, part).items():
                what = f"{part} {name}, step {self.steps}"
                assert_equal(getattr(compiled, part)[name], own, what)
        legal = compiled.native_rules
        assert isinstance(legal, native.NativeDuel)
        assert_equal(legal.legal(compiled.state), pack(torch_env.legal(torch_env.state)), "masks")
        for seat in (0, 1) if self.steps % 4 == 0 else ():
            seats = torch.full((compiled.num_games,), seat)
            seen = [env.active_rules.see(env.state, seats) for env in self.envs]
            assert_equal(*seen, f"seen by {seat}, step {self.steps}")
        for look in (CardDuel.observe, CardDuel.faults, CardDuel.final_obs):
            assert_equal(*(look(env) for env in self.envs), f"{look.__name__}, step {self.steps}")

    def stored(self) -> list[list[dict[str, Tensor]]]:
        """Return and compare the state of all members."""
        members = range(self.torch.num_members)
        stored = [[env.get_member(member) for member in members] for env in self.envs]
        for one, other in zip(*(map(_of_faults_only, of_all) for of_all in stored), strict=True):
            assert one.keys() == other.keys()
            for name, own in other.items():
                assert_equal(one[name], own, name)
        return stored


def _of_faults_only(member: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a member's state. What is kept of games without a fault means nothing."""
    values = member["fault_values"].masked_fill(member["fault_age"] == 0, 0)
    return dict(member) | {"fault_values": values}


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
    both = Both(params, games, seed)
    both.compare()
    with native_threads(workers):
        for _ in range(15):
            both.step(both.actions())
        for env in both.envs:
            env.configure_member(0, CardDuelParams("tides", mirrored=True))
            env.reset_member(0, seed // 2)
        for _ in range(3):
            both.step(both.actions())
        for env, own in zip(both.envs, reversed(both.stored()), strict=True):
            for member, state in enumerate(own):
                env.set_member(member, state)
        for _ in range(5):
            both.step(both.actions())


def test_long_games_are_equal() -> None:
    """Until games have ended by all players' ways, over several tasks of two threads."""
    both = Both([CardDuelParams(), CardDuelParams("random")], 140, 1)
    with native_threads(2):
        for _ in range(45):
            both.step(both.actions())
        both.torch.state["decisions"].fill_(constants.DECISIONS - 20)
        both.compiled.state["decisions"].fill_(constants.DECISIONS - 20)
        for env in both.envs:
            env._known = None
        for _ in range(40):
            both.step(both.actions("random" if both.steps % 2 else "greedy"))
    assert both.ended >= 280


@settings(max_examples=3)
@given(st.integers(0, 2**32 - 1), st.integers(0, 10), st.data())
def test_illegal_actions_are_equal(seed: int, step: int, data: st.DataObject) -> None:
    """Games with one stop; the others go on, also after the member with the fault is replaced."""
    both = Both([CardDuelParams()] * 2, 6, seed)
    wrong = st.one_of(st.integers(-2, 11), st.sampled_from((-(2**63), 2**63 - 1, 2**32)))
    illegal = data.draw(st.tuples(st.integers(0, 5), st.integers(0, 2), wrong))
    for at in range(13):
        action = both.actions()
        if at == step:
            game, choice, option = illegal
            action[game, choice] = option
        both.step(action)
    both.stored()
    errors = [_error(env) for env in both.envs]
    assert errors[0] == errors[1]
    for env in both.envs:
        env.reset_member(0, 5)
        env.check()
    for _ in range(3):
        both.step(both.actions())


def _error(env: CardDuel) -> str:
    try:
        env.check()
    except RunError as error:
        return str(error)
    return ""


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

    both = Both([CardDuelParams(), CardDuelParams("shoal")], 20, 3, opponents, outcome_rewards=True)
    for _ in range(45):
        both.step(both.actions())
        assert_equal(*(env.present() for env in both.envs), "present")
    for name, one, other in zip(
        both.torch.results()._fields, *(env.results() for env in both.envs), strict=True
    ):
        assert_equal(one, other, name)
    assert int(both.torch.results().games.sum()) == both.ended > 0
    both.stored()


def test_masks_of_any_choices_are_equal() -> None:
    both = Both([CardDuelParams()], 60, 4)
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
    both = Both([CardDuelParams()], 70, 5)
    for _ in range(30):
        action = both.actions()
        if both.steps % 2:
            action = action.t().contiguous().t()
        else:
            both.compiled.state["cells"] = both.compiled.state["cells"].t().contiguous().t()
        both.step(action)
    uniforms = torch.rand(6, 70, dtype=torch.float64, generator=both.generator).t()
    action = both.actions()
    moved = [env.active_rules.move(env.state, action, uniforms)[0] for env in both.envs]
    assert_equal(*(state["cells"] for state in moved), "cells")
