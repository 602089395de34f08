"""Machines read no clock, wait for nothing and draw no numbers: what they decide can be repeated."""

from __future__ import annotations

import ast

import pytest

from tests.test_architecture import ROOT, calls_in, imported, modules_imported

TRADER = (
    *("account", "benchmarks", "events", "hot_swap", "machine", "recorded_run", "reports"),
    *("revisions", "slot_accounts", "staleness", "venue"),
)
MACHINES = (
    *("night/machine.py", "promotion/betting.py", "trading/arena/arena.py"),
    *(f"trading/live/{name}.py" for name in TRADER),
)
OUTSIDE = ("registry.registry", "registry.database", "trading.feeds", "trading.live.store")
IMPURE = {"time", "random", "secrets", "uuid", "os", "pathlib", "threading", "subprocess", "socket"}
IMPURE |= {"asyncio", "sched", "tempfile", "shutil"}
# Of datetime, numpy and torch: what reads a clock, or draws from a generator without a seed.
CLOCKS = {"now", "utcnow", "today", "time", "monotonic", "sleep"}
DRAWS = {"rand", "randn", "randint", "random", "choice", "shuffle", "permutation", "normal"}


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_has_no_clock_no_sleep_and_no_random_numbers(name: str) -> None:
    path = ROOT / "deploy" / name
    assert not IMPURE & set(imported(path))
    assert not {f"sweepd.deploy.{one}" for one in OUTSIDE} & set(modules_imported(path))
    for call in calls_in(path):
        called = ast.unparse(call.func)
        owner, _, name = called.rpartition(".")
        assert not (owner and name in CLOCKS), f"{called}() reads a clock"
        drawn = "random" in owner.split(".") and name in DRAWS
        assert not drawn, f"{called}() draws from the global generator"
        assert name != "default_rng" or call.args or call.keywords, f"{called}() has no seed"
