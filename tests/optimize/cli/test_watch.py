"""`sweepd watch`: what it shows, and when it ends."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from optuna.trial import TrialState
from typer.testing import CliRunner

from sweepd.envs.support.errors import InputError, RunError
from sweepd.optimize.cli import watch
from sweepd.optimize.cli.hooks import Hooks
from sweepd.optimize.cli.progress import StudyWatch
from tests.deploy.dashboard.studies import STATES, filled_study
from tests.optimize.conftest import search_app


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read-only: all tests share it."""
    made = tmp_path_factory.mktemp("watched")
    filled_study(made, 12, "older")
    filled_study(made, 13, "s", states=(*STATES, TrialState.RUNNING))
    return made


def printed(folder: Path, *words: str) -> str:
    app = search_app()
    done = CliRunner().invoke(app, ["watch", *words, "--runs-dir", str(folder)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0
    return done.output


def test_output_that_is_no_terminal_is_printed_once(folder: Path) -> None:
    text = printed(folder)
    assert "study s" in text, "the newest one"
    assert "11 of 13 done" in text
    assert "objective: • each trial, ─ best so far" in text
    assert re.search(r"running: trial \d+ \+\d", text)
    assert "worker" in text
    assert re.search("[⠁-⣿]{5}", text), "curves"
    assert "\x1b" not in text
    assert "study older" in printed(folder, "older", "--once")


def test_json_has_the_history(folder: Path) -> None:
    found = json.loads(printed(folder, "s", "--json"))
    assert found["study"] == "s"
    assert {"rates", "values", "running"} == set(found["history"])
    assert [len(one["rungs"]) for one in found["history"]["running"]] == [1, 1]


def test_wrong_names_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="study 'none'"):
        printed(folder, "none")
    with pytest.raises(InputError, match="does not exist"):
        printed(tmp_path)


def test_a_terminal_is_updated_until_ctrl_c(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A database that does not answer for a while is named, and tried again."""
    seen = 0

    def sleep(_: float) -> None:
        nonlocal seen
        seen += 1
        if seen == 4:
            raise KeyboardInterrupt

    real = StudyWatch.progress

    def progress(self: StudyWatch, name: str) -> dict[str, object]:
        if seen == 2:
            raise RunError("--storage cannot be read now")
        return real(self, name)

    monkeypatch.setattr(watch.time, "sleep", sleep)
    monkeypatch.setattr(StudyWatch, "progress", progress)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    watch.watch_study("s", None, folder, once=False, as_json=False, hooks=Hooks())
    assert seen == 4
    text = capsys.readouterr().out
    assert text.count("Ctrl-C ends it") == 3
    assert text.count("cannot be read now") == 1
