"""The choice between native and torch steps of environments: the same bits, whichever is used."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sweepd.envs.core import native as random_numbers
from sweepd.envs.core.native import RANDOM
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.native import choice, self_test, step
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.crypto.scoring.evaluate import trade_windows
from sweepd.envs.games.bucket_brigade import native as bucket_brigade
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.scenarios import BucketParams
from sweepd.envs.games.card_duel import native as card_duel
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.card_duel.players import PLAYERS
from sweepd.envs.games.cartpole import CartPole, CartPoleParams
from sweepd.envs.games.hockey import native as hockey
from sweepd.envs.games.hockey.game import Hockey, HockeyParams
from sweepd.envs.games.native import cartpole
from sweepd.envs.games.play import play_episodes
from sweepd.envs.native import build, threads
from sweepd.envs.native.build import VARIABLE
from sweepd.envs.native.use import NativeLibrary
from tests.envs.market_samples import WINDOWS, sample_market

try:
    build.vector_flags(), build.compiler()
except build.BuildError as error:
    pytest.skip(f"no native code: {error}", allow_module_level=True)

ROWS = 200
STEPS = {
    "crypto": choice.STEP,
    "cartpole": cartpole.STEP,
    "card duel": card_duel.STEP,
    "hockey": hockey.STEP,
    "bucket brigade": bucket_brigade.STEP,
}


def make_crypto() -> VecEnv:
    return CryptoEnv(sample_market(1), EnvParams(), WINDOWS, ROWS)


def make_cartpole() -> VecEnv:
    return CartPole(CartPoleParams(), ROWS)


def make_card_duel() -> VecEnv:
    return CardDuel(CardDuelParams(), ROWS)


def make_bucket_brigade() -> VecEnv:
    return BucketBrigade(BucketParams(), ROWS)


def make_hockey() -> VecEnv:
    return Hockey(HockeyParams(), ROWS)


MAKERS: dict[str, Callable[[], VecEnv]] = {
    "crypto": make_crypto,
    "cartpole": make_cartpole,
    "card duel": make_card_duel,
    "hockey": make_hockey,
    "bucket brigade": make_bucket_brigade,
}


def observations(env: VecEnv) -> list[list[float]]:
    """Step an environment a few times and return what is seen last."""
    obs = env.reset(3)
    torch.manual_seed(0)
    for _ in range(30):
        if env.spec.action_dims and not env.spec.masked:
            choices = [torch.randint(size, (ROWS,)) for size in env.spec.action_dims]
            action = torch.stack(choices, 1)
        elif env.spec.masked:
            uniforms = torch.rand(ROWS, PLAYERS["random"].uniforms, dtype=torch.float64)
            action, _ = PLAYERS["random"].act(obs, obs[:, :0], uniforms, env.action_mask)
        elif env.if_discrete:
            action = torch.randint(env.action_dim, (ROWS,))
        else:
            action = torch.rand(ROWS, env.action_dim) * 2 - 1
        obs = env.step(action).obs
    return obs.tolist()


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries are loaded again, as in a new process."""
    for native in STEPS.values():
        monkeypatch.setattr(native, "_tried", False)
        monkeypatch.setattr(native, "_found", None)


@pytest.mark.parametrize(
    "source",
    [
        random_numbers.SOURCE,
        step.SOURCE,
        cartpole.SOURCE,
        card_duel.SOURCE,
        hockey.SOURCE,
        bucket_brigade.SOURCE,
    ],
    ids=lambda path: path.stem,
)
def test_native_code_compiles_without_warnings(source: Path, tmp_path: Path) -> None:
    flags = [flag for flag in (*build.FLAGS, *build.vector_flags()) if flag != "-w"]
    # GCC's own AVX-512 header has a false positive of -Wmaybe-uninitialized.
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-Wno-maybe-uninitialized", "-O1"]
    command = [build.compiler(), *flags, *warnings, f"-I{build.SHARED}", str(source)]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "step.so")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", STEPS)
def test_the_variable_turns_native_steps_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    native = MAKERS[name]()
    assert native.native
    assert STEPS[name].status().endswith("processors, tested")
    monkeypatch.setenv(VARIABLE, "torch")
    torch_only = MAKERS[name]()
    assert not torch_only.native
    assert STEPS[name].status() == "turned off by SWEEPD_KERNELS=torch"
    assert observations(native) == observations(torch_only)


