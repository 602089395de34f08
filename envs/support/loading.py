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


def begin_loading() -> None:
    """Begin the start of this process. A SIGINT that is ignored stays so."""
    gc.disable()
    _replace_handler(signal.default_int_handler, signal.SIG_DFL)


def end_loading() -> None:
    """End what `begin_loading` begins: SIGINT raises KeyboardInterrupt, as by Python's default."""
    _replace_handler(signal.SIG_DFL, signal.default_int_handler)
    gc.enable()


@contextmanager
def loading() -> Iterator[None]:
    """Return a context for the imports of a command."""
    modules, collecting = len(sys.modules), gc.isenabled()
    begin_loading()
    try:
        yield
    finally:
        end_loading()
        if len(sys.modules) > modules:
            gc.freeze()  # the imported objects stay: no collection has to scan them
        if not collecting:
            gc.disable()


def _replace_handler(old: signal._HANDLER, new: signal._HANDLER) -> None:
    """Replace the handler of SIGINT, if it is `old`."""
    # Other threads cannot set it.
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) is old:
        signal.signal(signal.SIGINT, new)
