"""The game of `examples/own_game.py` fulfils the contract of `VecEnv` and can be searched."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import sweepd.commands
from sweepd.envs.games.poker.kuhn import Kuhn
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.tensor_game import TensorGame
from sweepd.envs.support.errors import InputError, RunError

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "own_game.py"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = EXAMPLE.read_text()
    game = found[found.index("@dataclass") : found.index("def main")]
    assert len([line for line in game.splitlines() if line.strip()]) <= 30
    (tmp_path / "target.py").write_text(found)
    return tmp_path


@pytest.fixture
def target(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(folder))
    sys.modules.pop("target", None)
    get_game("target:TARGET")
    yield sys.modules["target"]
    del sys.modules["target"]


def test_a_game_equals_its_rules_row_by_row(target: ModuleType) -> None:
    """Compare with a plain loop over one episode after the other."""
    env = target.Target([target.Wind(0.2), target.Wind(2.5)], 3)
    env.reset([1, 2])
    state = [(float(place), 0.0, 0) for place in env.observe()[:, 0].double()]
    env.draw(300)
    ended = {"terminated": 0, "truncated": 0}
    for uniforms in env._numbers.buffers["uniforms"].tolist():
        action = torch.sin(3.0 * env.observe()[:, :1])
        made = env.step(action)
        for row, (place, speed, age) in enumerate(state):
            speed = (
                0.9 * speed
                + 0.1 * float(action[row, 0])
                + (0.2, 2.5)[row // 3] * (uniforms[row][1] - 0.5)
            )
            place, age = place + speed, age + 1
            assert float(made.reward[row]) == pytest.approx(1.0 - abs(place), abs=1e-5)
            assert bool(made.terminated[row]) == (abs(place) > 3.0)
            assert bool(made.truncated[row]) == (age == 100 and abs(place) <= 3.0)
            if made.terminated[row] or made.truncated[row]:
                ended["terminated" if made.terminated[row] else "truncated"] += 1
                assert env.final_obs()[row].tolist() == pytest.approx([place, speed], abs=1e-5)
                place, speed, age = 2.0 * uniforms[row][0] - 1.0, 0.0, 0
            state[row] = place, speed, age
            assert made.obs[row].tolist() == pytest.approx([place, speed], abs=1e-5)
    assert min(ended.values()) > 2


def test_illegal_actions_are_reported(target: ModuleType) -> None:
    env = target.Target([target.Wind()] * 2, 2)
    env.reset(0)
    actions = torch.zeros(4, 1)
    env.step(actions)
    env.check()
    actions[2] = torch.nan
    env.step(actions)
    assert env.faults().tolist() == [False, False, True, False]
    assert torch.isfinite(env.observe()).all()
    with pytest.raises(RunError, match="row 2 "):
        env.check()
    with pytest.raises(ValueError, match="shape"):
        env.step(torch.zeros(4))


class Guess(TensorGame):
    """A discrete game with an integer state and deterministic moves."""

    state_dim, action_dim, if_discrete, max_step = 3, 3, True, 4

    def start(self, uniforms: Tensor) -> dict[str, Tensor]:
        return {"wanted": (3.0 * uniforms[:, 0]).long()}

    def move(
        self,
        state: dict[str, Tensor],
        action: Tensor,
        uniforms: Tensor,  # noqa: ARG002
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        return state, (action == state["wanted"]).double(), action == 2

    def see(self, state: dict[str, Tensor]) -> Tensor:
        return torch.nn.functional.one_hot(state["wanted"], 3)


class Walk(TensorGame):
    """The reward, the end and a part of the state are parts of the state before."""

    state_dim, action_dim, if_discrete = 3, 2, True
    max_step = 9

    def shortest_episode(self, params: Any) -> int:  # noqa: ARG002
        return 2

    def start(self, uniforms: Tensor) -> dict[str, Tensor]:
        place = uniforms.expand(-1, 2).float()
        return {"place": place, "ends": place[:, 0] > 1.0, "last": place[:, 1]}

    def move(
        self,
        state: dict[str, Tensor],
        action: Tensor,
        uniforms: Tensor,  # noqa: ARG002
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        moved = state["place"] + action.unsqueeze(1)
        new = {"place": moved, "ends": moved[:, 0] > 4.0, "last": state["place"][:, 1]}
        return new, state["last"], state["ends"]

    def see(self, state: dict[str, Tensor]) -> Tensor:
        return torch.cat((state["place"], state["last"].unsqueeze(1)), 1)


@pytest.mark.parametrize("ahead", [False, True])
def test_rules_may_return_what_the_state_before_had(
    ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Walk, "starts_ahead", ahead)
    env = Walk(Walk.game().params(), 5)
    obs, last = env.reset(3), env.state["last"].clone()
    ends = torch.zeros(5, dtype=torch.bool)
    for step in range(1, 30):
        action = torch.full((5,), int(step % 4 > 0))
        made = env.step(action)
        place = obs[:, 1] + action
        assert torch.equal(made.reward, last)
        assert torch.equal(made.terminated, ends)
        done = made.terminated | made.truncated
        assert torch.equal(env.final_obs()[done, 2], obs[done, 1])
        assert torch.equal(made.obs[~done, 2], obs[~done, 1])
        ends, last, obs = (place > 4.0) & ~done, made.obs[:, 2].clone(), made.obs
    assert not torch.equal(obs, env.reset(3))


def test_starts_ahead_in_turns_do_not_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kuhn, "starts_ahead", True)
    env = Kuhn(Kuhn.game().params(), 4)
    env.reset(1)
    env.draw(160)
    dealt = [env.state["cards"].clone()]
    for _ in range(160):
        before = {name: own.clone() for name, own in env.state.items()}
        env.step(torch.zeros(4, dtype=torch.int64))
        dealt.append(env.state["cards"].clone())
        assert env.played is not None
        for name, own in before.items():
            assert torch.equal(env.played[1][name], own)
        assert torch.equal(env.reached["cards"], before["cards"])
    assert all(len(every.unique(dim=0)) == 6 for every in torch.stack(dealt, 1))


def test_discrete_games_and_what_is_wrong_with_a_game() -> None:
    env = Guess.game().make([Guess.game().params()], 50, together=1, device="cpu")
    obs = env.reset(3)
    assert set(obs.argmax(1).tolist()) == {0, 1, 2}
    made = env.step(obs.argmax(1))
    assert bool((made.reward == 1.0).all())
    assert torch.equal(made.terminated, obs[:, 2] == 1.0)
    env.step(torch.full((50,), 3))
    with pytest.raises(RunError, match="from 0 to 2"):
        env.check()

    class Flat(Guess):
        def see(self, state: dict[str, Tensor]) -> Tensor:
            return state["wanted"].double()

    class Scalar(Guess):
        def start(self, uniforms: Tensor) -> dict[str, Tensor]:
            return {"wanted": uniforms.sum().long()}

    shapes = r"Flat\.see returns the shape \(4,\).*\(4, 3\)"
    for kind, sentence in ((Flat, shapes), (Scalar, "'wanted' has the shape")):
        with pytest.raises(InputError, match=sentence):
            kind([Guess.game().params()], 4)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "nowhere_at_all:GAME",
            "No module named 'nowhere_at_all'; install the module, run the command",
        ),
        (
            "target:Target",
            "--env target:Target is a class of vectorized environments; it must be a `Game`",
        ),
        ("target:", "the module target has nothing called ''"),
    ],
)
def test_unknown_games_are_refused(target: ModuleType, name: str, sentence: str) -> None:  # noqa: ARG001
    with pytest.raises(InputError, match=re.escape(sentence)):
        get_game(name)


def test_it_is_searched_promoted_and_shown(
    target: ModuleType,  # noqa: ARG001
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = sweepd.commands.build_app()
    monkeypatch.chdir(folder)

    def run(*words: object) -> str:
        done = CliRunner().invoke(
            app, [str(word) for word in words], env={"COLUMNS": "160"}, catch_exceptions=False
        )
        assert done.exit_code == 0, done.output
        return done.output

    flags = (
        "--env",
        "target:TARGET",
        "--n-trials",
        2,
        "--budget",
        8_192,
        "--seeds",
        2,
        "--episodes",
        8,
        "--n-envs",
        16,
        "--horizon",
        32,
        "--slots",
        4,
        "--threads",
        1,
        "--rungs",
        2,
        "--no-auto-deploy",
        "--fresh-seeds",
        0,
        "--env-param",
        "gust=0.3",
    )
    assert "game: target:TARGET" in run("train", *flags)
    said = run("promote", "--study-name", "target-TARGET")
    assert "PROMOTED" in said
    assert "The report is incomplete" not in said
    assert "replay-trial-" in said
    slot = "target-TARGET-gust_0.3"
    run("registry", "verify", slot)
    (manifest,) = (folder / "deployments").rglob("bundle.json")
    assert json.loads(manifest.read_text())["game"]["params"] == {"gust": 0.3}
    assert "observes" in run("play", slot)
