"""Suites of tests for your own parts of sweepd, which sweepd's own parts pass, too.

`check_env` checks an environment and needs no pytest. The classes named `…TestCase` are for pytest:
subclass one, say what is tested, and pytest runs one test for each law of the contract.

A name is imported when it is first used, so that a suite imports only what it tests.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sweepd.testing.broker import BrokerTestCase as BrokerTestCase
    from sweepd.testing.env_check import check_env as check_env
    from sweepd.testing.env_subject import EnvSubject as EnvSubject
    from sweepd.testing.feed import FeedTestCase as FeedTestCase
    from sweepd.testing.laws import BrokenLaw as BrokenLaw
    from sweepd.testing.program import ProgramTestCase as ProgramTestCase
    from sweepd.testing.storage import StorageTestCase as StorageTestCase
    from sweepd.testing.tracker import StoredRun as StoredRun
    from sweepd.testing.tracker import TrackerTestCase as TrackerTestCase
    from sweepd.testing.vec_env import VecEnvTestCase as VecEnvTestCase

_MODULES = {
    "BrokenLaw": "laws",
    "BrokerTestCase": "broker",
    "EnvSubject": "env_subject",
    "FeedTestCase": "feed",
    "ProgramTestCase": "program",
    "StorageTestCase": "storage",
    "StoredRun": "tracker",
    "TrackerTestCase": "tracker",
    "VecEnvTestCase": "vec_env",
    "check_env": "env_check",
}
__all__ = list(_MODULES)

if not TYPE_CHECKING:  # type checkers report names that do not exist

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'sweepd.testing' has no attribute {name!r}")
        try:
            module = importlib.import_module(f"sweepd.testing.{_MODULES[name]}")
        except ModuleNotFoundError as error:
            if error.name != "pytest":
                raise
            raise ImportError(
                f"sweepd.testing.{name} needs pytest, which is not installed: pip install pytest"
            ) from error
        globals()[name] = found = getattr(module, name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
