"""Actions of the dashboard: each is confirmed, runs the command of its name, and is recorded."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from optuna.trial import TrialState
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.cli.promote import PromotionTask
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.support.account import user_at_host
from sweepd.envs.support.errors import InputError, RunError
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.pause import pause_of, pause_study
from sweepd.optimize.study.record.keys import ACTIONS_KEY, PAUSE_KEY
from sweepd.optimize.study.study import StudyHandle
from tests.deploy.builders import FakeStudy, small_bundle
from tests.deploy.dashboard.studies import filled_study
from tests.deploy.dashboard.synthetic import bundles, write_session
from tests.deploy.dashboard.test_access import BY_HEADER, OWN, guarded, signed_in
from tests.deploy.dashboard.test_web import EVIL, HOST, Checked

pytest.importorskip("optuna_dashboard")
from werkzeug.test import Client, TestResponse

from sweepd.deploy.dashboard import jobs
from sweepd.deploy.dashboard.actions import Places, SlotActions, StudyActions
from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.optimize.cli.progress import StudyWatch

WHY = "the spread is too wide"


class Ran:
    """A process that runs the command within this one: a new interpreter takes a second."""

    def __init__(
        self, words: list[str], *, stdout: IO[bytes], env: Mapping[str, str], **_: object
    ) -> None:
        assert words[:3] == [sys.executable, "-m", "sweepd"]
        done = CliRunner().invoke(build_app(), words[3:], env=dict(env))
        stdout.write(done.output.encode())
        if isinstance(done.exception, InputError | RunError):
            stdout.write(f"error: {done.exception}".encode())
        elif done.exception and not isinstance(done.exception, SystemExit):
            raise done.exception
        stdout.flush()
        self.code = getattr(done.exception, "exit_code", done.exit_code)

    def wait(self) -> int:
        return int(self.code)


@dataclass
class Acting:
    """A folder with a slot, its challenger and a study, and a browser that may act on them."""

    folder: Path
    registry: Registry
    store: TraderStore
    study: StudyHandle
    challenger: str
    asked: Client

    def page(self, path: str) -> TestResponse:
        return self.asked.get(path, headers=HOST)

    def form(self, path: str) -> dict[str, str]:
        """The fields of the page that asks for confirmation, as a browser has them."""
        page = self.page(path)
        assert page.status_code == 200, page.text
        assert Checked(page.text)
        found = {
            name: value
            for name, value in re.findall(
                r'<input type="\w+" name="([^"]+)" value="([^"]*)"', page.text
            )
            if f'type="checkbox" name="{name}"' not in page.text
        }
        for name, options in re.findall(r'(?s)<select name="(\w+)">(.*?)</select>', page.text):
            found[name] = re.findall(r"<option selected>([^<]*)<", options)[0]
        return found

    def act(self, path: str, **changes: str) -> str:
        """Confirm an action. Returns the text of the page with its result."""
        answer = self.asked.post(
            path, data=self.form(path) | {"reason": WHY} | changes, headers=HOST | OWN
        )
        assert answer.status_code == 303, answer.text
        page = self.page(answer.headers["Location"])
        assert Checked(page.text)
        return page.text

    def log(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.study.storage.attributes(self.study.study_id)[
            ACTIONS_KEY
        ]
        return found


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with a slot and a challenger, and the database of a study; tests get a copy."""
    folder = tmp_path_factory.mktemp("template")
    registry, made = Registry(folder), bundles()[:3]
    registry.promote("s", made[2], expected=None, reason="first")
    registry.promote("s", made[0], expected=made[2].hash, reason="better")
    report = {"study": "fake", "trial": 0, "trials": [0]}
    registry.challenger("s", made[1], reason="no hold-out left", report=report)
    write_session(TraderStore(registry.database), "s", made[:1], bars=60)
    registry.database.engine.dispose()
    filled_study(folder, 4, "study").storage.engine.dispose()
    return folder


@pytest.fixture
def acting(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Acting]:
    monkeypatch.setattr(subprocess, "Popen", Ran)
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    (tmp_path / "sweepd.db").rename(tmp_path / "studies.db")
    registry = Registry(tmp_path)
    study = StudyHandle(open_storage(f"sqlite:///{tmp_path}/studies.db"), "study")
    search = StudyWatch(None, str(tmp_path / "studies.db"), tmp_path)
    [challenger] = registry.slot("s").challengers
    asked = signed_in(guarded(tmp_path, search=search))
    yield Acting(tmp_path, registry, TraderStore(registry.database), study, challenger, asked)
    registry.database.engine.dispose()
    study.storage.engine.dispose()


