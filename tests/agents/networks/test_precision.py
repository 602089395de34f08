"""The precision of products is set where the device has it, and refused where it has not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from sweepd.agents.networks import precision
from sweepd.agents.networks.precision import set_precision
from sweepd.envs.support.errors import InputError

CPU, CARD = torch.device("cpu"), torch.device("cuda:0")


@pytest.fixture(autouse=True)
def _full_again() -> Iterator[None]:
    yield
    set_precision("fp32", CPU)


def test_each_precision_sets_torchs_matmul_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(precision, "has_bf16", lambda _: True)
    for name, device, setting in (
        ("bf16", CPU, "medium"),
        ("bf16", CARD, "medium"),
        ("fp32", CPU, "highest"),
        ("tf32", CARD, "high"),
        ("fp32", CARD, "highest"),
    ):
        set_precision(name, device)
        assert torch.get_float32_matmul_precision() == setting


def test_convolutions_and_recurrent_layers_use_the_precision_and_are_deterministic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """torch's default for cuDNN is TF32, with algorithms that may not be deterministic."""
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    cudnn, onednn = torch.backends.cudnn, torch.backends.mkldnn
    for name, device in (("fp32", CPU), ("tf32", CARD), ("fp32", CARD)):
        cudnn.deterministic, cudnn.benchmark = False, True
        set_precision(name, device)
        own = "tf32" if name == "tf32" else "ieee"
        assert (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision) == (own, own)
        assert (onednn.conv.fp32_precision, onednn.rnn.fp32_precision) == ("ieee", "ieee")
        assert cudnn.allow_tf32 == (name == "tf32")
        assert (cudnn.deterministic, cudnn.benchmark) == (True, False)


@pytest.mark.parametrize(
    ("name", "device", "capability", "hip", "message"),
    [
        (
            "fp64",
            CPU,
            (9, 0),
            None,
            "--precision 'fp64' is not known; choose one of fp32, tf32, bf16",
        ),
        ("tf32", CPU, (9, 0), None, "--precision tf32: cpu has no TF32"),
        ("tf32", CARD, (7, 5), None, "--precision tf32: cuda:0 has no TF32"),
        ("tf32", CARD, (9, 4), "7.2", "--precision tf32: cuda:0 has no TF32"),
        ("bf16", CPU, (9, 0), None, "--precision bf16: cpu has no bfloat16 products .* with AMX"),
        ("bf16", CARD, (7, 5), None, "--precision bf16: cuda:0 has no bfloat16 .* since 2020"),
        (
            "bf16",
            CARD,
            (9, 0),
            None,
            "--precision bf16: cuda:0 does not sum bfloat16 .* in float32",
        ),
        (
            "bf16",
            CARD,
            (9, 4),
            "7.2",
            "--precision bf16: cuda:0 does not sum bfloat16 .* in float32",
        ),
    ],
)
def test_unsupported_precisions_are_refused(
    name: str,
    device: torch.device,
    capability: tuple[int, int],
    hip: str | None,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": False})
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(precision, "has_bf16", lambda _: False)
    with pytest.raises(InputError, match=message):
        set_precision(name, device)
    assert torch.get_float32_matmul_precision() == "highest"
