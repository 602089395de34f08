"""A worker that has lost a trial may claim it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from tests.optimize.objectives.command.programs import command_study, work_on

PROGRAM = """
time.sleep(0.5)
report(1, 0.5)
"""


def test_a_trial_that_was_lost_and_is_claimed_again_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the simulation (seed 93): it was dropped for the loss of the attempt before."""
    handle = command_study(tmp_path, PROGRAM)
    enter = Heartbeat.__enter__

    def lost_before(self: Heartbeat) -> Heartbeat:
        self.lost.add(1)  # the row that the study's first trial gets
        return enter(self)

    monkeypatch.setattr(Heartbeat, "__enter__", lost_before)
    said = work_on(handle, 1, grace_seconds=2.0, beat_seconds=0.2)
    [trial] = handle.trials()
    assert (trial._trial_id, trial.state.name) == (1, "COMPLETE")
    assert "meanwhile" not in said
    assert "requeued" not in said
