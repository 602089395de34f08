"""Publishing what a worker is doing: on screen, in its heartbeats, to systemd, after a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sweepd.envs.support.supervisor import Supervisor
from sweepd.optimize.study.recovery.deaths import CrashFile
from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from sweepd.optimize.study.recovery.stall import Progress
from sweepd.optimize.worker.telemetry import Telemetry


class Activity:
    """What a worker is doing.

    Args:
        telemetry: shows it on screen.
        heartbeat: publishes it to other processes.
        marks: progress of the main thread, on which the heartbeats of its trials depend.
        crashes: receives the numbers of the trials in training.
        device: where training runs.

    Attributes:
        supervisor: receives a sign of life after every piece of work.
    """

    def __init__(
        self,
        telemetry: Telemetry,
        heartbeat: Heartbeat,
        marks: Progress,
        crashes: CrashFile,
        device: str,
    ) -> None:
        self.telemetry, self.heartbeat, self.crashes = telemetry, heartbeat, crashes
        self.supervisor = Supervisor()
        self._marks, self._device = marks, device
        self._steps_done = self._steps_wanted = 0  # in the current rung

    def alive(self) -> None:
        """Report progress to systemd's watchdog and to the thread of the heartbeats."""
        self._marks.mark()
        self.supervisor.alive(self.telemetry.line)

    def stepped(self, steps: int) -> None:
        """Count the environment steps of a rollout."""
        self.telemetry.steps(steps)
        self._steps_done += steps
        self.telemetry.share_of_batch = self._steps_done / max(self._steps_wanted, 1)
        self.heartbeat.info = {**self.heartbeat.info, **self._figures()}

    def training(
        self, numbers: Sequence[int], doing: str, steps: int, info: Mapping[str, Any]
    ) -> None:
        """Publish that trials are in training.

        Args:
            numbers: numbers of the trials.
            doing: what is being done with them.
            steps: environment steps until the next rung.
            info: further entries of the heartbeats.
        """
        self.alive()
        # Before training: if it crashes the process, the next worker finds the numbers in the file.
        self.crashes.training(numbers)
        self._steps_done, self._steps_wanted = 0, steps
        self._publish(f"trials {', '.join(map(str, numbers))}, {doing}", numbers, info)

    def idle(self, state: str, activity: str) -> None:
        """Publish that nothing is in training."""
        self.heartbeat.state = state
        self._publish(activity, [], {})

    def _publish(self, activity: str, numbers: Sequence[int], info: Mapping[str, Any]) -> None:
        self.telemetry.activity, self.telemetry.share_of_batch = activity, 0.0
        known = {"trials": list(numbers), "device": self._device, **info}
        self.heartbeat.info = {**known, **self._figures()}
        self.heartbeat.try_beat()

    def _figures(self) -> dict[str, Any]:
        return {
            **self.telemetry.figures(),
            "storage_retries": self.heartbeat.storage.patience.retries,
        }
