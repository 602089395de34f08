"""All texts of errors, read from the syntax trees of the modules, compared with a golden file.

A change of a text is seen there once, whatever tests the case has. `{}` stands for a value.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_architecture import SOURCES, nodes_of

GOLDEN = Path(__file__).with_name("files") / "texts" / "errors.txt"


def test_the_texts_of_errors(request: pytest.FixtureRequest) -> None:
    found = "\n".join(sorted({text for path in SOURCES for text in error_texts(path)})) + "\n"
    if request.config.getoption("--renew-golden"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(found)
    assert found.splitlines() == GOLDEN.read_text().splitlines()


def test_a_value_of_a_text_is_a_pair_of_braces(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        'raise InputError(f\'--seed {seed:,} is {"below" if low else "above"} the limit\\n\')\n'
        "raise RunError('no ' + name) from None\nraise ValueError('internal')\nraise error\n"
    )
    assert list(error_texts(path)) == [
        "InputError: --seed {} is {} the limit\\n",
        "RunError: no {}",
    ]


def error_texts(path: Path) -> Iterator[str]:
    """Yield class and text of each error that a module raises for people.

    Python's own exceptions are for programmers.
    """
    for node in nodes_of(path):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            name = ast.unparse(node.exc.func)
            if not hasattr(builtins, name) and not isinstance(node.exc.func, ast.Attribute):
                text = template(node.exc.args[0])
                if text.strip("{}"):
                    yield f"{name}: {text}"


def template(node: ast.expr) -> str:
    """Return a text with {} in place of what is not constant, in one line."""
    match node:
        case ast.Constant(value=str(text)):
            return text.replace("\n", "\\n")
        case ast.JoinedStr(values=parts):
            return "".join(map(template, parts))
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return template(left) + template(right)
    return "{}"
