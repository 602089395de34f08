"""Run the code blocks of a page in order, as a reader would, and compare what they print.

In a temporary folder, with `sweepd` and `python` on the PATH, which fork the test's process
(`forks.py`) or are new interpreters:

| block | what happens |
|---|---|
| with `title="NAME"` | the file NAME is written |
| `bash` | a shell runs it; later blocks have its folder and its variables |
| `python` | a Python process runs it; all of a page's blocks share one process |
| `text` | nothing runs: the block before must have printed exactly this |

In a `text` block, `…` stands for any text, a number for any number, and white space and ruled lines
have no length. A comment before a block changes what is expected of it:

    <!-- test: exit 2 -->            the block ends with exit code 2
    <!-- test: skip, BECAUSE … -->   the block does not run
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.forks import Forks

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(
    r"^(?:<!-- test: (?P<rule>.*?) -->\n\n?)?"
    r"^``` ?(?:(?P<plain>\w+)|\{ \.(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")? \})"
    r"(?: title=\"(?P<title_after>[^\"]+)\")?\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_INCLUDED = re.compile(r'^--8<-- "(.+)"$', re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])[-+−]?\d[\d,.:_]*(?<![,.:_])(?:e[-+]?\d+)?")
# Blocks arrive as lines of JSON; each is answered by one line in a pipe with a name, "ok" or the
# traceback.
_SESSION = """
import json, sys, traceback
answers, names = open(sys.argv[1], "w"), {"__name__": "__main__"}
for line in sys.stdin:
    code, where = json.loads(line)
    try:
        exec(compile(code, where, "exec"), names)
        answer = "ok"
    except BaseException:
        answer = traceback.format_exc()
    sys.stdout.flush()
    print(json.dumps(answer), file=answers, flush=True)
"""


class PageError(AssertionError):
    """A page does not do what it says: its name, the line, and what happened."""


@dataclass(frozen=True)
class Block:
    """A block of code of a page.

    Attributes:
        language: such as `bash`.
        code: with included files in place of their names.
        title: the name of the file that the block shows, or "".
        rule: `skip, …`, `exit CODE`, or "".
        where: page and line, for errors.
    """

    language: str
    code: str
    title: str
    rule: str
    where: str

    @property
    def code_expected(self) -> int:
        """The exit code of a shell block."""
        return int(self.rule.removeprefix("exit ")) if self.rule.startswith("exit ") else 0


def blocks_of(page: Path, replaced: Mapping[str, str] | None = None) -> list[Block]:
    """Return the blocks of a page.

    Args:
        page: a Markdown file.
        replaced: text of its blocks, and what a test puts in its place, such as a smaller budget.

    Raises:
        PageError: a text to replace is nowhere on the page, or a rule is unknown.
    """
    text, blocks, missing = page.read_text(), [], {*(replaced or {})}
    for match in _BLOCK.finditer(text):
        code = _INCLUDED.sub(lambda name: (ROOT / name[1]).read_text().rstrip(), match["code"])
        language = match["plain"] or match["language"]
        where = f"{page.name}:{text[: match.start('code')].count(chr(10))}"
        if language != "text":
            for old, new in (replaced or {}).items():
                if old in code:
                    missing.discard(old)
                    code = code.replace(old, new)
        rule = match["rule"] or ""
        if not re.fullmatch(r"|skip, .+|exit \d+", rule):
            raise PageError(f"{where}: the rule {rule!r} is neither 'skip, WHY' nor 'exit CODE'")
        title = match["title"] or match["title_after"] or ""
        blocks.append(Block(language, code, title, rule, where))
    if missing:
        raise PageError(f"{page.name}: no block has {', '.join(map(repr, sorted(missing)))}")
    return blocks


def run_page(
    page: Path,
    folder: Path,
    replaced: Mapping[str, str] | None = None,
    environment: Mapping[str, str] | None = None,
    forked: bool = True,
) -> None:
    """Run all blocks of a page in a folder.

    Args:
        page: a Markdown file.
        folder: an empty folder.
        replaced: see `blocks_of`.
        environment: variables that the reader is expected to have, besides those of this process.
        forked: the programs fork this process, and so have what tests change in it.

    Raises:
        PageError: a block failed, or printed something else than the page shows.
    """
    with _Reader(folder, {**os.environ, **(environment or {})}, forked) as reader:
        printed = None
        for block in blocks_of(page, replaced):
            if block.rule.startswith("skip"):
                printed = None
            elif block.title:
                target = folder / block.title
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.code)
            elif block.language == "bash":
                printed = reader.run_shell(block)
            elif block.language == "python":
                printed = reader.run_python(block)
            elif block.language == "text" and printed is not None:
                difference = difference_of(block.code, printed)
                if difference:
                    raise PageError(f"{block.where}: {difference}; printed was:\n{printed}")


def difference_of(shown: str, printed: str) -> str:
    """Return in what way printed text differs from what a page shows, or ""."""
    rest, place = _plain(printed), 0
    parts = [part.strip() for part in _plain(shown).split("…")]
    for i, part in enumerate(parts):
        if i == len(parts) - 1 and part:  # the end of the page's text is the end of the output
            place = max(place, len(rest) - len(part)) if len(parts) > 1 else place
        found = rest.find(part, place)
        if found < 0:
            return f"{part!r} is not there"
        if i == 0 and rest[:found].strip():
            return f"{rest[:found].strip()!r} comes before {part!r}"
        place = found + len(part)
    return f"{rest[place:].strip()!r} follows" if parts[-1] and rest[place:].strip() else ""


def _plain(text: str) -> str:
    """Return a text with every number as #, and runs of spaces, line ends and rules as one."""
    text = re.sub(r"([━─═╌-])\1+", r"\1", text)
    return " ".join(_NUMBER.sub("#", text).split())


