"""`sweepd doctor --gpu`, with a CPU in place of the card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sweepd.agents.algorithms.identity import Finding
from sweepd.commands import with_first_gpu
from sweepd.envs.support.errors import InputError
from sweepd.optimize.cli import doctor


class Tried:
    def __init__(self, device: torch.device) -> None:
        assert device == torch.device("cuda:1")

    def findings(self) -> Iterator[Finding]:
        yield Finding("kernels: networks", True, "compiled")
        yield Finding("bits: sac", False, "other bits again")


def test_each_result_is_a_line_and_a_problem_is_counted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cuda: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 2,
        "set_device": lambda _: None,
        "get_device_name": lambda _: "a card",
    }
    for name, stand_in in cuda.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(doctor, "Trial", Tried)
    monkeypatch.setattr(doctor, "set_precision", lambda *_: None)
    monkeypatch.setattr(doctor, "why_not", lambda name, _: "" if name != "tf32" else "has none")
    assert doctor.accept_gpu("1") == 2
    lines = capsys.readouterr().out.splitlines()
    assert [line[:4] for line in lines] == ["ok  ", "fix ", "ok  ", "ok  ", "fix ", "ok  "]
    assert "GPU: a card, torch" in lines[0]
    assert lines[1].startswith("fix use: not known")
    assert lines[2] == "ok  precision: fp32, bf16"
    assert lines[4] == (
        "fix bits: sac: other bits again -> results are not reproducible on this card: "
        "report it with this line"
    )
    for wrong in ("2", "all", "cpu"):
        with pytest.raises(InputError, match=f"--gpu {wrong}: give the number of a GPU, 0 to 1"):
            doctor.accept_gpu(wrong)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="torch sees no GPU"):
        doctor.accept_gpu("0")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("", ""),
        ("--gpu", "--gpu=0"),
        ("--gpu 1", "--gpu 1"),
        ("--gpu=1", "--gpu=1"),
        ("--env cartpole --gpu --n-envs 4", "--env cartpole --gpu=0 --n-envs 4"),
    ],
)
def test_the_first_gpu_needs_no_number(given: str, read: str) -> None:
    assert with_first_gpu(given.split()) == read.split()
