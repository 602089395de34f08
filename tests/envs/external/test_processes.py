"""Env workers: same numbers as in one process, and failures of environments and processes."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from sweepd.envs.external import guard, shared_memory
from sweepd.envs.external.sharded import Layout, even_layout
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.support.errors import InputError, RunError
from sweepd.optimize.study.recovery.processes import started
from tests.envs.external.samples import Buffered, Counter, Everything, Tag, only_in
from tests.envs.external.test_external_env import actions_for
from tests.extra import with_extra

QUICKLY = 8.0  # seconds until a failure is reported, on a busy machine


@pytest.mark.parametrize(
    ("source", "rows", "layout"),
    [
        ("CartPole-v1", 3, Layout(2, (1, 3))),
        ("Pendulum-v1", 3, Layout(0, (6,))),
        (Everything, 3, Layout(3, (3,))),
        (Tag, 3, Layout(1, (1,))),
        (Buffered, 4, Layout(1, (3,))),
    ],
    ids=str,
)
def test_results_are_bit_identical_with_workers(source: Any, rows: int, layout: Layout) -> None:
    alone, shared = ExternalVecEnv(source, 2, rows), ExternalVecEnv(source, 2, rows, layout=layout)
    assert torch.equal(alone.reset(4), shared.reset(4))
    generator = torch.Generator().manual_seed(0)
    for step in range(40):
        action = actions_for(alone, generator)
        for one, other in zip(alone.step(action), shared.step(action), strict=True):
            assert torch.equal(one, other)
        assert torch.equal(alone.final_obs(), shared.final_obs())
        if alone.spec.has_absent_agents:
            assert torch.equal(alone.present(), shared.present())
        if step == 20:
            for env in (alone, shared):
                env.set_member(1, env.get_member(0))
            assert torch.equal(alone.observe(), shared.observe())
    shared.close()


def test_without_ordered_writes_work_is_handed_over_by_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_memory, "ORDERED", False)
    alone, shared = (
        ExternalVecEnv("CartPole-v1", 1, 3, layout=layout) for layout in (None, Layout(1, (1, 1)))
    )
    assert torch.equal(alone.reset(1), shared.reset(1))
    for step in range(50):
        action = torch.full((3,), step % 2)
        assert torch.equal(alone.step(action).obs, shared.step(action).obs)
    shared.set_member(0, alone.get_member(0))
    assert torch.equal(alone.step(action).obs, shared.step(action).obs)
    shared.close()


def test_arguments_and_idle_slots_reach_workers() -> None:
    alone, shared = (
        ExternalVecEnv("Pendulum-v1", [{}, {"g": 2.0}], 2, layout=layout)
        for layout in (None, Layout(1, (3,)))
    )
    for env in (alone, shared):
        env.configure_member(0, {"g": 3.0})
        env.reset([None, 3])
    for _ in range(3):
        assert torch.equal(alone.step(torch.ones(4, 1)).obs, shared.step(torch.ones(4, 1)).obs)
    assert not shared.observe()[:2].any()
    shared.close()


@pytest.mark.skipif(
    resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1_500, reason="few files may be open here"
)
def test_workers_of_a_process_with_many_open_files() -> None:
    """`select.select` refuses descriptors above 1,023."""
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        env = ExternalVecEnv("CartPole-v1", 1, 2, layout=Layout(1, (1,)))
        env.reset([3])
        env.step(torch.zeros(2))
        env.close()
    finally:
        for file in opened:
            os.close(file)


def test_shards_are_even_and_this_process_has_the_smallest() -> None:
    assert even_layout(7, 2) == Layout(2, (2, 3))
    assert even_layout(7, 2, here=False) == Layout(0, (3, 4))
    assert even_layout(5, 0) == Layout(5)
    with pytest.raises(InputError, match=r"3 workers for 2 environments .* from 0 to 1 are"):
        even_layout(2, 3)


def failing(trouble: str, layout: Layout, **more: Any) -> tuple[str, float]:
    """Return the message when the last of three environments fails, and the seconds it took."""
    env = ExternalVecEnv(Counter, [{}, {}, {"trouble": trouble}], 1, layout=layout, **more)
    env.reset(0)
    pids = env.pids
    began = time.monotonic()
    for _ in range(2):
        env.step(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(RunError) as error:
        env.step(torch.zeros(3, dtype=torch.int64))
    taken = time.monotonic() - began
    gone(pids)
    return str(error.value), taken


def gone(pids: list[int]) -> None:
    """Wait until these processes have ended."""
    deadline = time.monotonic() + QUICKLY
    while any(started(pid) is not None for pid in pids):
        assert time.monotonic() < deadline, "workers live on"
        time.sleep(0.02)


@pytest.mark.parametrize("layout", [Layout(3), Layout(1, (2,)), Layout(0, (1, 2))], ids=str)
def test_an_environment_that_raises_is_named_with_its_traceback(layout: Layout) -> None:
    said, taken = failing("raise", layout)
    assert "environment 2 raised" in said
    assert "the cart has left the rails" in said
    assert "in misbehave" in said
    assert taken < QUICKLY


@pytest.mark.parametrize(
    ("trouble", "said"),
    [("die", "exit code 3"), ("crash", "SIGSEGV"), ("hang", "0.5 s"), ("hang in C", "0.5 s")],
)
def test_a_worker_that_dies_or_hangs_is_reported_with_its_stack(trouble: str, said: str) -> None:
    text, taken = failing(trouble, Layout(1, (2,)), step_timeout=0.5)
    assert "environments 1 to 2" in text
    assert said in text
    if trouble != "die":
        assert "in misbehave" in text
    assert taken < QUICKLY


@pytest.mark.parametrize("trouble", ["raise", "die", "hang"])
@pytest.mark.parametrize("layout", [Layout(1, (2,)), Layout(3)], ids=str)
def test_failed_shards_are_restarted_if_requested(
    trouble: str, layout: Layout, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if trouble != "raise" and not layout.workers:
        pytest.skip("this process would die")
    flag = tmp_path / "once"
    flag.touch()
    own = [{}, {}, {"trouble": trouble, "flag": str(flag)}]
    env = ExternalVecEnv(Counter, own, 1, layout=layout, step_timeout=0.5, restarts=1)
    env.reset(0)
    for _ in range(2):
        env.step(torch.zeros(3, dtype=torch.int64))
    made = env.step(torch.zeros(3, dtype=torch.int64))
    first = layout.here if layout.workers else 0
    assert made.truncated.tolist() == [row >= first for row in range(3)]
    assert made.obs[first:, 0].tolist() == [0.0] * (3 - first)  # new episodes
    assert made.obs[:first, 0].tolist() == [3.0] * first
    assert env.final_obs()[2, 0] == 2.0
    assert "restarted; 0 restarts left" in caplog.text
    assert env.step(torch.zeros(3, dtype=torch.int64)).obs[2, 0] == 1.0
    env.close()


def test_a_worker_killed_from_outside_is_noticed() -> None:
    env = ExternalVecEnv("CartPole-v1", 1, 4, layout=Layout(2, (1, 1)))
    env.reset(0)
    os.kill(env.pids[1], signal.SIGKILL)
    with pytest.raises(RunError, match="SIGKILL"):
        env.step(torch.zeros(4, dtype=torch.int64))
    gone(env.pids)


def test_what_cannot_be_sent_to_a_worker_is_refused() -> None:
    with pytest.raises(InputError, match="top level of a module"):
        ExternalVecEnv(lambda: Counter(), 1, 2, layout=Layout(1, (1,)))


def test_an_environment_that_cannot_be_made_in_a_worker_is_named() -> None:
    with pytest.raises(RunError, match="cannot be made here"):
        ExternalVecEnv(functools.partial(only_in, os.getpid()), 1, 2, layout=Layout(1, (1,)))


DRIVER = """
    import signal
    signal.signal(signal.SIGINT, signal.default_int_handler)  # pytest may have inherited another
    from sweepd.envs.external.sharded import ShardedEnvs, Layout
    from sweepd.envs.external.sources import FactorySource
    from tests.envs.external.samples import Counter
    env_kwargs = [{}, {"length": 9}, TROUBLE]
    envs = ShardedEnvs(FactorySource(Counter), env_kwargs, Layout(1, (1, 1)), step_timeout=1e6)
    envs.reset(range(3), range(3))
    print(*envs.pids, flush=True)
    while True:
        envs.step()
