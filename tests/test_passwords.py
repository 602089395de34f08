"""No secret is stored, logged, printed, shown on a page or passed to a child as an argument."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

import sweepd.app
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.crypto.data.demo_market import make_planted_market
from sweepd.envs.support.database_url import (
    has_password,
    hide_password,
    remove_password,
    without_passwords,
)
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.logs import LogConsole
from sweepd.optimize.cli import launch
from sweepd.optimize.cli.progress import StudyWatch
from sweepd.optimize.worker import stopping
from sweepd.optimize.worker.stopping import Life
from tests.entry_point import run_sweepd
from tests.optimize.conftest import SPACE, TRAIN, search_app

SECRET = "hunter2"
ENVIRONMENT = {
    "APCA_API_KEY_ID": f"key-{SECRET}",
    "APCA_API_SECRET_KEY": f"secret-{SECRET}",
    "SWEEPD_NOTIFY": f"json://user:{SECRET}@127.0.0.1:9/",
}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"postgresql://u:{SECRET}@h/d", "postgresql://u:***@h/d"),
        (
            f"postgresql+psycopg://u:{SECRET}@h:5432/d?sslmode=require",
            "postgresql+psycopg://u:***@h:5432/d?sslmode=require",
        ),
        (f"postgresql://u:a@{SECRET}@h/d", "postgresql://u:***@h/d"),
        (f"postgresql://u:a/b?{SECRET}@h/d", "postgresql://u:***@h/d"),
        (f"postgresql://:{SECRET}@/d", "postgresql://:***@/d"),
        (f"postgresql://u@h/d?password={SECRET}&x=1", "postgresql://u@h/d?password=***&x=1"),
        (
            f"--storage postgresql://u:{SECRET}@h/d is away (no)",
            "--storage postgresql://u:***@h/d is away (no)",
        ),
        ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
        ("sqlite:////tmp/a:b@c/s.db", "sqlite:////tmp/a:b@c/s.db"),
        ("runs/sweepd.db", "runs/sweepd.db"),
    ],
)
def test_passwords_of_urls_are_hidden(text: str, shown: str) -> None:
    assert hide_password(text) == shown
    assert has_password(text) == (SECRET in text)
    assert not has_password(shown)


def test_a_url_is_printed_to_be_copied_without_its_password() -> None:
    url = f"postgresql+psycopg://u:{SECRET}@h/d?password={SECRET}&sslmode=require"
    assert remove_password(url) == "postgresql+psycopg://u@h/d?sslmode=require"
    assert remove_password("sqlite:////tmp/s.db") == "sqlite:////tmp/s.db"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@127.0.0.1:9/d",
        f"postgresql://u:{SECRET}@h:port/d",
        f"postgresql://u:x@{SECRET}@h/d",
        f"postgresql+nothing://u:{SECRET}@h/d",
        f"mysql://u:{SECRET}@h/d",
        f"postgres://u:{SECRET}@h/d",
        f"postgresql//u:{SECRET}@h/d",
        f"u:{SECRET}@h/d",
        f"postgresql://u@127.0.0.1:9/d?password={SECRET}",
        f"postgresql://u:{SECRET}@127.0.0.1:9/d?nonsense=1",
    ],
)
def test_what_is_wrong_with_a_storage_is_said_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["status"], ["promote"], ["watch"]):
        monkeypatch.setattr(sys, "argv", ["sweepd", *words, "--storage", url])
        with pytest.raises(SystemExit) as ended:
            sweepd.app.main()
        assert ended.value.code in (2, 75)
    said = capsys.readouterr()
    assert said.err.count("error:") == 3
    assert SECRET not in said.out + said.err
    assert list(tmp_path.rglob(f"*{SECRET}*")) == []


def test_child_processes_get_a_password_through_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The workers of --gpu all, a worker that starts itself again, and the promotion step."""
    url = f"postgresql://u:{SECRET}@h/d"
    assert without_passwords(["train", "--storage", "a.db", "--seed", "1"]) == (
        ["train", "--storage", "a.db", "--seed", "1"],
        {},
    )
    assert (
        without_passwords(["train", f"--storage={url}", "--storage", "a.db"])[1] == {}
    )  # the last one counts
    started: list[tuple[list[str], dict[str, str]]] = []

    class Ended:
        pid = returncode = 0

        def __init__(self, command: list[str], *, env: dict[str, str], **_: Any) -> None:
            started.append((command, env))

        def poll(self) -> int:
            return 0

    monkeypatch.setattr(launch.subprocess, "Popen", Ended)
    launch.run_on_all(["train", "--storage", url, "--seed", "1"], [["--gpu", "0"], ["--gpu", "1"]])
    launch.run_on_all(["train", f"--storage={url}", "--seed", "1"], [["--gpu", "0"]])
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setattr(
            sys, "orig_argv", ["python", "-m", "sweepd", "train", "--storage", url, "--seed", "1"]
        )
        patch.setattr(stopping.os, "environ", dict(os.environ))
        patch.setattr(stopping.signal, "pthread_sigmask", lambda *_: None)
        patch.setattr(
            stopping.os, "execv", lambda _, words: started.append((words, dict(os.environ)))
        )
        stopping.restart(Life())
    for command, environment in started:
        assert SECRET not in " ".join(command)
        assert command[command.index("--seed") + 1] == "1"
        assert environment["SWEEPD_STORAGE"] == url
    assert len(started) == 4


