"""The process that trades a slot: one per slot on this machine. It ends on a signal, but not on a temporary error.

After the first start, every error (broker, feed or database out of reach, an unexpected exception) ends the session,
and a new session goes on from the database, exactly as after a kill. After ten minutes without a successful look at the
market, the process ends with exit code 75, on which a supervisor may start it again.
"""

from __future__ import annotations

import fcntl
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.registry.slots import slot_name
from deploy.trading.live.session import LiveSession
from deploy.trading.live.store import Replaced
from envs.support.errors import InputError, RunError, TryAgainLater

PATIENCE = 600.0
PAUSES = (1.0, 2.0, 5.0, 15.0, 30.0, 60.0)


@contextmanager
def only_one(folder: Path, slot: str) -> Iterator[None]:
    """Hold the slot on this machine: the kernel lets go when the process ends, however it ends. Raises InputError where
    another process trades it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"{slot_name(slot)}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"slot {slot!r} is being traded by another process on this machine"
            ) from None
        yield


@contextmanager
def ending_on_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop`: what is being done is finished, then the process ends with exit code 0."""
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

    note: called with every problem, and again with the same one only after a session has completed a look at the
    market. Raises InputError and unexpected exceptions of the first start, Replaced at any time, and TryAgainLater
    after ten minutes of errors.
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
            if not began:  # later it may be a feed that lacks bars
                raise
            problem = str(error)
        except RunError as error:
            problem = str(error)
        except Exception as error:  # a fault of this program must not leave positions unmanaged
            if not began:
                raise
            say(traceback.format_exc().rstrip())
            problem = f"{type(error).__name__}: {error}"
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
                f"{problem}; it has not been possible to trade for {PATIENCE / 60:.0f} minutes"
            )
        pause = PAUSES[min(tries, len(PAUSES) - 1)]
        tries += 1
        say(f"{problem}; trying again in {pause:g} s")
        stop.wait(pause)
