"""Actors and gradient steps that several Python threads call at once.

The interpreter's lock is released in native calls, so two of them overlap. Arguments or buffers
that calls share end in wrong numbers, or in a segmentation fault of this process.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.engine.program import Program
from sweepd.envs.native import build
from tests.agents.helpers import assert_same, start
from tests.agents.off_policy_helpers import started
from tests.agents.toy_env import ChoiceEnv, ItemsEnv, ToyEnv

try:
    build.vector_flags(), build.compiler()
except build.BuildError as error:
    pytest.skip(f"no native kernels: {error}", allow_module_level=True)

SLOTS, ENVS, THREADS = 3, 8, 3


@pytest.fixture(autouse=True)
def _quick_switches() -> Iterator[None]:
    """Let Python change threads as often as it can; torch has two threads of its own."""
    before, interval = torch.get_num_threads(), sys.getswitchinterval()
    torch.set_num_threads(2)
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)
    torch.set_num_threads(before)


def in_threads(work: Callable[[int], None]) -> None:
    """Run `work(number)` in several threads; raise what one of them raises."""
    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=guarded, args=(number,)) for number in range(THREADS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if errors:
        raise errors[0]


@pytest.mark.parametrize("kind", [ToyEnv, ItemsEnv])
def test_an_actor_serves_several_threads(kind: type[ToyEnv]) -> None:
    env = kind(SLOTS, ENVS)
    act = start(env, {slot: slot for slot in range(SLOTS)}, net_width=64).act_fn()
    assert act._run.native is not None
    batches = [env.reset(seed).clone()[:: ENVS // rows] for seed, rows in ((1, 1), (2, 8), (3, 8))]
    batches.append(batches[1].repeat_interleave(100, 0))  # more than one chunk of rows
    wanted = [act(obs).clone() for obs in batches]

    def play(number: int) -> None:
        for turn in range(300):
            at = (turn + number) % len(batches)
            assert torch.equal(act(batches[at]), wanted[at])

    in_threads(play)


def test_each_thread_has_its_own_recurrent_states() -> None:
    env = ToyEnv(SLOTS, ENVS)
    act = start(env, {slot: slot for slot in range(SLOTS)}, recurrent="gru", bptt=4).act_fn()
    walk = torch.randn(20, SLOTS * ENVS, env.state_dim)
    wanted = [act(obs).clone() for obs in walk]

    def play(number: int) -> None:
        for obs, right in zip(walk, wanted, strict=True):
            assert torch.equal(act(obs), right), number

    in_threads(play)


def ppo() -> tuple[Program, ToyEnv]:
    """PPO on continuous actions."""
    env = ToyEnv(SLOTS, ENVS)
    return start(env, {slot: slot for slot in range(SLOTS)}, num_envs=ENVS), env


def sac() -> tuple[Program, ToyEnv]:
    """SAC, whose members learn from the first rollout on."""
    return started(ToyEnv(SLOTS, ENVS), dict.fromkeys(range(SLOTS), 0))


def d3qn() -> tuple[Program, ToyEnv]:
    """D3QN, likewise."""
    return started(ChoiceEnv(SLOTS, ENVS), dict.fromkeys(range(SLOTS), 0))


@pytest.mark.parametrize("make", [ppo, sac, d3qn])
def test_gradient_steps_of_several_threads_follow_each_other(
    make: Callable[[], tuple[Program, ToyEnv]],
) -> None:
    """The same steps, made by threads at once or one after the other, give the same weights."""
    states = []
    for threaded in (False, True):
        program, env = make()
        arguments = _arguments_of_a_rollout(program, env)

        def learn(_: int, program: Any = program, arguments: Any = arguments) -> None:
            for _ in range(60):
                program._native(*arguments)

        if threaded:
            in_threads(learn)
        else:
            for number in range(THREADS):
                learn(number)
        states.append({slot: program.get_member(slot) for slot in range(SLOTS)})
    for slot in range(SLOTS):
        assert_same(states[0][slot], states[1][slot])


def _arguments_of_a_rollout(program: Any, env: ToyEnv) -> tuple[Any, ...]:
    """Train on one rollout; return the arguments of its gradient steps."""
    native, found = program._native, []
    assert native is not None

    def noted(*arguments: Any) -> tuple[Tensor, ...]:
        found.append(arguments)
        return native(*arguments)

    program._native = noted
    program.train(env, 1)
    program._native = native
    if isinstance(program, PPO):  # no early stop: every call makes all of its steps
        found[0][1]["target_kl"].fill_(torch.inf)
    return found[0]
