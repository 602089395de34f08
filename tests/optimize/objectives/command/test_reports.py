"""Reports of programs: lines, files that grow, attempts."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from sweepd.optimize.objectives.command.reports import (
    Attempt,
    BadReport,
    Report,
    Tail,
    joined,
    parse_report,
    tail_text,
)


def test_a_report_has_a_step_a_value_and_further_numbers() -> None:
    line = b'{"step": 3, "value": 1, "loss": 0.5, "name": "x", "bad": NaN, "flag": true}'
    assert parse_report(line) == Report(3, 1.0, {"loss": 0.5})
    assert parse_report(b'{"step": 2.0, "value": -1e3}\r') == Report(2, -1000.0, {})


@pytest.mark.parametrize(
    "line", [b"epoch 3", b'the "value" is 3', b'{"step": 1}', b'["value"]', b'{"value": ', b""]
)
def test_other_lines_are_no_reports(line: bytes) -> None:
    assert parse_report(line) is None


def test_a_report_may_stand_between_the_parts_of_a_progress_bar() -> None:
    line = '\r 50%|███  | 5/10{"step": 5, "value": 2}\r 60%|███'.encode()
    assert parse_report(line) == Report(5, 2.0, {})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"step": 1, "value": "high"}, "reported value 'high' at step 1"),
        ({"step": 1, "value": None}, "reported value None"),
        ({"step": 1, "value": True}, "reported value True"),
        ({"step": 1, "value": float("nan")}, "reported value nan at step 1"),
        ({"step": 1, "value": float("inf")}, "reported value inf"),
        ({"value": 1}, "reported step None"),
        ({"step": -1, "value": 1}, "reported step -1"),
        ({"step": 1.5, "value": 1}, "reported step 1.5"),
        ({"step": "1", "value": 1}, "reported step '1'"),
    ],
)
def test_a_report_that_cannot_be_used_says_why(line: dict[str, object], message: str) -> None:
    with pytest.raises(BadReport, match=message):
        parse_report(json.dumps(line).encode())


def test_a_line_counts_once_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = Tail(path)
    assert tail.lines() == []
    with path.open("ab", buffering=0) as file:
        file.write(b"one\ntw")
        assert tail.lines() == [b"one"]
        file.write(b"o\nthree")
        assert tail.lines() == [b"two"]
    assert tail.lines(ended=True) == [b"three"]
    assert tail.lines(ended=True) == []


def test_steps_of_an_attempt_do_not_go_backwards(tmp_path: Path) -> None:
    path = tmp_path / "log"
    attempt = Attempt([path])
    path.write_text('{"step": 2, "value": 1}\n{"step": 2, "value": 2}\n')
    attempt.read()
    assert [report.value for report in attempt.reports] == [1.0, 2.0]
    path.write_text(path.read_text() + '{"step": 1, "value": 3}\n')
    with pytest.raises(BadReport, match="reported step 1 after step 2"):
        attempt.read()


def test_what_an_attempt_does_again_replaces_what_was_done_before() -> None:
    earlier = [Report(step, 0.0, {}) for step in (1, 2, 3)]
    again = [Report(step, 1.0, {}) for step in (2, 4)]
    assert [(r.step, r.value) for r in joined(earlier, again)] == [(1, 0.0), (2, 1.0), (4, 1.0)]
    assert joined(earlier, []) == earlier


def test_ten_thousand_reports_are_read_quickly(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("".join(f'{{"step": {n}, "value": {n / 2}}}\n' for n in range(10_000)))
    attempt, before = Attempt([path]), time.process_time()
    attempt.read()
    assert time.process_time() - before < 1.0
    assert len(attempt.reports) == 10_000


def test_the_end_of_a_log_is_one_short_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert tail_text(path) == ""
    path.write_text("first\n\n  second\nbar 10%\rbar 20%\nlast " + "x" * 1000)
    assert len(tail_text(path)) == 300
    path.write_text("first\nsecond\n\nthird\rfourth\n")
    assert tail_text(path) == "second / third / fourth"
