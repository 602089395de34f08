"""What a worker leaves for programs to read: log files, JSON lines, and figures for Prometheus."""

from __future__ import annotations

import ast
import json
import logging
import re
import signal
import socket
import sys
import time
import urllib.request
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from rich.console import Console

from sweepd.envs.support import logs
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.logs import LIBRARIES, LogConsole, say_line
from sweepd.optimize.cli.launch import own_arguments
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.recovery.heartbeat import Heartbeat
from sweepd.optimize.study.recovery.registration import GpuUse
from sweepd.optimize.worker.prometheus import serving_metrics
from sweepd.optimize.worker.telemetry import Telemetry
from tests.optimize.conftest import Sweepd
from tests.optimize.study_files import training_begun, wait_for
from tests.test_architecture import ROOT, SOURCES, calls_in

ENDLESS = ("--budget", 200_000, "--pruner", "none")


@pytest.fixture(autouse=True)
def _library_loggers() -> Iterator[None]:
    """Remove the handlers that a console has installed."""
    before = {name: list(logging.getLogger(name).handlers) for name in LIBRARIES}
    yield
    logging.captureWarnings(False)
    for name, handlers in before.items():
        logging.getLogger(name).handlers = handlers


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# -- logs


def test_a_worker_writes_json_to_the_screen_and_a_file(market: Path, sweepd: Sweepd) -> None:
    out = sweepd(
        "train",
        "--n-trials",
        1,
        "--trials-per-batch",
        1,
        "--log-format",
        "json",
        "--log-file",
        "logs/w.log",
    ).finish()
    shown, kept = _lines(out), _lines((market / "logs" / "w.log").read_text())
    assert [entry["message"] for entry in shown] == [entry["message"] for entry in kept]
    for entry in shown:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", entry["time"])
        assert entry["level"] == "info"
    said = " ".join(entry["message"] for entry in shown)
    for piece in (
        "Using Vectorized Environments",
        "training trial 0",
        "trial 0 complete",
        "best trial: 0",
    ):
        assert piece in said
    events = {entry.get("event"): entry for entry in shown}
    assert {"worker.started", "batch.started", "trial.complete"} <= set(events)
    assert set(filter(None, events)) <= documented_events()
    assert events["trial.complete"]["study"] == "s"
    assert events["trial.complete"]["trial"] == 0
    assert events["batch.started"]["trials"] == [0]
    flags = ("--log-file", "logs/w.log", "--log-format", "json", "--budget", 193)
    refused = sweepd("train", "--n-trials", 1, *flags).finish(2)
    last = _lines((market / "logs" / "w.log").read_text())[-1]
    assert "budget" in refused
    assert "budget = 192" in last["message"]
    assert (last["event"], last["error"]) == ("error", "InputError")
    assert "traceback" not in last


def test_the_names_of_events_are_those_of_the_docs() -> None:
    used = {"note", "error"}  # the default, and that of `LogConsole.failed`
    for path in (*SOURCES,):
        for call in calls_in(path):
            name = ast.unparse(call.func)
            if name.endswith("telemetry.say") or name in ("say", "Ending"):
                own = [
                    *(call.args[3:4] if name == "Ending" else call.args[1:2]),
                    *(word.value for word in call.keywords if word.arg == "event"),
                ]
                used |= {
                    word.value
                    for node in own
                    for word in ast.walk(node)
                    if isinstance(word, ast.Constant) and isinstance(word.value, str)
                }
    used |= {"progress", "trial.failed", "trial.requeued"}
    assert used == documented_events()


def documented_events() -> set[str]:
    """Return the names in the first column of the table of events."""
    text = (ROOT / "docs" / "reference" / "logs.md").read_text()
    table = text.partition("| `event` |")[2].partition("\n\n")[0]
    return {
        name
        for line in table.splitlines()[2:]
        for name in re.findall("`(.*?)`", line.split("|")[1])
    }


def test_plain_lines_are_copied_to_the_file_with_their_time(market: Path, sweepd: Sweepd) -> None:
    out = sweepd("train", "--n-trials", 1, "--trials-per-batch", 1, "--log-file", "w.log").finish()
    without = sweepd("train", "--n-trials", 2, "--trials-per-batch", 1).finish()
    kept = (market / "w.log").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in kept)
    assert sum("training trial 0" in line for line in kept) == 1
    assert any("best trial: 0" in line for line in kept)
    undated = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ")
    for text in (out, without):  # the same lines bear a date as ever
        assert undated.match(next(line for line in text.splitlines() if "Using Vectorized" in line))
        assert not undated.match(next(line for line in text.splitlines() if "best trial" in line))


def test_a_full_log_file_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_BYTES", 2000)
    console = LogConsole(tmp_path / "deep" / "w.log")
    for index in range(500):
        say_line(console, f"line {index} [not markup]")
    files = sorted(p.name for p in (tmp_path / "deep").iterdir())
    assert files == ["w.log", *(f"w.log.{i}" for i in range(1, 6))]
    assert all(p.stat().st_size <= 2000 for p in (tmp_path / "deep").iterdir())
    assert (tmp_path / "deep" / "w.log").read_text().endswith("line 499 [not markup]\n")


def test_errors_and_warnings_of_libraries_are_logged(tmp_path: Path) -> None:
    console = LogConsole(tmp_path / "w.log", "json")
    warnings.warn("a library's warning", stacklevel=1)
    try:
        raise ValueError("unforeseen")
    except ValueError as error:
        console.failed(error, expected=False)
    console.failed(InputError("foreseen"), expected=True)
    first, second, third = _lines((tmp_path / "w.log").read_text())
    assert "a library's warning" in first["message"]
    assert (second["level"], second["message"]) == ("error", "unforeseen")
    assert "ValueError" in second["traceback"]
    assert "traceback" not in third