"""


@pytest.mark.parametrize(
    ("how", "trouble"), [(signal.SIGKILL, "hang in C"), (signal.SIGKILL, ""), (signal.SIGINT, "")]
)
def test_workers_end_with_their_parent(how: signal.Signals, trouble: str) -> None:
    """Whatever they are doing and however it ends; nothing is left in /dev/shm."""
    shared = Path("/dev/shm")
    before = set(shared.iterdir()) if shared.is_dir() else set()
    program = textwrap.dedent(DRIVER).replace(
        "TROUBLE", repr({"trouble": trouble} if trouble else {})
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert len(pids) == 2
        time.sleep(0.1)
        driver.send_signal(how)
    gone(pids)
    if before:
        assert not [path for path in set(shared.iterdir()) - before if "sweepd" in path.name]


FORKING = """
    import sys, time
    from sweepd.envs.external.sharded import ShardedEnvs, Layout
    from sweepd.envs.external.sources import FactorySource
    from tests.envs.external.samples import Forking
    envs = ShardedEnvs(FactorySource(Forking), [{"pids": sys.argv[1]}] * 2, Layout(1, (1,)))
    print(*envs.pids, flush=True)
    time.sleep(600.0)
"""


def test_processes_that_an_environment_started_end_with_the_host(tmp_path: Path) -> None:
    """In the host's own process and in a worker: forks (inheriting pipes), programs, sessions."""
    pid_file = tmp_path / "pids"
    command = [sys.executable, "-c", textwrap.dedent(FORKING), str(pid_file)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as driver:
        assert driver.stdout is not None
        workers = [int(pid) for pid in driver.stdout.readline().split()]
        driver.kill()
        driver.wait()
    pids = workers + [int(pid) for pid in pid_file.read_text().split()]
    try:
        assert len(pids) == 1 + 3 * 3  # `describe` makes one in the parent first
        gone(pids)
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_programs_that_may_outlive_the_host_have_no_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(guard.VARIABLE, "host")
    assert guard.VARIABLE not in guard.untagged()
    assert guard.untagged()["PATH"] == os.environ["PATH"]


def test_idle_workers_sleep() -> None:
    env = ExternalVecEnv("CartPole-v1", 1, 2, layout=Layout(1, (1,)))
    env.reset(0)
    worker = psutil.Process(env.pids[0])
    used = sum(worker.cpu_times()[:2])
    time.sleep(1.0)
    assert sum(worker.cpu_times()[:2]) - used < 0.1
    env.close()


SCRIPT = """
    import gymnasium
    from sweepd.envs.external.sharded import ShardedEnvs, Layout
    from sweepd.envs.external.sources import FactorySource, named_env
    from tests.envs.external.samples import Counter

    class Mine(Counter):
        pass

    gymnasium.register("Mine-v0", Mine)
    gymnasium.register("Named-v0", "__main__:Mine")

    GUARD
    gymnasium.register("Elsewhere-v0", "tests.envs.external.samples:Counter")
    envs = ShardedEnvs(SOURCE, [{}] * 2, Layout(1, (1,)))
    envs.reset(range(2), range(2))
    envs.step()
    print(envs.buffers.reward.tolist())
"""


@pytest.mark.parametrize(
    ("source", "guarded"),
    [
        ("FactorySource(Mine)", True),
        ("FactorySource(Mine)", False),
        ("named_env('gym:Mine-v0').source", True),
        ("named_env('gym:Named-v0').source", True),
        ("named_env('gym:Elsewhere-v0').source", True),
        ("named_env('__main__:Mine').source", True),
    ],
)
def test_scripts_may_define_environments_themselves(
    source: str, guarded: bool, tmp_path: Path
) -> None:
    head, tail = textwrap.dedent(SCRIPT).replace("SOURCE", source).split("GUARD")
    if guarded:
        tail = "if __name__ == '__main__':" + textwrap.indent(tail, "    ")
    path = tmp_path / "script.py"
    path.write_text(head + tail)
    made = subprocess.run(
        [sys.executable, path],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    if guarded:
        assert made.stdout == "[1.0, 1.0]\n", made.stderr
    else:
        assert "needs an `if __name__ == '__main__':`" in made.stderr


@pytest.mark.parametrize("how", with_extra(["die", "crash"], ["die"]))
def test_an_environment_that_ends_this_process_is_named(how: str) -> None:
    script = f"""
        from sweepd.envs.external.vec_env import ExternalVecEnv
        from tests.envs.external.samples import Counter
        import torch

        env = ExternalVecEnv(Counter, [{{"trouble": {how!r}}}], 1)
        env.reset(0)
        for _ in range(3):
            env.step(torch.zeros(1, dtype=torch.int64))
    """
    made = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )
    assert made.returncode == {"die": 3, "crash": -signal.SIGSEGV}[how]
    assert "ended inside of the environment tests.envs.external.samples.Counter" in made.stderr
    # A process that ends by itself says nothing.
    quiet = textwrap.dedent(script).replace(repr(how), "''")
    made = subprocess.run(
        [sys.executable, "-c", quiet], capture_output=True, text=True, timeout=60, check=True
    )
    assert made.stderr == ""


def test_close_ends_all_processes() -> None:
    env = ExternalVecEnv("CartPole-v1", 1, 2, layout=Layout(1, (1,)))
    pids = env.pids
    env.close()
    env.close()
    gone(pids)
