"""Which process a recorded pid stands for, and whether it still runs.

A pid is valid in one PID namespace of one running kernel only: two containers may share a host name and a pid, and a
cloned machine has the host name of its original. So the namespace is recorded with the pid. Whether a process that was
recorded in another namespace still runs is unknown.
"""

from __future__ import annotations

import os
import platform
import uuid
from pathlib import Path

import psutil

_RANDOM_NODE = (
    1 << 40
)  # set in the random number that uuid.getnode() returns if it finds no network address


def namespace() -> str:
    """An identifier of this process's PID namespace, unique across machines; "" where there is none.

    On Linux the kernel's boot id and the namespace's inode: containers on one kernel share the former, initial
    namespaces of all kernels the latter. Elsewhere, where there is one namespace per machine, a network address.
    """
    if platform.system() != "Linux":
        node = uuid.getnode()
        return "" if node & _RANDOM_NODE else f"{platform.system()}:{node:012x}"
    try:
        if os.readlink("/proc/self") != str(
            os.getpid()
        ):  # the /proc of another namespace: its pids are not ours
            return ""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        inode = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    return f"{boot}:{inode}"


def started(pid: int) -> str | None:
    """When the process started; with the pid this identifies a process of this namespace.

    None if there is no such process; "" if its start cannot be read (that of another account, for example).
    """
    try:
        fields = (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()
        )
        return None if fields[0] == "Z" else fields[19]
    except OSError:
        pass
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else f"{process.create_time():.2f}"
    except psutil.NoSuchProcess:
        return (
            "" if _exists(pid) else None
        )  # a /proc mounted with hidepid does not show other accounts' processes
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
    """What to record with the pid of a running process, for `is_running`; "" if it could not be identified later."""
    where, start = namespace(), started(pid)
    return f"{where}/{start}" if where and start else ""


def same_namespace(recorded: str) -> bool:
    """Whether the process with this `identity` was recorded in this process's PID namespace, and on this machine."""
    where = namespace()
    return bool(where) and recorded.rpartition("/")[0] == where


def is_running(pid: int, recorded: str) -> bool | None:
    """Whether the process that was recorded with this pid and `identity` still runs; None if that is
    unknown: it belongs to another machine, another boot, or another PID namespace.

    A rebooted machine has another boot id, so the state of its earlier processes is unknown.
    """
    if not same_namespace(recorded):
        return None
    start = started(pid)
    return None if start == "" else start == recorded.rpartition("/")[2]
