"""Scores in files: a command that compares players computes only what is missing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sweepd.deploy.registry.bundle_files import canonical_json
from sweepd.envs.support.files import read_json, write_atomic
from sweepd.optimize.study.record.specs import code_version, torch_version

Scores = NDArray[np.float64]
Tick = Callable[[int, int], None]  # gets how many results are there, and how many there will be
DIGITS = 24  # of the digest in a file's name


@dataclass(frozen=True)
class KeptScores:
    """Scores in files, named after all that they depend on.

    Attributes:
        folder: of the files.
        played: keys of the results that were computed and not read.
    """

    folder: Path
    played: list[Mapping[str, Any]] = field(default_factory=list, kw_only=True)

    def kept(
        self, kind: str, key: Mapping[str, Any], play: Callable[[], Mapping[str, Scores]]
    ) -> dict[str, Scores]:
        """Return (n,) scores by name, from the file of this key or else from `play`.

        Args:
            kind: what is scored.
            key: all that the scores depend on besides the versions of sweepd and torch, as JSON.
            play: computes the scores.
        """
        key = {"kind": kind, **key, "sweepd": code_version(), "torch": torch_version()}
        digest = hashlib.sha256(canonical_json(key).encode()).hexdigest()[:DIGITS]
        path = self.folder / f"{kind}-{digest}.json"
        found = read_json(path, key).get("scores")
        if not isinstance(found, dict):
            found = {name: scores.tolist() for name, scores in play().items()}
            self.played.append(key)
            write_atomic(path, json.dumps({**key, "scores": found}))
        return {name: np.array(scores) for name, scores in found.items()}
