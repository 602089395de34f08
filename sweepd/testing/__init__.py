"""Suites of tests for your own parts of sweepd, which sweepd's own parts pass, too.

`check_env` checks an environment and needs no pytest. The classes named `…TestCase` are for pytest:
subclass one, say what is tested, and pytest runs one test for each law of the contract.

A name is imported when it is first used, so that a suite imports only what it tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweepd.envs.support.lazy import lazy_names

if TYPE_CHECKING:
    from sweepd.testing.broker import BrokerTestCase as BrokerTestCase
    from sweepd.testing.env_check import check_env as check_env
    from sweepd.testing.env_subject import EnvSubject as EnvSubject
    from sweepd.testing.feed import FeedTestCase as FeedTestCase
    from sweepd.testing.function import FunctionTestCase as FunctionTestCase
    from sweepd.testing.laws import BrokenLaw as BrokenLaw
    from sweepd.testing.program import ProgramTestCase as ProgramTestCase
    from sweepd.testing.pruner import PrunerTestCase as PrunerTestCase
    from sweepd.testing.rule import RuleTestCase as RuleTestCase
    from sweepd.testing.sampler import SamplerTestCase as SamplerTestCase
    from sweepd.testing.storage import StorageTestCase as StorageTestCase
    from sweepd.testing.tracker import StoredRun as StoredRun
    from sweepd.testing.tracker import TrackerTestCase as TrackerTestCase
    from sweepd.testing.vec_env import VecEnvTestCase as VecEnvTestCase

_MODULES = {
    "BrokenLaw": "sweepd.testing.laws",
    "BrokerTestCase": "sweepd.testing.broker",
    "EnvSubject": "sweepd.testing.env_subject",
    "FeedTestCase": "sweepd.testing.feed",
    "FunctionTestCase": "sweepd.testing.function",
    "ProgramTestCase": "sweepd.testing.program",
    "PrunerTestCase": "sweepd.testing.pruner",
    "RuleTestCase": "sweepd.testing.rule",
    "SamplerTestCase": "sweepd.testing.sampler",
    "StorageTestCase": "sweepd.testing.storage",
    "StoredRun": "sweepd.testing.tracker",
    "TrackerTestCase": "sweepd.testing.tracker",
    "VecEnvTestCase": "sweepd.testing.vec_env",
    "check_env": "sweepd.testing.env_check",
}
__all__ = list(_MODULES)

if not TYPE_CHECKING:  # type checkers report names that do not exist
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
