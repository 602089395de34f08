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


def test_slow_environments_delay_no_batch_and_trajectories_are_not_mixed() -> None:
    own: list[dict[str, Any]] = [{"trouble": "slow", "at": 2}] + [
        {}
    ] * 5  # the first sleeps 50 ms in every episode
    envs = FirstReadyEnvs(FactorySource(Counter, {"length": 4}), own, 2)
    envs.reset(range(6))
    rng = np.random.default_rng(0)
    count: dict[int, tuple[float, int]] = {}  # last observation and action of each environment
    steps: collections.Counter[int] = collections.Counter()
    began = time.monotonic()
    while steps[5] < 200:
        ready = envs.receive(3)
        seen, final = ready.obs["leaf0"], ready.final["leaf0"]
        actions = rng.integers(0, 4, (3, 1))
        for at, env in enumerate(ready.envs.tolist()):
            if env in count:
                before, action = count[env]
                own_last = final[at] if ready.terminated[at] else seen[at]
                assert own_last[0] == ready.reward[at] == before + 1
                assert own_last[2] == action
                assert ready.terminated[at] == (before + 1 == 4)
            count[env] = (float(seen[at][0]), int(actions[at, 0]))
            steps[env] += 1
        envs.send(ready.envs, actions)
    assert steps[0] < 0.5 * steps[5]
    assert time.monotonic() - began < 0.05 * 200 / 4 * 3  # lock-step would wait for every sleep
    envs.close()
    gone(envs.pids)


def test_environments_are_received_in_the_order_of_finishing() -> None:
    own: list[dict[str, Any]] = [
        {"trouble": "slow", "at": 1},
        {},
        {},
    ]  # by order of number, the first would be first
    envs = FirstReadyEnvs(FactorySource(Counter), own, 3)
    envs.reset(range(3))
    ready = envs.receive(3)
    envs.send(ready.envs[[0, 2, 1]], np.zeros((3, 1), np.int64))
    assert sorted(envs.receive(2).envs.tolist()) == [1, 2]
    assert envs.receive(1).envs.tolist() == [0]
    envs.reset(range(3))
    ready = envs.receive(3)
    envs.send(ready.envs, np.zeros((3, 1), np.int64))
    time.sleep(0.3)  # all are ready now, and the slow one still comes last
    assert envs.receive(3).envs.tolist()[2] == 0
    envs.close()


def test_episodes_depend_on_seeds_only() -> None:
    numbers = []
    for workers in (1, 2):
        envs = FirstReadyEnvs(FactorySource(Counter), [{}] * 3, workers)
        envs.reset([7, 8, 7])
        ready = envs.receive(3)
        numbers.append(ready.obs["leaf0"][np.argsort(ready.envs), 1].tolist())
        envs.close()
    assert numbers[0] == numbers[1]
    assert numbers[0][0] == numbers[0][2] != numbers[0][1]


def test_all_rows_of_an_environment_are_received() -> None:
    envs = FirstReadyEnvs(FactorySource(Tag), [{}] * 2, 1)
    envs.reset([1, 2])
    ready = envs.receive(1)
    envs.send(ready.envs, np.full((3, 1), 0.5, np.float32))
    for _ in range(2):
        ready = envs.receive(1)
    assert ready.rows.tolist() == [3 * int(ready.envs[0]) + seat for seat in range(3)]
    envs.close()


@pytest.mark.parametrize(
    ("trouble", "said"),
    [("raise", "left the rails"), ("die", "exit code 3"), ("hang", "was not done after 0.3 s")],
)
def test_failures_are_reported(trouble: str, said: str) -> None:
    envs = FirstReadyEnvs(
        FactorySource(Counter), [{}, {}, {"trouble": trouble, "at": 2}], 3, step_timeout=0.3
    )
    envs.reset(range(3))
    pids = envs.pids

    def go_on() -> None:  # with the others
        while True:
            ready = envs.receive(1)
            envs.send(ready.envs, np.zeros((1, 1), np.int64))

    with pytest.raises(RunError, match=said):
        go_on()
    gone(pids)


def test_a_killed_worker_is_noticed() -> None:
    envs = FirstReadyEnvs(FactorySource(Counter), [{}] * 2, 2)
    envs.reset(range(2))
    envs.receive(2)
    os.kill(envs.pids[1], signal.SIGKILL)
    envs.send(np.array([1]), np.zeros((1, 1), np.int64))
    with pytest.raises(RunError, match="SIGKILL"):
        envs.receive(1)


def test_only_held_environments_can_be_sent() -> None:
    envs = FirstReadyEnvs(FactorySource(Counter), [{}] * 2, 1)
    envs.reset(range(2))
    envs.receive(1)
    with pytest.raises(ValueError, match="not all with the caller"):
        envs.send(np.array([0, 0]), np.zeros((2, 1), np.int64))
    with pytest.raises(ValueError, match="1 environments are not with the caller"):
        envs.receive(2)
    envs.close()
    with pytest.raises(
        InputError, match="3 workers for 2 environments are not possible; from 1 to 2 are"
    ):
        FirstReadyEnvs(FactorySource(Counter), [{}] * 2, 3)
