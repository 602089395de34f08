"""Repeat a step without the cost of its launches: record it once, then replay it.

On a GPU, a small step takes as long as its launches. A CUDA graph launches all of them at once. It
replays the same kernels on the same memory, so a step that is recorded

- reads its inputs from, and writes its results to, tensors that stay where they are;
- copies nothing from or to the host, and does not depend on values in Python.

Where a step cannot be recorded, it runs as it is, with the same results.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

_log = logging.getLogger("sweepd")
Result = TypeVar("Result")


class Recorder(Protocol):
    """Makes replays of a step; replaced in tests, where there is no GPU."""

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        """Record a step. Returns what replays it.

        The step has not run, or has changed nothing that counts, when this returns. Raises
        RuntimeError if the step cannot be recorded.
        """


def record_cuda_graph(step: Callable[[], None]) -> Callable[[], None]:
    """Capture a step as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    # `torch.cuda.graph` leaves its own stream as the current one when a capture fails.
    with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
        step()
    return graph.replay


class Repeated(Generic[Result]):
    """A step that is recorded at its second run, and replayed from then on.

    The first run allocates buffers and lets libraries choose their kernels. A failure to record is
    logged once; then every run is a plain one.

    Args:
        step: reads and writes tensors that stay where they are.
        inputs: tensors that `run` fills before every step.
        constants: tensors that `begin` fills before several steps.
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
        recorder: Recorder | None,
    ) -> None:
        self._step, self._inputs, self._constants = step, list(inputs), list(constants)
        self._recorder = recorder
        self._warm = self.recorded = False
        self._replay: Callable[[], None] = self._run_plainly

    def begin(self, *values: Tensor) -> None:
        """Copy values into the constants."""
        for tensor, value in zip(self._constants, values, strict=True):
            tensor.copy_(value)

    def run(self, *values: Tensor) -> None:
        """Copy values into the inputs, and make the step."""
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
        self._replay()

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
        self, kind: Hashable, step: Callable[[], None], recorder: Recorder | None
    ) -> Repeated[None]:
        """Return the step of a kind, which is `step` the first time."""
        found = self.steps.get(kind)
        if found is None:
            if len(self.steps) == self._MOST:
                self.steps.clear()
            found = self.steps[kind] = Repeated(step, [], [], recorder)
        return found


def recorder_for(device: torch.device) -> Recorder | None:
    """Return what records steps on a device; None where nothing does."""
    return record_cuda_graph if device.type == "cuda" else None
