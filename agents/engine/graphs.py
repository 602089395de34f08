"""Repeat a step without the cost of its launches: record it once, then replay it.

On a GPU, a small step takes as long as its launches. A CUDA graph launches all of them at once. It
replays the same kernels on the same memory, so a step that is recorded

- reads its inputs from, and writes its results to, tensors that stay where they are;
- copies nothing from or to the host, and does not depend on values in Python.

Where a step cannot be recorded, it runs as it is, with the same results. Where a recording turns out
to be empty, training stops: torch only warns then, and weights would stand still.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from sweepd.envs.support.errors import RunError

_log = logging.getLogger("sweepd")
Result = TypeVar("Result")


class Recorder(Protocol):
    """Makes replays of a step; replaced in tests, where there is no GPU."""

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        """Record a step. Returns what replays it.

        The step has not run, or has changed nothing that counts, when this returns. Raises
        RuntimeError if the step cannot be recorded.
        """


def record_cuda_graph(device: torch.device, step: Callable[[], None]) -> Callable[[], None]:
    """Capture a step, whose tensors are on a device, as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    stream: torch.cuda.Stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    # A stream of another device captures nothing, and torch's own one for captures is of the device
    # of the process's first. `torch.cuda.graph` leaves its stream as the current one when a capture
    # fails.
    with (
        torch.cuda.device(device),
        torch.cuda.stream(torch.cuda.current_stream()),
        torch.cuda.graph(graph, stream=stream),
    ):
        step()
    return graph.replay


@dataclass(frozen=True)
class Effect:
    """What shows that a step has run.

    Attributes:
        tensors: a step changes one of them.
        is_due: returns whether the next step has to.
    """

    tensors: Sequence[Tensor]
    is_due: Callable[[], bool] = lambda: True


def changed(before: Sequence[Tensor], now: Sequence[Tensor]) -> bool:
    """Return whether a number of some tensor has changed. Waits for the device."""
    pairs = zip(before, now, strict=True)
    return not all(torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in pairs)


class Repeated(Generic[Result]):
    """A step that is recorded at its second run, and replayed from then on.

    The first run allocates buffers and lets libraries choose their kernels. A failure to record is
    logged once; then every run is a plain one. The first replay with an effect due is checked.

    Args:
        step: reads and writes tensors that stay where they are.
        inputs: tensors that `run` fills before every step.
        constants: tensors that `begin` fills before several steps.
        effect: of the step.
        recorder: records the step.

    Attributes:
        recorded: whether runs are replays.
        result: what the step returned. Replays overwrite the tensors in it.
    """

    result: Result

    def __init__(
        self,
        step: Callable[[], Result],
        inputs: Sequence[Tensor],
        constants: Sequence[Tensor],
        effect: Effect,
        recorder: Recorder | None,
    ) -> None:
        self._step, self._inputs, self._constants = step, list(inputs), list(constants)
        self._effect, self._recorder = effect, recorder
        self._warm = self.recorded = self._is_checked = False
        self._replay: Callable[[], None] = self._run_plainly

    def begin(self, *values: Tensor) -> None:
        """Copy values into the constants."""
        for tensor, value in zip(self._constants, values, strict=True):
            tensor.copy_(value)

    def run(self, *values: Tensor) -> None:
        """Copy values into the inputs, and make the step.

        Raises:
            RunError: the recording is empty.
        """
        for tensor, value in zip(self._inputs, values, strict=True):
            tensor.copy_(value)
        if self._warm and self._recorder is not None:
            recorder, self._recorder = self._recorder, None
            try:
                self._replay = recorder(self._run_plainly)
                self.recorded = True
            except RuntimeError as error:
                _log.warning("a step could not be recorded as a graph; it runs as it is: %s", error)
        self._warm = True
        if self.recorded and not self._is_checked:
            self._check_replay()
        else:
            self._replay()

    def _check_replay(self) -> None:
        effect = self._effect
        before, is_due = [tensor.clone() for tensor in effect.tensors], effect.is_due()
        self._replay()
        self._is_checked = changed(before, effect.tensors)
        # A step that ends all members' learning moves no weight.
        if is_due and not self._is_checked and effect.is_due():
            raise RunError(
                f"The recording of a step on {before[0].device} is empty: replaying it changes "
                "nothing, so nothing would be learned."
            )

    def _run_plainly(self) -> None:
        self.result = self._step()


class Replays:
    """Steps of several kinds, each recorded on its own.

    Attributes:
        steps: by kind.
    """

    _MOST = 64  # recordings; of a kind that is left behind, such as of other parameters, they stay

    def __init__(self) -> None:
        self.steps: dict[Hashable, Repeated[None]] = {}

    def of(
        self, kind: Hashable, step: Callable[[], None], effect: Effect, recorder: Recorder | None
    ) -> Repeated[None]:
        """Return the step of a kind, which is `step` with its effect the first time."""
        found = self.steps.get(kind)
        if found is None:
            if len(self.steps) == self._MOST:
                self.steps.clear()
            found = self.steps[kind] = Repeated(step, [], [], effect, recorder)
        return found


def recorder_for(device: torch.device) -> Recorder | None:
    """Return what records steps on a device; None where nothing does."""
    return partial(record_cuda_graph, device) if device.type == "cuda" else None