@pytest.mark.parametrize("native", [True, False])
def test_torch_has_one_thread_where_policies_play_in_native_environments(
    monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    if not native:
        monkeypatch.setenv(VARIABLE, "torch")
    seen = set()

    def act(obs: torch.Tensor) -> torch.Tensor:
        seen.add((torch.get_num_threads(), threads.count()))
        return torch.zeros(len(obs), 3)

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        env = CryptoEnv.for_windows(sample_market(1), [EnvParams()], [WINDOWS])
        assert env.native == native
        trade_windows(env, lambda obs: act(obs)[:, : env.action_dim])
        play = CartPole(CartPoleParams(), 4)
        assert play.native == native
        play.reset(1)
        play_episodes(play, lambda obs: act(obs)[:, 0].long())
    finally:
        torch.set_num_threads(before)
    assert seen == {(1 if native else 3, 3)}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.usefixtures("forgotten")
def test_a_step_with_other_bits_is_not_used(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(STEPS[name], "_expected", "of another step")
    with caplog.at_level(logging.WARNING):
        assert not MAKERS[name]().native
        assert not MAKERS[name]().native
    [record] = caplog.records
    assert (
        f"no native code of the {name} step: what was compiled fails its self-test"
        in record.getMessage()
    )
    assert "torch does the same, more slowly" in record.getMessage()
    assert "not used: what was compiled fails its self-test" in STEPS[name].status()


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.usefixtures("forgotten")
def test_without_a_compiler_torch_steps_and_one_line_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("SWEEPD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with caplog.at_level(logging.WARNING):
        assert not MAKERS[name]().native
        assert not MAKERS[name]().native
    [record] = caplog.records
    assert "no C++ compiler (install g++ or clang++)" in record.getMessage()


def test_other_devices_use_torch() -> None:
    assert all(native.library(torch.device("meta")) is None for native in STEPS.values())


def test_the_digests_see_a_changed_step(tmp_path: Path) -> None:
    """One operation that rounds differently, or one comparison."""
    changes: list[tuple[NativeLibrary, Path, str, str, str]] = [
        (RANDOM, random_numbers.SOURCE, "numbers.h", "only >> 8", "only << 1 >> 9"),
        (choice.STEP, step.SOURCE, "orders.h", "buy / open * buy_rate", "buy * buy_rate / open"),
        (
            cartpole.STEP,
            cartpole.SOURCE,
            "cartpole.h",
            "numerator / denominator",
            "numerator * (1.0 / denominator)",
        ),
        (card_duel.STEP, card_duel.SOURCE, "masks.h", "cost[id] <= CHEAP", "cost[id] < CHEAP"),
        (hockey.STEP, hockey.SOURCE, "physics.h", "(cx - vx) / far", "(cx - vx) * (1.0f / far)"),
        (
            bucket_brigade.STEP,
            bucket_brigade.SOURCE,
            "rules.h",
            "(double)n.ruined_now[i] / (double)b.houses",
            "(double)n.ruined_now[i] * (1.001 / (double)b.houses)",
        ),
    ]
    for native, source, file, before, after in changes:
        folder = tmp_path / native.of
        folder.mkdir()
        for own in source.parent.iterdir():
            text = own.read_text()
            assert own.name != file or before in text
            (folder / own.name).write_text(text.replace(before, after))
        found = native._load(build.library(folder / source.name))
        assert native._digest(found) != native._expected


def test_bits_do_not_depend_on_the_width_of_vectors() -> None:
    """A process of its own, because torch reads the variable when it starts."""
    code = (
        "from sweepd.envs.crypto.native.choice import STEP as one\n"
        "from sweepd.envs.games.native.cartpole import STEP as two\n"
        "from sweepd.envs.games.card_duel.native import STEP as three\n"
        "from sweepd.envs.games.hockey.native import STEP as four\n"
        "from sweepd.envs.games.bucket_brigade.native import STEP as five\n"
        "from sweepd.envs.core.native import RANDOM as six\n"
        "for one in (one, two, three, four, five, six):\n    one.checked()"
    )
    environment = os.environ | {"ATEN_CPU_CAPABILITY": "avx2"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


@pytest.mark.parametrize("name", STEPS)
def test_a_forked_process_has_threads_of_its_own(name: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        right = observations(MAKERS[name]())
        child = os.fork()
        if not child:
            # Only the native step: torch's own threads do not survive a fork.
            torch.set_num_threads(1)
            env = MAKERS[name]()
            os._exit(0 if observations(env) == right else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(before)


def test_digests_are_of_these_libraries() -> None:
    assert random_numbers.digest(RANDOM.checked()) == random_numbers.DIGEST
    assert self_test.digest(choice.STEP.checked()) == self_test.DIGEST
    assert cartpole.digest(cartpole.STEP.checked()) == cartpole.DIGEST
    assert card_duel.digest(card_duel.STEP.checked()) == card_duel.DIGEST
    assert hockey.digest(hockey.STEP.checked()) == hockey.DIGEST
    assert bucket_brigade.digest(bucket_brigade.STEP.checked()) == bucket_brigade.DIGEST


def test_a_self_test_passes_whatever_torchs_default_type() -> None:
    """In a process whose first environment is made in float64."""
    torch.set_default_dtype(torch.float64)
    try:
        cartpole.STEP.checked()
        assert not CartPole([CartPoleParams()], 4).native
    finally:
        torch.set_default_dtype(torch.float32)
