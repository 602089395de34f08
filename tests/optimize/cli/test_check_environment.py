"""`sweepd doctor --env NAME`: what it finds, its exit codes, and what it finds wrong in games."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from sweepd.envs.core.vec_env import Legal
from sweepd.envs.games.poker.kuhn import Kuhn
from sweepd.envs.games.random_check import check_random_play
from sweepd.envs.games.registry import get_game
from sweepd.envs.games.tensor_game import State
from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli.findings import Finding
from sweepd.optimize.study.space.parsing import load_space
from sweepd.optimize.study.space.subject import Subject
from tests.envs.games.toys import Nim
from tests.optimize.conftest import search_app


class Stuck(Nim):
    """Nim in which the fourth stone of a pile can't be reached: a mask becomes empty."""

    def mask(self, state: State, chosen: Tensor) -> Tensor:
        legal = super().mask(state, chosen)
        return legal if not chosen.shape[1] else legal & (state["piles"].sum(1, True) > 2)


class Empty(Kuhn):
    """Kuhn poker without a legal option."""

    def mask(self, state: State, chosen: Tensor) -> Tensor:
        return torch.zeros_like(super().mask(state, chosen))


class Unbounded(Nim):
    """Nim with a reward that is not a number for a mover of secret 3."""

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        moved, reward, over = super().move(state, action, uniforms)
        return moved, reward.masked_fill(state["secret"][:, :1] == 3, torch.nan), over


class Broken(Nim):
    """Nim whose rules raise."""

    def move(self, state: State, action: Tensor, uniforms: Tensor) -> tuple[State, Tensor, Tensor]:
        del state, action, uniforms
        raise ValueError("no such pile")


@dataclass(frozen=True)
class Greedy:
    """A scripted player that takes three stones of the first pile, legal or not."""

    uniforms = 0
    memory = 0

    def start(self, uniforms: Tensor) -> Tensor:
        return uniforms

    def act(
        self, obs: Tensor, memory: Tensor, uniforms: Tensor, legal: Legal
    ) -> tuple[Tensor, Tensor]:
        del uniforms, legal
        return torch.tensor([0, 2]).expand(len(obs), 2), memory


NIM, STUCK, UNBOUNDED, BROKEN = Nim.game(), Stuck.game(), Unbounded.game(), Broken.game()
EMPTY = Empty.game()
CHEATED = Nim.game(scripted=lambda _: {"greedy": Greedy()})
HERE = "tests.optimize.cli.test_check_environment"


def check(name: str, *flags: str) -> tuple[int, dict[str, tuple[bool, str]]]:
    """Return the exit code, and whether each subject is ok and what is said of it."""
    env = f"{HERE}:{name}" if name.isupper() else name
    result = CliRunner().invoke(search_app(), ["doctor", "--env", env, "--gpu", "cpu", *flags])
    assert isinstance(result.exception, SystemExit | None), result.exception
    findings = {}
    for line in result.output.splitlines():
        subject, _, found = line[4:].partition(": ")
        findings[subject] = (line.startswith("ok  "), found)
    return result.exit_code, findings


def test_a_game_in_turns_is_played_and_its_numbers_fit() -> None:
    code, found = check("NIM", "--n-envs", "64", "--horizon", "16")
    assert code == 0, found
    assert all(ok for ok, _ in found.values())
    assert {"random play", "masks", "actions", "algorithm", "minibatch", "budget", "study"} <= set(
        found
    )
    assert "2 seats in turns; actions: 2 choices of 3, 3, masked" in found["environment"][1]
    assert "observations: 6 columns of uint8" in found["environment"][1]
    assert "1 to 3 legal options" in found["masks"][1]
    assert "of both players together up to 0.25, not 0" in found["rewards"][1]
    assert "64 envs x 16 steps = 1,024 transitions" in found["minibatch"][1]


@pytest.mark.parametrize(
    ("name", "subject", "said"),
    [
        ("STUCK", "masks", "has no legal option for choice 1 (from 0) after the choices ["),
        ("EMPTY", "masks", "row 0 has no legal option for choice 0 (from 0)"),
        ("UNBOUNDED", "rewards", "not all finite"),
        ("BROKEN", "random play", "ValueError: no such pile"),
        ("CHEATED", "scripted players", "a player gave an illegal action"),
    ],
)
def test_what_is_wrong_with_a_game_is_said(name: str, subject: str, said: str) -> None:
    code, found = check(name)
    assert code == 1
    assert [key for key, (ok, _) in found.items() if not ok] == [subject]
    assert said in found[subject][1]
    # What does not depend on the game is still checked; its study is not drafted.
    assert found["budget"][0]
    assert "study" not in found


