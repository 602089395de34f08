"""The scored record of a bundle that no hold-out has seen, for the live monitor.

It is the back-test path of cross-validation with the median deflated Sharpe ratio. Since the trial
was chosen for being the best, its mean is too high: the luck that the deflated Sharpe ratio
subtracts is subtracted from its returns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from sweepd.envs.support.errors import InputError

Array = NDArray[np.float64]
SCORED_FILE: Final = "scored.safetensors"


@dataclass(frozen=True, eq=False)
class ScoredRecord:
    """Simple returns per bar on the median path, (T,) float64.

    returns: of the trial, or of several trials together. equal_weight: of equal weight.
    luck: return per bar that the best of as many trials without skill is expected to show.
    """

    returns: Array
    equal_weight: Array
    luck: float

    @property
    def expected(self) -> Array:
        """The returns without the luck, (T,)."""
        return self.returns - self.luck

    def to_bytes(self) -> bytes:
        """Return the content of its file."""
        return save(
            {
                "returns": np.ascontiguousarray(self.returns),
                "equal_weight": np.ascontiguousarray(self.equal_weight),
                "luck": np.array([self.luck]),
            }
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> ScoredRecord:
        """Read the content of a file.

        Raises:
            InputError: it is not one.
        """
        try:
            found = load(content)
            returns, equal, luck = (found[name] for name in ("returns", "equal_weight", "luck"))
        except (SafetensorError, KeyError) as error:
            raise InputError(f"{SCORED_FILE} is damaged: {error}") from error
        if any(one.dtype != np.float64 for one in (returns, equal, luck)):
            raise InputError(f"{SCORED_FILE} does not hold float64 numbers")
        if returns.ndim != 1 or returns.shape != equal.shape or luck.shape != (1,):
            raise InputError(f"{SCORED_FILE} holds returns of different lengths")
        if not all(np.isfinite(one).all() for one in (returns, equal, luck)):
            raise InputError(f"{SCORED_FILE} holds numbers that are not finite")
        return cls(returns, equal, float(luck[0]))