def test_the_live_panel_is_not_written_to_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    console = LogConsole(tmp_path / "w.log")
    assert console.is_terminal
    telemetry = Telemetry(console, "s", torch.device("cpu"))
    telemetry.total = 4
    with telemetry:
        telemetry.steps(10)
        telemetry.say("a line")
        time.sleep(0.6)
    [line] = (tmp_path / "w.log").read_text().splitlines()
    assert line.endswith(" a line")


def test_wrong_logs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match="--log-format 'xml' is not known; choose one of plain, json"
    ):
        LogConsole(None, "xml")
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "w.log"):
        with pytest.raises(InputError, match=r"--log-file .* cannot be written"):
            LogConsole(path)


def test_workers_on_several_gpus_have_separate_files_and_ports() -> None:
    assert own_arguments(1, Path("logs/w.log"), 9100, 2) == [
        "--gpu",
        "1",
        "--alongside",
        "--max-memory",
        "2.000",
        "--log-file",
        "logs/w-gpu1.log",
        "--metrics-port",
        "9101",
    ]
    assert own_arguments(0, None, None, 0.0) == [
        "--gpu",
        "0",
        "--alongside",
        "--max-memory",
        "0.000",
    ]


# -- metrics


def _scrape(port: int) -> dict[str, float]:
    parser = pytest.importorskip(
        "prometheus_client.parser", reason="prometheus_client is not installed"
    )
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        sample.name
        + (f"{{{sample.labels['state']}}}" if "state" in sample.labels else ""): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_worker_is_scraped_while_it_trains_and_on_the_loopback_only(
    market: Path, sweepd: Sweepd
) -> None:
    worker = sweepd("train", "--n-trials", 3, *ENDLESS, "--metrics-port", 0)
    wait_for(lambda: training_begun(market))
    found = re.search(r"metrics on http://127.0.0.1:(\d+)/metrics", worker.output.read_text())
    assert found
    port = int(found[1])
    wait_for(lambda: _scrape(port)["sweepd_steps_per_second"] > 0)
    seen = _scrape(port)
    assert {k: v for k, v in seen.items() if k.startswith("sweepd_trials{")} == {
        "sweepd_trials{waiting}": 0,
        "sweepd_trials{running}": 3,
        "sweepd_trials{complete}": 0,
        "sweepd_trials{pruned}": 0,
        "sweepd_trials{fail}": 0,
    }
    assert seen["sweepd_trials_wanted"] == 3
    assert seen["sweepd_worker_state{training}"] == 1
    assert 0 <= seen["sweepd_heartbeat_age_seconds"] < 30
    assert seen["sweepd_storage_retries_total"] == seen["sweepd_recycled_total"] == 0
    assert (
        abs(
            seen["process_resident_memory_bytes"]
            / psutil.Process(worker.process.pid).memory_info().rss
            - 1
        )
        < 0.3
    )
    assert _scrape(port)["sweepd_steps_total"] >= seen["sweepd_steps_total"] > 0
    listening = {
        c.laddr.ip
        for c in psutil.Process(worker.process.pid).net_connections()
        if c.status == psutil.CONN_LISTEN
    }
    assert listening == {"127.0.0.1"}
    taken = sweepd(
        "train", "--n-trials", 3, *ENDLESS, "--alongside", "--metrics-port", port
    ).finish(2)
    assert f"--metrics-port {port} on 127.0.0.1 cannot be used" in taken
    worker.signal(signal.SIGTERM)
    worker.finish()


def test_metrics_include_the_gpu_and_the_retries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prometheus_client", reason="prometheus_client is not installed")
    storage = open_storage(storage_url(str(tmp_path / "s.db"), tmp_path))
    storage.patience.retries = 4
    telemetry = Telemetry(Console(file=(tmp_path / "out").open("w")), "s", torch.device("cpu"))
    use = GpuUse(0.83, 3 * 2**30, 139 * 2**30, 310.0)
    monkeypatch.setattr(telemetry, "gpu", lambda: use)
    heartbeat = Heartbeat(storage, "w")
    heartbeat.beaten -= 100.0
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with serving_metrics(port, telemetry, heartbeat):
        seen = _scrape(port)
        use = GpuUse(None, 3 * 2**30, 139 * 2**30)
        unmeasured = {"sweepd_gpu_utilization_ratio", "sweepd_gpu_power_watts"}
        assert seen.keys() - _scrape(port).keys() == unmeasured
    assert (seen["sweepd_gpu_utilization_ratio"], seen["sweepd_gpu_power_watts"]) == (0.83, 310.0)
    assert (seen["sweepd_gpu_memory_used_bytes"], seen["sweepd_gpu_memory_total_bytes"]) == (
        3 * 2**30,
        139 * 2**30,
    )
    assert seen["sweepd_storage_retries_total"] == 4
    assert 100 <= seen["sweepd_heartbeat_age_seconds"] < 110
    with pytest.raises(OSError, match="refused"):
        _scrape(port)


def test_the_error_names_the_missing_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    storage = open_storage(storage_url(str(tmp_path / "s.db"), tmp_path))
    telemetry = Telemetry(Console(), "s", torch.device("cpu"))
    with (
        pytest.raises(InputError, match=r"-m pip install 'sweepd\[metrics\]'"),
        serving_metrics(9100, telemetry, Heartbeat(storage, "w")),
    ):
        pass
