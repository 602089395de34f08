"""Use, memory and power of GPUs, with stand-ins for the libraries of NVIDIA and AMD."""

from __future__ import annotations

import sys
import threading
import types
from typing import Any

import pytest
import torch

from sweepd.optimize.study.recovery.registration import GpuUse
from sweepd.optimize.worker.gpu_meter import GpuMeter

GIB = 2**30
CARD = torch.device("cuda:0")


class NvmlError(Exception):
    pass


class AmdError(Exception):
    pass


def nvml(**changes: Any) -> types.ModuleType:
    """Return a stand-in for `pynvml`, the module of nvidia-ml-py."""
    module: Any = types.ModuleType("pynvml")
    module.NVMLError = NvmlError
    module.nvmlInit = lambda: None
    module.nvmlDeviceGetHandleByUUID = {"GPU-abc": "handle"}.__getitem__
    module.nvmlDeviceGetMemoryInfo = lambda _: types.SimpleNamespace(used=3 * GIB, total=80 * GIB)
    module.nvmlDeviceGetUtilizationRates = lambda _: types.SimpleNamespace(gpu=42, memory=7)
    module.nvmlDeviceGetPowerUsage = lambda _: 310_500  # milliwatts
    vars(module).update(changes)
    return module


def amd(power: dict[str, Any], activity: Any = 55, **changes: Any) -> types.ModuleType:
    """Return a stand-in for `amdsmi`: its units, and "N/A" for what a card does not have."""
    module: Any = types.ModuleType("amdsmi")
    module.AmdSmiException = AmdError
    module.amdsmi_init = lambda: None
    module.amdsmi_get_processor_handle_from_bdf = {"0001:c1:00.0": "handle"}.__getitem__
    module.amdsmi_get_gpu_vram_usage = lambda _: {"vram_total": 64 * 1024, "vram_used": 2 * 1024}
    module.amdsmi_get_gpu_activity = lambda _: {"gfx_activity": activity, "umc_activity": 3}
    module.amdsmi_get_power_info = lambda _: power
    vars(module).update(changes)
    return module


def fails(error: type[Exception]) -> Any:
    def call(*_: Any) -> Any:
        raise error

    return call


@pytest.fixture(autouse=True)
def _a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    card = types.SimpleNamespace(uuid="abc", pci_domain_id=1, pci_bus_id=0xC1, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (60 * GIB, 64 * GIB))
    monkeypatch.setattr(torch.version, "hip", None)


def read(
    monkeypatch: pytest.MonkeyPatch, module: types.ModuleType | None, name: str = "pynvml"
) -> GpuUse | None:
    monkeypatch.setitem(sys.modules, name, module)  # None: it cannot be imported
    if name == "amdsmi":
        monkeypatch.setattr(torch.version, "hip", "7.2")
    return GpuMeter(CARD).read()


def test_nvidia_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    found = read(monkeypatch, nvml())
    assert found == GpuUse(0.42, 3 * GIB, 80 * GIB, 310.5)
    assert str(found) == "42% · 3.0/80.0 GiB · 310 W"


def test_what_an_nvidia_card_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = fails(NvmlError)
    found = read(
        monkeypatch, nvml(nvmlDeviceGetUtilizationRates=refusing, nvmlDeviceGetPowerUsage=refusing)
    )
    assert found == GpuUse(None, 3 * GIB, 80 * GIB)
    assert str(found) == "3.0/80.0 GiB"


@pytest.mark.parametrize(
    ("power", "watts"),
    [
        ({"current_socket_power": 640, "average_socket_power": "N/A"}, 640),  # MI300
        ({"current_socket_power": "N/A", "average_socket_power": 210}, 210),  # MI200, Radeon
        ({"average_socket_power": 210}, 210),  # ROCm before 6
        ({"current_socket_power": 0xFFFFFFFF, "average_socket_power": "N/A"}, None),
    ],
)
def test_amd_cards(
    power: dict[str, Any], watts: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read(monkeypatch, amd(power), "amdsmi")
    assert found == GpuUse(0.55, 2 * GIB, 64 * GIB, watts)


def test_an_amd_card_in_a_virtual_machine_tells_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = amd({}, amdsmi_get_power_info=fails(AmdError), activity="N/A")
    assert read(monkeypatch, refusing, "amdsmi") == GpuUse(None, 2 * GIB, 64 * GIB)


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("pynvml", None),
        ("pynvml", nvml(nvmlInit=fails(NvmlError))),
        ("pynvml", nvml(nvmlDeviceGetMemoryInfo=fails(NvmlError))),
        ("amdsmi", None),
        ("amdsmi", amd({}, amdsmi_init=fails(AmdError))),
    ],
)
def test_without_a_library_the_memory_is_known(
    name: str, module: types.ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read(monkeypatch, module, name) == GpuUse(None, 4 * GIB, 64 * GIB)


def test_the_runtime_is_called_by_the_thread_that_trains_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call from another thread could spoil a graph that is being recorded."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    callers = []

    def free(_: Any) -> tuple[int, int]:
        callers.append(threading.get_ident())
        return 60 * GIB, 64 * GIB

    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    meter, found = GpuMeter(CARD), list[GpuUse | None]()
    other = threading.Thread(target=lambda: found.append(meter.read()))
    other.start()
    other.join()
    assert found == [meter.read()] == [GpuUse(None, 4 * GIB, 64 * GIB)]
    assert {*callers} == {threading.get_ident()}


def test_a_driver_that_stops_answering_and_a_cpu_have_no_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = nvml()
    monkeypatch.setitem(sys.modules, "pynvml", module)
    meter = GpuMeter(CARD)
    assert meter.read() is not None
    monkeypatch.setattr(module, "nvmlDeviceGetMemoryInfo", fails(NvmlError))
    assert meter.read() is None
    assert GpuMeter(torch.device("cpu")).read() is None
