"""MkDocs hook: write the page `reference/search_space.md` from the parameters of the code.

Meanings are those of the docstrings (`Attributes:`), or the comments at the fields.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

ROOT = Path(__file__).resolve().parent.parent
PAGE = "reference/search_space.md"
# Games whose parameters are listed; `sweepd doctor --env NAME` shows those of all others.
GAMES = ("cartpole", "bucket-brigade", "hockey", "card-duel")
# Learners whose parameters are listed, in the order of the page.
LEARNERS = (
    *("ppo", "sac", "d3qn", "elegantrl:a2c", "elegantrl:td3", "elegantrl:ddpg", "elegantrl:dqn"),
    *("elegantrl:sac", "heuristic"),
)
HEAD = """# Search space parameters

This page lists the parameters that a [search space](../how_to/search_spaces.md) may name, by table, with their
defaults. `sweepd doctor --env NAME --algo NAME` lists the values of a
study.
"""


def meanings(params: Any) -> dict[str, str]:
    """Return what the docstrings and comments of a dataclass and its bases say of the fields."""
    found: dict[str, str] = {}
    for kind in reversed(inspect.getmro(params)):
        if kind is object:
            continue
        found |= _commented(kind) | _documented(inspect.cleandoc(kind.__doc__ or ""))
    return found


def _documented(text: str) -> dict[str, str]:
    section = re.search(r"^Attributes:\n((?:[ ]+.*\n?|\n)+)", text, re.MULTILINE)
    entries = re.split(r"^ {4}(?=\w)", section[1], flags=re.MULTILINE)[1:] if section else []
    named = (entry.partition(":") for entry in entries)
    return {name: " ".join(meaning.split()) for name, _, meaning in named}


def _commented(kind: type) -> dict[str, str]:
    try:
        lines = inspect.getsource(kind).splitlines()
    except OSError:  # a class that was made at run time
        return {}
    found, above = {}, list[str]()
    for line in map(str.strip, lines):
        field = re.match(r"(\w+): [^=#]+(?:= [^#]*)?(?:#\s*(.*))?$", line)
        if line.startswith("#"):
            above.append(line.lstrip("# "))
            continue
        if field:
            found[field[1]] = field[2] or " ".join(above)
        above = []
    return {name: text for name, text in found.items() if text}


def _rows(names: dict[str, Any], known: dict[str, str]) -> list[str]:
    lines = ["| name | default | meaning |", "|---|---|---|"]
    for name, default in names.items():
        meaning = known.get(name, "")
        if name == "one_minus_gamma":
            meaning, default = "1 - gamma, in its place: suits a logarithmic range", ""
        shown = "" if default == "" else f"`{_text(default)}`"
        lines.append(f"| `{name}` | {shown} | {meaning.replace('|', chr(92) + '|')} |")
    return [*lines, ""]


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def search_space_reference() -> str:
    """Return the Markdown of all tables."""
    sys.path.insert(0, str(ROOT))
    from sweepd.agents.networks.shape import Shape
    from sweepd.optimize.study.space.subject import CRYPTO, Subject

    shape = meanings(Shape)
    lines = [HEAD, "## [env] of markets", ""]
    market = Subject()
    lines += _rows(market.names("env"), meanings(market.env_params))
    for game in GAMES:
        subject = Subject(game)
        lines += [f"## [env] of {game}", "", *_rows(subject.names("env"), _game(subject))]
    for name in LEARNERS:
        subject = Subject("cartpole", name)
        _, table, _ = subject.tables
        lines += [f"## {name}", "", f"`[{table}]`", ""]
        lines += _rows(subject.names(table), meanings(subject.learner.params))
        if sizes := subject.names("shape"):
            lines += ["`[shape]`", "", *_rows(sizes, shape)]
        extras = sorted(set(sizes) - set(Subject(CRYPTO, name).names("shape")))
        if extras:
            lines += [f"Games only: {', '.join(f'`{extra}`' for extra in extras)}.", ""]
    return "\n".join(lines)


def _game(subject: Any) -> dict[str, str]:
    params: Callable[..., Any] = subject.env_params
    return meanings(params if isinstance(params, type) else type(params()))


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the page to the site."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, PAGE, content=search_space_reference()))
    return files
