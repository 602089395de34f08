"""The physics and rules of hockey against recorded games and a scalar reference."""

from __future__ import annotations

import json
import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor

from sweepd.envs.games.hockey.physics import Bodies
from sweepd.envs.games.hockey.rules import GameState, play
from tests.envs.games.hockey.matches import play_matches
from tests.envs.games.hockey.reference import Body, Hockey, from_observation
from tests.envs.games.recordings import REFERENCE, reference_file
from tests.extra import with_extra


def state_of(games: list[Hockey], dtype: torch.dtype = torch.float64) -> GameState:
    """Return scalar games as tensors."""

    def of_players(name: str, *, mirrored: bool) -> Tensor:
        signs = (1, -1 if mirrored else 1)
        values = [[signs[i] * getattr(game.players[i], name) for game in games] for i in (0, 1)]
        return torch.tensor(values, dtype=dtype)

    def of_puck(name: str) -> Tensor:
        return torch.tensor([getattr(game.puck, name) for game in games], dtype=dtype)

    return GameState(
        Bodies(*(of_players(name, mirrored="x" in name or "y" in name) for name in Bodies._fields)),
        Bodies(*(of_puck(name) for name in Bodies._fields)),
        torch.tensor([[game.counters[i] for game in games] for i in (0, 1)]),
        torch.tensor([[game.touching[i] for game in games] for i in (0, 1)]),
        torch.zeros(len(games), dtype=dtype),
    )


def anywhere(rng: random.Random) -> Hockey:
    """Return a game in a random state."""

    def player(side: int) -> Body:
        velocity = (rng.gauss(0, 4), rng.gauss(0, 4), rng.gauss(0, 3))
        place = (side * rng.uniform(0.2, 4.8), rng.uniform(-2.5, 2.5), rng.uniform(-1.2, 1.2))
        return Body(*place, *velocity)

    speed = rng.choice((0.0, 2.0, 20.0))
    puck = Body(
        rng.uniform(-3.6, 3.6),
        rng.uniform(-3, 3),
        0.0,
        rng.gauss(0, speed),
        rng.gauss(0, speed),
        rng.gauss(0, 50),
    )
    return Hockey([player(-1), player(1)], puck)


@pytest.mark.parametrize("keep_mode", with_extra([True, False], [False]))
def test_tensors_play_as_the_scalar_reference(keep_mode: bool) -> None:
    rng = random.Random(7)
    count, each = 200, 4 if keep_mode else 3
    games = [anywhere(rng) for _ in range(count)]
    actions = [[0.0] * (2 * each) for _ in games]
    contacts = catches = goals = 0
    for _ in range(100):
        for k, game in enumerate(games):
            game.keep_mode = keep_mode
            if rng.random() < 0.1:
                actions[k] = [rng.uniform(-1.3, 1.3) for _ in range(2 * each)]
        controls = torch.tensor(actions, dtype=torch.float64).clamp(-1, 1)
        controls = controls.view(count, 2, each).permute(2, 1, 0)
        played, happened = play(state_of(games), controls, keep_mode=keep_mode)
        caught = [game.step(own)[2] for game, own in zip(games, actions, strict=True)]
        expected = state_of(games)
        # With the puck between both rackets, tensors add the impulses that the reference applies
        # one after the other.
        compared = ~played.touching.all(0)
        for name, ours, theirs in (
            *zip(Bodies._fields, played.players, expected.players, strict=True),
            *zip(Bodies._fields, played.puck, expected.puck, strict=True),
        ):
            gap = (ours - theirs).abs()[..., compared]
            # The reference iterates towards the impulses that the tensors have in closed form.
            assert float(gap.max()) < (1e-3 if name == "omega" else 1e-5), name
        for ours, theirs in (
            (played.counters, expected.counters),
            (played.touching, expected.touching),
            (happened.caught.t(), torch.tensor(caught, dtype=torch.bool)),
        ):
            turned = ours if ours.shape[0] == 2 else ours.t()
            wanted = theirs if theirs.shape[0] == 2 else theirs.t()
            assert torch.equal(turned[:, compared], wanted[:, compared])
        assert happened.ended.tolist() == [game.winner != 0 for game in games]
        assert played.scored.tolist() == [float(game.winner) for game in games]
        contacts += int(played.touching.sum())
        catches += int(happened.caught.sum())
        goals += int(happened.ended.sum())
        for k, game in enumerate(games):
            if game.done or rng.random() < 0.02:
                games[k] = anywhere(rng)
    assert contacts > 300
    assert goals > 50
    assert catches > 40 if keep_mode else catches == 0


