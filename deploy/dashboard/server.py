"""Serves the dashboard on the loopback interface, with a token, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import socket
import threading
from typing import TYPE_CHECKING, Any

import typer

from sweepd.deploy.dashboard.source import PaperSource, StudySource
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.invocation import install_extra
from sweepd.envs.support.terminal import printable

if TYPE_CHECKING:
    from sweepd.deploy.dashboard.actions import Places


def serve(
    paper: PaperSource, search: StudySource, places: Places | None, port: int, path: str
) -> None:
    """Serve the dashboard.

    Args:
        paper: source of slots.
        search: source of studies.
        places: where actions write; None refuses everything that could change something.
        port: on 127.0.0.1; 0: any free port.
        path: page whose address is printed.

    Raises:
        InputError: the extra is missing, or the token of the environment is too short.
        RunError: the port is in use.
    """
    try:
        import plotly  # noqa: F401  its JavaScript is served
        from werkzeug.serving import WSGIRequestHandler, make_server

        from sweepd.deploy.dashboard.access import TOKEN_VARIABLE, Guard, start_token
        from sweepd.deploy.dashboard.web import Dashboard
    except ImportError as error:
        raise InputError(
            f"sweepd dashboard needs {error.name}: {install_extra('dashboard')}; or use --terminal"
        ) from None

    class Quiet(WSGIRequestHandler):
        """Logs no requests."""

        def log_request(self, code: Any = "-", size: Any = "-") -> None:
            pass

    token, given = start_token()
    try:
        # Bound here instead of by Werkzeug, which ends the process if the port is in use.
        listener = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise RunError(
            f"--port {port} on 127.0.0.1 cannot be used ({error.strerror}); choose another"
        ) from None
    with listener:
        bound = listener.getsockname()[1]
        application = Dashboard(paper, search, places)
        # Reading all trials and orders for the first time takes about a second.
        threading.Thread(target=application.warm, name="warm", daemon=True).start()
        server = make_server(
            "127.0.0.1",
            bound,
            Guard(application, token, read_only=places is None),
            threaded=True,
            request_handler=Quiet,
            fd=listener.fileno(),
        )
        # `serve_forever` ends at a KeyboardInterrupt only.
        for ending in (signal.SIGINT, signal.SIGTERM):
            signal.signal(ending, signal.default_int_handler)
        known = "" if given else f"{'&' if '?' in path else '?'}token={token}"
        ends = f"with the token of {TOKEN_VARIABLE}; " if given else ""
        address = f"http://127.0.0.1:{bound}{path}{known}"
        typer.echo(printable(f"sweepd dashboard on {address} ({ends}Ctrl-C ends it)"))
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
        finally:
            server.server_close()
