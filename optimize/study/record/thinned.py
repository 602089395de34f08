"""What `sweepd studies thin` removed of a study. `optimize` writes it; `optimize` and `deploy` read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sweepd.optimize.study.record.keys import THINNED_KEY


@dataclass(frozen=True)
class Thinned:
    """The trials of a study whose files were removed. Its rows have all of them.

    at: UTC text of the last time. trials: their numbers, in ascending order.
    """

    at: str
    trials: tuple[int, ...]

    @classmethod
    def of(cls, attributes: Mapping[str, Any]) -> Thinned | None:
        """Read the attributes of a study; None if it has all of its files."""
        found = attributes.get(THINNED_KEY)
        return None if not found else cls(str(found["at"]), tuple(found["trials"]))

    def words(self, study: str) -> str:
        """Say what was done to the study."""
        return f"study {study!r} was thinned on {self.at[:10]} (sweepd studies thin)"
