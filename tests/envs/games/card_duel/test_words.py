"""The duel in words and pictures."""

from __future__ import annotations

import io
from itertools import pairwise

import torch
from PIL import ImageColor
from rich.console import Console

from sweepd.envs.games.card_duel.cards import CARDS, card
from sweepd.envs.games.card_duel.constants import FRONT
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.card_duel.layout import Board
from sweepd.envs.games.card_duel.picture import (
    FACE_DOWN,
    HAND_TOP,
    LEFT,
    MARK,
    WIDTH,
    as_image,
    hand_box,
    table_box,
)
from sweepd.envs.games.card_duel.players import PLAYERS
from sweepd.envs.games.card_duel.scene import card_line, scene_of
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.render import showing
from sweepd.envs.games.turns_view import TurnsRenderer
from sweepd.envs.games.words import sentence

NAMES = ("Mira", "Odo")


def advance(env: CardDuel, generator: torch.Generator, name: str = "random") -> bool:
    """Play one decision; return whether it ended the game."""
    uniforms = torch.rand(1, 3, dtype=torch.float64, generator=generator)
    memory = torch.zeros(1, 0, dtype=torch.float64)
    action, _ = PLAYERS[name].act(env.observe(), memory, uniforms, env.action_mask)
    return bool(env.step(action).terminated[0])


def shown_games(seed: int, seat: int) -> tuple[CardDuel, TurnsRenderer, torch.Generator]:
    env = CardDuel([CardDuelParams()], 1)
    env.reset(seed)
    return env, TurnsRenderer(env, NAMES, seat), torch.Generator().manual_seed(seed)


def test_a_game_is_readable_in_80_columns_with_and_without_colour() -> None:
    for seed in range(2):
        env, renderer, generator = shown_games(seed, seed % 2)
        over, step = False, 0
        while not over:
            over, step = advance(env, generator), step + 1
            text = renderer.text("game", final=over)
            plain = text.plain
            assert max(map(len, plain.splitlines())) < 80
            assert len(plain.splitlines()) <= 36
            assert plain.isascii()
        plain_out, colour = io.StringIO(), io.StringIO()
        Console(file=plain_out, width=80).print(text)
        Console(file=colour, width=80, force_terminal=True, color_system="standard").print(text)
        assert "\x1b" not in plain_out.getvalue()
        assert plain_out.getvalue().splitlines() == plain.splitlines()
        assert "\x1b" in colour.getvalue()


def test_nothing_hidden_is_shown() -> None:
    """The view and the log stay the same if other cards are in the other's hand and in the decks.

    And no card is named that is neither on the table, in a discard pile, nor in the own hand.
    """
    env, renderer, generator = shown_games(4, 0)
    hidden_cards = 0
    for _ in range(60):
        if advance(env, generator):
            renderer.text("", final=True)
            continue
        plain = renderer.text("", final=False, log=0).plain
        board = Board(env.state["cells"].t().contiguous())
        mine = int(board.mover[0])  # side 0 is the mover
        own, other = (0, 1) if mine == 0 else (1, 0)
        public = {int(one) for one in board.hand[own].flatten()}
        for side in (0, 1):
            for rows in (board.id[side], board.gear[side], board.back[side]):
                public |= {int(one) for one in rows.flatten()}
            public |= set(board.discard[side, :, 0].nonzero().flatten().tolist())
        hidden = {int(one) for one in board.hand[other].flatten()} - public - {0}
        hidden_cards += len(hidden)
        assert not [card(one).name for one in hidden if card(one).name in plain]
        # With a card on the enemy's hand that was nowhere, the view is the same.
        state = {name: tensor.clone() for name, tensor in env.state.items()}
        changed = Board(state["cells"].t().contiguous())
        held = int(changed.held[other, 0])
        changed.hand[other, :held, 0] = 1 + changed.hand[other, :held, 0] % len(CARDS)
        state["cells"] = changed.cells.t()
        seat = torch.tensor([0])
        words = env.words
        views = [
            words.position(env.see(own_state, seat)[0], NAMES) for own_state in (env.state, state)
        ]
        assert views[0] == views[1]
    assert hidden_cards > 100


def test_the_view_has_the_hand_the_rows_and_the_counts() -> None:
    env, renderer, generator = shown_games(1, 1)
    for _ in range(60):
        assert not advance(env, generator, "greedy")
        text = renderer.text("", final=False).plain
        scene = scene_of(env.seen_by(1, final=False))
        for own in scene.hand:
            assert card_line(card(own)) in text
        for side, name in ((scene.own, "Odo"), (scene.enemy, "Mira")):
            assert f"{name}  health {side.champion.health}  mana {side.mana}" in text
            assert f"hand {side.hand}  deck {side.deck}" in text
            assert f"discard: {side.discarded}"[:70] in text
            for body in side.front[:4]:
                assert body is None or (body.name in text and body.state in text)
    assert any(line.startswith("Mira plays ") for line in renderer.log)
    assert "Odo ends the turn" in renderer.log
    assert len(renderer.log) == 60


def test_decisions_are_sentences() -> None:
    assert sentence("you", "pass") == "you pass"
    assert sentence("Mira", "pass") == "Mira passes"
    assert sentence("Mira", "play Manta to front 2") == "Mira plays Manta to front 2"
    env, renderer, generator = shown_games(2, 0)
    verbs = "ends keeps takes plays gives casts attacks advances guards chooses uses passes"
    said: set[str] = set()
    games = 0
    while not games or said != set(verbs.split()):
        final = advance(env, generator)
        games += final
        renderer.text("", final=False)
        said |= {entry.split(" ")[1] for entry in renderer.log[-1:]}
        if final:
            renderer.text("", final=True)
            assert not renderer.log
        assert games < 8, said


def test_cards_use_the_width_of_the_picture() -> None:
    rows = [table_box(slot, 0) for slot in range(FRONT)], [hand_box(index) for index in range(5)]
    for boxes in rows:
        assert boxes[0][0] == LEFT
        assert WIDTH - LEFT - boxes[-1][2] < len(boxes)  # less than a pixel per card is left over
        assert all(one[2] < other[0] for one, other in pairwise(boxes))
    assert hand_box(5)[1] > hand_box(0)[3]  # the second row of the hand


def test_pictures_have_everything_in_its_place() -> None:
    game = get_game("card-duel")
    env, renderer = showing(game, game.params(), pictures=True, names=NAMES)
    env.reset_member(0, 3)
    assert isinstance(env, CardDuel)
    generator = torch.Generator().manual_seed(3)
    marked = 0
    for _ in range(30):
        advance(env, generator, "greedy")
        scene = scene_of(env.seen_by(0, final=False))
        image = renderer.picture("game 1", final=False)
        assert image.size[0] % 16 == image.size[1] % 16 == 0
        colours = {colour for _, colour in image.getcolors(1 << 20) or []}
        assert (ImageColor.getrgb(FACE_DOWN) in colours) == (scene.enemy.hand > 0)
        attack = any(body.attacks or body.acts for body in scene.bodies if body.name != "champion")
        if attack:
            assert ImageColor.getrgb(MARK) in colours
            marked += 1
        # White cards lie where the hand is and where free places are not.
        left, top, *_ = table_box(0, HAND_TOP)
        white = image.getpixel((left + 90, top + 8)) == (255, 255, 255)
        assert white == bool(scene.hand)
    assert marked > 1
    assert (
        as_image(scene, NAMES, "", ()).tobytes() != as_image(scene, NAMES[::-1], "", ()).tobytes()
    )