def test_halt_and_resume(acting: Acting) -> None:
    text = acting.page("/actions/slot/halt?slot=s").text
    assert "The trader sells all its positions" in text
    assert user_at_host() in text
    assert "sends no other orders" in acting.act("/actions/slot/halt?slot=s")
    trader = acting.store.trader("s")
    assert trader is not None
    assert trader.halt == f"{user_at_host()} in the dashboard: {WHY}"
    assert trader.halt_sells
    page = acting.page("/?slot=s").text
    assert WHY in page
    assert "/actions/slot/resume" in page
    assert "/actions/slot/halt" not in page
    assert "may trade again" in acting.act("/actions/slot/resume?slot=s", reason="calm again")
    trader = acting.store.trader("s")
    assert trader is not None
    assert trader.halt is None
    newest = acting.store.events("s", newest=1)[0]
    assert newest.kind == "resumed"
    assert newest.text.startswith(f"{user_at_host()} in the dashboard: calm again; it was halted: ")
    assert "is not halted" in acting.page("/actions/slot/resume?slot=s").text


def test_a_halt_may_keep_the_positions(acting: Acting) -> None:
    acting.act("/actions/slot/halt?slot=s", keep="yes", reason="")
    trader = acting.store.trader("s")
    assert trader is not None
    assert (trader.halt, trader.halt_sells) == (f"{user_at_host()} in the dashboard", False)


def test_rollback(acting: Acting) -> None:
    before = acting.registry.slot("s")
    acting.act("/actions/slot/rollback?slot=s")
    after = acting.registry.slot("s")
    assert (after.champion, after.previous) == (before.previous, before.champion)
    event = acting.registry.events("s")[-1]
    assert (event.kind, event.reason) == (
        "rolled-back",
        f"{user_at_host()} in the dashboard: {WHY}",
    )


def test_withdraw_a_challenger(acting: Acting) -> None:
    path = f"/actions/slot/withdraw?slot=s&bundle={acting.challenger}"
    assert path.replace("&", "&amp;") in acting.page("/?slot=s").text.replace(
        "&bundle", "&amp;bundle"
    )
    acting.act(path)
    assert acting.registry.slot("s").challengers == ()
    event = acting.registry.events("s")[-1]
    assert (event.kind, event.bundle) == ("withdrawn", acting.challenger)
    assert WHY in event.reason
    assert "is not a challenger" in acting.page(path).text


def test_pause_and_resume_a_study(acting: Acting) -> None:
    acting.study.study.set_user_attr("sweepd:total", 100)
    assert "/actions/study/pause" in acting.page("/training?study=study").text
    acting.act("/actions/study/pause?study=study")
    pause = pause_of(acting.study.storage.attributes(acting.study.study_id))
    assert pause is not None
    assert pause.by == user_at_host()
    page = acting.page("/training?study=study").text
    assert f"paused by {user_at_host()}, in the dashboard: {WHY}" in page
    assert "/actions/study/resume" in page
    assert "is paused already" in acting.page("/actions/study/pause?study=study").text
    acting.act("/actions/study/resume?study=study", reason="the GPU is free")
    assert PAUSE_KEY not in acting.study.storage.attributes(acting.study.study_id)
    assert [(one["what"], one["by"], one["why"]) for one in acting.log()] == [
        ("paused", user_at_host(), f"in the dashboard: {WHY}"),
        ("resumed", user_at_host(), "in the dashboard: the GPU is free"),
    ]


def test_enqueue_the_best_trial_with_changes(acting: Acting) -> None:
    best = acting.study.best_trial()
    assert best is not None
    form = acting.form("/actions/study/enqueue?study=study")
    assert {name: form[name] for name in best.params} == {
        name: str(value) for name, value in best.params.items()
    }
    acting.act("/actions/study/enqueue?study=study", clip="0.2", learning_rate="")
    (waiting,) = [one for one in acting.study.trials() if one.state == TrialState.WAITING]
    wanted = {**best.params, "clip": 0.2}
    del wanted["learning_rate"]
    assert waiting.system_attrs["fixed_params"] == wanted
    assert acting.log()[-1]["what"] == f"enqueued trial {waiting.number}"
    count = len(acting.study.trials())
    text = acting.act("/actions/study/enqueue?study=study", clip="7")
    assert "lies outside" in text
    assert "exit code 2" in text
    assert len(acting.study.trials()) == count


@pytest.fixture
def fake(acting: Acting) -> FakeStudy:
    """A study in the same storage whose trials do not pass."""
    made = FakeStudy(acting.folder)
    for value in (2.0, 1.0):
        made.add(value, made.contrarian())
    made.study.set_user_attr("sweepd:created", "2026-01-01T00:00:00Z")
    return made


