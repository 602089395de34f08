"""Compiling and launching kernels for GPUs, without a GPU."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import cpp_extension

from sweepd.envs.native import gpu
from sweepd.envs.native.gpu import KernelSource
from tests.agents.two_cards import TwoCards

NAMES = ("one", "two")


@pytest.fixture
def source(tmp_path: Path) -> KernelSource:
    file = tmp_path / "kernels.cu"
    file.write_text("")
    return KernelSource("numbers", file, NAMES, lambda *_: True)


def test_no_toolkit_is_needed_to_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", None)
    with pytest.raises(OSError, match="CUDA_HOME"):
        cpp_extension.include_paths("cuda")
    with gpu._no_toolkit_needed():
        cpp_extension.include_paths("cuda")
    assert cpp_extension.CUDA_HOME is None


def test_without_the_compiler_torchs_operations_are_used(
    source: KernelSource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError("libnvrtc.so: cannot open shared object file")

    monkeypatch.setattr(torch.cuda, "_compile_kernel", fails)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    assert source.on(torch.device("cuda")) is None
    assert source.on(torch.device("cuda")) is None
    assert source.on(torch.device("cpu")) is None
    [record] = caplog.records  # once per process
    assert "no fused kernels of numbers on the GPU" in record.getMessage()
    assert "libnvrtc.so" in record.getMessage()


def test_kernels_that_fail_their_test_are_not_used(
    source: KernelSource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    TwoCards(monkeypatch, nullcontext, holds=1)
    wrong = KernelSource("numbers", source.file, NAMES, lambda *_: False)
    assert wrong.on(torch.device("cuda:1")) is None
    assert "they fail their test" in caplog.text


def test_kernels_are_launched_on_the_gpu_of_their_tensors(
    source: KernelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards = TwoCards(monkeypatch, nullcontext, holds=1)
    found = source.on(torch.device("cuda:1"))
    assert found is not None
    for name in NAMES:
        found.run(name, 1)
    assert cards.launches == [1] * len(NAMES)
    assert cards.current == 0
