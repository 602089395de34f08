"""The suite for trackers: MLflow, W&B, or one of your own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from sweepd.optimize.tracking.picture import FAILED, RUNG_VALUE, Picture, Sent
from sweepd.optimize.tracking.sender import Runs


@dataclass(frozen=True)
class StoredRun:
    """What a tracker has of one run.

    Attributes:
        params: values by name, exact.
        points: (step, `RUNG_VALUE`) in the order in which they arrived.
        ended: whether the tracker shows the run as ended.
    """

    params: Mapping[str, Any] = field(default_factory=dict)
    points: tuple[tuple[int, float], ...] = ()
    ended: bool = False


class TrackerTestCase:
    """The laws of the contract of `Runs`. A subclass says how a tracker is made and read:

    class TestMyTracker(TrackerTestCase):
        def make(self):
            return MyRuns(...)      # as a process makes it that begins to send

        def stored(self):
            return {key: [StoredRun(...)]}
    """

    def make(self) -> Runs:
        """Return the tracker, as a process makes it; all of a test share one store."""
        raise NotImplementedError("a subclass makes the tracker")

    def stored(self) -> Mapping[str, list[StoredRun]]:
        """Return all runs of the store by key; several under one key are a mistake."""
        raise NotImplementedError("a subclass reads what the tracker has stored")

    def picture(self, key: str = "law-1", points: int = 0, **changes: Any) -> Picture:
        """Return a picture of a run with so many points."""
        base = Picture(key=key, name=f"s {key}", group="s", params={"lr": 0.1 + 0.2})
        return replace(
            base,
            points={64 * own: {RUNG_VALUE: own / 3} for own in range(1, points + 1)},
            **changes,
        )

    def only(self, key: str = "law-1") -> StoredRun:
        """Return the run of a key, of which there is one."""
        (found,) = self.stored()[key]
        return found

    def test_a_run_is_shown_exactly(self) -> None:
        """Pictures grow, and are sent as often as they come; every point arrives once, in order."""
        runs, sent = self.make(), Sent()
        for points in (0, 1, 1, 3):
            runs.send(self.picture(points=points), sent)
        assert sorted(sent.steps) == [64, 128, 192]
        last = self.picture(points=3, state="COMPLETE", final={"objective": 2.0 / 3})
        for _ in range(2):
            runs.send(last, sent)
        runs.close()
        assert sent.state == "COMPLETE"
        assert self.only() == StoredRun(
            {"lr": 0.1 + 0.2}, tuple((64 * own, own / 3) for own in (1, 2, 3)), ended=True
        )

    def test_another_process_goes_on_where_one_ended(self) -> None:
        """With what the first wrote down of its sending; nothing is doubled."""
        first, sent = self.make(), Sent()
        first.send(self.picture(points=2), sent)
        first.close()
        again, read = self.make(), Sent.from_json(sent.to_json())
        again.send(self.picture(points=3, state="PRUNED"), read)
        again.close()
        assert self.only().points == tuple((64 * own, own / 3) for own in (1, 2, 3))

    @pytest.mark.parametrize("state", ["PRUNED", FAILED])
    def test_every_end_of_a_run_is_shown(self, state: str) -> None:
        """Also of one that has no points, and of several runs at the same time."""
        runs, one, other = self.make(), Sent(), Sent()
        runs.send(self.picture("law-a", 1), one)
        runs.send(self.picture("law-b", state=state), other)
        runs.send(self.picture("law-a", 2, state=state), one)
        runs.close()
        assert (one.state, other.state) == (state, state)
        assert self.only("law-a").points == ((64, 1 / 3), (128, 2 / 3))
        assert self.only("law-b").points == ()
        assert self.only("law-a").ended
        assert self.only("law-b").ended
