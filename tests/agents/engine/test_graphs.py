"""Recorded gradient steps, with a recorder for CPUs in place of CUDA graphs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial, partialmethod
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.engine.graphs import Effect, Repeated, record_cuda_graph, recorder_for
from sweepd.agents.native.choice import TORCH, VARIABLE
from sweepd.agents.networks.optimizer import Adam
from sweepd.envs.support.errors import RunError
from tests.agents import off_policy_helpers
from tests.agents.digests import cartpole, crypto
from tests.agents.helpers import adam_of, assert_same, member_params, shape_for, start
from tests.agents.toy_env import AbsentEnv, ChoiceEnv, MaskedEnv, ToyEnv
from tests.agents.two_cards import TwoCards


@pytest.fixture(autouse=True)
def trained_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native kernels train on CPUs; what is recorded are torch's operations."""
    monkeypatch.setenv(VARIABLE, TORCH)


class Tape(TorchDispatchMode):
    """Records operations with their tensors; `replay` repeats them on the same memory.

    Like a CUDA graph, a replay knows nothing of Python. Also like one, recording changes nothing:
    what the recorded run wrote is undone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self._before: list[tuple[Tensor, Tensor]] = []

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        with torch.inference_mode():  # as where some of them were made
            for tensor, value in reversed(self._before):
                tensor.copy_(value)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for argument, value in zip(func._schema.arguments, args, strict=False):
            self._keep(argument, value)
        for argument in func._schema.arguments:
            self._keep(argument, kwargs.get(argument.name))
        result = func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self._calls.append((func, args, kwargs, made))
        return result

    def _keep(self, argument: Any, value: Any) -> None:
        if argument.alias_info is not None and argument.alias_info.is_write:
            for leaf in tree_leaves(value):
                if isinstance(leaf, Tensor):
                    self._before.append((leaf, leaf.clone()))

    @torch.inference_mode()  # what is recorded lies below autograd
    def replay(self) -> None:
        for func, args, kwargs, made in self._calls:
            again = tree_leaves(func(*args, **kwargs))
            for old, new in zip(made, again, strict=False):
                if isinstance(new, Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


def record(step: Callable[[], None]) -> Callable[[], None]:
    with Tape() as tape:
        step()
    return tape.replay


def refuse(step: Callable[[], None]) -> Callable[[], None]:  # noqa: ARG001
    raise RuntimeError("operation not permitted when stream is capturing")


def trained(kind: type[ToyEnv], recorder: Any, **changes: Any) -> tuple[PPO, list[Any]]:
    env = kind(3, 4)
    ppo = start(env, {0: 0, 1: 1, 2: 2}, **changes)
    # Adam as on a GPU, whose learning rates are tensors: they change from rollout to rollout.
    own = ppo.optimizer
    ppo.optimizer = adam_of(ppo)
    ppo.optimizer.eps, ppo.optimizer.weight_decay = own.eps, own.weight_decay
    ppo.recorder = recorder
    return ppo, ppo.train(env, 3)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (ToyEnv, {}),
        (ChoiceEnv, {}),
        (MaskedEnv, {}),
        (AbsentEnv, {}),
        (ToyEnv, {"recurrent": "gru", "bptt": 4}),
    ],
)
def test_recorded_gradient_steps_train_the_same_weights(
    kind: type[ToyEnv], changes: dict[str, Any]
) -> None:
    plain, stats = trained(kind, None, **changes)
    graph, same = trained(kind, record, **changes)
    assert [step.recorded for step in graph._graphs.values()] == [True]
    for slot in range(3):
        assert_same(plain.get_member(slot), graph.get_member(slot))
    for one, other in zip(stats, same, strict=True):
        assert_same(one._asdict(), other._asdict())


def test_a_step_that_cannot_be_recorded_runs_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    plain, _ = trained(ToyEnv, None)
    other, _ = trained(ToyEnv, refuse)
    assert [step.recorded for step in other._graphs.values()] == [False]
    assert_same(plain.get_member(1), other.get_member(1))
    assert caplog.text.count("could not be recorded") == 1


ENVIRONMENTS = {"cartpole": lambda: cartpole(8), "crypto": lambda: crypto(5)}


def trained_in(name: str, recorder: Any, rollouts: int) -> tuple[PPO, Any, list[Any]]:
    env: Any = ENVIRONMENTS[name]()
    ppo = PPO(shape_for(env, num_envs=8, horizon=20, minibatch=64))
    for slot in (0, 1, 3):  # the others are empty
        ppo.add_member(slot, member_params(slot), slot, 8, env.state_avg, env.state_std)
    ppo.begin(env.reset([7, 8, None, 9, None]))
    own = ppo.optimizer
    ppo.optimizer = adam_of(ppo)
    ppo.optimizer.eps, ppo.optimizer.weight_decay = own.eps, own.weight_decay
    ppo.recorder = recorder
    return ppo, env, ppo.train(env, rollouts)


def test_a_failed_capture_leaves_the_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    now = ["own"]

    @contextmanager
    def stream(other: str) -> Iterator[None]:
        before, now[0] = now[0], other
        try:
            yield
        finally:
            now[0] = before

    @contextmanager
    def graph(_: Any, stream: Any) -> Iterator[None]:  # noqa: ARG001
        now[0] = "of the capture"  # and, as torch's, it is not put back when capturing fails
        yield
        raise RuntimeError("capture failed")

    names = {"CUDAGraph": object, "graph": graph, "stream": stream, "Stream": str}
    names["device"] = lambda _: nullcontext()
    for name, value in names.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: now[0])
    with pytest.raises(RuntimeError, match="capture failed"):
        record_cuda_graph(torch.device("cuda"), lambda: None)
    assert now == ["own"]


def off_policy(kind: type[ToyEnv], recorder: Any) -> tuple[Any, list[Any]]:
    with pytest.MonkeyPatch.context() as patch:
        # As on a GPU, where a recording reads the rates from the device.
        patch.setattr(Adam, "__init__", partialmethod(Adam.__init__, fused=False))
        program, env = off_policy_helpers.started(kind(3, 4), {0: 0, 1: 1, 2: 2})
    program.recorder = recorder
    return program, program.train(env, 5)


@pytest.mark.parametrize("kind", [ToyEnv, ChoiceEnv], ids=["sac", "d3qn"])
def test_recorded_off_policy_steps_train_the_same_weights(kind: type[ToyEnv]) -> None:
    plain, stats = off_policy(kind, None)
    graph, same = off_policy(kind, record)
    assert graph._repeated.recorded
    assert float(stats[-1].updates.min()) > 0
    for slot in range(3):
        assert_same(plain.get_member(slot), graph.get_member(slot))
    for one, other in zip(stats, same, strict=True):
        assert_same(one._asdict(), other._asdict())


@pytest.mark.parametrize("name", ["cartpole", "crypto"])
def test_recorded_rollouts_give_the_same_transitions_and_episodes(name: str) -> None:
    plain, env, stats = trained_in(name, None, 4)
    graph, other, same = trained_in(name, record, 4)
    recorded = [step.recorded for step in graph.rollout.replays.steps.values()]
    # Of the kinds of steps that ran twice: steps of CartPole are all of one kind.
    assert sum(recorded) >= {"cartpole": 1, "crypto": 2}[name]
    for part in ("obs", "side"):
        one, two = (getattr(ppo.rollout.transitions, part) for ppo in (plain, graph))
        assert torch.equal(one, two)
    for slot in (0, 1, 3):
        assert_same(plain.get_member(slot), graph.get_member(slot))
        assert_same(env.get_member(slot), other.get_member(slot))
    for one, two in zip(stats, same, strict=True):
        assert_same(one._asdict(), two._asdict())


def test_parameters_that_change_are_not_replayed() -> None:
    """Costs of trading change between two rollouts, as when a slot gets another member."""
    found = []
    for recorder in (None, record):
        ppo, env, _ = trained_in("crypto", recorder, 3)
        stops = dataclasses.replace(env._params[1], trailing_stop=0.01)
        env.configure_member(1, stops, [(600, 900)])
        ppo.begin(env.reset([None] * 5))
        ppo.train(env, 3)
        found.append(env.get_member(1))
    assert_same(*found)


def test_a_member_that_is_loaded_continues_with_recorded_steps() -> None:
    found = []
    for recorder in (None, record):
        ppo, env, _ = trained_in("crypto", recorder, 3)
        for slot, member in ((0, 1), (1, 0)):
            state, episodes = ppo.get_member(member), env.get_member(member)
            ppo.train(env, 1)
            ppo.set_member(slot, state)
            env.set_member(slot, episodes)
        ppo.train(env, 1)
        found.append((ppo.get_member(1), env.get_member(1)))
    for one, other in zip(*found, strict=True):
        assert_same(one, other)


def test_rollouts_whose_steps_cannot_be_recorded_run_as_they_are() -> None:
    plain, _, _ = trained_in("cartpole", None, 3)
    other, _, _ = trained_in("cartpole", refuse, 3)
    assert not any(step.recorded for step in other.rollout.replays.steps.values())
    assert_same(plain.get_member(1), other.get_member(1))


@pytest.fixture
def second_card(monkeypatch: pytest.MonkeyPatch) -> TwoCards:
    """Two GPUs, of which the first one is current and the second one has the tensors."""
    return TwoCards(monkeypatch, Tape, holds=1)


@pytest.mark.parametrize("first", [0, 1], ids=["alone", "after a program on the first GPU"])
def test_programs_record_on_their_own_gpu(second_card: TwoCards, first: int) -> None:
    if first:
        record_cuda_graph(torch.device("cuda:0"), lambda: None)
    plain, _, _ = trained_in("cartpole", None, 4)
    graph, _, _ = trained_in("cartpole", recorder_for(torch.device("cuda:1")), 4)
    assert [step.recorded for step in graph._graphs.values()] == [True]
    assert set(second_card.captures[first:]) == {1}
    assert second_card.current == 0
    for slot in (0, 1, 3):
        assert_same(plain.get_member(slot), graph.get_member(slot))


def test_an_empty_recording_ends_training(second_card: TwoCards) -> None:
    """As where steps are recorded on a GPU that does not hold the tensors."""
    wrong = recorder_for(torch.device("cuda:0"))
    for make in (partial(trained, ToyEnv), partial(off_policy, ToyEnv)):
        with pytest.raises(RunError, match="is empty: replaying it changes nothing"):
            make(wrong)
    with pytest.raises(RunError, match="is empty"):
        trained_in("cartpole", wrong, 3)  # of a rollout's steps
    assert set(second_card.captures) == {0}


def test_a_replay_that_ends_learning_is_not_taken_for_an_empty_recording() -> None:
    """All members diverge in the first replay, so no weight moves; the next one is checked."""
    running, weights = torch.ones(3, dtype=torch.bool), torch.full((3,), torch.nan)
    gives = torch.tensor(True)

    def step() -> None:
        running.logical_and_(gives)

    effect = Effect([weights], lambda: bool(running.any()))
    repeated = Repeated(step, [], [], effect, record)
    repeated.run()
    gives.fill_(False)
    repeated.run()
    assert repeated.recorded
    assert not running.any()
    repeated.run()  # nothing is due
    running.fill_(True)
    gives.fill_(True)
    with pytest.raises(RunError, match="is empty"):
        repeated.run()
