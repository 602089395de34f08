"""Access to the dashboard: a token, requests of the same origin, and `--read-only`.

Every account of the machine can connect to 127.0.0.1, and every page that a browser shows can send
requests there. So each start has a token, as Jupyter's has: the printed address contains it, and a
visit sets a cookie of the browser. Reading needs it, too: the pages show accounts and strategies,
and the same port serves optuna-dashboard, which can delete studies.

What changes something must also come from a page of the dashboard itself (Fetch Metadata or the
header `Origin`), unless the request has the token in its header, which no browser adds by itself.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader
from werkzeug.exceptions import Forbidden, HTTPException
from werkzeug.sansio.utils import host_is_trusted
from werkzeug.wrappers import Request, Response

from sweepd.deploy.dashboard.pages import ASSETS, FORMS, READING, SECURITY, assets, refusal
from sweepd.envs.support.errors import InputError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

TOKEN_VARIABLE = "SWEEPD_DASHBOARD_TOKEN"
SHORTEST = 16  # characters of a token
HOSTS = ("127.0.0.1", "localhost")  # at any port, which may be forwarded from another machine
LOGIN = "/login"
SCHEME = "token"  # of the header `Authorization`
# For the application behind: the secret field of the forms; absent if a form is not acceptable.
FORM_TOKEN = "sweepd.form_token"
BY_HEADER = "sweepd.by_header"
MOST_BYTES = 1 << 16  # of a form


def start_token() -> tuple[str, bool]:
    """Return the token of this start, and whether it is that of the environment.

    The variable is removed, so that no child process gets it.

    Raises:
        InputError: the environment's token is too short, or contains other characters.
    """
    given = os.environ.pop(TOKEN_VARIABLE, "")
    if not given:
        return secrets.token_urlsafe(24), False
    if len(given) < SHORTEST or not all("!" <= one <= "~" for one in given):
        raise InputError(
            f"{TOKEN_VARIABLE} must have at least {SHORTEST} ASCII characters without spaces; "
            "openssl rand -hex 24 makes one"
        )
    return given, True


class Guard:
    """A WSGI application that lets only authorised requests through to another one.

    Args:
        application: the one that is protected.
        token: the secret.
        read_only: refuse every request that could change something.
    """

    def __init__(
        self, application: WSGIApplication, token: str, *, read_only: bool = False
    ) -> None:
        self._application, self._token, self._read_only = application, token, read_only
        # Neither reveals the token, and both hold as long as it does.
        self._session, self._form_token = (
            hmac.new(token.encode(), use, hashlib.sha256).hexdigest()
            for use in (b"session", b"form")
        )
        self._login = Environment(
            loader=PackageLoader("sweepd.deploy.dashboard"), autoescape=True
        ).get_template("login.html")

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        request = Request(environ)
        request.max_content_length = MOST_BYTES
        try:
            answer = self._answer(request)
        except HTTPException as problem:
            answer = refusal(problem)
        return answer(environ, start_response)

    def _answer(self, request: Request) -> WSGIApplication:
        """Return what answers the request; raise HTTPException for a refused one."""
        # DNS rebinding: a page of another site would send that site's host name.
        if not host_is_trusted(request.headers.get("Host", "").lower(), HOSTS):
            raise Forbidden("This dashboard answers on 127.0.0.1 and localhost only.")
        if request.path.startswith(ASSETS) and request.method in READING:
            return self._application  # files of public packages, which the form below needs
        if request.path == LOGIN:
            return self._enter(request)
        by_header = self._in_header(request)
        known = by_header or _same(request.cookies.get(_cookie(request), ""), self._session)
        if request.method in READING and "token" in request.args:
            if known or _same(request.args["token"], self._token):
                return self._let_in(request, _address(request))
            return self._ask(request, "This token is wrong, or that of an earlier start.")
        if not known:
            return self._ask(request)
        if request.method not in READING:
            if self._read_only:
                raise Forbidden("This dashboard was started with --read-only.")
            if not by_header:
                _check_origin(request)
        request.environ[FORM_TOKEN] = self._form_token
        request.environ[BY_HEADER] = by_header
        return self._application

    def _enter(self, request: Request) -> Response:
        """Answer the form that asks for the token."""
        if request.method != "POST":
            return self._ask(request)
        _check_origin(request)
        back = request.form.get("next", "/")
        if not _same(request.form.get("token", "").strip(), self._token):
            return self._ask(request, "This token is wrong, or that of an earlier start.", back)
        return self._let_in(request, back)

    def _let_in(self, request: Request, back: str) -> Response:
        """Give the browser its cookie, and send it on to an address without the token."""
        answer = Response(status=303, headers=SECURITY | {"Cache-Control": "no-store"})
        # Two slashes would lead to another site.
        answer.headers["Location"] = quote("/" + back.lstrip("/\\"), safe="/?&=%+,:@-._~")
        answer.set_cookie(_cookie(request), self._session, httponly=True, samesite="Strict")
        return answer

    def _ask(self, request: Request, problem: str = "", back: str | None = None) -> Response:
        """Ask for the token."""
        headers = FORMS | {"Cache-Control": "no-store", "WWW-Authenticate": SCHEME}
        if "text/html" not in request.headers.get("Accept", ""):
            text = f"{problem or 'A token is needed.'} Send it in the header 'Authorization: token …'.\n"
            return Response(text, 401, headers=headers, mimetype="text/plain")
        # A link from another site comes without the cookie (SameSite=Strict), which the browser
        # may nevertheless have: the page requests itself once more, from this site.
        linked = request.headers.get("Sec-Fetch-Site") == "cross-site" and not problem
        text = self._login.render(
            problem=problem,
            back=back or _address(request),
            again=linked,
            login=LOGIN,
            assets=assets(),
        )
        return Response(text, 401, headers=headers, mimetype="text/html")

    def _in_header(self, request: Request) -> bool:
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == SCHEME and _same(given.strip(), self._token)


def _check_origin(request: Request) -> None:
    """Raise Forbidden unless a page of the dashboard itself sent the request."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    if origin is not None and origin.lower() != f"http://{request.host}".lower():
        raise Forbidden(f"Requests from {origin} may not change anything.")
    if site is not None and site != "same-origin":
        raise Forbidden(f"Requests from another site ({site}) may not change anything.")
    if site is None and origin is None:
        raise Forbidden("A request without the header Origin may not change anything.")


def _address(request: Request) -> str:
    """Return the address of a request without its token."""
    if request.path == LOGIN:
        return "/"
    query = [(name, value) for name, value in request.args.items(multi=True) if name != "token"]
    return quote(request.path) + (f"?{urlencode(query)}" if query else "")


def _cookie(request: Request) -> str:
    """Return the name of the cookie: browsers send the cookies of all ports of a host."""
    return f"sweepd-{request.host.rpartition(':')[2]}"


def _same(given: str, secret: str) -> bool:
    """Compare in a time that does not depend on where they differ."""
    return hmac.compare_digest(given.encode(), secret.encode())
