"""What a benchmark says about the machine it ran on."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from envs.core.sizing import cpu_count


def processor() -> str:
    """The processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Processor, cores, threads, versions and the present load; with the graphics card where `device` is one."""
    found: dict[str, Any] = {
        "processor": processor(),
        "cores": cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }
    if torch.device(device).type == "cuda":
        found["gpu"] = torch.cuda.get_device_name(device)
    return found


def machine_line(found: dict[str, Any]) -> str:
    """The same on one line."""
    return ", ".join(f"{name} {value}" for name, value in found.items())
