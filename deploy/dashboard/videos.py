"""Videos of trials: a game of the trial's best member, drawn when someone asks for it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from sweepd.envs.external.guard import untagged
from sweepd.envs.support.database_url import STORAGE_VARIABLE
from sweepd.envs.support.errors import RunError
from sweepd.envs.support.passwords import hide_password
from sweepd.optimize.study.record.reader import StudyReader

VIDEO = "best_game.gif"  # in the trial's folder
GAMES = 4  # of which the best one is drawn
PATIENCE = 600.0  # seconds; beside training it may take long


class Videos:
    """Draws videos in a process of their own, one at a time, and keeps them.

    The process imports the environment, so that a crash or a leak of it does not reach the
    dashboard.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def known(self, study: StudyReader, trial: int) -> bool:
        """Return whether a trial's video was drawn before."""
        return _path(study, trial).is_file()

    def draw(self, study: StudyReader, trial: int) -> bytes:
        """Return the video of a complete trial, a GIF.

        Raises:
            RunError: the game cannot be drawn, or another video is being drawn.
        """
        path = _path(study, trial)
        if not path.is_file():
            if not self._lock.acquire(blocking=False):
                raise RunError("another video is being drawn; try again in a moment")
            try:
                _play(study, trial, path)
            finally:
                self._lock.release()
        return path.read_bytes()


def _path(study: StudyReader, trial: int) -> Path:
    return study.trial_dir(trial) / VIDEO


def _play(study: StudyReader, trial: int, path: Path) -> None:
    words = ["--trial", f"{study.name}#{trial}", "--best-of", str(GAMES), "--out", str(path)]
    # Not as an argument: `ps` would show a password of the URL.
    own = {"OMP_NUM_THREADS": "1", STORAGE_VARIABLE: study.storage.url}
    if study.runs_dir is not None:
        words += ["--runs-dir", str(study.runs_dir)]
    process = subprocess.Popen(
        [sys.executable, "-m", "sweepd", "play", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**untagged(), **own},
        text=True,
        errors="replace",
    )
    try:
        _, said = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise RunError(f"drawing the video took more than {PATIENCE:.0f} s") from None
    if process.returncode:
        lines = said.strip().splitlines() or [f"it ended with code {process.returncode}"]
        raise RunError(f"there is no video: {hide_password(lines[-1].removeprefix('error: '))}")
