"""`sweepd` and `python` for a shell's PATH that fork this process.

A new interpreter needs seconds to import torch; a fork of a test's process has it. The programs on
the PATH are small clients. Each sends its words, folder, variables and standard files to this
process, which forks a process that goes on with them; the client ends with its exit code. SIGTERM
is passed on; if a client is killed, its forked process is killed, too.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import runpy
import secrets
import select
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tests.entry_point import become, enter

# Isolated and without site-packages, it starts in 20 ms.
_CLIENT = """\
import json, os, signal, socket, sys
name, files = {name!r}, [0, 1, 2]
request = [name, sys.argv[1:], os.getcwd(), dict(os.environ), os.getpid()]
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [b"f"], files)
    server.sendall(json.dumps(request).encode() + b"\\n")
    signal.signal(signal.SIGTERM, lambda *_: server.sendall(b"t"))
    sys.exit(int(server.makefile().readline()))
"""


@dataclass
class _Fork:
    client: socket.socket
    pid: int


# What else Python is started with, such as the supervisor of a program, is a new interpreter.
_PROGRAM = """\
#!/bin/sh
case "{name} $1 $2" in
    "python -c "*|"python -m sweepd"|"python "[!-]?*|"sweepd "*|\\
    "python -m sweepd.function"|"python -m sweepd.optimize.tracking.sender")
        exec '{python}' -IS '{source}' "$@";;
esac
exec '{python}' "$@"
"""


class Forks:
    """The programs, and the processes that they have started.

    Args:
        folder: a folder to create; for each client with process id P, the file `P` in it has the
            id of its forked process.

    Attributes:
        path: the folder for the PATH.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self.path = folder, folder / "bin"
        self._listener = socket.socket(socket.AF_UNIX)
        address = f"\0sweepd-tests-{secrets.token_hex(8)}"  # abstract: a path may be too long
        self._listener.bind(address)
        self._listener.listen(64)
        self._forks: dict[int, _Fork] = {}  # by the file descriptor that says when it has ended
        self.path.mkdir(parents=True)
        for name in ("sweepd", "python"):
            source = folder / f"{name}.py"
            source.write_text(_CLIENT.format(name=name, address=address))
            program = self.path / name
            values = {"name": name, "python": sys.executable, "source": source}
            program.write_text(_PROGRAM.format(**values))
            program.chmod(0o755)

    def serve_until(self, *files: int) -> None:
        """Start what clients ask for, until one of the files can be read."""
        while True:
            clients = {fork.client.fileno(): fork for fork in self._forks.values()}
            watched = [*files, self._listener.fileno(), *self._forks, *clients]
            poller = select.poll()  # `select.select` refuses descriptors above 1,023
            for file in watched:
                poller.register(file, select.POLLIN)
            ready = {file for file, _ in poller.poll()}
            for file in ready:
                if file == self._listener.fileno():
                    self._start()
                elif file in clients:
                    # A client that says nothing more has ended.
                    asked = signal.SIGTERM if clients[file].client.recv(1) else signal.SIGKILL
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(clients[file].pid, asked)
            for file in ready & {*self._forks}:
                self._end(file)
            if ready & {*files}:
                return

    def close(self) -> None:
        """Kill what still runs."""
        self._listener.close()
        for file, fork in [*self._forks.items()]:
            os.kill(fork.pid, signal.SIGKILL)
            self._end(file)

    @contextlib.contextmanager
    def served(self) -> Iterator[Path]:
        """Serve clients in a forked process until the end. Yields the program `python`."""
        told, end = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(end)
                self.serve_until(told)
                self.close()
            finally:
                os._exit(0)  # never back into the tests
        os.close(told)
        self._listener.close()
        try:
            yield self.path / "python"
        finally:
            os.write(end, b"end")  # closing it is not enough: other forked processes have it, too
            os.close(end)
            os.waitpid(pid, 0)

    def _start(self) -> None:
        client, _ = self._listener.accept()
        _, files, _, _ = socket.recv_fds(client, 1, 3)
        with client.makefile() as lines:
            request = json.loads(lines.readline())
        pid = os.fork()
        if pid == 0:
            sys.executable = str(self.path / "python")  # for commands that start others
            _become(request, files)
        for file in files:
            os.close(file)
        (self._folder / str(request[-1])).write_text(str(pid))
        self._forks[os.pidfd_open(pid)] = _Fork(client, pid)

    def _end(self, file: int) -> None:
        fork = self._forks.pop(file)
        _, status = os.waitpid(fork.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        # A shell's code for a signal: the client itself is not killed.
        with contextlib.suppress(OSError), fork.client:
            fork.client.sendall(f"{code if code >= 0 else 128 - code}\n".encode())
        os.close(file)


def _become(request: Sequence[Any], files: Sequence[int]) -> NoReturn:
    """Go on as `sweepd` or `python` with a client's words, in a forked process."""
    try:
        name, words, folder, variables, _ = request
        os.setsid()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(variables)
        paths = variables.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [path for path in paths if path and path not in sys.path]
        signal.alarm(0)  # of the test's timeout
        if words[0] == "-m":
            sys.path.insert(0, os.getcwd())
        if words[:2] == ["-m", "sweepd"]:
            name, words = "sweepd", words[2:]
        if name == "sweepd":
            enter(words)
        become(words, lambda: _run_python(words))
    finally:
        os._exit(70)  # never back into the tests


def _run_python(words: Sequence[str]) -> None:
    """Run what `python -c CODE …`, `python -m MODULE …` or `python FILE …` runs."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # What the process that imported optuna set is not this one's.
    logging.getLogger("optuna").setLevel(logging.INFO)
    for handler in logging.getLogger("optuna").handlers:
        if isinstance(handler, logging.StreamHandler):
            handler.setStream(sys.stderr)
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    elif words[0] == "-m":
        sys.argv = ["-m", *words[2:]]
        sys.modules.pop(words[1], None)
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        script = Path(words[0]).absolute()
        sys.path.insert(0, str(script.resolve().parent))
        runpy.run_path(str(script), run_name="__main__")
