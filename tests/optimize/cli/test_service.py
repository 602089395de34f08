"""Services: systemd units, messages to systemd, and hung workers that it ends."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from optuna.trial import TrialState
from typer.testing import CliRunner

from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.supervisor import Supervisor
from sweepd.optimize.cli import service
from sweepd.optimize.cli.service import make_units, quote
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.study.recovery.deaths import is_suspect
from sweepd.optimize.study.recovery.stale_trials import recover_stale
from tests.notify_listener import Listener
from tests.optimize.conftest import Sweepd, search_app
from tests.optimize.study_files import count, open_handle, wait_for

ENDLESS = ("--budget", 200_000, "--pruner", "none")


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    address = str(tmp_path / "notify")
    found = Listener(address)
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    monkeypatch.setenv("WATCHDOG_USEC", "800000")
    yield found
    found.close()


# -- messages


def test_worker_reports_ready_alive_and_stopping(listener: Listener, sweepd: Sweepd) -> None:
    worker = sweepd("train", "--n-trials", 2, *ENDLESS)
    wait_for(lambda: len(listener.heard("WATCHDOG=1")) >= 5)
    assert len(listener.heard("READY=1")) == 1
    assert listener.heard("READY=1")[0] <= listener.heard("WATCHDOG=1")[0]
    status = next(text for _, text in reversed(listener.messages) if "STATUS=trials 0/2" in text)
    assert "steps/s" in status
    sweepd("pause", "s").finish()
    before = len(listener.heard("WATCHDOG=1"))
    wait_for(lambda: len(listener.heard("WATCHDOG=1")) > before + 2)  # a waiting worker is not hung
    assert not listener.heard("STOPPING=1")
    worker.signal(signal.SIGTERM)
    worker.finish()
    wait_for(lambda: listener.heard("STOPPING=1"), 5)


@pytest.mark.usefixtures("frequent_beats")
def test_hung_worker_sends_no_watchdog_messages(
    listener: Listener, sweepd: Sweepd, market: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "advance", lambda *_: time.sleep(600))
    worker = sweepd("train", "--n-trials", 1, *ENDLESS)
    wait_for(lambda: "training trial" in worker.output.read_text())
    time.sleep(0.5)
    beats = "SELECT max(beat) * 1000 FROM sweepd_workers"
    signs, beat = len(listener.heard("WATCHDOG=1")), count(market, beats)
    time.sleep(1.2)  # three messages of a worker that is not hung
    assert len(listener.heard("WATCHDOG=1")) == signs
    assert count(market, beats) > beat + 500
    worker.signal(signal.SIGQUIT)  # what the watchdog sends
    worker.finish(-signal.SIGQUIT)
    [crash] = market.glob("runs/*/crashes/*.txt")
    assert "in _train_batch" in crash.read_text(), "the stacks say where it hung"
    handle = open_handle(market)
    for taken in recover_stale(handle.storage, handle.study_id, run_dir=handle.run_dir):
        assert taken.how.startswith("SIGQUIT ended its process")
        assert str(crash) in taken.how
    assert crash.exists()
    trials = handle.trials()
    assert {t.state for t in trials} == {TrialState.WAITING}
    assert not any(is_suspect(t.user_attrs) for t in trials)


def test_watchdog_is_extended_during_promotion(listener: Listener, sweepd: Sweepd) -> None:
    sweepd("train", "--n-trials", 1, "--trials-per-batch", 1).finish()
    wait_for(lambda: listener.heard("WATCHDOG_USEC=3600000000"), 5)
    assert not listener.heard("STOPPING=1")  # from then on systemd would count to TimeoutStopSec


def test_messages_are_rate_limited_and_need_a_supervisor(tmp_path: Path) -> None:
    asked: list[int] = []

    def status() -> str:
        asked.append(1)
        return "at work"

    for environment in ({}, {"NOTIFY_SOCKET": str(tmp_path / "gone")}, {"NOTIFY_SOCKET": "\0"}):
        lonely = Supervisor(environment)
        lonely.ready("x")
        lonely.stopping("x")
        lonely.expect_silence(10)
    absent = Supervisor({})
    absent.alive(status)
    assert not asked
    listener = Listener("\0" + str(tmp_path / "abstract"))
    environment = {"NOTIFY_SOCKET": "@" + str(tmp_path / "abstract"), "WATCHDOG_USEC": "40000000"}
    supervisor = Supervisor(environment)
    for _ in range(1000):
        supervisor.alive(status)
    wait_for(lambda: listener.heard("WATCHDOG=1"), 5)
    assert listener.messages[0][1] == "WATCHDOG=1\nSTATUS=at work"
    assert len(asked) == 1
    child = Supervisor({**environment, "WATCHDOG_PID": str(os.getpid() + 1)})
    child.alive(status)
    wait_for(lambda: len(listener.messages) == 2, 5)
    assert listener.messages[1][1] == "STATUS=at work"
    listener.close()


# -- units


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with a `systemctl` that records its arguments."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("systemctl", "loginctl"):
        tool = tools / name
        tool.write_text(
            f'#!/bin/sh\necho {name} "$@" >>{tmp_path}/asked\n'
            'case "$*" in *Linger*) echo Linger=no;; *property*) echo ActiveState=active; '
            "echo SubState=running; echo NRestarts=2; echo StatusText=trials 3/9;; esac\n"
        )
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


Invoke = Callable[..., str]


@pytest.fixture
def service_command(home: Path) -> Invoke:
    def run(*words: str) -> str:
        result = CliRunner().invoke(search_app(), ["service", *words], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert home
    return run


ALL = [
    ("worker", ["--study-name", "s", "--data-dir", 'a "b" $HOME %h \\ x', "--gpu", "0"]),
    ("promoter", ["--study-name", "s"]),
    ("trader", ["crypto-1h"]),
    ("loop", ["crypto-1h.toml"]),
]


def test_a_night_begins_at_a_time_of_the_utc_day(service_command: Invoke) -> None:
    printed = service_command("install", "loop", "crypto-1h.toml", "--at", "23:05", "--dry-run")
    assert "# sweepd-loop-crypto-1h.timer\n" in printed
    assert "\nOnCalendar=*-*-* 23:05:00 UTC\n" in printed
    assert "-m sweepd loop crypto-1h.toml\n" in printed
    printed = service_command("install", "loop", "a.toml", "--dry-run")
    assert "\nOnCalendar=*-*-* 01:30:00 UTC\n" in printed
    for words, why in (
        (("loop", "a.toml", "--at", "24:00"), "'24:00' is not a time of the day"),
        (("loop", "a.toml", "--at", "1:30"), "'1:30' is not a time of the day"),
        (("trader", "crypto-1h", "--at", "01:30"), "--at 01:30 is for loop"),
    ):
        found = CliRunner().invoke(search_app(), ["service", "install", *words, "--dry-run"])
        assert isinstance(found.exception, InputError)
        assert why in str(found.exception)


@pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze"
)
@pytest.mark.parametrize(("kind", "arguments"), ALL)
def test_systemd_accepts_the_units(tmp_path: Path, kind: str, arguments: list[str]) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    paths = []
    for unit in make_units(kind, "t-1", arguments, folder):
        paths.append(folder / unit.name)
        paths[-1].write_text(unit.text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", "--man=no", *map(str, paths)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)},
    )
    said = [line for line in done.stderr.splitlines() if "t-1" in line]
    assert not said
    assert done.returncode == 0, done.stderr


def test_content_of_a_unit() -> None:
    [unit] = make_units(
        "worker", "s", ["--study-name", "s", "--n-trials", "3"], Path("/a folder/100%")
    )
    assert unit.name == "sweepd-worker-s.service"
    lines = unit.text.splitlines()
    assert f"ExecStart={sys.executable} -P -m sweepd train --study-name s --n-trials 3" in lines
    for line in (
        "WorkingDirectory=/a folder/100%%",
        "Type=notify",
        "Restart=on-failure",
        "RestartPreventExitStatus=2",
        "StartLimitIntervalSec=0",
        "WatchdogSec=15min",
        "WatchdogSignal=SIGQUIT",
        "WantedBy=default.target",
    ):
        assert line in lines
    assert not any(
        "75" in line for line in lines if line.startswith(("SuccessExit", "RestartPrevent"))
    )
    assert [u.name for u in make_units("promoter", "s", [], Path("/"))] == [
        "sweepd-promoter-s.service",
        "sweepd-promoter-s.timer",
    ]
    [trader] = make_units("trader", "", ["crypto-1h"], Path("/"))
    assert trader.name == "sweepd-trader.service"
    assert f"ExecStart={sys.executable} -P -m sweepd trade crypto-1h" in trader.text.splitlines()


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("plain", "plain"),
        ("", '""'),
        ("two words", '"two words"'),
        ("100%", "100%%"),
        ("$HOME", "$$HOME"),
        ('say "x"', '"say \\"x\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("it's", '"it\'s"'),
        ("a;b", '"a;b"'),
    ],
)
def test_words_are_quoted_for_systemd(word: str, quoted: str) -> None:
    assert quote(word) == quoted


def test_install_show_and_uninstall(service_command: Invoke, home: Path) -> None:
    assert "no service" in service_command("show")
    words = ("install", "worker", "--study-name", "btc", "--gpu", "1", "--n-trials", "7")
    text = service_command(*words, "--dry-run")
    assert "# sweepd-worker-btc-gpu1.service" in text
    assert not (home / "asked").exists()
    assert not (home / "config").exists()
    out = service_command(*words)
    unit = home / "config" / "systemd" / "user" / "sweepd-worker-btc-gpu1.service"
    assert unit.read_text() == text.split("\n", 1)[1].removesuffix("\n")
    assert f"WorkingDirectory={home}\n" in unit.read_text()
    assert "loginctl enable-linger" in out
    asked = (home / "asked").read_text().splitlines()
    wanted = [
        "daemon-reload",
        "enable sweepd-worker-btc-gpu1.service",
        "restart sweepd-worker-btc-gpu1.service",
    ]
    assert [
        line.removeprefix("systemctl --user ") for line in asked if line.startswith("systemctl")
    ][1:] == wanted
    assert "active (running), restarted 2 times, trials 3/9" in service_command("show")
    assert service_command("show", "worker-btc-gpu1").endswith(unit.read_text() + "\n")
    service_command("uninstall", "sweepd-worker-btc-gpu1")
    assert not unit.exists()
    assert (
        "systemctl --user disable --now sweepd-worker-btc-gpu1.service"
        in (home / "asked").read_text()
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("install", "cook"), "'cook' is not a service; choose one of worker, promoter, trader"),
        (("install", "worker", "--gpu", "all"), "one service for each GPU"),
        (("install", "worker", "--storage", "postgresql://me:secret@host/db"), "PGPASSWORD"),
        (("install", "worker", "--study-name", "a\nb"), "line break"),
        (("uninstall", "none"), "no service is called 'none'"),
        (("show", "none"), "no service is called 'none'"),
    ],
)
def test_unfit_services_are_refused(home: Path, words: tuple[str, ...], message: str) -> None:
    result = CliRunner().invoke(search_app(), ["service", *words])
    assert isinstance(result.exception, InputError)
    assert message in str(result.exception)
    assert "secret" not in str(result.exception)
    assert not (home / "config").exists()


def test_wrong_flags_are_refused_before_anything_is_installed(home: Path) -> None:
    for words in (("--n-trials", "x"), ("--bogus",)):
        assert (
            CliRunner().invoke(search_app(), ["service", "install", "worker", *words]).exit_code
            == 2
        )
    assert not (home / "config").exists()


def test_missing_systemd_is_reported(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "bin" / "systemctl").write_text("#!/bin/sh\necho No medium found >&2\nexit 1\n")
    with pytest.raises(RunError, match="does not answer for this account \\(No medium found\\)"):
        service.install(make_units("worker", "", [], home))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(RunError, match="--dry-run"):
        service.install(make_units("worker", "", [], home))
    assert not (home / "config").exists()
