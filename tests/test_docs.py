"""What the pages name exists: links, files, modules, paths of the code, commands and their flags.

`mkdocs build --strict` checks more; this test needs no MkDocs.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from sweepd.commands import CommandTable, build_app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
GENERATED = {"reference/cli.md", "reference/search_space.md"}  # written while the site is built
WRITTEN_LATER = {ROOT / "docs" / name for name in GENERATED}
CODE = r"(?:envs|agents|optimize|deploy|scripts|tests|examples)/[\w/.-]+"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    folder = ROOT if page.parent == ROOT else page.parent
    targets = {link: Path(os.path.normpath(folder / link)) for link in links}
    missing = [
        link
        for link, target in targets.items()
        if target not in WRITTEN_LATER and not target.exists()
    ]
    for included in re.findall(r'^--8<-- "(.+)"$', text, re.MULTILINE):
        missing += [included] if not (ROOT / included).exists() else []
    for module in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE):
        path = ROOT / module.replace(".", "/")
        if not path.is_dir() and not path.with_suffix(".py").exists():
            missing.append(module)
    for path in re.findall(rf"`({CODE})`", text):
        missing += [path] if not (ROOT / path).exists() else []
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_their_flags_exist(page: Path, app: TyperGroup) -> None:
    assert [
        f"{command}: {unknown}"
        for command in commands_in(page.read_text())
        if (unknown := unknown_word(app, split(command)))
    ] == []


def test_a_wrong_command_or_flag_is_found(app: TyperGroup) -> None:
    text = "`sweepd trian`\n```bash\n.venv/bin/sweepd data check --to x \\\n  --nope 3 # why\n```\n"
    found = [unknown_word(app, split(command)) for command in commands_in(text)]
    assert found == ["--to", "trian"]
    # The words of another program are not those of sweepd.
    assert split("train --env 'command:python train.py --lr {lr}' --jobs 2")[2:] == [
        *("command:python train.py --lr {lr}", "--jobs", "2")
    ]


@pytest.fixture(scope="module")
def app() -> TyperGroup:
    group = typer.main.get_command(build_app())
    assert isinstance(group, CommandTable)
    group.load_all()
    return group


def split(command: str) -> list[str]:
    """Return the words of a command; of one in prose, an apostrophe need not end."""
    try:
        return shlex.split(command, comments=True)
    except ValueError:
        return command.split()


def commands_in(text: str) -> list[str]:
    """Return what follows `sweepd` in the shell blocks and the code of the text of a page."""
    shell = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line for block in shell for line in block.replace("\\\n", " ").splitlines()]
    found = [re.match(r"\s*!?(?:\w+=\S+ )*(?:\S*/)?sweepd\s+([a-z].*)", line) for line in lines]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    found += [
        re.match(r"(?:\S*/)?sweepd\s+([a-z].*)", code, re.DOTALL)
        for code in re.findall(r"`([^`]+)`", prose)
    ]
    return [re.split(r"\s#|[|>;&]", match[1])[0].strip() for match in found if match]


def unknown_word(app: TyperGroup, words: list[str]) -> str | None:
    """Return the first word that is neither a command nor one of its flags."""
    command: TyperCommand | TyperGroup = app
    while isinstance(command, TyperGroup) and words and words[0][0] not in "-…":
        if words[0] not in command.commands:
            return words[0]
        command, words = command.commands[words[0]], words[1:]
    if command.context_settings.get("ignore_unknown_options"):
        return None  # `service install` takes the flags of other commands
    known = {
        "--help",
        *(name for one in command.params for name in (*one.opts, *one.secondary_opts)),
    }
    flags = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return next((flag for flag in flags if flag not in known), None)


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert named == pages | GENERATED
