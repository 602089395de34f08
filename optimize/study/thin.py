"""`sweepd studies thin`: of a study that is over, keep the rows, the reports and the best weights.

The study first records which trials have no files, then the files are deleted. So a kill at any
instant leaves a study that says what may be missing, and the same command deletes the rest. What
records how a trial was trained stays, since training it again gives the same bits.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.files import folder_size
from sweepd.optimize.study.record.keys import THINNED_KEY
from sweepd.optimize.study.record.thinned import Thinned
from sweepd.optimize.study.recovery.registration import GRACE_SECONDS, list_workers
from sweepd.optimize.study.study import StudyHandle

# Small files that training a trial again needs, or that say how it was trained.
RECORDS = ("steps.safetensors", "schedule.json", "metrics.json")


@dataclass(frozen=True)
class Thinning:
    """What thinning a study removes.

    Attributes:
        kept: numbers of the trials that keep their files.
        trials: numbers of all others.
        paths: files and folders that are deleted.
        size: their bytes.
    """

    kept: tuple[int, ...]
    trials: tuple[int, ...]
    paths: tuple[Path, ...]
    size: int


def plan_thinning(handle: StudyHandle, keep: Collection[int] = ()) -> Thinning:
    """Find what would be removed.

    Args:
        handle: the study.
        keep: numbers of trials that keep their files besides those of the best configuration.

    Raises:
        InputError: a worker is at work on it, there is no trial of a number in `keep`, or an earlier
            thinning removed its files.
    """
    refuse_workers(handle)
    numbers = [trial.number for trial in handle.trials()]
    for number in keep:
        if number not in numbers:
            raise InputError(f"--keep {number}: study {handle.name!r} has no such trial")
        handle.require_files(number)
    best = handle.best()
    kept = {*keep, *(trial.number for trial in (best.trials if best else ()))}
    gone = tuple(number for number in numbers if number not in kept)
    paths = tuple(path for number in gone for path in _files(handle, number))
    return Thinning(tuple(sorted(kept)), gone, paths, sum(map(folder_size, paths)))


def thin(handle: StudyHandle, found: Thinning) -> None:
    """Remove what `plan_thinning` found.

    Raises:
        InputError: a worker has begun meanwhile; nothing is removed.
        RunError: a file cannot be deleted.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    _record(handle, Thinned(now, found.trials))
    try:
        # One that came before the record; a later one refuses the study.
        refuse_workers(handle)
    except InputError:
        _record(handle, handle.thinned)
        raise
    for path in found.paths:
        try:
            with suppress(FileNotFoundError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        except OSError as error:
            raise RunError(
                f"{path} cannot be deleted ({error.strerror or error}); the same command continues"
            ) from error


def refuse_workers(handle: StudyHandle) -> None:
    """Raise InputError if a worker is at work on a study."""
    workers = [
        f"{worker.host}:{worker.pid}"
        for worker in list_workers(handle.storage, handle.study_id)
        if (worker.beat_age < GRACE_SECONDS if worker.alive is None else worker.alive)
    ]
    if workers:
        raise InputError(
            f"study {handle.name!r} has a worker at {', '.join(workers)}; stop it first (Ctrl-C, or "
            "kill with SIGTERM)"
        )


def _record(handle: StudyHandle, thinned: Thinned | None) -> None:
    value = None if thinned is None else asdict(thinned)
    handle.storage.set_study_user_attr(handle.study_id, THINNED_KEY, value)


def _files(handle: StudyHandle, number: int) -> Iterator[Path]:
    """Yield what is deleted of a trial."""
    folder = handle.trial_dir(number)
    curves = handle.run_dir / "tensorboard" / folder.name
    if curves.exists():
        yield curves
    if not folder.is_dir():
        return
    own = sorted(folder.iterdir())
    if any(path.name in RECORDS for path in own):
        yield from (path for path in own if path.name not in RECORDS)
    else:
        yield folder