def test_an_algorithm_or_opponents_that_do_not_fit_are_failed_checks() -> None:
    code, found = check("NIM", "--algo", "sac")
    assert (code, found["algorithm"][0]) == (1, False)
    assert "does not support the discrete actions" in found["algorithm"][1]
    code, found = check("CHEATED", "--opponents", "gredy=1")
    assert (code, found["opponents"][0]) == (1, False)
    assert "did you mean greedy?" in found["opponents"][1]
    code, found = check("cartpole", "--opponents", "self=1")
    assert (code, found["opponents"][0]) == (1, False)


def test_a_population_has_its_size_and_no_incomplete_one_is_allowed() -> None:
    pbt = ("--search", "pbt", "--n-envs", "16", "--horizon", "64")
    code, found = check("cartpole", *pbt, "--n-trials", "24")
    assert code == 0
    assert "24 trials of 1 seed" in found["study"][1]
    code, found = check("cartpole", *pbt, "--n-trials", "24", "--trials-per-batch", "10")
    assert (code, found["search"][0]) == (1, False)
    assert "not a multiple" in found["search"][1]
    assert "study" not in found


def test_numbers_that_do_not_fit_have_the_nearest_valid_values(tmp_path: Path) -> None:
    space = tmp_path / "own.toml"
    space.write_text('name = "own"\nversion = 1\n[shape]\nminibatch = { value = 512 }\n')
    own = ("--search-space", str(space), "--horizon", "64")
    code, found = check("NIM", "--n-envs", "100", *own)
    assert code == 1
    assert "use a minibatch of 400 or 640 there, or --n-envs 96 or 104" in found["minibatch"][1]
    assert "every multiple of 8 fits" in found["n-envs"][1]
    code, found = check("NIM", "--n-envs", "96", *own)
    assert code == 0
    # Minibatches of the included space are fitted, as when the study is created.
    code, found = check("NIM", "--n-envs", "100", "--horizon", "64")
    assert code == 0
    assert found["n-envs"] == (True, "100")
    assert "nothing to do: the included space's 64, 256, 1024 become" in found["minibatch"][1]
    assert found["minibatch"][1].endswith("they stay as they are with --n-envs 96 or 112")
    code, found = check("NIM", "--n-envs", "64", "--horizon", "64", "--budget", "10000")
    assert (code, found["budget"][0]) == (1, False)
    assert "give at least --budget 16384" in found["budget"][1]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--env", "nimm"], "is not known"),
        (["--env", "kuhn", "--algo", "ppoo"], "--algo 'ppoo' is not known"),
        (["--algo", "sac"], "needs --env NAME to check --algo"),
        (["--env", "kuhn", "--search-space", "narrow:other"], "reads no study"),
    ],
)
def test_wrong_input_is_refused(flags: list[str], said: str) -> None:
    result = CliRunner().invoke(search_app(), ["doctor", *flags])
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)


def test_a_market_without_bars_is_checked_as_far_as_possible() -> None:
    code, found = check("crypto", "--n-envs", "16", "--horizon", "64")
    assert code == 0
    assert "give --data-dir" in found["environment"][1]
    assert found["minibatch"][0]


def test_findings_of_random_play_are_of_the_first_step_with_a_problem() -> None:
    env = Stuck([Nim.game().params()], 4)
    played = check_random_play(env, seed=1)
    assert set(played.problems) == {"masks"}
    assert played.problems["masks"].startswith(f"step {played.steps + 1}: row ")
    assert played.fewest == 0
    played = check_random_play(Nim([Nim.game().params()], 4), seed=1, steps=50)
    assert (played.problems, played.steps, played.rows) == ({}, 50, 4)
    assert played.episodes > 4
    assert played.largest_sum == pytest.approx(0.25)  # of those who leave one stone
    poker = get_game("kuhn")
    env = poker.make([poker.params()], 4, together=1, device="cpu")
    assert check_random_play(env, seed=1, steps=50).largest_sum == 0
    assert Finding(True, "a", "b").advice == ""


@pytest.mark.extra
def test_the_profile_of_card_duels_is_complete_and_fits() -> None:
    space = load_space("game", Subject("card-duel"))
    assert {"budget", "n_envs", "horizon", "seeds", "episodes"} <= set(space.study)
    # Trial 0 is the profile: every parameter that is searched says where it starts.
    for table in space.tables.values():
        assert all(one.value is not None or one.start is not None for one in table.values())
    code, found = check("card-duel")
    assert code == 0, found
    rollout = int(space.study["n_envs"]) * int(space.study["horizon"])
    assert f"{rollout:,} transitions of a rollout" in found["minibatch"][1]
    assert "became" not in found["minibatch"][1]
    # Flags take precedence.
    code, found = check("card-duel", "--n-envs", "100", "--horizon", "10")
    assert code == 0
    assert found["n-envs"][1].startswith("100")
