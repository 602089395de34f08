"""The process that trades a slot: one per slot on a machine, which survives temporary errors.

After the first start, an error (broker, feed or database out of reach, an unexpected exception)
ends the session, and a new session continues from the database, exactly as after a kill. After ten
minutes without a completed poll, the process exits with code 75, so that a supervisor restarts it.
So it does if a slot that has traded before cannot start (`sweepd.deploy.trading.live.start`).
"""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from sweepd.deploy.registry.slots import slot_name
from sweepd.deploy.trading.live.session import LiveSession
from sweepd.deploy.trading.live.store import Replaced
from sweepd.envs.support.errors import InputError, RunError, TryAgainLater

PATIENCE = 600.0
ASKED_TO_STOP = 0.5  # longest wait between retries once the trader was asked to stop
PAUSES = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0)


def has_begun(folder: Path, slot: str | None) -> bool:
    """Return whether a trader of the slot was ever started with this folder of locks.

    Lock files stay, so this is known without the registry. slot: None: of any slot.
    """
    return any(folder.glob("*.lock")) if slot is None else _lock_file(folder, slot).exists()


def _lock_file(folder: Path, slot: str) -> Path:
    return folder / f"{slot_name(slot)}.lock"


@contextmanager
def only_one(folder: Path, slot: str) -> Iterator[None]:
    """Hold the slot's lock on this machine; the kernel releases it when the process ends.

    Raises:
        InputError: another process trades the slot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Without fallback: a lock file that counts by its existence would survive a killed process.
    lock = FileLock(_lock_file(folder, slot), blocking=False, fallback_to_soft=False)
    try:
        held = lock.acquire()
    except Timeout:
        raise InputError(
            f"slot {slot!r} is being traded by another process on this machine"
        ) from None
    with held:
        yield


def waits(stop: threading.Event) -> Callable[[float], None]:
    """Return what waits between retries: a request to stop shortens the waits.

    It does not end them, because a broker that is out of reach would be asked without a pause.
    """

    def wait(seconds: float) -> None:
        if stop.is_set():
            time.sleep(min(seconds, ASKED_TO_STOP))
        else:
            stop.wait(seconds)

    return wait


@contextmanager
def ending_on_signals(stop: threading.Event) -> Iterator[None]:
    """Set `stop` on SIGTERM and SIGINT: the current step is finished, then the exit code is 0."""
    wanted = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, lambda *_: stop.set()) for number in wanted]
    try:
        yield
    finally:
        for number, handler in zip(wanted, before, strict=True):
            signal.signal(number, handler)


def keep_trading(
    make_session: Callable[[], LiveSession],
    stop: threading.Event,
    say: Callable[[str], None],
    note: Callable[[str], None] = lambda _: None,
) -> None:
    """Run sessions until one ends by itself or `stop` is set.

    Args:
        make_session: starts a session.
        stop: ends the process when set.
        say: receives messages for the terminal.
        note: receives each new problem; the same problem again only after a completed poll.

    Raises:
        InputError: the first start failed; other exceptions of the first start are raised, too.
        Replaced: another process trades the slot.
        TryAgainLater: errors have lasted for ten minutes.
    """
    trouble_since: float | None = None
    noted: set[str] = set()
    tries, began = 0, False
    while not stop.is_set():
        session: LiveSession | None = None
        try:
            session = make_session()
            began = True
            session.run()
            return
        except Replaced:
            raise
        except InputError as error:
            if not began:  # after the start, a feed may lack bars for a while
                raise
            problem = str(error)
        except RunError as error:
            problem = str(error)
        except Exception as error:  # a bug must not leave positions unmanaged
            if not began:
                raise
            say(traceback.format_exc().rstrip())
            problem = f"{type(error).__name__}: {error}"
        # A completed poll proves that the trouble had ended: patience starts again.
        if session is not None and session.polls > 0:
            trouble_since, tries = None, 0
            noted.clear()
        if problem not in noted:
            noted.add(problem)
            note(problem)
        now = time.monotonic()
        trouble_since = now if trouble_since is None else trouble_since
        if now - trouble_since > PATIENCE:
            raise TryAgainLater(
                f"{problem}; trading has not been possible for {PATIENCE / 60:.0f} minutes"
            )
        pause = PAUSES[min(tries, len(PAUSES) - 1)]
        tries += 1
        say(f"{problem}; retrying in {pause:g} s")
        stop.wait(pause)
