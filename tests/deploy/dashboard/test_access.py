"""Access to the dashboard: token, cookie, origin of requests, and `--read-only`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sweepd.envs.support.errors import InputError
from tests.deploy.dashboard.conftest import Made
from tests.deploy.dashboard.test_web import HOST, PATHS, OneStudy

pytest.importorskip("optuna_dashboard")
from werkzeug.test import Client, TestResponse

from sweepd.deploy.dashboard.access import TOKEN_VARIABLE, Guard, start_token
from sweepd.deploy.dashboard.actions import Places
from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.dashboard.web import Dashboard
from sweepd.deploy.registry.flags import RegistryFlags

TOKEN = "a-token-of-a-test-0123456789"
OWN = {"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "same-origin"}
BY_HEADER = HOST | {"Authorization": f"token {TOKEN}"}
HTML = {"Accept": "text/html"}
# Below them is optuna-dashboard.
EVERY = (*PATHS, "/orders.csv", "/actions", "/actions/slot/halt", "/dashboard/", "/api/studies")


def guarded(folder: Path, *, read_only: bool = False, search: Any = None) -> Client:
    """The dashboard of a folder as the command serves it."""
    where = RegistryFlags(folder)
    places = None if read_only else Places(where, str(folder / "studies.db"), folder / "runs")
    application = Dashboard(PaperSource(where), search or OneStudy(), places)
    return Client(Guard(application, TOKEN, read_only=read_only))


def signed_in(asked: Client) -> Client:
    """The same browser after a visit with the token."""
    answer = asked.get(f"/?token={TOKEN}", headers=HOST)
    assert answer.status_code == 303
    return asked


@pytest.fixture
def asked(made: Made) -> Client:
    return guarded(made.folder)


def cookie_of(answer: TestResponse) -> str:
    return str(answer.headers.get("Set-Cookie", ""))


@pytest.mark.parametrize("path", EVERY)
def test_nothing_is_shown_without_the_token(asked: Client, path: str) -> None:
    for headers in ({}, HTML, {"Authorization": "token wrong"}, {"Cookie": "sweepd-8080=wrong"}):
        for method in ("GET", "HEAD", "POST", "DELETE", "PUT"):
            answer = asked.open(path, method=method, headers=HOST | OWN | headers)
            assert answer.status_code == 401
            assert "demo-1h" not in answer.text
            assert answer.text != "optuna"
            assert not cookie_of(answer)


def test_a_visit_with_the_token_sets_a_cookie_and_hides_the_token(asked: Client) -> None:
    answer = asked.get(f"/orders?slot=demo-1h&token={TOKEN}&side=sell", headers=HOST)
    assert (answer.status_code, answer.headers["Location"]) == (
        303,
        "/orders?slot=demo-1h&side=sell",
    )
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    cookie = cookie_of(answer)
    assert cookie.startswith("sweepd-8080=")
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    page = asked.get(answer.headers["Location"], headers=HOST)
    assert page.status_code == 200
    assert TOKEN not in page.text
    # An old token in a bookmark does no harm.
    assert asked.get("/?token=old", headers=HOST).headers["Location"] == "/"


def test_a_cookie_is_that_of_one_port(asked: Client) -> None:
    """Browsers send the cookies of all ports of a host."""
    value = cookie_of(asked.get(f"/?token={TOKEN}", headers=HOST)).partition("=")[2]
    answer = Client(asked.application).get(
        "/", headers={"Host": "127.0.0.1:9", "Cookie": f"sweepd-8080={value}"}
    )
    assert answer.status_code == 401


def test_scripts_send_the_token_in_a_header(asked: Client) -> None:
    answer = asked.get("/orders.csv?slot=demo-1h", headers=BY_HEADER)
    assert (answer.status_code, answer.mimetype) == (200, "text/csv")
    answer = asked.get("/orders.csv?slot=demo-1h", headers=HOST)
    assert (answer.status_code, answer.mimetype) == (401, "text/plain")
    assert "Authorization: token" in answer.text


@pytest.mark.parametrize(
    ("back", "there"),
    [
        ("/orders?slot=a b", "/orders?slot=a%20b"),
        ("//evil.example/", "/evil.example/"),
        ("/\\evil.example", "/evil.example"),
        ("https://evil.example", "/https://evil.example"),
        ("/a\r\nSet-Cookie: x=1", "/a%0D%0ASet-Cookie:%20x=1"),
    ],
)
def test_the_form_for_the_token_leads_back(asked: Client, back: str, there: str) -> None:
    form = {"token": f" {TOKEN} ", "next": back}
    answer = asked.post("/login", data=form, headers=HOST | OWN)
    assert (answer.status_code, answer.headers["Location"]) == (303, there)
    assert asked.get("/", headers=HOST).status_code == 200


def test_a_wrong_token_is_asked_for_again(asked: Client) -> None:
    form = {"token": "wrong", "next": "/orders"}
    answer = asked.post("/login", data=form, headers=HOST | OWN | HTML)
    assert answer.status_code == 401
    assert "This token is wrong" in answer.text
    assert 'name="next" value="/orders"' in answer.text
    assert "wrong" not in re.sub("This token is wrong", "", answer.text)
    assert asked.get("/?token=wrong", headers=HOST | HTML).status_code == 401
    assert asked.post("/login", data={"token": TOKEN}, headers=HOST).status_code == 403
    long = {"token": "x" * 100_000}
    assert asked.post("/login", data=long, headers=HOST | OWN).status_code == 413


def test_files_of_pages_need_no_token(asked: Client) -> None:
    """The form that asks for it is drawn with them."""
    page = asked.get("/", headers=HOST | HTML).text
    for address in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert asked.get(address, headers=HOST).status_code == 200, address
    assert asked.post("/assets/x/page.css", headers=HOST | OWN).status_code == 401


def test_a_link_from_another_site_is_followed_once_more(asked: Client) -> None:
    """The browser keeps the cookie from requests that another site started."""
    linked = {"Sec-Fetch-Site": "cross-site"} | HTML
    assert 'http-equiv="refresh"' in asked.get("/", headers=HOST | linked).text
    for headers in (HTML, HTML | {"Sec-Fetch-Site": "same-origin"}):
        assert "http-equiv" not in asked.get("/", headers=HOST | headers).text


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Origin": "http://127.0.0.1:8080"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        (OWN, 200),
        ({}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:9"}, 403),
        ({"Origin": "http://127.0.0.1:8080", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
@pytest.mark.parametrize("path", ["/api/studies", "/actions/slot/halt?slot=demo-1h", "/login"])
def test_other_sites_cannot_change_anything(
    asked: Client, path: str, headers: dict[str, str], code: int
) -> None:
    answer = signed_in(asked).post(path, headers=HOST | headers)
    if code == 403:
        assert answer.status_code == 403
        assert "may not change anything" in answer.text
    else:
        # Without its secret field, the form of an action is refused, too; the login asks again.
        assert answer.status_code == {"/api/studies": 200, "/login": 401}.get(path, 403)
        assert "may not change anything" not in answer.text


def test_the_header_suffices_for_scripts_that_write(asked: Client) -> None:
    assert asked.delete("/api/studies/1", headers=BY_HEADER).text == "optuna"


def test_read_only_refuses_every_change(made: Made) -> None:
    asked = signed_in(guarded(made.folder, read_only=True))
    for path in ("/api/studies", "/dashboard/", "/"):
        for method in ("POST", "DELETE", "PUT", "PATCH"):
            for headers in (HOST | OWN, BY_HEADER):
                answer = asked.open(path, method=method, headers=headers)
                assert (answer.status_code, "--read-only" in answer.text) == (403, True)
    page = asked.get("/?slot=demo-1h", headers=HOST).text
    assert "/actions" not in page
    # The paths of actions are those of optuna-dashboard then, as all unknown ones.
    assert asked.get("/actions/slot/halt?slot=demo-1h", headers=HOST).text == "optuna"


@pytest.mark.parametrize(
    ("host", "code"),
    [
        ("127.0.0.1:8080", 200),
        ("localhost", 200),
        ("localhost:9999", 200),
        ("LOCALHOST:8080", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:8080", 403),
        ("", 403),
        ("127.0.0.1:8080@evil", 403),
    ],
)
def test_requests_to_other_host_names_are_refused(asked: Client, host: str, code: int) -> None:
    """DNS rebinding: the name of another site resolves to 127.0.0.1."""
    for path in (*PATHS, "/orders.csv", "/assets/x/page.js", "/dashboard", "/api/studies"):
        answer = asked.get(path, headers=BY_HEADER | {"Host": host})
        assert answer.status_code == code, path
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_token_is_new_at_each_start_unless_the_environment_has_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    (one, given), (other, _) = start_token(), start_token()
    assert not given
    assert one != other
    assert len(one) >= 32
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
    assert start_token() == (TOKEN, True)
    assert start_token()[1] is False, "child processes do not get it"
    for wrong in ("short", "sixteen characters", "ü" * 20):
        monkeypatch.setenv(TOKEN_VARIABLE, wrong)
        with pytest.raises(InputError, match="must have at least 16 ASCII") as refused:
            start_token()
        assert wrong not in str(refused.value)
