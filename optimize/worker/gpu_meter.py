"""Reading how much a GPU is used: busy share, memory and power, as far as the machine tells them.

NVIDIA's library (NVML, package nvidia-ml-py) and AMD's (AMD SMI, package amdsmi) tell all three of
all processes together. Without them, the runtime of CUDA or HIP tells the memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

from sweepd.optimize.study.recovery.registration import GpuUse

Read = Callable[[], GpuUse]
_MIB = 2**20
_UNKNOWN = 0xFFFF  # from here on, AMD SMI's numbers mean "not supported" (all bits set)


class GpuMeter:
    """Reads the use of a CUDA or ROCm device.

    Args:
        device: a device of torch; of a CPU nothing is read.
    """

    def __init__(self, device: torch.device) -> None:
        self._read: Read | None = None
        if device.type != "cuda":
            return
        library = _nvml if torch.version.hip is None else _amd_smi
        # In this order; a driver or library that fails must not stop training.
        for open_meter in (library, _runtime):
            with suppress(Exception):
                self._read = open_meter(device)
                self._read()
                return
        self._read = None

    def read(self) -> GpuUse | None:
        """Return None without a GPU, or if the driver does not answer."""
        with suppress(Exception):
            return None if self._read is None else self._read()
        return None


def _nvml(device: torch.device) -> Read:
    """Return what reads an NVIDIA card."""
    import pynvml

    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")

    def read() -> GpuUse:
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        share = power = None
        # Cards that are divided (MIG) tell no share, and some models no power.
        with suppress(pynvml.NVMLError):
            share = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        with suppress(pynvml.NVMLError):
            power = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
        return GpuUse(share, int(memory.used), int(memory.total), power)

    return read


def _amd_smi(device: torch.device) -> Read:
    """Return what reads an AMD card."""
    import amdsmi

    amdsmi.amdsmi_init()
    card: Any = torch.cuda.get_device_properties(device)
    place = f"{card.pci_domain_id:04x}:{card.pci_bus_id:02x}:{card.pci_device_id:02x}.0"
    handle = amdsmi.amdsmi_get_processor_handle_from_bdf(place)

    def told(of: Callable[[Any], dict[str, Any]], *keys: str) -> float | None:
        """Return the first of these numbers that the card has; in a virtual machine, it has none."""
        with suppress(amdsmi.AmdSmiException):
            found = of(handle)
            known = (found.get(key) for key in keys)
            return next((v for v in known if isinstance(v, int) and v < _UNKNOWN), None)
        return None

    def read() -> GpuUse:
        memory = amdsmi.amdsmi_get_gpu_vram_usage(handle)  # in MiB
        share = told(amdsmi.amdsmi_get_gpu_activity, "gfx_activity")
        # In watts; cards since MI300 have the first one, others the second.
        power = told(amdsmi.amdsmi_get_power_info, "current_socket_power", "average_socket_power")
        return GpuUse(
            None if share is None else share / 100,
            memory["vram_used"] * _MIB,
            memory["vram_total"] * _MIB,
            power,
        )

    return read


def _runtime(device: torch.device) -> Read:
    """Return what reads the memory alone, from the runtime that torch uses."""
    trains = threading.get_ident()
    last = GpuUse(None, 0, 0)

    def read() -> GpuUse:
        nonlocal last
        # A call of the runtime from another thread could spoil a graph that is being recorded.
        if threading.get_ident() == trains:
            free, total = torch.cuda.mem_get_info(device)
            last = GpuUse(None, total - free, total)
        return last

    return read
