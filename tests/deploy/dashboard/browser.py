"""A headless Chromium, driven by its DevTools protocol over a pipe.

    python -m tests.deploy.dashboard.browser URL [FILE.png [WIDTH [light|dark]]]

checks a page of a running dashboard, and writes a picture of it. The accessibility rules are those
of axe-core, a JavaScript library: `npm pack axe-core` fetches it, and the variable SWEEPD_AXE names
its `axe.min.js`.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

AXE_VARIABLE = "SWEEPD_AXE"
CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "--no-first-run",
    "--disable-background-networking",
)
SETTLED = "new Promise((done) => setTimeout(() => requestAnimationFrame(() => done(true)), 400))"
# What axe checks: WCAG 2 A and AA, and its best practices.
RUN_AXE = """axe.run(document, {resultTypes: ["violations"]}).then((found) =>
  found.violations.map((one) => `${one.id}: ${one.nodes.map(
    (node) => node.target.join(" ") + " " + (node.any[0]?.message || "")).join("; ")}`))"""


@contextmanager
def served(application: WSGIApplication) -> Iterator[str]:
    """Serve an application on a free port, and give its address."""
    from werkzeug.serving import make_server  # of the extra `dashboard`

    server = make_server("127.0.0.1", 0, application, threaded=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Browser:
    """A browser with one tab. Close it with `close`, or use it in a `with` statement."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        # Chromium reads commands from descriptor 3 and answers on descriptor 4.
        (inward, self._write), (self._read, outward) = os.pipe(), os.pipe()
        # Above 4, so that neither overwrites the other in the new process.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (inward, outward)]
        quiet = os.open(os.devnull, os.O_RDWR)
        places = [(os.POSIX_SPAWN_DUP2, end, 3 + place) for place, end in enumerate(ends)]
        places += [(os.POSIX_SPAWN_DUP2, quiet, place) for place in (1, 2)]
        words = [CHROMIUM, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = os.posix_spawn(CHROMIUM, words, os.environ, file_actions=places)
        for end in (inward, outward, *ends, quiet):
            os.close(end)
        self._number, self._buffer, self._session = 0, b"", ""
        self._events: list[dict[str, Any]] = []
        tabs = self._call("Target.getTargets")["targetInfos"]
        tab = next(one["targetId"] for one in tabs if one["type"] == "page")
        attached = self._call("Target.attachToTarget", targetId=tab, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        os.kill(self._process, signal.SIGTERM)
        os.waitpid(self._process, 0)
        os.close(self._write)
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(
        self, url: str, *, width: int = 1280, height: int = 900, dark: bool = False
    ) -> list[str]:
        """Open a page, and wait until it is drawn. Returns the errors of its scripts."""
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[theme])
        self._events.clear()
        answer = self._call("Page.navigate", url=url)
        if "errorText" in answer:
            raise RuntimeError(f"{url}: {answer['errorText']}")
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._receive()
        self.evaluate(SETTLED)
        return [
            json.dumps(event["params"])[:500]
            for event in self._events
            if event["method"] == "Runtime.exceptionThrown"
            or (
                event["method"] == "Log.entryAdded" and event["params"]["entry"]["level"] == "error"
            )
        ]

    def settle(self) -> None:
        """Wait until a page that is loading, or updating itself, is likely to be done."""
        for _ in range(3):
            with suppress(RuntimeError):  # the old page has gone away
                self.evaluate(SETTLED)

    def evaluate(self, script: str) -> Any:
        """Return a script's value; promises are awaited."""
        answer = self._call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(json.dumps(answer["exceptionDetails"])[:1000])
        return answer["result"].get("value")

    def scrolls_sideways(self) -> bool:
        """Whether the page is wider than the window."""
        return bool(
            self.evaluate(
                "document.scrollingElement.scrollWidth > document.documentElement.clientWidth"
            )
        )

    def violations(self, axe: Path) -> list[str]:
        """Return the rules of axe-core that the page breaks, with the elements."""
        self._call("Runtime.evaluate", expression=axe.read_text(encoding="utf-8"))
        found: list[str] = self.evaluate(RUN_AXE)
        return found

    def picture(self, *, height: int | None = None) -> bytes:
        """Return the page as a PNG. height: pixels from its top; None for all of it."""
        clip = {}
        if height is not None:
            width = self.evaluate("document.documentElement.clientWidth")
            clip = {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}
        answer = self._call("Page.captureScreenshot", captureBeyondViewport=True, **clip)
        return base64.b64decode(answer["data"])

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("the browser has ended")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self._events.append(message)
        return message


def axe_file() -> Path | None:
    """The file of axe-core, None without it."""
    named = os.environ.get(AXE_VARIABLE)
    return Path(named) if named and Path(named).is_file() else None


def main() -> None:
    url, *rest = sys.argv[1:]
    file, width, theme = [*rest, None, None, None][:3]
    with Browser() as browser:
        problems = browser.open(url, width=int(width or 1280), dark=theme == "dark")
        print("script errors:", problems)
        print("wider than the window:", browser.scrolls_sideways())
        axe = axe_file()
        print("axe:", "SWEEPD_AXE is not set" if axe is None else browser.violations(axe))
        if file:
            Path(file).write_bytes(browser.picture())


if __name__ == "__main__":
    main()
