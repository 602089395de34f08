"""A person who plays games in turns against a player, with input from a pipe."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import re
import select
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from sweepd.agents.policy.members import Member
from sweepd.commands import build_app
from sweepd.deploy.games import person
from sweepd.deploy.games.bundle import GameBundle, game_bundle
from sweepd.deploy.games.candidates import build_bundle, read_candidate
from sweepd.deploy.games.person import Match, Played
from sweepd.deploy.games.show import Show
from sweepd.deploy.gates import load_bundle
from sweepd.deploy.registry.bundle_files import new_bundle, write_bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.games.card_duel.cards import CARDS
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.card_duel.layout import Board
from sweepd.envs.games.card_duel.masks import full_masks
from sweepd.envs.games.play import random_actions
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.turns_view import TurnsRenderer
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.terminal import Terminal
from tests.deploy.games.players import study_of
from tests.entry_point import enter
from tests.envs.games.toys import chooser

NIM = "tests.envs.games.toys:NIM"
PASS, BET = (1.0, 0.0), (0.0, 1.0)
# Of the columns of Kuhn's observation: it bets with a king, and else passes.
EITHER = (0.5, 0.5)
KING_BETS = (EITHER, EITHER, PASS, PASS, BET, *[EITHER] * 6)


def versus(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    opponent: str,
    answers: str | bytes,
    games: int = 1,
    seat: str = "me",
) -> tuple[Played, str]:
    """Play against a scripted player with this input; return the output, too."""
    given = answers.encode() if isinstance(answers, str) else answers
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given), encoding="utf-8"))
    game, out = get_game(name), io.StringIO()
    console = Terminal(file=out, width=80)
    match = Match(
        game, game.params(), champion=None, seat=seat, opponent=opponent, seed=2, console=console
    )
    return match.play(games), out.getvalue()


@pytest.mark.parametrize("opponent", ["random", "greedy"])
def test_whole_duels_through_a_pipe(monkeypatch: pytest.MonkeyPatch, opponent: str) -> None:
    """Always the first option: the person ends its turns and loses, or draws."""
    played, said = versus(monkeypatch, "card-duel", opponent, "1\n" * 900, games=2)
    assert not played.stopped
    assert len(played.outcomes) == 2
    assert "game 1, the end: " in said
    assert "game 2, the end: " in said
    assert f"{opponent} plays " in said
    assert "you end the turn" in said
    assert max(map(len, said.splitlines())) <= 80
    assert "\x1b" not in said
    # The only hand in cards is the person's: every line with a cost is one of it, or an option.
    names = "|".join(own.name for own in CARDS)
    for block in said.split("game 1, against")[1:]:
        held = re.search(r"^you .* hand (\d+) ", block, re.MULTILINE)
        assert held is not None
        view = block.partition("\n\n")[0].split("q: quit")[0]
        listed = len(re.findall(rf"(?:{names}) \(\d\)", re.sub(r"(?m)^ +\d+  .*$", "", view)))
        assert listed == int(held[1])


def test_every_legal_move_is_offered_and_every_offered_one_is_legal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = CardDuel([CardDuelParams()], 1)
    env.reset(3)
    generator = torch.Generator().manual_seed(3)
    most = 0
    for step in range(90):
        if step % 6 == 0:
            found, answers = set(), [0]
            while True:
                sizes: list[int] = []

                def answer(labels: Any, *_: Any, **__: Any) -> int:
                    sizes.append(len(labels))  # noqa: B023
                    assert len(labels) == len(set(labels)) or len(sizes) == 2  # noqa: B023
                    return (answers + [0] * 3)[len(sizes) - 1]  # noqa: B023

                monkeypatch.setattr(person, "_ask", answer)
                found.add(tuple(person.choose(env, Terminal(file=io.StringIO()))))
                # The next answers, as an odometer counts.
                answers = (answers + [0] * 3)[: len(sizes)]
                while answers and answers[-1] + 1 >= sizes[len(answers) - 1]:
                    answers.pop()
                if not answers:
                    break
                answers[-1] += 1
            full = full_masks(env.legal(env.state))[2][0]
            assert found == {tuple(action) for action in full.nonzero().tolist()}
            most = max(most, len(found))
        env.step(random_actions(env, generator))
    assert most > 20


def test_wrong_input_asks_again_and_back_begins_the_decision_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = b"\n0\n99\n-1\nking\nb\n1.0\n\xff\xfe\n" + b"9" * 50 + b"\n"
    played, said = versus(monkeypatch, NIM, "grabber", wrong + b"1\nb\n1\n" * 30 + b"q\n")
    assert said.count("please enter a number from 1 to") >= 9
    assert "choice 1: 0" in said
    assert "observes " in said
    assert played.stopped or played.outcomes


def test_generic_games_tell_nothing_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    played, said = versus(monkeypatch, NIM, "drifter", "1\n" * 60, games=4, seat="second")
    assert len(played.outcomes) == 4
    assert "drifter makes a decision" in said
    assert "you choose " in said
    assert "piles" not in said  # the whole position
    assert not re.search(r"drifter chooses", said)


def test_the_end_of_the_input_ctrl_c_and_q_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    for answers in ("", "1\n1\n", "q\n", "Q\n"):
        played, _ = versus(monkeypatch, "card-duel", "greedy", answers)
        assert played == Played([], "greedy", stopped=True)

    def interrupted(*_: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(person, "_read", interrupted)
    assert versus(monkeypatch, "card-duel", "greedy", "")[0].stopped


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kuhn")
    found = study_of(
        folder,
        [KING_BETS],
        make=lambda own: chooser(*own),
        environment="kuhn",
        env={},
        objective="points",
    )
    made = build_bundle(read_candidate(found.complete[0], found), found, {})
    return write_bundle(made, folder / "bundles")


def sweepd(bundle: Path, *words: str, answers: str = "") -> Result:
    app = build_app()
    return CliRunner().invoke(
        app, ["play", str(bundle), *words], input=answers, env={"TERM": "dumb", "COLUMNS": "100"}
    )


def test_a_person_plays_against_a_champion(bundle: Path) -> None:
    done = sweepd(bundle, "--seat", "me", "--episodes", "30", answers="2\n" * 60)
    assert done.exit_code == 0, done.output
    last = done.output.strip().splitlines()[-1]
    match = re.fullmatch(
        rf"kuhn against {bundle.name}: you: (\d+) won, (\d+) drawn, (\d+) lost", last
    )
    assert match is not None, last
    assert sum(map(int, match.groups())) == 30
    assert f"of {bundle.name}: face down" in done.output
    for decision in ("passes", "folds", "calls"):
        assert f"{bundle.name} {decision}" in done.output
    assert "you bet" in done.output


def duelist(folder: Path) -> GameBundle:
    """A player of the card duel that takes the first legal options."""
    sizes = (11, 10, 10)
    weights = Member.of_tensors(
        {
            "net.0.weight": torch.zeros(sum(sizes), 200),
            "net.0.bias": torch.zeros(sum(sizes)),
            "action_dims": torch.tensor(sizes),
            "state_avg": torch.zeros(200),
            "state_std": torch.ones(200),
        }
    )
    found = study_of(
        folder, [()], make=lambda _: weights, environment="card-duel", env={}, objective="points"
    )
    return build_bundle(read_candidate(found.complete[0], found), found, {})


def test_champions_are_called_by_their_slot_and_others_by_their_version(
    bundle: Path, tmp_path: Path
) -> None:
    registry = Registry(tmp_path / "deployments")
    first = game_bundle(load_bundle(bundle))
    second = new_bundle(
        GameBundle, first.manifest.model_copy(update={"code_version": "other"}), first.files
    )
    registry.promote("cards", first, expected=None, reason="")
    registry.promote("cards", second, expected=first.hash, reason="")
    assert registry.called(second) == "cards"
    assert registry.called(first) == "cards@1"
    assert Registry(tmp_path / "empty").called(first) == first.name
    where = ("--deployments", str(tmp_path / "deployments"))
    done = sweepd(Path("cards"), "--seat", "me", *where, answers="2\n" * 9)
    assert done.exit_code == 0, done.output
    assert "against cards" in done.output
    shown = sweepd(Path("cards@1"), "--opponent", "self", *where)
    assert shown.exit_code == 0, shown.output
    player, drawn = duelist(tmp_path / "run"), []
    for name in ("cards", None):
        with contextlib.closing(Show(player, seed=1, pictures=True, name=name)) as show:
            renderer = show.renderer
            assert isinstance(renderer, TurnsRenderer)
            assert renderer.names == (name or player.name, "greedy")
            drawn.append(renderer.picture("game 1", final=False).tobytes())
    assert drawn[0] != drawn[1]


def test_it_ends_with_one_line(bundle: Path) -> None:
    for answers in ("", "q\n"):
        done = sweepd(bundle, "--seat", "first", answers=answers)
        assert done.exit_code == 0
        last = done.output.rstrip().splitlines()[-1]
        assert last == f"stopped; kuhn against {bundle.name}: no game has ended"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seat", "third"), "--seat 'third' is not known; choose one of me, first, second"),
        (("--seat", "me", "--out", "game.gif"), "--seat and --out exclude each other"),
        (("--seat", "me", "--opponent", "greedy"), "'greedy' is not known; choose one of self"),
    ],
)
def test_wrong_flags_are_refused(bundle: Path, words: tuple[str, ...], said: str) -> None:
    error = sweepd(bundle, *words).exception
    assert isinstance(error, InputError)
    assert said in str(error)


def test_games_that_are_not_in_turns_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("hockey", "cartpole"):
        with pytest.raises(InputError, match=f"{name} is not one"):
            versus(monkeypatch, name, "self", "")


def alone(*words: str, answers: str = "") -> Result:
    """Run `sweepd play` without a champion or a registry."""
    app = build_app()
    return CliRunner().invoke(app, ["play", *words], input=answers)


def test_a_person_needs_no_champion_against_a_scripted_player(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = alone("--env", "card-duel", "--seat", "me", "--opponent", "random", answers="1\n" * 900)
    assert done.exit_code == 0, done.output
    assert re.search(r"card-duel against random: you: \d won", done.output)
    assert not list(tmp_path.iterdir())
    done = alone("--env", "card-duel", "--seat", "first")  # against the last scripted player
    assert "stopped; card-duel against greedy" in done.output
    for words, said in (
        (("--env", "kuhn", "--seat", "me"), "kuhn has no scripted players: name a champion"),
        (("--env", "card-duel"), "--env is for a person against a scripted player: give --seat me"),
        (("duel", "--env", "card-duel", "--seat", "me"), "give --seat me, and no champion"),
        (
            ("--env", "card-duel", "--seat", "me", "--opponent", "self"),
            "'self' is not known; choose one of random, greedy",
        ),
        (("--env", "crypto", "--seat", "me"), "--env 'crypto' is not known"),
    ):
        error = alone(*words).exception
        assert isinstance(error, InputError), words
        assert said in str(error)


DUEL = ("--env", "card-duel", "--seat", "me", "--opponent", "greedy")


@pytest.mark.parametrize(("words", "ready"), [(DUEL, b"quit"), (("BUNDLE",), b"game 1, step")])
def test_ctrl_c_in_a_terminal_ends_with_one_line(
    bundle: Path, words: tuple[str, ...], ready: bytes
) -> None:
    """A person at the terminal, and one who watches an animation."""
    given = [str(bundle) if word == "BUNDLE" else word for word in words]
    if words != DUEL:
        given += ["--episodes", "1000"]
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        enter(["play", *given])
    said, pressed, poller = b"", False, select.poll()
    poller.register(terminal, select.POLLIN)
    with contextlib.suppress(OSError):  # what reading raises when the process has ended
        while True:
            # Python can miss a signal that comes just before it waits for a line: press again.
            if not poller.poll(10_000):
                pressed = False
            elif part := os.read(terminal, 65536):
                said += part
            else:
                break
            if ready in said and not pressed:
                pressed = True
                os.write(terminal, b"\x03")  # the terminal sends SIGINT
    _, status = os.waitpid(child, 0)
    os.close(terminal)
    text = said.decode()
    assert os.waitstatus_to_exitcode(status) == 0, text
    assert "stopped" in text
    assert text.rstrip().endswith(": no game has ended")
    assert "Traceback" not in text


def test_a_closed_pipe_ends_it_without_a_traceback(bundle: Path) -> None:
    # More output than a pipe holds is not needed: its reader is gone.
    for words in ((*DUEL, "--episodes", "9"), (str(bundle), "--episodes", "200")):
        (stdin, written), (read, stdout), (errors, stderr) = (os.pipe() for _ in range(3))
        child = os.fork()
        if child == 0:
            for number, file in enumerate((stdin, stdout, stderr)):
                os.dup2(file, number)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            enter(["play", *words])
        for file in (stdin, stdout, stderr):
            os.close(file)
        with os.fdopen(written, "wb") as given:
            given.write(b"1\n" * 5000)
        with os.fdopen(read) as out:
            out.readline()
        with os.fdopen(errors) as said:
            assert said.read() == ""
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def test_hidden_cards_change_no_line_for_the_person(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other cards in the opponent's hand and deck, in another order: the same view and options."""
    generator, compared = torch.Generator().manual_seed(7), 0
    for seat in (0, 1):
        env = CardDuel([CardDuelParams()], 1)
        env.reset(seat)
        renderer = TurnsRenderer(env, ("you", "Odo"), seat, whole=False)

        def output(renderer: TurnsRenderer = renderer, env: CardDuel = env) -> str:
            """All that is printed for a decision, with every first option taken."""
            out = io.StringIO()
            console = Terminal(file=out, width=80)
            console.print(renderer.text("game 1", final=False))
            person.choose(env, console)
            return out.getvalue()

        monkeypatch.setattr(person, "_read", lambda _: "1")
        for _ in range(40):
            if int(env.to_move()[0]) == seat:
                before = env.state
                said = output()
                env.state = {**before, "cells": exchanged(before["cells"], generator)}
                assert output() == said
                compared += not torch.equal(env.state["cells"], before["cells"])
                env.state = before
            env.step(random_actions(env, generator))
            renderer.note()
    assert compared > 30


def exchanged(cells: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a position with other hidden cards of the player that is not to move."""
    board = Board(cells.t().contiguous().clone())  # side 0 is the mover
    hand, deck = int(board.held[1, 0]), int(board.left[1, 0])
    hidden = torch.cat((board.hand[1, :hand, 0], board.deck[1, :deck, 0]))
    hidden = hidden[torch.randperm(len(hidden), generator=generator)]
    board.hand[1, :hand, 0] = hidden[:hand]
    board.deck[1, :deck, 0] = hidden[hand:]
    return board.cells.t()
