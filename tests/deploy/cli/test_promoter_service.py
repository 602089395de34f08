"""The promoter as a service of Type=notify."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from sweepd.commands import build_app
from tests.notify_listener import Listener
from tests.optimize.study_files import wait_for


def test_promoter_reports_ready_before_it_checks_its_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise systemd reports a protocol error instead of the exit code 2."""
    listener = Listener(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    app = build_app()
    CliRunner().invoke(app, ["promote", "--storage", str(tmp_path / "none.db")])
    wait_for(lambda: listener.heard("READY=1"), 5)
    listener.close()