class _Reader:
    """Somebody with a terminal and a Python session, in a folder."""

    def __init__(self, folder: Path, environment: Mapping[str, str], forked: bool) -> None:
        self._folder, self._here = folder, folder
        self._files = folder / ".reader"
        self._files.mkdir()
        self._forks = Forks(self._files / "forks")
        found = [*([str(self._forks.path)] if forked else []), str(Path(sys.executable).parent)]
        path = os.pathsep.join([*found, environment.get("PATH", "")])
        terminal = {"COLUMNS": "80", "TERM": "dumb", "NO_COLOR": "1", "PYTHONUNBUFFERED": "1"}
        self._environment = {**environment, "PATH": path, **terminal}
        # Tests run in an environment in which sweepd need not be installed.
        self._environment["PYTHONPATH"] = str(ROOT)
        self._output = self._files / "output.txt"
        self._groups: list[int] = []
        self._python: subprocess.Popen[str] | None = None
        os.mkfifo(self._files / "answers")
        # Also for writing, or it would be at its end until the session opens it.
        self._answers = os.fdopen(os.open(self._files / "answers", os.O_RDWR), "r")

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        """End what the blocks have started, also in the background."""
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
        self._forks.close()
        if self._python is not None:
            assert self._python.stdin is not None
            self._python.stdin.close()
            self._python.wait(30)
        self._answers.close()

    def run_shell(self, block: Block) -> str:
        """Run a block in a shell, and return what it printed."""
        variables, here = self._files / "variables", self._files / "here"
        leave = f"trap 'env -0 > {variables}; pwd > {here}' EXIT\n"
        start = self._start_of_output()
        with self._output.open("a") as output:
            process = subprocess.Popen(
                ["bash", "-e", "-o", "pipefail", "-c", leave + block.code],
                cwd=self._here,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._groups.append(process.pid)
        self._serve_until_end(process)
        code = process.wait()
        printed = self._printed_since(start)
        if code != block.code_expected:
            raise PageError(f"{block.where}: exit code {code}; printed was:\n{printed}")
        self._here = Path(here.read_text().strip())
        pairs = [pair.partition("=") for pair in variables.read_text().split("\0") if pair]
        self._environment = {name: value for name, _, value in pairs}
        return printed

    def run_python(self, block: Block) -> str:
        """Run a block in the Python process of the page, and return what it printed."""
        if self._python is None:
            python = shutil.which("python", path=self._environment["PATH"])
            assert python is not None
            with self._output.open("a") as output:
                self._python = subprocess.Popen(
                    [python, "-c", _SESSION, str(self._files / "answers")],
                    cwd=self._here,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    text=True,
                )
            self._groups.append(self._python.pid)
        assert self._python.stdin is not None
        start = self._start_of_output()
        print(json.dumps([block.code, block.where]), file=self._python.stdin, flush=True)
        self._serve_until_end(self._python, self._answers.fileno())
        poller = select.poll()
        poller.register(self._answers, select.POLLIN)
        answer = self._answers.readline() if poller.poll(0) else ""
        printed = self._printed_since(start)
        if not answer:
            raise PageError(f"{block.where}: Python ended; printed was:\n{printed}")
        if (said := json.loads(answer)) != "ok":
            raise PageError(f"{block.where}: {said}\nprinted was:\n{printed}")
        return printed

    def _serve_until_end(self, process: subprocess.Popen[Any], *files: int) -> None:
        """Wait for the end of a process, or until one of the files can be read."""
        ended = os.pidfd_open(process.pid)
        try:
            self._forks.serve_until(ended, *files)
        finally:
            os.close(ended)

    def _start_of_output(self) -> int:
        return self._output.stat().st_size if self._output.exists() else 0

    def _printed_since(self, start: int) -> str:
        return self._output.read_bytes()[start:].decode()
