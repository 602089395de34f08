"""Importing the modules of a command: Ctrl-C ends the process at once, and nothing is collected.

A command has begun nothing while its modules are imported, so that the default action of SIGINT, the
end of the process, is the right one. `KeyboardInterrupt` would print a traceback of the imports, and
some code that runs during imports loses it (callbacks of weak references) or raises something else
(`__set_name__`).

Garbage collections find nothing during imports, and take a quarter of their time.
"""

from __future__ import annotations

import gc
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def loading() -> Iterator[None]:
    """Return a context for the imports of a command that has begun. No effect on other threads."""
    modules = len(sys.modules)
    collecting = gc.isenabled()
    gc.disable()
    raising = _set_interrupt(signal.default_int_handler, signal.SIG_DFL)
    try:
        yield
    finally:
        if raising:
            raise_interrupts()
        if len(sys.modules) > modules:
            gc.freeze()  # the imported objects stay: no collection has to scan them
        if collecting:
            gc.enable()


def end_at_interrupts() -> None:
    """Let SIGINT end this process, until `raise_interrupts`. A SIGINT that is ignored stays so."""
    _set_interrupt(signal.default_int_handler, signal.SIG_DFL)


def raise_interrupts() -> None:
    """Let SIGINT raise KeyboardInterrupt, as Python does by default."""
    _set_interrupt(signal.SIG_DFL, signal.default_int_handler)


def _set_interrupt(before: signal._HANDLER, after: signal._HANDLER) -> bool:
    """Set the handler of SIGINT if it is `before`; returns whether it was."""
    # Only the main thread may set it.
    if threading.current_thread() is not threading.main_thread():
        return False
    if signal.getsignal(signal.SIGINT) is not before:
        return False
    signal.signal(signal.SIGINT, after)
    return True
