"""The dashboard's pages: content, escaping, security headers and the server."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import socket
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from optuna.artifacts import FileSystemArtifactStore, upload_artifact

import sweepd.app
from sweepd.commands import build_app
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.records import Changes
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.support.errors import InputError, RunError
from sweepd.hooks import CommandHooks
from tests.deploy.builders import small_bundle
from tests.deploy.dashboard.conftest import Made
from tests.deploy.dashboard.synthetic import bundles, write_session

pytest.importorskip("optuna_dashboard")
pytest.importorskip("plotly")
from werkzeug.test import Client, TestResponse
from werkzeug.wrappers import Response

from sweepd.deploy.dashboard.health import Health
from sweepd.deploy.dashboard.server import serve
from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.dashboard.web import Dashboard
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.optimize.cli.progress import StudyWatch
from sweepd.optimize.study.insight.comparison import summary
from sweepd.optimize.study.insight.curves import table_row
from sweepd.optimize.study.insight.parameters import frontier, parallel
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.rows import TrialRow
from sweepd.optimize.study.record.trials import TrialRecord

PATHS = (
    *("/", "/alerts", "/chart", "/trades", "/days", "/orders", "/events", "/parity", "/night"),
    "/training",
)
HOST = {"Host": "127.0.0.1:8080"}
EVIL = '</script><script>alert("x")</script>&\'"'


PAST = {
    "rates": [
        {"at": 1.7e9, "seconds": 60.0, "finished": 3, "per_hour": 180.0},
        {"at": 1.7e9 + 60.0, "seconds": 30.0, "finished": 1, "per_hour": 120.0},
    ],
    "values": [
        {"at": 1.7e9 + 20.0 * number, "trial": number, "value": value, "best": best}
        for number, (value, best) in enumerate(((0.1, 0.1), (0.5, 0.5), (0.2, 0.5), (0.9, 0.9)))
    ],
}


class NoStudies:
    """A machine without studies."""

    def __init__(self, problem: Exception | None = None) -> None:
        self.problem = problem or InputError(
            "--storage runs/sweepd.db does not exist; start one with sweepd train"
        )

    def studies(self) -> list[str]:
        raise self.problem

    progress = parameters = trials = trial = reader = compare = folder = studies

    def application(self) -> Any:
        raise self.problem


class OneStudy(NoStudies):
    """The progress of a study, as `sweepd.optimize.cli.progress` returns it."""

    def __init__(self, **changes: Any) -> None:
        worker = {
            "worker": "w",
            "host": "box",
            "pid": 7,
            "status": "alive",
            "state": "training",
            "beat_age": 3.0,
            "trials": [4, 5],
            "rung": 2,
            "device": "cuda:0",
            "steps_per_second": 1_200_000,
            "trials_per_hour": 40.0,
            "resident_bytes": 3 * 2**30,
            "gpu": {"share": 0.93, "used": 20 * 2**30, "total": 80 * 2**30, "power": 412.0},
        }
        self.found = {
            "study": "btc",
            "healthy": True,
            "unhealthy": [],
            "about": "crypto, 2 tickers, 1h",
            "paused": None,
            "trials": {"WAITING": 0, "RUNNING": 2, "COMPLETE": 4, "PRUNED": 0, "FAIL": 1},
            "total": 10,
            "done": 5,
            "rungs": 4,
            "steps_per_second": 1_200_000,
            "trials_per_hour": 40.0,
            "eta_seconds": 450.0,
            "best": {
                "trial": 3,
                "trials": [3],
                "scores": [0.9],
                "value": 0.9,
                "interval": None,
                "fresh": None,
                "params": {"learning_rate": 3e-4},
                "metrics": None,
            },
            "workers": [worker],
            "storage_retries": 0,
            "failures": [{"trial": 2, "reason": "diverged"}],
            "objective": "information-ratio",
            "synthetic": True,
            "outlook": "the best of 10 trials needs 1.2",
            "history": PAST,
            "gate": {"trials": 10, "years": 2.0, "needed_information_ratio": 1.2, "looks": 0},
        } | changes

    def studies(self) -> list[str]:  # type: ignore[override]
        return [str(self.found["study"]), "older"]

    def progress(self, name: str) -> dict[str, Any]:  # type: ignore[override]
        assert name in self.studies()
        return self.found

    def folder(self, _name: str) -> Path:  # type: ignore[override]
        return Path("no", "such", "folder")

    def trial(self, name: str, number: int) -> dict[str, Any]:  # type: ignore[override]
        assert name in self.studies()
        names = ("study", "about", "objective", "synthetic", "trials")
        return {
            "head": {key: self.found[key] for key in names} | {"member": "fold", "further": []},
            "axis": EVIL,
            "rungs": 4,
            "row": table_row(TrialRow(number, number, "FAIL", reason=EVIL)),
            "same": [number],
            "curves": {"lines": [], "mean": [], "beside": []},
            "params": [(EVIL, EVIL, None)],
            "metrics": {},
            "started": None,
            "ended": None,
            "record": TrialRecord(device=EVIL),
            "folder": EVIL,
            "files": [EVIL],
            "study_id": 1,
            "playable": False,
        }

    def reader(self, name: str) -> Any:  # type: ignore[override]
        assert name in self.studies()
        return SimpleNamespace(
            name=EVIL,
            spec=SimpleNamespace(evolves=False),
            origin=None,
            storage=SimpleNamespace(url=storage_url(None)),
            runs_dir=None,
        )

    def parameters(self, name: str) -> dict[str, Any]:  # type: ignore[override]
        assert name in self.studies()
        names = ("study", "about", "objective", "synthetic", "trials")
        return {
            "head": {key: self.found[key] for key in names} | {"member": "fold", "further": [EVIL]},
            "importances": {"shares": None, "trials": 0, "computing": False, "least": 20},
            "parallel": parallel([], []),
            "frontier": frontier([]),
            "racing": [],
            "values": {
                "values": [{"name": EVIL, "direction": "maximize"}] * 2,
                "constraints": [EVIL],
                "complete": 1,
                "infeasible": 0,
                "frontier": [{"trial": 0, "values": [1.0, 2.0]}],
                "chosen": 0,
                "rule": EVIL,
                "points": [{"trial": 0, "values": [1.0, 2.0], "feasible": True}],
            },
            "best": None,
            "race": [],
            "schedule": None,
        }

    def trials(self, name: str, chosen: Any) -> dict[str, Any]:  # type: ignore[override]
        assert chosen is None
        row = TrialRow(0, 0, "FAIL", reason=EVIL)
        return {
            "head": self.parameters(name)["head"],
            "chosen": [],
            "curves": [],
            "axis": EVIL,
            "rungs": 4,
            "metrics": {},
            "heat": {"members": [], "rows": [], "low": 0.0, "high": 0.0},
            "table": [table_row(row)],
        }

    def compare(self, name: str, other: str) -> dict[str, Any]:  # type: ignore[override]
        side = {"so_far": [], "summary": summary([], [], None), "best": None}
        heads = [self.parameters(one)["head"] | {"study": one} for one in (name, other)]
        return {
            "sides": [{"head": head} | side for head in heads],
            "settings": {EVIL: [EVIL, ""]},
            "parameters": [],
        }

    def application(self) -> Any:
        return Response("optuna")


def client(folder: Path, search: Any = None) -> Client:
    return Client(Dashboard(PaperSource(RegistryFlags(folder)), search or NoStudies()))


def get(asked: Client, path: str, **headers: str) -> TestResponse:
    return asked.get(path, headers=HOST | headers)


def figures(answer: TestResponse) -> dict[str, Any]:
    found = re.search(
        r'<script type="application/json" id="figures">(.*?)</script>', answer.text, re.DOTALL
    )
    assert found is not None
    content: dict[str, Any] = json.loads(found.group(1))
    return content


class Checked(HTMLParser):
    """Check balance, unique ids, texts of pictures, names and headers of tables."""

    VOID = frozenset({"meta", "link", "input", "br", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.named: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self.feed(text)
        assert self.open == []
        assert len(self.ids) == len(set(self.ids))
        for picture in self.pictures:
            assert picture["role"] == "img"
            assert picture["aria-labelledby"] in self.ids

    def handle_starttag(self, tag: str, attrs: Iterable[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if "id" in found:
            self.ids.append(str(found["id"]))
        if "data-figure" in found:
            self.pictures.append(found)
        if "data-live" in found:
            assert "id" in found, "what is renewed needs an id"
        if tag == "table":
            assert self.named[-1:] == ["region"]
        if tag not in self.VOID:
            self.open.append(tag)
            self.named.append(
                "region" if found.get("role") == "region" and found.get("aria-label") else ""
            )

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag
            self.named.pop()


def test_page_of_a_slot(made: Made) -> None:
    answer = get(client(made.folder), "/?slot=demo-1h")
    assert (answer.status_code, answer.mimetype) == (200, "text/html")
    view = made.view("demo-1h")
    page = Checked(answer.text)
    shown = {
        "head",
        "accounts",
        "positions",
        "monitor",
        "orders",
        "arena",
        "champion",
        "events",
        "equity-text",
    }
    assert shown <= set(page.ids)
    for account in view.accounts:
        assert account.name in answer.text
    words = (
        "buy BTC/USDT",
        "below the venue",
        "as scored",
        "beats the champion",
        "caught up",
        "retired: its return",
    )
    for word in (
        *words,
        f"{view.accounts[0].value:,.2f}",
        f"{100 * view.accounts[0].total_return:+.2f}%",
    ):
        assert word in answer.text, word
    picture = figures(answer)["equity"]
    assert [line["name"] for line in picture["data"] if line.get("yaxis") is None] == [
        c.account for c in view.curves
    ]
    account = picture["data"][0]
    assert account["y"][-1] == pytest.approx(view.accounts[0].total_return, abs=1e-6)
    hidden = [
        line["name"]
        for line in picture["data"]
        if line["visible"] == "legendonly" and "yaxis" not in line
    ]
    assert hidden == ["hold BTC/USDT", "hold ETH/USDT", "hold SOL/USDT"]
    tones = {(line["tone"], line["line"]["dash"]) for line in picture["data"]}
    assert len(tones) == len(view.curves), "lines can be told apart"


def test_slots_are_tabs(made: Made) -> None:
    asked = client(made.folder)
    first = get(asked, "/")
    for slot in ("demo-1h", "halted-1h", "never-1h", "silent-1h"):
        assert f'href="/?slot={slot}"' in first.text
        assert Checked(get(asked, f"/?slot={slot}").text)
    assert "demo-1h <span" in first.text
    assert "portfolio drawdown of 20.3%" in get(asked, "/?slot=halted-1h").text
    assert "No heartbeat" in get(asked, "/?slot=silent-1h").text


def test_page_of_a_slot_that_was_never_traded(made: Made) -> None:
    text = get(client(made.folder), "/?slot=never-1h").text
    assert "Slot never-1h was never traded. To start: sweepd trade never-1h" in text
    assert 'data-figure="equity"' not in text


def test_empty_registry_is_reported_until_it_has_a_slot(tmp_path: Path) -> None:
    asked = client(tmp_path / "deployments")
    answer = get(asked, "/")
    assert answer.status_code == 200
    assert "nothing has been promoted yet (sweepd promote)" in answer.text
    Registry(tmp_path / "deployments").refuse("s", "no candidate passes")
    assert "no slot in" in get(asked, "/").text
    Registry(tmp_path / "deployments").promote("s", bundles()[0], expected=None, reason="")
    assert "Slot s was never traded" in get(asked, "/").text


def test_pages_show_new_bars_without_restart(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    made = bundles()[:1]
    registry.promote("s", made[0], expected=None, reason="")
    store, asked = TraderStore(registry.database), client(tmp_path)
    session = write_session(store, "s", made, bars=30)
    before = figures(get(asked, "/"))["equity"]["data"][0]["x"]
    (line,) = store.account_bars("s", "account", newest=1)
    values = vars(line) | {"time": line.time + 3600, "value": 12_345.0}
    store.commit("s", session.token, Changes(bars=[type(line)(**values)]))
    answer = get(asked, "/")
    assert "12,345.00" in answer.text
    assert len(figures(answer)["equity"]["data"][0]["x"]) == len(before) + 1


@pytest.mark.parametrize("path", [*PATHS, "/orders.csv", "/assets/x/page.css"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_pages_are_read_only(made: Made, path: str, method: str) -> None:
    assert (
        client(made.folder, OneStudy()).open(path, method=method, headers=HOST).status_code == 405
    )


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/?slot=none", 404),
        ("/?slot=demo-1h&days=x", 400),
        ("/?slot=demo-1h&days=7", 200),
        ("/assets/x/web.py", 404),
        ("/assets/x/..%2fweb.py", 404),
        ("/training?study=none", 404),
    ],
)
def test_unknown_pages_are_not_found(made: Made, path: str, code: int) -> None:
    answer = get(client(made.folder, OneStudy()), path)
    assert answer.status_code == code
    assert code == 200 or answer.mimetype == "text/plain"


def test_unavailable_registry_is_reported(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_source: PaperSource) -> None:
        raise RunError("the registry cannot be used: no answer")

    monkeypatch.setattr(PaperSource, "slots", away)
    answer = get(client(made.folder), "/")
    assert answer.status_code == 503
    assert "the registry cannot be used: no answer" in answer.text


def test_names_and_reasons_are_escaped(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    made = bundles()[:2]
    slot = EVIL.replace("/", "")  # no slot may have a slash
    registry.promote(slot, made[0], expected=None, reason=EVIL)
    registry.challenger(slot, made[1], reason=EVIL)
    store = TraderStore(registry.database)
    monitor = {"verdict": EVIL, "text": EVIL, EVIL: EVIL}
    session = write_session(store, slot, made, bars=60, state={"monitor": monitor}, feed=EVIL)
    store.commit(slot, session.token, Changes(events=[(EVIL, EVIL, None)], status=EVIL))
    store.halt(slot, EVIL, sells=False)
    asked = client(
        tmp_path,
        OneStudy(study=EVIL, about=EVIL, unhealthy=[EVIL], failures=[{"trial": 1, "reason": EVIL}]),
    )
    for path in (*PATHS, "/training/trials", "/training/compare"):
        text = get(asked, path).text
        assert "<script>alert" not in text
        assert "alert(" in text
        assert Checked(text)
    assert (
        get(client(tmp_path, NoStudies(InputError(EVIL))), "/training").text.count("<script>alert")
        == 0
    )


def test_pages_load_nothing_from_other_hosts(made: Made) -> None:
    """There is no address of another host, and the policy forbids it."""
    asked, found = client(made.folder, OneStudy()), set[str]()
    for path in PATHS:
        answer = get(asked, path)
        assert not re.search(r"(?:https?:)?//[a-z0-9]", answer.text)
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert answer.headers["Cache-Control"] == "no-store"
        found |= set(re.findall(r'(?:src|href)="([^"]+)"', answer.text))
    for address in found:
        assert get(asked, address.replace("&amp;", "&")).status_code == 200, address
    for name in ("page.js", "page.css"):
        text = get(asked, f"/assets/x/{name}").text
        assert not re.search(r"https?://", text)


def test_plotly_is_served_locally(made: Made) -> None:
    answer = get(client(made.folder), "/assets/x/plotly.js")
    assert (answer.status_code, answer.mimetype) == (200, "text/javascript")
    assert b"plotly.js v" in answer.data[:200]


def test_the_training_page_shows_rate_time_left_best_and_gpu(made: Made) -> None:
    answer = get(client(made.folder, OneStudy()), "/training")
    page = Checked(answer.text)
    assert len(page.pictures) == 2
    for word in (
        "5 of 10 trials",
        "40.0",
        "7:30",
        "+0.9000",
        "93% · 20.0/80.0 GiB · 412 W",
        "1,200,000",
        "diverged",
        "synthetic",
        "the best of 10 trials needs 1.2",
    ):
        assert word in answer.text, word
    shown = figures(answer)
    assert sum(shown["rates"]["data"][0]["customdata"]) == 4
    assert shown["best"]["data"][1]["y"] == [0.1, 0.5, 0.5, 0.9]


def test_training_page_without_studies(made: Made) -> None:
    answer = get(client(made.folder), "/training")
    assert answer.status_code == 200
    assert "start one with sweepd train" in answer.text
    assert get(client(made.folder), "/dashboard").status_code == 404


def test_optuna_dashboard_is_served(made: Made, tmp_path: Path) -> None:
    from tests.deploy.builders import FakeStudy

    fake = FakeStudy(tmp_path)
    fake.study.set_user_attr("sweepd:created", "2026-01-01T00:00:00Z")
    watch = StudyWatch(None, str(tmp_path / "studies.db"), tmp_path)
    assert watch.studies() == ["fake"]
    watch.application = lambda: _optuna(fake.storage)  # type: ignore[method-assign]
    asked = client(made.folder, watch)
    assert "Optuna Dashboard" in get(asked, "/dashboard/").text
    names = [study["study_name"] for study in get(asked, "/api/studies").json["study_summaries"]]  # type: ignore[index]
    assert names == ["fake"]


@pytest.mark.parametrize("of", ["study", "trial"])
def test_artifacts_run_no_scripts(made: Made, tmp_path: Path, of: str) -> None:
    from tests.deploy.builders import FakeStudy

    fake = FakeStudy(tmp_path)
    fake.study.set_user_attr("sweepd:created", "2026-01-01T00:00:00Z")
    store = FileSystemArtifactStore(str(tmp_path))
    page = tmp_path / "evil.html"
    page.write_text(f"<script>alert(1)</script>{EVIL}")
    trial = fake.study.ask()
    owner = fake.study if of == "study" else trial
    artifact = upload_artifact(artifact_store=store, file_path=str(page), study_or_trial=owner)
    watch = StudyWatch(None, str(tmp_path / "studies.db"), tmp_path)
    watch.application = lambda: _optuna(fake.storage, store)  # type: ignore[method-assign]
    asked = client(made.folder, watch)
    place = (
        f"{fake.study._study_id}" if of == "study" else f"{fake.study._study_id}/{trial._trial_id}"
    )
    for slashes in ("/", "//"):
        answer = get(asked, f"{slashes}artifacts/{place}/{artifact}")
        if slashes == "/":
            assert (answer.status_code, answer.mimetype) == (200, "text/html")
        policy = answer.headers.getlist("Content-Security-Policy")
        assert len(policy) == 1
        assert answer.status_code != 200 or policy[0].startswith("sandbox; default-src 'none'; ")
        assert "allow-" not in policy[0]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "Access-Control-Allow-Origin" not in answer.headers
    own = get(asked, "/dashboard/")
    assert own.headers["X-Content-Type-Options"] == "nosniff"
    assert "frame-ancestors 'none'" in own.headers["Content-Security-Policy"]


def _optuna(storage: str, store: FileSystemArtifactStore | None = None) -> Any:
    import optuna_dashboard

    return optuna_dashboard.wsgi(storage, artifact_store=store)


@pytest.mark.parametrize("synthetic", [True, False])
def test_champions_of_generated_markets_are_marked(tmp_path: Path, synthetic: bool) -> None:
    from typer.testing import CliRunner

    folder = tmp_path / "deployments"
    data = small_bundle(1).manifest.data.model_copy(update={"synthetic": synthetic})
    for slot in ("demo-1h", "demo-5m"):
        Registry(folder).promote(slot, small_bundle(1, data=data), expected=None, reason="test")
    app = build_app(CommandHooks(open_studies=lambda *_: NoStudies()))  # type: ignore[arg-type, return-value]

    def output(*words: str) -> str:
        return CliRunner().invoke(app, [*words, "--deployments", str(folder)]).output

    texts = [
        output("dashboard", "--once"),
        output("dashboard", "demo-1h", "--once"),
        output("registry", "list"),
        output("registry", "list", "demo-1h"),
        output("registry", "show", "demo-1h"),
        get(client(folder, OneStudy(synthetic=synthetic)), "/?slot=demo-1h").text,
    ]
    assert [("synthetic" in text.lower()) for text in texts] == [synthetic] * len(texts), texts
    slots, slot, shown = (
        json.loads(output(*words, "--json"))
        for words in (
            ("registry", "list"),
            ("registry", "list", "demo-1h"),
            ("registry", "show", "demo-1h"),
        )
    )
    assert (
        slots[0]["synthetic"] is slot["synthetic"] is slot["versions"][0]["synthetic"] is synthetic
    )
    assert shown["data"]["synthetic"] is synthetic
    paper = json.loads(output("dashboard", "demo-1h", "--json"))["slots"][0]
    assert paper["health"]["synthetic"] is synthetic


def test_server_reads_trials_and_orders_before_the_first_request(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = {"slots": threading.Event(), "progress": threading.Event()}

    class Paper(PaperSource):
        def slots(self) -> dict[str, Health]:
            read["slots"].set()
            return super().slots()

    class Study(OneStudy):
        def progress(self, name: str) -> dict[str, Any]:  # type: ignore[override]
            read["progress"].set()
            return super().progress(name)

    class Server:
        def serve_forever(self) -> None:
            assert all(event.wait(60) for event in read.values())

        def server_close(self) -> None:
            pass

    monkeypatch.setattr("werkzeug.serving.make_server", lambda *_, **__: Server())
    monkeypatch.setattr("signal.signal", lambda *_: None)
    serve(Paper(RegistryFlags(made.folder)), Study(), None, 0, "/")


def _command(words: list[str], out: int) -> None:
    os.dup2(out, 1)
    os.environ.pop("SWEEPD_DASHBOARD_TOKEN", None)
    sys.argv, sys.stdout = words, os.fdopen(1, "w")
    sweepd.app.main()


def test_server_listens_on_the_loopback_until_it_is_stopped(made: Made) -> None:
    """Run the real command in a forked process."""
    words = ["sweepd", "dashboard", "demo-1h", "--port", "0", "--deployments", str(made.folder)]
    reading, writing = os.pipe()
    process = multiprocessing.get_context("fork").Process(target=_command, args=(words, writing))
    process.start()
    os.close(writing)
    try:
        with open(reading) as out:
            line = out.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/\?slot=demo-1h&token=(\S+)", line)
        assert found is not None, line
        # As a browser does, which keeps the cookie.
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(found.group(), timeout=120) as answer:
            assert answer.url.endswith("/?slot=demo-1h")
            assert b"demo-1h" in answer.read()
        idle = socket.create_connection(
            ("127.0.0.1", int(found.group(1)))
        )  # must not delay the others
        with idle, opener.open(found.group(), timeout=120) as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(found.group().partition("?")[0], timeout=120)
    finally:
        process.terminate()
        process.join(120)
        assert process.exitcode == 0
