"""The process of a trader: one per slot, which survives temporary errors."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sweepd.deploy.trading.live.runner as runner
from sweepd.deploy.trading.live.runner import ending_on_signals, keep_trading, only_one
from sweepd.deploy.trading.live.store import Replaced
from sweepd.envs.support.errors import InputError, RunError, TryAgainLater


class Sessions:
    """Make sessions that end with the listed exceptions, one after the other."""

    def __init__(self, *ends: Exception | None, polls: int = 0) -> None:
        self._ends, self.made, self._pulses = list(ends), 0, polls

    def __call__(self) -> Sessions:
        self.made += 1
        self.polls = self._pulses
        return self

    def run(self) -> None:
        """Raise the next exception, if any."""
        end = self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]
        if end is not None:
            raise end


def keep(sessions: Sessions, said: list[str]) -> None:
    make: Callable[[], runner.LiveSession] = sessions  # type: ignore[assignment]
    keep_trading(make, threading.Event(), said.append)


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PAUSES", (0.0, 0.01))


def test_temporary_errors_are_reported_and_survived() -> None:
    said: list[str] = []
    sessions = Sessions(
        RunError("the broker is away"), TryAgainLater("still"), InputError("no bars"), None
    )
    keep(sessions, said)
    assert sessions.made == 4
    assert said[0] == "the broker is away; retrying in 0 s"
    assert len(said) == 3


def test_a_bug_is_survived_and_noted_once_until_a_poll_succeeds() -> None:
    said: list[str] = []
    noted: list[str] = []
    ends = [
        RunError("away"),
        ZeroDivisionError("of what"),
        RunError("away"),
        ZeroDivisionError("of what"),
        None,
    ]
    make: Callable[[], runner.LiveSession] = Sessions(*ends)  # type: ignore[assignment]
    runner.keep_trading(make, threading.Event(), said.append, noted.append)
    assert noted == ["away", "ZeroDivisionError: of what"]
    assert any(text.startswith("Traceback") for text in said)
    assert said[-1].startswith("ZeroDivisionError: of what; retrying")

    def broken() -> runner.LiveSession:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):  # the first start fails visibly
        keep_trading(broken, threading.Event(), lambda _: None)


def test_persistent_errors_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PATIENCE", 0.05)
    with pytest.raises(TryAgainLater, match="the broker is away; trading has not been possible"):
        keep(Sessions(RunError("the broker is away")), [])


def test_a_successful_poll_resets_the_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PATIENCE", 0.05)
    ends = [RunError("away")] * 30
    keep(Sessions(*ends, None, polls=1), [])


def test_invalid_input_at_the_start_and_another_trader_end_the_process() -> None:
    def wrong() -> runner.LiveSession:
        raise InputError("no such slot")

    with pytest.raises(InputError):
        keep_trading(wrong, threading.Event(), lambda _: None)
    with pytest.raises(Replaced):
        keep(Sessions(Replaced("another one")), [])


def test_waits_are_short_after_a_request_to_stop_but_there_are_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "ASKED_TO_STOP", 0.05)
    stop = threading.Event()
    wait = runner.waits(stop)
    threading.Timer(0.1, stop.set).start()
    began = time.monotonic()
    wait(60.0)
    asked = time.monotonic()
    assert asked - began < 10.0
    wait(60.0)
    wait(0.01)
    assert 0.06 <= time.monotonic() - asked < 10.0


def _hold(folder: Path, ready: threading.Event) -> None:
    with only_one(folder, "crypto-1h"):
        ready.set()
        signal.pause()


def test_one_process_per_slot_holds_the_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    process = context.Process(target=_hold, args=(tmp_path, ready))
    process.start()
    assert ready.wait(30.0)
    with (
        pytest.raises(InputError, match="is being traded by another process"),
        only_one(tmp_path, "crypto-1h"),
    ):
        pass
    with only_one(tmp_path, "crypto-5m"):
        pass
    process.kill()
    process.join()
    with only_one(tmp_path, "crypto-1h"):
        pass


def _hold_and_fork(folder: Path, child: Any) -> None:
    with only_one(folder, "crypto-1h"):
        if (pid := os.fork()) == 0:
            signal.pause()
        child.send(pid)
        signal.pause()


def test_a_surviving_child_of_a_killed_trader_does_not_hold_the_lock(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold_and_fork, args=(tmp_path, theirs))
    process.start()
    assert ours.poll(30.0)
    child = ours.recv()
    try:
        with pytest.raises(InputError), only_one(tmp_path, "crypto-1h"):
            pass
        process.kill()
        process.join()
        with only_one(tmp_path, "crypto-1h"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_only_sets_the_stop_event(number: signal.Signals) -> None:
    stop, before = threading.Event(), signal.getsignal(number)
    with ending_on_signals(stop):
        os.kill(os.getpid(), number)
        assert stop.wait(5.0)
    assert signal.getsignal(number) is before
