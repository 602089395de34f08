"""`FirstReadyEnvs`: slow environments delay no batch, and trajectories are not mixed up."""

from __future__ import annotations

import collections
import os
import signal
import time
from typing import Any

import numpy as np
import pytest

from sweepd.envs.external.first_ready import FirstReadyEnvs
from sweepd.envs.external.sources import FactorySource
from sweepd.envs.support.errors import InputError, RunError
from tests.envs.external.samples import Counter, Tag
from tests.envs.external.test_processes import gone

EVERY = np.arange(6)


def begun(source: FactorySource, own: list[dict[str, Any]], workers: int, **more: Any) -> Any:
    """Return environments that have been reset with the seeds 0, 1, …"""
    envs = FirstReadyEnvs(source, own, workers, **more)
    envs.reset(range(len(own)), range(len(own)))
    return envs


def test_slow_environments_delay_no_batch_and_trajectories_are_not_mixed() -> None:
    own: list[dict[str, Any]] = [{"trouble": "slow", "at": 2}] + [
        {}
    ] * 5  # the first sleeps 50 ms in every episode
    envs = begun(FactorySource(Counter, {"length": 4}), own, 2)
    rng = np.random.default_rng(0)
    seen, action = envs.buffers.obs["leaf0"].copy(), np.zeros(6, np.int64)
    steps: collections.Counter[int] = collections.Counter()
    began, ready = time.monotonic(), EVERY
    while steps[5] < 200:
        action[ready] = rng.integers(0, 4, len(ready))
        envs.send(ready, action[ready, None])
        ready = envs.receive(3)
        buffers = envs.buffers
        for env in ready.tolist():
            before, count = seen[env].copy(), buffers.reward[env]
            last = (buffers.final if buffers.terminated[env] else buffers.obs)["leaf0"][env]
            assert last[0] == count == before[0] + 1
            assert last[2] == action[env]
            assert buffers.terminated[env] == (count == 4)
            seen[env] = buffers.obs["leaf0"][env]
            steps[env] += 1
    assert steps[0] < 0.5 * steps[5]
    assert time.monotonic() - began < 0.05 * 200 / 4 * 3  # lock-step would wait for every sleep
    envs.close()
    gone(envs.pids)


def test_rows_change_only_when_they_are_received() -> None:
    envs = begun(FactorySource(Counter), [{}] * 2, 1)
    envs.send(np.array([0, 1]), np.zeros((2, 1), np.int64))
    time.sleep(0.3)  # both are done by now
    assert not envs.buffers.reward.any()
    assert envs.receive(1).tolist() == [0]
    assert envs.buffers.reward.tolist() == [1.0, 0.0]
    assert envs.receive().tolist() == [1]
    envs.close()


def test_environments_are_received_in_the_order_of_finishing() -> None:
    # By order of number, the first would be first.
    envs = begun(FactorySource(Counter), [{"trouble": "slow", "at": 1}, {}, {}], 3)
    envs.send(np.array([0, 2, 1]), np.zeros((3, 1), np.int64))
    assert sorted(envs.receive(2).tolist()) == [1, 2]
    assert envs.receive(1).tolist() == [0]
    envs.reset(range(3), range(3))
    envs.send(np.arange(3), np.zeros((3, 1), np.int64))
    time.sleep(0.3)  # all are ready now, and the slow one still comes last
    assert envs.receive().tolist()[2] == 0
    envs.close()


def test_episodes_depend_on_seeds_only() -> None:
    numbers = []
    for workers in (1, 2):
        envs = FirstReadyEnvs(FactorySource(Counter), [{}] * 3, workers)
        envs.reset(range(3), [7, 8, 7])
        numbers.append(envs.buffers.obs["leaf0"][:, 1].tolist())
        envs.close()
    assert numbers[0] == numbers[1]
    assert numbers[0][0] == numbers[0][2] != numbers[0][1]


def test_all_rows_of_an_environment_are_received() -> None:
    envs = begun(FactorySource(Tag), [{}] * 2, 1)
    envs.send(np.array([1]), np.full((3, 1), 0.5, np.float32))
    assert envs.rows_of(envs.receive()).tolist() == [3, 4, 5]
    assert envs.buffers.reward.tolist() == [0.0] * 3 + [1.0] * 3  # half of the bound 2
    envs.close()


@pytest.mark.parametrize(
    ("trouble", "said"),
    [("raise", "left the rails"), ("die", "exit code 3"), ("hang", "was not done after 0.3 s")],
)
def test_failures_are_reported(trouble: str, said: str) -> None:
    own: list[dict[str, Any]] = [{}, {}, {"trouble": trouble, "at": 2}]
    envs = begun(FactorySource(Counter), own, 3, step_timeout=0.3)
    pids = envs.pids

    def go_on() -> None:  # with the others
        ready = np.arange(3)
        while True:
            envs.send(ready, np.zeros((len(ready), 1), np.int64))
            ready = envs.receive(1)

    with pytest.raises(RunError, match=said):
        go_on()
    gone(pids)


def test_a_killed_worker_is_noticed() -> None:
    envs = begun(FactorySource(Counter), [{}] * 2, 2)
    os.kill(envs.pids[1], signal.SIGKILL)
    envs.send(np.array([1]), np.zeros((1, 1), np.int64))
    with pytest.raises(RunError, match="SIGKILL"):
        envs.receive(1)


def test_an_environment_makes_one_step_at_a_time() -> None:
    envs = begun(FactorySource(Counter), [{}] * 2, 1)
    with pytest.raises(ValueError, match="named twice"):
        envs.send(np.array([0, 0]), np.zeros((2, 1), np.int64))
    with pytest.raises(ValueError, match="1 cannot be received: 0 are being stepped"):
        envs.receive()
    envs.send(np.array([0]), np.zeros((1, 1), np.int64))
    with pytest.raises(ValueError, match="are being stepped"):
        envs.send(np.array([0]), np.zeros((1, 1), np.int64))
    with pytest.raises(ValueError, match="snapshot was called while"):
        envs.snapshot([0, 1])
    with pytest.raises(ValueError, match="2 cannot be received: 1 are being stepped"):
        envs.receive(2)
    envs.close()
    with pytest.raises(
        InputError, match="3 workers for 2 environments are not possible; from 1 to 2 are"
    ):
        FirstReadyEnvs(FactorySource(Counter), [{}] * 2, 3)
