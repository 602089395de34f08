"""What a worker shows and publishes: panel, log lines or notebook, heartbeats, crash file."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self

import psutil
import torch
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table

from sweepd.envs.support.formatting import duration, hourly
from sweepd.envs.support.logs import LogConsole, say_line
from sweepd.envs.support.supervisor import Supervisor
from sweepd.optimize.study.insight.charts import StudyCharts
from sweepd.optimize.study.insight.time_left import Pace, seconds_left
from sweepd.optimize.study.recovery.deaths import CrashFile
from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from sweepd.optimize.study.recovery.registration import GpuUse
from sweepd.optimize.study.recovery.stall import Progress
from sweepd.optimize.worker.gpu_meter import GpuMeter
from sweepd.optimize.worker.notebook import NotebookOutput, in_notebook

LOG_EVERY = 15.0  # seconds between two log lines
RATE_WINDOW = 30.0  # seconds over which the speed is averaged
# Events of which there are many; in a notebook they are lines of its one output.
ROUTINE = ("batch.started", "trial.complete", "trial.pruned")
FIGURES_EVERY = 2.0  # seconds for which the figures are cached


def _prints_json(console: Console) -> bool:
    return isinstance(console, LogConsole) and console.prints_json


class Telemetry:
    """Shows the progress of one worker. Use it as a context manager; `say` also works outside.

    Attributes:
        total: number of finished trials at which the study is complete.
        steps_per_trial: environment steps of an unpruned trial, over all folds.
        recycled: number of restarts of the process to free memory.
        counts: trials of the study by state.
        best: value and number of the best trial.
        others: pace of the study's other workers together, see `Pace`.
        charts: the study's curves; kept while `drawn`.
        steps_done: environment steps of this worker.
        activity: what the worker is doing.
        share_of_batch: progress to the next rung, 0 to 1.
    """

    def __init__(self, console: Console, study_name: str, device: torch.device) -> None:
        self.console, self.study_name = console, study_name
        self.total = 0
        self.steps_per_trial = 0
        self.recycled = 0
        self.counts: dict[str, int] = {}
        self.best: tuple[float, int] | None = None
        self.others = 0.0
        self.charts: StudyCharts | None = None
        self.activity = "starting"
        self.share_of_batch = 0.0
        self.steps_done = 0
        self._gpu = GpuMeter(device)
        self._began = time.monotonic()
        self._ended: float | None = None
        self._finished_here = 0
        self._pace = Pace()
        self._work_left = math.nan  # see `work_left`, after the last evaluated rung
        self._work_since = 0.0  # steps since then
        self._padding = 1.0  # steps of whole programs, in steps of their members
        self._recent: deque[tuple[float, int]] = deque()  # (time, steps) within RATE_WINDOW
        self._logged = 0.0
        self._figures: dict[str, Any] = {}
        self._figured_at = float("-inf")
        self._process = psutil.Process()
        self._live: Live | None = None
        self._notebook: NotebookOutput | None = None

    def __enter__(self) -> Self:
        self._began = self._logged = time.monotonic()
        if in_notebook() and not _prints_json(self.console):
            self._notebook = NotebookOutput()
        elif self.console.is_terminal:
            self._live = Live(
                console=self.console,
                get_renderable=self._panel,
                refresh_per_second=4,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = time.monotonic()
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._notebook is not None:
            self.activity, self.share_of_batch = "ended", 0.0
            self._notebook.show(self._panel())
            self._notebook = None

    # -- called by the worker

    @property
    def drawn(self) -> bool:
        """Whether curves are shown, so that `charts` are needed."""
        return self._live is not None or self._notebook is not None

    def say(self, text: str, event: str = "note", **fields: Any) -> None:
        """Print one line, with the time in a log. A notebook shows the newest ones of each trial.

        Args:
            text: the line.
            event: name of what happened, for JSON logs; docs/reference/logs.md lists the names.
            fields: the same information as the text, for JSON logs.
        """
        if self._notebook is None or event not in ROUTINE:
            say_line(self.console, text, study=self.study_name, event=event, **fields)
            return
        self._notebook.line(text)
        if isinstance(self.console, LogConsole):
            self.console.keep(text, {"study": self.study_name, "event": event, **fields})

    def refresh(self) -> None:
        """Update a notebook, at most every second."""
        if self._notebook is not None and self._notebook.due():
            self._notebook.show(self._panel())

    def steps(self, count: int) -> None:
        """Count environment steps."""
        now = time.monotonic()
        self.steps_done += count
        self._pace.count(self._padding * count)
        self._work_since += self._padding * count
        self._recent.append((now, count))
        while self._recent and now - self._recent[0][0] > RATE_WINDOW:
            self._recent.popleft()
        self.refresh()
        if not (self.console.is_terminal or self._notebook) and now - self._logged > LOG_EVERY:
            self._logged = now
            self.say(self.line(), event="progress", **self.figures())

    def finished(self, count: int) -> None:
        """Count trials finished by this worker."""
        self._finished_here += count

    def begin(self, padding: float) -> None:
        """Note that a rung begins. padding: steps of whole programs, in steps of their members."""
        self._padding = padding

    def left(self, work: float) -> None:
        """Note the steps that are left. work: see `work_left`; called after every rung."""
        self._work_left, self._work_since = work, 0.0
        self._pace.evaluated()
        self.refresh()

    def rest(self) -> None:
        """Note that nothing is in training until the next `steps`."""
        self._pace.rest()

    # -- figures

    @property
    def elapsed(self) -> float:
        """Seconds since training began, or that it took if it has ended."""
        return (time.monotonic() if self._ended is None else self._ended) - self._began

    @property
    def steps_per_second(self) -> float:
        """Environment steps per second of wall time over the last 30 seconds."""
        if not self._recent:
            return 0.0
        # At least one second: a single rollout says little about the speed.
        span = max(time.monotonic() - self._recent[0][0], 1.0)
        return sum(count for _, count in self._recent) / span

    @property
    def trials_per_hour(self) -> float | None:
        """Trials that this worker finished per hour since its training began; None before the first."""
        return (
            3600.0 * self._finished_here / max(self.elapsed, 1e-3) if self._finished_here else None
        )

    @property
    def done(self) -> int:
        return sum(self.counts.get(state, 0) for state in ("COMPLETE", "PRUNED", "FAIL"))

    @property
    def eta(self) -> float:
        """Seconds left at the pace of all workers; NaN until this worker's pace is known."""
        return seconds_left(self._work_left, self._work_since, self._pace.value() + self.others)

    def figures(self) -> dict[str, Any]:
        """Return what `sweepd status` shows of this worker, at most `FIGURES_EVERY` seconds old."""
        # The worker asks after every rollout; reading the process and the GPU takes longer than that.
        if time.monotonic() - self._figured_at > FIGURES_EVERY:
            gpu = self.gpu()
            self._figures = {
                "total": self.total,
                "steps_per_trial": self.steps_per_trial,
                "steps_per_second": round(self.steps_per_second),
                "pace": self._pace.value(),
                "work_since_rung": round(self._work_since),
                "trials_per_hour": self.trials_per_hour,
                "finished": self._finished_here,
                "resident_bytes": self.resident_bytes(),
                "recycled": self.recycled,
                "gpu": None if gpu is None else asdict(gpu),
            }
            self._figured_at = time.monotonic()
        return self._figures

    def gpu(self) -> GpuUse | None:
        """Return the use of the GPU; None without one, or if the driver does not answer."""
        return self._gpu.read()

    def resident_bytes(self) -> int:
        """Return the resident memory of this process."""
        return int(self._process.memory_info().rss)

    def line(self) -> str:
        """Return the progress as one line."""
        best = f"best {self.best[0]:+.4f} (trial {self.best[1]})" if self.best else "no best yet"
        gpu = self.gpu()
        return (
            f"trials {self.done}/{self.total} ({self.counts.get('PRUNED', 0)} pruned, "
            f"{self.counts.get('FAIL', 0)} failed) · {self.activity} · "
            f"{self.steps_per_second:,.0f} steps/s · {hourly(self.trials_per_hour)} trials/hour · "
            f"ETA {duration(self.eta)} · {best}" + (f" · GPU {gpu}" if gpu else "")
        )

    def _panel(self) -> RenderableType:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold", no_wrap=True)
        grid.add_column()
        pruned, failed = self.counts.get("PRUNED", 0), self.counts.get("FAIL", 0)
        grid.add_row(
            "trials", f"{self.done} of {self.total} done · {pruned} pruned · {failed} failed"
        )
        grid.add_row("", ProgressBar(total=max(self.total, 1), completed=self.done, width=44))
        grid.add_row("now", self.activity)
        grid.add_row("", ProgressBar(total=1.0, completed=self.share_of_batch, width=44))
        grid.add_row(
            "speed",
            f"{self.steps_per_second:,.0f} steps/s · {hourly(self.trials_per_hour)} trials/hour",
        )
        grid.add_row("time", f"{duration(self.elapsed)} elapsed · ETA {duration(self.eta)}")
        grid.add_row(
            "best", f"{self.best[0]:+.4f} (trial {self.best[1]})" if self.best else "none yet"
        )
        gpu = self.gpu()
        if gpu:
            grid.add_row("GPU", str(gpu))
        panel = Panel(grid, title=f"sweepd · {self.study_name}", border_style="cyan", expand=False)
        return panel if self.charts is None else Group(panel, self.charts)


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
        self._unpublished = False  # whether `heartbeat.info` has more than its last heartbeat

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
        if self._unpublished:
            self._beat()

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
        same = self.heartbeat.info.get("trials") == list(numbers)
        self._publish(f"trials {', '.join(map(str, numbers))}, {doing}", numbers, info)
        self._beat(at_once=not same)

    def idle(self, state: str, activity: str) -> None:
        """Publish that nothing is in training."""
        self.heartbeat.state = state
        self.telemetry.rest()
        self._publish(activity, [], {})
        self._beat(at_once=True)

    def _publish(self, activity: str, numbers: Sequence[int], info: Mapping[str, Any]) -> None:
        self.telemetry.activity, self.telemetry.share_of_batch = activity, 0.0
        known = {"trials": list(numbers), "device": self._device, **info}
        self.heartbeat.info = {**known, **self._figures()}
        self._unpublished = True

    def _beat(self, *, at_once: bool = False) -> None:
        """Write a heartbeat, or leave it to the next rollout if there was one just now."""
        if at_once or time.monotonic() - self.heartbeat.beaten > FIGURES_EVERY:
            self.heartbeat.try_beat()
            self._unpublished = False

    def _figures(self) -> dict[str, Any]:
        return {
            **self.telemetry.figures(),
            "storage_retries": self.heartbeat.storage.patience.retries,
        }
