"""The table of environments of other packages."""

from __future__ import annotations

import shlex
from typing import Any

from scripts.result_tables.results import load, origin, table

_LONGEST = 160  # signs of a reason


def wild() -> str:
    """What became of each environment, and the flags that its study had."""
    found = load("wild")
    head = ["environment", "`--env`", "packages", "verdict", "flags, or reason"]
    # Some may have been tried again later than others.
    commits = {tried["commit"] for tried in found["tried"]}
    source = found["machine"]["source"]
    machines = [found["machine"] | {"source": source | {"commit": own}} for own in commits]
    return table(head, map(_row, found["tried"])) + origin("wild", *machines)


def _row(tried: dict[str, Any]) -> list[str]:
    env, verdict = tried["env"], tried["verdict"]
    if env.startswith("made:"):
        env = "a function of one's own"
    said = f"`{shlex.join(tried['flags'])}`" if tried["flags"] else ""
    if not verdict.startswith("trains"):
        reason = _cell(tried["reason"])
        said = f"{said} {reason}".strip()
    return [tried["name"], env if " " in env else f"`{env}`", tried["versions"], verdict, said]


def _cell(text: str) -> str:
    """Return a text as a cell: no line breaks, no bars, no markup, not too long."""
    plain = (
        " ".join(word for word in text.split() if "://" not in word)
        .replace("|", "/")
        .replace("<", "‹")
        .replace(">", "›")
    )
    plain = plain.replace("*", "").replace("`", "'").removeprefix("error: ").removeprefix("ERROR: ")
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}…"