def test_a_dry_run_shows_the_report_and_changes_no_slot(acting: Acting, fake: FakeStudy) -> None:
    assert fake.name == "fake"
    page = acting.page("/actions/study/dry-run?study=fake").text
    assert "cannot be undone" in page
    assert 'name="reason"' not in page, "nothing is recorded"
    before = len(acting.registry.events())
    text = acting.act("/actions/study/dry-run?study=fake", slot="s")
    assert "--dry-run" in text
    assert "Verdict" in text
    assert len(acting.registry.events()) == before


def test_promotion_of_a_challenger_is_judged_and_recorded(
    acting: Acting, fake: FakeStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PromotionTask, "publish", lambda *_: None)  # a PDF takes seconds
    assert fake.name == "fake"
    champion = acting.registry.slot("s").champion
    acting.act(f"/actions/slot/promote?slot=s&bundle={acting.challenger}")
    assert acting.registry.slot("s").champion == champion
    event = acting.registry.events("s")[-1]
    assert event.kind == "refused"
    assert event.reason.endswith(f"(asked for: {user_at_host()} in the dashboard: {WHY})")


def test_a_challenger_of_an_unknown_study_is_not_offered_to_the_gate(acting: Acting) -> None:
    page = acting.page(f"/actions/slot/promote?slot=s&bundle={acting.challenger}").text
    assert "has no study" in page
    assert "<form" not in page
    other = small_bundle(9)
    acting.registry.challenger("s", other, reason="by hand")
    assert (
        "does not say which trial"
        in acting.page(f"/actions/slot/promote?slot=s&bundle={other.hash}").text
    )
    report = {"study": "study", "trial": 0, "trials": [0, 3]}
    team = small_bundle(10)
    acting.registry.challenger("s", team, reason="by hand", report=report)
    assert "--ensemble 2" in acting.page(f"/actions/slot/promote?slot=s&bundle={team.hash}").text


def test_forms_without_their_secret_field_are_refused(acting: Acting) -> None:
    path = "/actions/slot/halt?slot=s"
    for token in ({}, {"form_token": ""}, {"form_token": "f" * 64}, {"form_token": "ü"}):
        answer = acting.asked.post(path, data=token, headers=HOST | OWN)
        assert answer.status_code == 403
        assert "This form is not one of this start" in answer.text
    trader = acting.store.trader("s")
    assert trader is not None
    assert trader.halt is None
    # A script proves itself with the token.
    answer = acting.asked.post(path, data={"reason": WHY}, headers=BY_HEADER)
    assert answer.status_code == 303
    trader = acting.store.trader("s")
    assert trader is not None
    assert trader.halt is not None


def tables(folder: Path) -> dict[str, list[str]]:
    """All rows of the databases of a folder."""
    found = {}
    for path in sorted(folder.glob("*.db")):
        with sqlite3.connect(path) as database:
            found[path.name] = list(database.iterdump())
        database.close()
    return found


def test_reading_changes_nothing(acting: Acting) -> None:
    """GET and HEAD of every page, with every subject."""
    where = RegistryFlags(acting.folder)
    paper, search = PaperSource(where), StudyWatch(None, str(acting.folder / "studies.db"), None)
    drafts = [*SlotActions(paper, search).table(), *StudyActions(search).table()]
    queries = ("", f"?slot=s&bundle={acting.challenger}&study=study")
    views = ("/", "/alerts", "/chart", "/orders", "/events", "/training", "/training/parameters")
    paths = [
        *views,
        "/actions",
        "/actions/result",
        *(f"/actions/{name}" for name in drafts),
        *("/dashboard/", "/api/studies", "/api/studies/1", "/api/meta"),
    ]
    before = tables(acting.folder)
    for path in paths:
        for query in queries:
            for method in ("GET", "HEAD"):
                answer = acting.asked.open(path + query, method=method, headers=HOST)
                assert answer.status_code < 500, path + query
        if path.startswith("/actions"):
            for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
                answer = acting.asked.open(path, method=method, headers=HOST | OWN)
                assert answer.status_code == 405
    assert tables(acting.folder) == before


