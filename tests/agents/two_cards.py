"""A stand-in for `torch.cuda` on a machine with two GPUs, one of which holds all tensors.

Tensors are on the CPU. Like CUDA, a capture by a stream of the other GPU records nothing: its
operations run at once. Like torch, `torch.cuda.graph` captures in a stream of the GPU that was the
current one at the process's first capture, unless it is told another stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch


class TwoCards:
    """Replaces parts of `torch.cuda`.

    Args:
        patch: puts them back.
        tape: a new recording, a context in which a step runs; has `replay`.
        holds: number of the GPU with all tensors.

    Attributes:
        current: number of the current GPU.
        captures: that of each capture's stream.
        launches: that on which each compiled kernel was launched.
    """

    def __init__(self, patch: pytest.MonkeyPatch, tape: Any, holds: int) -> None:
        self.current = 0
        self.captures: list[int] = []
        self.launches: list[int] = []
        self._tape, self._holds = tape, holds
        self._default_stream: int | None = None
        for name in ("device", "graph", "stream"):
            patch.setattr(torch.cuda, name, getattr(self, name))
        patch.setattr(torch.cuda, "Stream", self._stream)
        patch.setattr(torch.cuda, "CUDAGraph", Graph)
        patch.setattr(torch.cuda, "current_stream", self._stream)
        patch.setattr(torch.cuda, "_compile_kernel", self._compile)

    def _stream(self, device: torch.device | None = None) -> int:
        return self.current if device is None or device.index is None else device.index

    @contextmanager
    def stream(self, stream: int) -> Iterator[None]:
        """Make a stream, and so its GPU, the current one."""
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def device(self, device: torch.device) -> AbstractContextManager[None]:
        """Make a GPU the current one."""
        return self.stream(self._stream(device))

    @contextmanager
    def graph(self, graph: Graph, stream: int | None = None) -> Iterator[None]:
        """Capture into a graph what runs on the stream's GPU."""
        if stream is None:
            if self._default_stream is None:
                self._default_stream = self.current
            stream = self._default_stream
        self.captures.append(stream)
        with self.stream(stream):
            if stream != self._holds:
                yield
                return
            with self._tape() as graph.tape:
                yield

    def _compile(self, *_: Any, **__: Any) -> Any:
        return lambda **_: self.launches.append(self.current)


class Graph:
    """`torch.cuda.CUDAGraph`."""

    tape: Any = None

    def replay(self) -> None:
        """Repeat what was captured."""
        if self.tape is not None:
            self.tape.replay()
