"""The server that the tests bring along."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import sqlalchemy as sa

from tests.postgres_server import PostgresServer

SCRIPT = """
import time
from tests.postgres_server import PostgresServer
server = PostgresServer()
print(server.folder, flush=True)
time.sleep(60)
"""


def test_servers_live_side_by_side_and_end_with_whoever_started_them(
    postgresql: PostgresServer,
) -> None:
    other = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    try:
        assert other.stdout is not None
        folder = Path(other.stdout.readline().strip())
        assert (folder / "data" / "postmaster.pid").exists()
        other.send_signal(signal.SIGKILL)
        other.wait()
        until = time.monotonic() + 30
        while (folder / "data" / "postmaster.pid").exists():
            assert time.monotonic() < until, "it outlived its parent"
            time.sleep(0.05)
        subprocess.run(["rm", "-r", str(folder)], check=True)
    finally:
        other.kill()
        other.wait()
    with sa.create_engine(postgresql.url).connect() as connection:
        assert connection.execute(sa.text("SELECT 1")).scalar_one() == 1
