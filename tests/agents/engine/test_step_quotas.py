"""`StepQuotas`: whatever the order in which environments are ready, a rollout is complete."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sweepd.agents.engine.step_quotas import StepQuotas
from sweepd.agents.networks.shape import Shape


def shape_of(envs: int, times: int, horizon: int, *, bptt: int = 0, slots: int = 2) -> Shape:
    recurrent = {"recurrent": "gru", "bptt": bptt} if bptt else {}
    minibatch = bptt or 1
    return Shape(
        state_dim=1,
        action_dim=1,
        slots=slots,
        num_envs=envs * times,
        async_envs=times,
        horizon=horizon,
        minibatch=minibatch,
        **recurrent,  # type: ignore[arg-type]
    )


def play(quotas: StepQuotas, order: random.Random) -> None:
    """Receive environments in a random order, which favours some of them, until all have ended."""
    stepping = quotas.grant(quotas.all()).tolist()
    while stepping:
        count = order.randint(1, len(stepping))
        ready = sorted(stepping, key=lambda env: order.random() * (1 + env % 3))[:count]
        stepping = [env for env in stepping if env not in ready]
        quotas.received(np.array(ready))
        stepping += quotas.grant(np.array(ready)).tolist()
        assert quotas.stepping == len(stepping)


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 4),
    st.sampled_from([0, 1, 3]),
    st.integers(),
)
def test_a_rollout_is_complete_in_any_order(
    envs: int, times: int, blocks: int, bptt: int, seed: int
) -> None:
    shape = shape_of(envs, times, blocks * max(1, bptt), bptt=bptt)
    quotas = StepQuotas(shape, 1, [True, False], [None, None])
    play(quotas, random.Random(seed))
    counts = quotas.counts()
    assert counts[0].sum() == shape.samples
    assert not counts[1].any()  # an empty slot
    assert counts.max() <= shape.horizon
    assert not (counts % max(1, bptt)).any()  # sequences are whole
    if times == 1:
        assert (counts[0] == shape.horizon).all()
    # A record is repeated in any other order.
    again = StepQuotas(shape, 1, [True, False], [counts[0], None])
    play(again, random.Random(seed + 1))
    assert (again.counts() == counts).all()


def test_environments_of_several_rows_count_once() -> None:
    shape = shape_of(6, 2, 4)  # three rows each
    quotas = StepQuotas(shape, 3, [True, True], [None, None])
    play(quotas, random.Random(0))
    assert quotas.counts().shape == (2, 4)
    assert quotas.counts().sum(1).tolist() == [8, 8]


def test_those_that_are_ready_first_go_on_first() -> None:
    quotas = StepQuotas(shape_of(2, 2, 4, slots=2), 1, [True, False], [None, None])
    ready = quotas.grant(quotas.all())
    assert ready.tolist() == [0, 1, 2, 3]
    for _ in range(3):
        quotas.received(ready[:1])
        assert quotas.grant(np.array([2])).tolist() == [2]
    quotas.received(ready[:1])
    assert quotas.grant(np.array([2])).tolist() == []  # it has made all of the horizon
    assert quotas.grant(np.array([3])).tolist() == [3]
    assert quotas.grant(np.array([1, 0])).tolist() == []  # the eight steps are used up
