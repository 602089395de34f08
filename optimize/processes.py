"""Which process a recorded pid stands for, and whether it still runs.

A pid has a meaning in one PID namespace of one running kernel only: two containers may share a host name and a pid,
and a cloned machine has the host name of its original. So what a pid means is recorded with it, and a process that was
recorded elsewhere is neither alive nor dead as far as can be seen from here.
"""

from __future__ import annotations

import os
import platform
import uuid
from pathlib import Path

import psutil

_RANDOM_NODE = 1 << 40  # set in what uuid.getnode() makes up where it finds no network address


def namespace() -> str:
    """What tells this process's PID namespace from any other, on this and on other machines; "" where nothing does.

    On Linux the kernel's boot id and the namespace's inode: containers on one kernel share the former, initial
    namespaces of all kernels the latter. Elsewhere, where there is one namespace per machine, a network address.
    """
    if platform.system() != "Linux":
        node = uuid.getnode()
        return "" if node & _RANDOM_NODE else f"{platform.system()}:{node:012x}"
    try:
        if os.readlink("/proc/self") != str(os.getpid()):  # the /proc of another namespace: its pids are not ours
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        inode = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    return f"{boot}:{inode}"


def started(pid: int) -> str | None:
    """When a process of this namespace started, which tells it from any other that had or gets its pid.

    None where there is none; "" where there is one whose start cannot be read (another account's, say).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return None if fields[0] == "Z" else fields[19]
    except OSError:
        pass
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return "" if _exists(pid) else None  # a /proc mounted with hidepid does not show other accounts' processes
    except psutil.Error:
        return ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def identity(pid: int) -> str:
    """What is recorded of a running process beside its pid, for `is_running`; "" where it could not be recognised."""
    where, start = namespace(), started(pid)
    return f"{where}/{start}" if where and start else ""


def same_namespace(recorded: str) -> bool:
    """Whether the process with this `identity` was recorded in this process's PID namespace, and on this machine."""
    where = namespace()
    return bool(where) and recorded.rpartition("/")[0] == where


def is_running(pid: int, recorded: str) -> bool | None:
    """Whether the process that was recorded with this pid and `identity` still runs; None where that cannot be seen
    from here: it belongs to another machine, another boot, or another PID namespace.

    A machine that was started again has another boot id, so its former processes count as unseen, not as dead.
    """
    if not same_namespace(recorded):
        return None
    start = started(pid)
    return None if start == "" else start == recorded.rpartition("/")[2]