def recorded_cases() -> list[str]:
    path = REFERENCE / "hockey_reference.npz"
    if not path.is_file():
        return ["absent"]
    with np.load(path) as stored:
        return sorted({name.split("__")[0] for name in stored.files})


@pytest.mark.parametrize("case", recorded_cases())
def test_recorded_games(case: str) -> None:
    """The scalar reference plays the recorded games; the tensors play as it does."""
    with np.load(reference_file("hockey_reference.npz")) as stored:
        fields = ("obs", "obs2", "actions", "reward", "reward2", "done", "winner", "keep_mode")
        obs, obs2, actions, reward, reward2, done, winner, keep = (
            stored[f"{case}__{name}"] for name in fields
        )
    game = from_observation([float(x) for x in obs[0]], keep_mode=bool(keep))
    for step, action in enumerate(actions):
        first, second, _, _ = game.step([float(a) for a in action])
        for seen, wanted in zip(game.observe(), (obs[step + 1], obs2[step + 1]), strict=True):
            # Angular velocities and the puck's velocity after a hit; the rest is closer.
            np.testing.assert_allclose(seen, wanted, atol=5e-3)
            np.testing.assert_allclose(seen[:3], wanted[:3], atol=3e-4)
            np.testing.assert_allclose(seen[12:14], wanted[12:14], atol=1e-3)
            np.testing.assert_array_equal(seen[16:], wanted[16:])
        assert math.isclose(first, reward[step], abs_tol=1e-4)
        assert math.isclose(second, reward2[step], abs_tol=1e-4)
        assert (game.done, game.winner) == (bool(done[step]), int(winner[step]))


# Label of a recorded pairing, players and mode.
PAIRINGS = {
    "NORMAL strong-vs-weak": ("strong", "weak", "normal"),
    "NORMAL strong-vs-strong": ("strong", "strong", "normal"),
    "NORMAL weak-vs-weak": ("weak", "weak", "normal"),
    "NORMAL random-vs-strong": ("random", "strong", "normal"),
    "SHOOTING strong-vs-static": ("strong", "static", "train_shooting"),
    "SHOOTING strong-vs-strong": ("strong", "strong", "train_shooting"),
    "DEFENSE strong-vs-static": ("strong", "static", "train_defense"),
    "DEFENSE strong-vs-strong": ("strong", "strong", "train_defense"),
}


@pytest.mark.parametrize("label", with_extra(PAIRINGS, list(PAIRINGS)[2:]))
def test_scripted_pairings_have_the_recorded_statistics(label: str) -> None:
    recorded = {
        own["label"]: own for own in json.loads(reference_file("hockey_baselines.json").read_text())
    }
    known, games = recorded[label], 1000
    matches = play_matches(*PAIRINGS[label], games)
    shares = {"win": matches.won, "draw": matches.drawn, "loss": matches.lost}
    for result, share in shares.items():
        theirs = known[result] / known["n"]
        error = math.sqrt(theirs * (1 - theirs) / known["n"] + share * (1 - share) / games)
        assert abs(share - theirs) < 3 * error + 0.01, (result, share, theirs)
    error = math.hypot(known["se_len"], float(matches.lengths.std()) / math.sqrt(games))
    assert abs(float(matches.lengths.mean()) - known["mean_len"]) < 3 * error
    for own, name in zip(matches.catches, ("catches_p1", "catches_p2"), strict=True):
        # A recorded number of catches has itself the standard error of a Poisson variable.
        error = math.sqrt(known[name] / known["n"] + own / games)
        assert abs(own - known[name]) < max(0.15 * known[name], 3 * error)
