"""What the entry point makes of what goes wrong below it."""

from __future__ import annotations

import errno

import pytest

import sweepd
from envs.errors import InputError, RunError


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (InputError("--gpu 3: there is none"), 2, "--gpu 3: there is none"),
        (RunError("the market is gone"), 1, "the market is gone"),
        (OSError(errno.ENOSPC, "No space left on device", "runs/x"), 1, "no space left at runs/x; free some"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "no space left; free some"),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: int, says: str
) -> None:
    def app() -> None:
        raise error

    monkeypatch.setattr(sweepd, "build_app", lambda: app)
    with pytest.raises(SystemExit) as left:
        sweepd.main()
    assert left.value.code == code
    said = capsys.readouterr().err
    assert said.startswith("error:")
    assert says in said
    assert said.count("\n") == 1


def test_a_fault_of_our_own_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def app() -> None:
        raise OSError(errno.ENOENT, "No such file")

    monkeypatch.setattr(sweepd, "build_app", lambda: app)
    with pytest.raises(OSError, match="No such file"):
        sweepd.main()
