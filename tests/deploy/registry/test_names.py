"""Untrusted names and files: markup, control characters, paths and deep nesting are harmless."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from sweepd.deploy.cli.registry_view import history_view, slots_view
from sweepd.deploy.gates import load_bundle
from sweepd.deploy.registry.bundle_files import MANIFEST_FILE, write_bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.registry.slots import LONGEST_SLOT, check_slot, slot_name
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.terminal import Terminal
from tests.deploy.builders import small_bundle

WRONG = [
    "../../evil",
    "a/b",
    "..",
    ".hidden",
    "-f",
    "",
    " a",
    "a@3",
    "a\x1b[2J",
    "a\nb",
    "x" * 180,
    "é" * 51,
    "a\\b",
]


@pytest.mark.parametrize("name", WRONG)
def test_a_name_that_no_slot_may_have_is_refused_and_nothing_is_written(
    tmp_path: Path, name: str
) -> None:
    registry, bundle = Registry(tmp_path / "deployments"), small_bundle(0)
    for write in (
        lambda: registry.promote(name, bundle, expected=None, reason="test"),
        lambda: registry.challenger(name, bundle, reason="test"),
        lambda: registry.refuse(name, "test"),
    ):
        with pytest.raises(InputError, match="a slot's name is 1 to 100 bytes long") as caught:
            write()
        assert len(str(caught.value)) < 400
    assert registry.slots() == []
    assert registry.events() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name", ["crypto-1h", "gym-Pendulum-v1", "cartpole-length_1.0", "[red]", "x" * LONGEST_SLOT]
)
def test_other_names_are_taken(name: str) -> None:
    assert check_slot(name) == name


@pytest.mark.parametrize("name", [*WRONG, "\ud800"])
def test_any_text_has_a_valid_name_made_from_it(name: str) -> None:
    made = slot_name(name)
    assert check_slot(made) == made == slot_name(made)
    assert made != slot_name(name + "x")


@pytest.mark.parametrize("depth", [300, 900, 200_000])
def test_a_manifest_that_is_nested_too_deep_is_one_sentence(tmp_path: Path, depth: int) -> None:
    path = write_bundle(small_bundle(0), tmp_path)
    manifest = path / MANIFEST_FILE
    manifest.chmod(0o644)
    manifest.write_text('{"gate":' + "[" * depth + "]" * depth + "}")
    with pytest.raises(InputError, match=r"bundle\.json") as caught:
        load_bundle(path)
    assert "\n" not in str(caught.value)


def printed(*what: object) -> str:
    file = io.StringIO()
    Terminal(file=file, width=120, force_terminal=True, color_system=None).print(*what)
    return file.getvalue()


def test_a_terminal_shows_names_as_they_are_and_obeys_none_of_them() -> None:
    table = Table(title="of [red]")
    table.add_column("[bold]head[/bold]")
    table.add_row("[red]")
    table.add_row(Text("a\x1b[31mb\x1b]0;title\x07c\x9b2J\u202ed"))
    shown = printed(table, "[/red] [link=http://example.org]x[/link]", "my_module:X: why")
    assert not set(shown) & {"\x1b", "\x07", "\x9b", "\u202e"}
    for text in (
        "of [red]",
        "[bold]head[/bold]",
        "a[31mb]0;titlec2Jd",
        "[/red] [link=http://example.org]x[/link]",
        "my_module:X: why",  # ":X:" is the name of an emoji
    ):
        assert text in shown


def test_the_registrys_tables_show_names_as_they_are(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.promote("[red]x", small_bundle(0), expected=None, reason="[/nothing] \x1b[2Jwhy")
    for view in (slots_view(registry), history_view(registry, registry.slot("[red]x"))):
        shown = printed(view)
        assert "[red]x" in shown
        assert "[/nothing] [2Jwhy" in shown
        assert "\x1b[2J" not in shown


def test_commands_print_through_such_a_terminal() -> None:
    root = Path(__file__).parents[3]
    sources = [
        *(root / "sweepd").glob("*.py"),
        *(root / "deploy").rglob("*.py"),
        *(root / "optimize").rglob("*.py"),
    ]
    assert [path.name for path in sources if re.search(r"\bConsole\(", path.read_text())] == []
