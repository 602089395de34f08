"""The tutorial of two workers on PostgreSQL, one of which is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tutorials.pages import ROOT, run_page

PAGE = ROOT / "docs" / "tutorials" / "worker_farm.md"
SMALL = "--n-trials 4 --trials-per-batch 2 --budget 4_096 --rungs 2 --n-envs 16 --horizon 64"
SMALL += " --slots 2 --threads 1 --episodes 2 --no-auto-deploy --fresh-seeds 0"
# A study of seconds would be over before its workers are looked at and one is killed: suspend the
# forked processes.
SUSPEND = (
    "(until grep -q 'training trials' {0}.log; do sleep 0.02; done; "
    "kill -STOP $(cat .reader/forks/$(cat {0}.pid))) &"
)
KILL = 'kill -9 "$(cat one.pid)"'


@pytest.mark.slow
def test_the_tutorial(tmp_path: Path, postgresql_database: str) -> None:
    smaller = {
        "postgresql://postgres@localhost/postgres": f"'{postgresql_database}'",
        "--n-trials 16 --trials-per-batch 4": SMALL,
        "echo $! > one.pid": f"echo $! > one.pid\n{SUSPEND.format('one')}",
        "echo $! > two.pid": f"echo $! > two.pid\n{SUSPEND.format('two')}",
        KILL: f"{KILL}\nkill -CONT $(cat .reader/forks/$(cat two.pid))",
    }
    run_page(PAGE, tmp_path, smaller, {"PGPASSWORD": ""})
