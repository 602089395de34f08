"""Identify the process of a recorded pid, and tell whether it is still running.

A pid is valid in one PID namespace of one running kernel only: two containers may share a host name
and a pid, and a cloned machine has the host name of its original. So the namespace is recorded with
the pid. The state of a process in another namespace is unknown.
"""

from __future__ import annotations

import os
import platform
import uuid
from pathlib import Path

import psutil

# This bit is set in the random number that uuid.getnode() returns without a network address.
_RANDOM_NODE = 1 << 40


def boot_id() -> str:
    """Return the kernel's id of this boot, "" if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def namespace() -> str:
    """Return an identifier of this process's PID namespace, unique across machines.

    On Linux it is the kernel's boot id and the namespace's inode: containers on one kernel share
    the boot id, and the initial namespaces of all kernels share the inode. Elsewhere a machine has
    one namespace, identified by a network address. "" if neither is known.
    """
    if platform.system() != "Linux":
        node = uuid.getnode()
        return "" if node & _RANDOM_NODE else f"{platform.system()}:{node:012x}"
    try:
        # The /proc of another namespace, mounted here, numbers processes differently.
        if os.readlink("/proc/self") != str(os.getpid()):
            return ""
        inode = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return ""
    boot = boot_id()
    return f"{boot}:{inode}" if boot else ""


def started(pid: int) -> str | None:
    """Return the start time of a process, which identifies it together with its pid.

    Returns:
        None if there is no such process; "" if the time cannot be read, for example of another
        account.
    """
    try:
        # The second field, the name in parentheses, may itself contain spaces and parentheses.
        # After it, field 0 is the state and field 19 the start time in clock ticks since boot.
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
        # A /proc mounted with hidepid does not show other accounts' processes.
        return "" if _exists(pid) else None
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
    """Return what `is_running` needs to identify a running process, "" if that is unknown."""
    where, start = namespace(), started(pid)
    return f"{where}/{start}" if where and start else ""


def same_namespace(recorded: str) -> bool:
    """Return whether this `identity` was recorded in this PID namespace of this machine."""
    where = namespace()
    return bool(where) and recorded.rpartition("/")[0] == where


def is_running(pid: int, recorded: str) -> bool | None:
    """Return whether the process with this pid and `identity` is still running.

    Returns:
        None if that is unknown: it belongs to another machine, boot or PID namespace. A rebooted
            machine has another boot id.
    """
    if not same_namespace(recorded):
        return None
    start = started(pid)
    return None if start == "" else start == recorded.rpartition("/")[2]
