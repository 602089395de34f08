"""The pages of actions: one that asks for confirmation, one with the result, and a list of all."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

from werkzeug.exceptions import Forbidden, MethodNotAllowed, NotFound
from werkzeug.wrappers import Request, Response

from sweepd.deploy.dashboard.access import BY_HEADER, FORM_TOKEN
from sweepd.deploy.dashboard.actions import Draft, Places, SlotActions, StudyActions, Values
from sweepd.deploy.dashboard.jobs import Job, Jobs
from sweepd.deploy.dashboard.pages import ACTIONS, FORMS, READING, Handler, Pages, check_reading
from sweepd.deploy.dashboard.source import PaperSource, StudySource
from sweepd.deploy.registry.database import utc_text
from sweepd.envs.support.account import user_at_host
from sweepd.envs.support.errors import InputError, RunError

RESULT = f"{ACTIONS}/result"
LONGEST_REASON = 300  # characters


class ActionPages:
    """The actions on slots and studies, and the commands that they started."""

    def __init__(
        self, pages: Pages, paper: PaperSource, search: StudySource, places: Places
    ) -> None:
        self._pages, self._places, self._jobs = pages, places, Jobs()
        self._drafts = {**SlotActions(paper, search).table(), **StudyActions(search).table()}

    def routes(self) -> Mapping[str, Handler]:
        """Return the pages by path."""
        return {
            ACTIONS: _reading(self._list),
            RESULT: _reading(self._result),
            **{
                f"{ACTIONS}/{name}": self._confirmed(f"{ACTIONS}/{name}", draft)
                for name, draft in self._drafts.items()
            },
        }

    def _confirmed(self, path: str, draft: Callable[[Values], Draft]) -> Handler:
        """Return the page of an action: GET asks for confirmation, POST starts it."""

        def answer(request: Request) -> Response:
            if request.method == "POST":
                return self._act(request, path, draft)
            if request.method not in READING:
                raise MethodNotAllowed((*READING, "POST"), "Use GET or POST.")
            return self._ask(request, path, draft)

        return answer

    def _ask(
        self, request: Request, path: str, draft: Callable[[Values], Draft], refusal: str = ""
    ) -> Response:
        """Return the page that asks for confirmation. refusal: why the form was not accepted."""
        found: Draft | None = None
        problem: Exception | None = None
        try:
            found = draft(request.args)
        except (InputError, RunError) as refused:
            problem = refused
        return self._pages.render(
            "confirm.html",
            ACTIONS,
            problem,
            headers=FORMS,
            draft=found,
            refusal=refusal,
            command="" if found is None else self._places.shown(found, {}),
            target=f"{path}?{urlencode(list(request.args.items(multi=True)))}",
            # Repeated where the form was refused.
            given=request.form if request.method == "POST" else None,
            form_token=request.environ.get(FORM_TOKEN, ""),
            by=user_at_host(),
            longest=LONGEST_REASON,
        )

    def _act(self, request: Request, path: str, draft: Callable[[Values], Draft]) -> Response:
        _check_form(request)
        form, by = request.form, user_at_host()
        why = " ".join(form.get("reason", "").split())[:LONGEST_REASON]
        try:
            found = draft(request.args)
            said = "in the dashboard" + (f": {why}" if why else "")
            # A study's log has the user already.
            reason = said if found.of_study and not found.of_slot else f"{by} {said}"
            job = self._jobs.start(
                self._places.started(found, form, [f"--reason={reason}"] if found.recorded else []),
                self._places.environment(),
                title=found.title,
                command=self._places.shown(found, form),
                by=by,
                why=why,
                back=found.back,
            )
        except (InputError, RunError) as refused:
            return self._ask(request, path, draft, str(refused))
        return Response(status=303, headers=FORMS | {"Location": f"{RESULT}?number={job.number}"})

    def _result(self, request: Request) -> Response:
        text = request.args.get("number", "")
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
        job = self._jobs.get(number)
        if job is None:
            raise NotFound(
                f"This server has started no action of number {text!r}, or forgot it. What an action "
                "did is in the history of its slot or the log of its study."
            )
        return self._pages.render("result.html", ACTIONS, job=_plain(job), output=job.text)

    def _list(self, _request: Request) -> Response:
        jobs = [_plain(job) for job in self._jobs.all()]
        return self._pages.render("actions.html", ACTIONS, jobs=jobs)


def _reading(page: Handler) -> Handler:
    """Return a page that accepts GET only."""

    def answer(request: Request) -> Response:
        check_reading(request)
        return page(request)

    return answer


def _check_form(request: Request) -> None:
    """Raise Forbidden unless the form is one that this server made."""
    if request.environ.get(BY_HEADER):
        return
    expected, given = request.environ.get(FORM_TOKEN), request.form.get("form_token", "")
    if expected is None or not hmac.compare_digest(given.encode(), expected.encode()):
        raise Forbidden("This form is not one of this start of the dashboard: open its page again.")


def _plain(job: Job) -> dict[str, object]:
    """Return a job for a template."""
    names = ("number", "title", "command", "by", "why", "back", "state", "code")
    return {name: getattr(job, name) for name in names} | {
        "at": utc_text(job.started),
        "seconds": None if job.ended is None else job.ended - job.started,
        "level": {"running": "none", "done": "good", "failed": "bad"}[job.state],
    }
