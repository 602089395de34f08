"""When compiled code does torch's work: it is compiled, tested, and not turned off."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor

from sweepd.envs.native.build import TORCH, VARIABLE, BuildError, library

Library = TypeVar("Library")


class NativeLibrary(Generic[Library]):
    """A compiled library. Where it cannot be used, torch does its work.

    Args:
        of: what it computes, for messages.
        source: the C++ file.
        load: makes the library from its compiled file.
        digest: returns a hash of what the library computes, for its self-test.
        expected: what `digest` must return.
        instead: what happens without it, for messages.
    """

    def __init__(
        self,
        of: str,
        source: Path,
        load: Callable[[Path], Library],
        digest: Callable[[Library], str],
        expected: str,
        instead: str = "torch does the same, more slowly",
    ) -> None:
        self.of, self.instead = of, instead
        self._source, self._load, self._digest, self._expected = source, load, digest, expected
        self._found: Library | None = None
        self._tried, self._first_use = False, threading.Lock()

    def library(self, device: torch.device) -> Library | None:
        """Return the library for work on `device`; None where torch does it."""
        return None if device.type != "cpu" or turned_off() else self.loaded()

    def loaded(self) -> Library | None:
        """Return the library, None if it cannot be used on this machine.

        It is compiled and tested once per process; if that fails, the log says why.
        """
        if not self._tried:
            with self._first_use:
                if not self._tried:
                    self._found = self._checked_or_none()
                    self._tried = True  # after the result: other threads read both without a lock
        return self._found

    def _checked_or_none(self) -> Library | None:
        try:
            return self.checked()
        except (BuildError, OSError) as error:
            logging.getLogger("sweepd").warning(
                "no native code of %s: %s; %s", self.of, error, self.instead
            )
            return None

    def checked(self) -> Library:
        """Return the library after its self-test.

        Raises:
            BuildError: it cannot be compiled, or gives other bits than it should.
            OSError: it cannot be loaded.
        """
        found = self._load(library(self._source))
        if self.digest(found) != self._expected:
            raise BuildError("what was compiled fails its self-test")
        return found

    def digest(self, found: Library) -> str:
        """Return the digest of the loaded library."""
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)  # of the digest; the process may have another now
        try:
            return self._digest(found)
        finally:
            torch.set_default_dtype(default)

    def print_digest(self) -> None:
        """Print the digest on this machine, after an intended change of what is computed."""
        print(self.digest(self._load(library(self._source))))

    def compiled(self, vectors: tuple[str, ...]) -> Path:
        """Compile the library for a kind of processor (`sweepd.envs.native.build.processor_kinds`).

        Raises:
            BuildError: it cannot be compiled.
        """
        return library(self._source, vectors)

    def status(self) -> str:
        """Return in a few words whether the library can be used on this machine, or why not."""
        if turned_off():
            return f"turned off by {VARIABLE}={TORCH}"
        try:
            self.checked()
        except (BuildError, OSError) as error:
            return f"not used: {error}; {self.instead}"
        processors = torch.backends.cpu.get_cpu_capability()
        return f"native {self._expected}, for {processors} processors, tested"


def scattered(*size: int, below: int, first: int = 0) -> Tensor:
    """Return whole numbers in [0, below) that look random, for self-tests: equal on every machine.

    Args:
        size: of the result, float64.
        below: the bound.
        first: place in the sequence.
    """
    index = torch.arange(first, first + math.prod(size), dtype=torch.float64)
    return ((index * index * 7919 + index * 104729) % below).view(size)


def turned_off() -> bool:
    """Return whether the user has turned all native code off."""
    return os.environ.get(VARIABLE) == TORCH
