"""When the native step of an environment is used: compiled, tested, and not turned off."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import torch

from envs.native.build import TORCH, VARIABLE, BuildError, library

Library = TypeVar("Library")


class NativeLibrary(Generic[Library]):
    """The library of one environment's step. Where it cannot be used, torch makes the step.

    Both give the same bits, so nothing records which of them made a step.

    Args:
        of: name of the environment, for messages.
        source: the C++ file.
        load: makes the library from its compiled file.
        digest: returns a hash of what the library computes, for its self-test.
        expected: what `digest` must return.
    """

    def __init__(
        self,
        of: str,
        source: Path,
        load: Callable[[Path], Library],
        digest: Callable[[Library], str],
        expected: str,
    ) -> None:
        self.of = of
        self._source, self._load, self._digest, self._expected = source, load, digest, expected
        self._found: Library | None = None
        self._tried = False

    def library(self, device: torch.device) -> Library | None:
        """Return the library for an environment on `device`; None where torch makes the steps.

        It is compiled and tested once per process; if that fails, the log says why.
        """
        if device.type != "cpu" or os.environ.get(VARIABLE) == TORCH:
            return None
        if not self._tried:
            self._tried = True
            try:
                self._found = self.checked()
            except (BuildError, OSError) as error:
                logging.getLogger("sweepd").warning(
                    "no native step of %s, torch makes it instead (the same results, more "
                    "slowly): %s",
                    self.of,
                    error,
                )
        return self._found

    def checked(self) -> Library:
        """Return the library after its self-test.

        Raises:
            BuildError: it cannot be compiled, or gives other bits than it should.
            OSError: it cannot be loaded.
        """
        found = self._load(library(self._source))
        if self._digest(found) != self._expected:
            raise BuildError("the compiled step fails its self-test")
        return found

    def status(self) -> str:
        """Return in a few words whether the step can be used on this machine, or why not."""
        if os.environ.get(VARIABLE) == TORCH:
            return f"{self.of}: turned off by {VARIABLE}={TORCH}"
        try:
            self.checked()
        except (BuildError, OSError) as error:
            return f"{self.of}: not used: {error}; torch makes it instead, more slowly"
        return f"{self.of}: tested"
