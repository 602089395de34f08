"""The duel as an environment, and its scripted players."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from sweepd.envs.games.card_duel.cards import (
    CARDS,
    CHAMPION,
    PRESETS,
    Effect,
    check_deck,
    known_decks,
)
from sweepd.envs.games.card_duel.constants import DECISIONS, Action
from sweepd.envs.games.card_duel.describe import describe_action
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.card_duel.layout import Board
from sweepd.envs.games.card_duel.observation import COLUMNS, SIZE, seen
from sweepd.envs.games.card_duel.players import PLAYERS, random_option
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError, RunError


def act(env: CardDuel, name: str, generator: torch.Generator) -> Tensor:
    """Return the actions of a scripted player for the players to move."""
    player, games = PLAYERS[name], env.num_envs
    uniforms = torch.rand(games, player.uniforms, dtype=torch.float64, generator=generator)
    memory = torch.zeros(games, player.memory, dtype=torch.float64)
    return player.act(env.observe(), memory, uniforms, env.action_mask)[0]


class Played:
    """Games that were played once each by two scripted players; see `play`."""

    def __init__(self, games: int) -> None:
        self.first = torch.zeros(games, dtype=torch.int64)
        self.won = torch.zeros(games, 2)
        self.lengths = torch.zeros(games, dtype=torch.int64)
        self.kinds: Counter[int] = Counter()
        self.cards: Counter[int] = Counter()
        self.effects: Counter[int] = Counter()

    def points_of_first(self) -> Tensor:
        """Return (games,) the first player's points: 1 for a win, 0.5 for a draw."""
        return (self.won.gather(1, self.first.unsqueeze(1)).squeeze(1) + 1) / 2


def play(
    names: tuple[str, str],
    games: int,
    seed: int,
    params: Sequence[CardDuelParams] = (CardDuelParams(),),
) -> Played:
    """Play games of seat 0 against seat 1, as many with each of the parameters."""
    env = CardDuel(params, games)
    env.reset(seed)
    generator = torch.Generator().manual_seed(seed)
    played, going = Played(env.num_envs), torch.ones(env.num_envs, dtype=torch.bool)
    played.first = env.to_move().clone()
    for step in range(DECISIONS):
        obs, acted = env.observe(), [act(env, name, generator) for name in dict.fromkeys(names)]
        action = torch.where((env.to_move() == 0).unsqueeze(1), acted[0], acted[-1])
        kind = action[:, 0]
        played.kinds.update(kind[going].tolist())
        from_hand = going & (kind >= Action.PLAY_FRONT) & (kind <= Action.SPELL)
        hand = seen(obs, "own hand")[..., 0]
        played.cards.update(hand[from_hand, action[from_hand, 1]].tolist())
        targeted = seen(obs, "effect")[going & (kind == Action.TARGET)]
        played.effects.update((targeted.argmax(1) + 1).tolist())
        result = env.step(action)
        ended = result.terminated & going
        played.won[ended] = result.reward[ended]
        played.lengths[ended] = step + 1
        going &= ~result.terminated
        assert bool((result.reward.sum(1) == 0).all())
        assert not bool(result.truncated.any())
        if not bool(going.any()):
            break
    env.check()
    assert not bool(going.any())
    return played


@pytest.mark.parametrize("name", ["random", "greedy"])
@pytest.mark.extra
def test_the_first_player_has_no_large_advantage(name: str) -> None:
    decks = [CardDuelParams(decks=own, mirrored=True) for own in (*PRESETS, "random")]
    played = play((name, name), 1000, 5, decks)
    # The standard error is .016.
    points = played.points_of_first().view(len(decks), -1).mean(1)
    assert bool(((points >= 0.45) & (points <= 0.58)).all()), points


def test_greedy_wins_against_random_play() -> None:
    played = play(("greedy", "random"), 100, 1)
    assert float((played.won[:, 0] > 0).double().mean()) > 0.95


def test_random_play_uses_every_card_action_and_effect() -> None:
    played = play(("random", "random"), 100, 2)
    assert set(played.kinds) == set(Action)
    assert set(played.cards) == set(range(1, len(CARDS) + 1))
    with_target = {own.effect for own in CARDS if own.health and own.effect}
    assert set(played.effects) == with_target - {Effect.DRAW}
    assert int(played.lengths.max()) <= DECISIONS