def test_a_log_file_hides_passwords(tmp_path: Path) -> None:
    for form in ("plain", "json"):
        console = LogConsole(tmp_path / form, form)
        console.print(f"cannot reach postgresql://u:{SECRET}@h/d")
        try:
            raise RunError(f"postgresql://u:{SECRET}@h/d is away")
        except RunError as error:
            console.failed(error, expected=False)
        text = (tmp_path / form).read_text()
        assert SECRET not in text
        assert text.count("u:***@h/d") >= 2


def test_a_service_takes_no_password_and_says_where_to_put_the_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    install = [
        "service",
        "install",
        "worker",
        "--dry-run",
        "--study-name",
        "s",
        "--data-dir",
        "bars",
        "--storage",
    ]
    for url in (
        f"postgresql://u:{SECRET}@h/d",
        f"postgresql://u:a/{SECRET}@h/d",
        f"postgresql://u@h/d?password={SECRET}",
    ):
        refused = CliRunner().invoke(search_app(), [*install, url])
        assert isinstance(refused.exception, InputError)
        assert "PGPASSWORD" in str(refused.exception)
        assert SECRET not in str(refused.exception) + refused.output
    monkeypatch.setenv("SWEEPD_STORAGE", f"postgresql://u:{SECRET}@h/d")
    monkeypatch.setattr("sweepd.optimize.cli.service_commands.install", lambda _: None)
    done = CliRunner().invoke(
        search_app(), [w for w in install if w not in ("--dry-run", "--storage")]
    )
    assert "does not see this shell's SWEEPD_STORAGE" in done.output
    assert SECRET not in done.output


def _pages(url: str, output: Path) -> None:
    """What a browser sees of the training."""
    from werkzeug.test import Client

    client = Client(StudyWatch(None, url, Path("runs")).application())
    addresses = ("/dashboard", "/api/studies", "/api/studies/1", "/api/meta")
    pages = [
        client.get(address, follow_redirects=True).get_data(as_text=True) for address in addresses
    ]
    output.write_text("".join(pages))


def _tables(url: str) -> dict[str, bytes]:
    """All rows of a database, by table."""
    database, tables, found = sa.create_engine(url), sa.MetaData(), {}
    tables.reflect(database)
    with database.connect() as connection:
        for table in tables.tables.values():
            found[table.name] = repr(connection.execute(sa.select(table)).all()).encode()
    database.dispose()
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("warmed_up")
def test_no_secret_is_anywhere_after_a_study_and_its_promotion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgresql_database: str
) -> None:
    """Searches the database, all files and all output.

    The password is given as an argument first, later by SWEEPD_STORAGE.
    """
    pytest.importorskip("optuna_dashboard")
    url = (
        sa.make_url(postgresql_database).set(password=SECRET).render_as_string(hide_password=False)
    )
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    write_bars(make_planted_market(3, assets=2, bars=700), Path("bars"))
    Path("tiny.toml").write_text(SPACE)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    train = [
        "train",
        *TRAIN,
        "--trials-per-batch",
        "1",
        "--no-auto-deploy",
        "--log-file",
        "logs/worker.log",
    ]

    def run(*words: str, code: int = 0) -> str:
        return run_sweepd(words, tmp_path / "output", code)

    said = run(*train, "--n-trials", "1", "--storage", url)
    assert "can read the password in --storage" in said
    assert [name for name, content in _tables(url).items() if SECRET.encode() in content] == []
    monkeypatch.setenv("SWEEPD_STORAGE", url)
    said = run(*train, "--n-trials", "2", "--log-format", "json")
    assert "can read the password" not in said
    run("status", "--json")
    run("promote", "--study-name", "s")
    run("watch", "--json")
    run("promote", "--study-name", "none", code=2)
    run("trade", "none", "--broker", "alpaca", code=2)
    pages = multiprocessing.get_context("fork").Process(
        target=_pages, args=(url, tmp_path / "pages")
    )
    pages.start()
    pages.join(120)
    found = {
        "output": (tmp_path / "output").read_bytes(),
        "pages": (tmp_path / "pages").read_bytes(),
    }
    found |= {str(path): path.read_bytes() for path in work.rglob("*") if path.is_file()}
    found |= _tables(url)
    assert len(found["pages"]) > 1000
    assert {"study_user_attributes", "sweepd_workers", "logs/worker.log"} <= {
        name.removeprefix(f"{work}/") for name in found
    }
    assert [name for name, content in found.items() if SECRET.encode() in content] == []