def test_names_that_look_like_options_or_pages_do_no_harm(acting: Acting) -> None:
    """In the query, in the reason and in a field."""
    text = acting.page(f"/actions/slot/halt?slot={EVIL}").text
    assert "<script>alert" not in text
    assert "was never traded" in text
    acting.act("/actions/slot/halt?slot=s", reason=f"--keep\n{EVIL}")
    trader = acting.store.trader("s")
    assert trader is not None
    assert trader.halt == f"{user_at_host()} in the dashboard: --keep {EVIL}"
    assert trader.halt_sells
    for path in ("/?slot=s", "/actions", "/actions/result?number=1"):
        assert "<script>alert" not in acting.page(path).text
    text = acting.act("/actions/study/promote?study=study", slot="x", trial="0 --dry-run")
    assert "Invalid value" in text


def test_the_shown_command_is_the_one_that_runs(acting: Acting) -> None:
    text = acting.act("/actions/slot/halt?slot=s", keep="yes")
    shown = re.findall(r"Command: <code>([^<]*)</code>", text)[0]
    words = shlex.split(shown)
    assert words[1:] == ["trader", "halt", "--keep", f"--deployments={acting.folder}", "s"]
    done = CliRunner().invoke(build_app(), words[1:])
    assert done.exit_code == 0, done.output


def test_an_unknown_result_is_not_found(acting: Acting) -> None:
    for number in ("", "7", "x", "-1", "9" * 40):
        assert acting.page(f"/actions/result?number={number}").status_code == 404
    assert "has started no action yet" in acting.page("/actions").text
    acting.act("/actions/slot/halt?slot=s")
    assert "Halt s" in acting.page("/actions").text


@pytest.fixture
def started() -> jobs.Jobs:
    return jobs.Jobs()


def start(found: jobs.Jobs, *words: str, command: str = "") -> jobs.Job:
    told = {"title": "t", "by": "b", "why": "w", "back": "/"}
    return found.start(words, dict(os.environ), command=command or shlex.join(words), **told)


def test_a_command_outlives_the_wait_and_reports_its_end(
    started: jobs.Jobs, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(jobs, "WAIT", 0.05)
    go = tmp_path / "go"
    # Bounded, so that no process is left if the test fails.
    waits = (
        f"echo begun; for i in $(seq 600); do [ -e {go} ] && break; sleep 0.05; done; "
        "echo ended; exit 3"
    )
    job = start(started, "sh", "-c", waits)
    assert (job.state, job.ended) == ("running", None)
    with pytest.raises(InputError, match="still running, as action 1"):
        start(started, "sh", "-c", waits)
    others = [start(started, "sleep", "60", command=str(one)) for one in range(3)]
    with pytest.raises(InputError, match="4 actions are running"):
        start(started, "true")
    go.touch()
    until = time.monotonic() + 30.0
    while job.state == "running":
        assert time.monotonic() < until
        time.sleep(0.02)
    assert (job.state, job.code, job.text) == ("failed", 3, "begun\nended")
    for other in others:
        other.process.kill()
        other.process.wait()


def test_a_command_that_does_not_exist_is_refused(started: jobs.Jobs) -> None:
    with pytest.raises(InputError, match="cannot be started"):
        start(started, "/nowhere/sweepd")
    assert started.all() == []


def test_passwords_are_in_no_command_and_no_output(started: jobs.Jobs) -> None:
    url = "postgresql://user:hunter2@host/db"
    places = Places(RegistryFlags(Path("d"), url), url)
    draft = StudyActions(_Named()).promote({"study": "a"})  # type: ignore[arg-type]
    assert "hunter2" not in places.shown(draft, {})
    assert "hunter2" not in " ".join(places.started(draft, {}, []))
    assert places.environment()["SWEEPD_STORAGE"] == url
    assert start(started, "echo", url).text == "postgresql://user:***@host/db"


class _Named:
    def studies(self) -> list[str]:
        return ["a"]


@pytest.mark.slow
def test_halting_runs_the_real_command(tmp_path: Path) -> None:
    registry, made = Registry(tmp_path), bundles()[:1]
    registry.promote("s", made[0], expected=None, reason="first")
    store = TraderStore(registry.database)
    write_session(store, "s", made, bars=60)
    asked = guarded(tmp_path)
    answer = asked.post("/actions/slot/halt?slot=s", data={"reason": WHY}, headers=BY_HEADER)
    until = time.monotonic() + 60.0
    while "running" in (text := asked.get(answer.headers["Location"], headers=BY_HEADER).text):
        assert time.monotonic() < until
        time.sleep(0.2)
    assert "sells all its positions" in text
    trader = store.trader("s")
    assert trader is not None
    assert WHY in str(trader.halt)


def test_pausing_a_paused_study_adds_nothing_to_its_log(acting: Acting) -> None:
    for _ in range(2):
        pause_study(acting.study.storage, acting.study.study_id, "once")
    assert [one["why"] for one in acting.log()] == ["once"]