def test_greedy_play_uses_every_card_and_keeps_its_hand() -> None:
    played = play(("greedy", "greedy"), 100, 3)
    assert set(played.cards) == set(range(1, len(CARDS) + 1))
    assert set(played.kinds) == set(Action) - {Action.MULLIGAN}


def test_an_illegal_action_stops_with_the_whole_position(
    capsys: pytest.CaptureFixture[str],
) -> None:
    env = CardDuel([CardDuelParams(decks="shoal")], 4)
    env.reset(0)
    mover, action = int(env.to_move()[2]), torch.zeros(4, 3, dtype=torch.int64)
    env.step(action)
    action[2] = torch.tensor([Action.ATTACK, 0, 9])
    env.step(action)
    env.step(torch.zeros(4, 3, dtype=torch.int64))
    with pytest.raises(RunError, match="env 2") as raised:
        env.check()
    said = str(raised.value)
    assert said in capsys.readouterr().err
    place = f"step 2: seat {1 - mover} gave [6, 0, 9]"
    clock = f"decision 2, turn 0, phase MULLIGAN, seat {1 - mover} to move"
    zones = ("hand [", "front [", "back [", "deck of 25 [", "discard [", "mana 0 of 0", "champion")
    for part in (place, clock, "legal are 0, 1", *zones):
        assert part in said, part


def test_positions_and_actions_in_words() -> None:
    env = CardDuel([CardDuelParams()], 64)
    env.reset(5)
    generator, texts = torch.Generator().manual_seed(5), ""
    for _ in range(60):
        env.step(act(env, "random", generator))
        texts += env.describe(env.state, 0) + "\n"
    for part in ("attacks", "waits for its target", "tapped", "fresh", "discard [1 ", "to move"):
        assert part in texts, part
    assert describe_action(Action.ATTACK, 0, 9) == "ATTACK body 0, target enemy champion"
    assert describe_action(Action.TARGET, 0, 5) == "TARGET target enemy front 1"
    assert describe_action(Action.END, 0, 0) == "END"


def test_decks_follow_the_parameters() -> None:
    def decks(**params: object) -> list[list[tuple[int, ...]]]:
        env = CardDuel([CardDuelParams(**params)], 400)  # type: ignore[arg-type]
        env.reset(1)
        board = Board(env.state["cells"].t().contiguous())
        rows = torch.cat((board.deck, board.hand), 1)
        # By seat: side 0 is the player to move.
        return [
            [
                tuple(sorted(own for own in rows[seat ^ int(board.mover[g]), :, g].tolist() if own))
                for seat in (0, 1)
            ]
            for g in range(400)
        ]

    known, presets = set(known_decks()), set(PRESETS.values())
    assert all(check_deck(own) for own in known)
    assert {own for both in decks(decks="reef") for own in both} == {PRESETS["reef"]}
    assert {own for both in decks(decks="preset") for own in both} == presets
    drawn = {own for both in decks(decks="random") for own in both}
    assert drawn <= known - presets
    assert len(drawn) > 300
    mixed = [own for both in decks() for own in both]
    assert 0.4 < sum(own in presets for own in mixed) / len(mixed) < 0.6
    assert all(own == other for own, other in decks(mirrored=True))
    with pytest.raises(InputError, match="whale"):
        CardDuelParams(decks="whale")


def test_random_options_are_legal_and_equally_likely() -> None:
    mask = torch.tensor([[False, True, False, True, True]]).expand(3000, -1)
    chosen = random_option(mask, torch.linspace(0, 1, 3001, dtype=torch.float64)[:-1])
    assert [int((chosen == option).sum()) for option in range(5)] == [0, 1000, 0, 1000, 1000]


def test_the_game_is_registered() -> None:
    game = get_game("card-duel")
    env = game.make([CardDuelParams()], 8, together=1, device="cpu")
    obs = env.reset(0)
    assert obs.shape == (8, SIZE)
    assert obs.dtype == torch.uint8
    assert SIZE <= 400
    assert bool((seen(obs, "own front")[:, -1, 0] == CHAMPION).all())
    assert env.spec.items is not None
    assert env.spec.items.columns == SIZE
    assert COLUMNS["enemy discard"][1] == SIZE
    assert set(game.scripted(CardDuelParams())) == {"random", "greedy"}
