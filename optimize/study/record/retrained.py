"""What training a trial again found. `optimize` makes it, and `deploy` compares it with a bundle."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Retrained:
    """A trial that was trained again.

    Attributes:
        folder: with its files, `members.safetensors` among them.
        checkpoint: file with which the training would be continued, and at its end not repeated.
        recorded: sha256 of its file of weights in the study.
        sha256: that of the new file.
        value_then: the trial's value in the study.
        value: its value now, by the same evaluation.
        scores_then: of its members.
        scores: likewise.
        differs: what is another one here than when it was trained, in words.
    """

    folder: Path
    checkpoint: Path
    recorded: str
    sha256: str
    value_then: float
    value: float
    scores_then: tuple[float, ...]
    scores: tuple[float, ...]
    differs: tuple[str, ...]
