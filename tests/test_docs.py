"""What the pages name exists: links, files, modules, paths of the code, commands and their flags.

`mkdocs build --strict` checks more; this test needs no MkDocs.
"""

from __future__ import annotations

import importlib
import os
import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

import sweepd.parts
import sweepd.testing
import sweepd.wrappers
from scripts.cli_reference import cli_reference
from sweepd.commands import COMMANDS, CommandTable, build_app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
GENERATED = {"reference/cli.md", "reference/search_space.md"}  # written while the site is built
WRITTEN_LATER = {
    ROOT / "docs" / name
    for name in (*GENERATED, *(f"reference/cli/{command}.md" for command in COMMANDS))
}
MOST_WORDS = 1500
PACKAGES = ("envs", "agents", "optimize", "deploy", "sweepd")
# What sweepd sets for processes that it starts, and nobody else.
OF_CHILD_PROCESSES = {
    *("SWEEPD_ENV_HOST", "SWEEPD_ENV_WORKER", "SWEEPD_IMPORTING", "SWEEPD_RECYCLED")
}
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
    documented = re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)
    missing += [name for name in documented if not is_module(name) and not is_public(name)]
    for path in re.findall(rf"`({CODE})`", text):
        missing += [path] if not (ROOT / path).exists() else []
    assert not missing


def is_module(name: str) -> bool:
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def is_public(name: str) -> bool:
    """Whether a module has the name, by what it exports."""
    module, _, attribute = name.rpartition(".")
    return is_module(module) and attribute in importlib.import_module(module).__all__


def test_every_public_name_is_documented() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    documented = set(re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE))
    modules = (sweepd, sweepd.parts, sweepd.testing, sweepd.wrappers)
    public = {f"{module.__name__}.{name}" for module in modules for name in module.__all__}
    assert public - documented == {"sweepd.wrappers.WRAPPERS"}  # a table of the others


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


def test_each_command_has_a_page_and_a_flag_of_train_is_described_once() -> None:
    pages = cli_reference()
    listed = set(re.findall(r"cli/([\w-]+)\.md", pages["reference/cli.md"]))
    assert listed == {name for name, (_, text) in COMMANDS.items() if text}
    assert set(pages) == {"reference/cli.md", *(f"reference/cli/{name}.md" for name in listed)}
    flags = {name: "`--n-envs " in pages[f"reference/cli/{name}.md"] for name in listed}
    assert [name for name, found in flags.items() if found] == ["train"]
    for name in listed:
        for link in re.findall(r"\]\(\.\./\.\./([\w/]+\.md)\)", pages[f"reference/cli/{name}.md"]):
            assert (ROOT / "docs" / link).exists(), link


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
    # A program's command line may take several lines.
    shell = [re.sub(r"'command:[^']*'", lambda m: " ".join(m[0].split()), one) for one in shell]
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


@pytest.mark.parametrize("page", PAGES[:-2], ids=lambda page: page.stem)
def test_a_page_is_read_in_ten_minutes(page: Path) -> None:
    assert words_of(page.read_text()) <= MOST_WORDS


def words_of(text: str) -> int:
    """Count words, without code blocks and the tables that `scripts.result_tables` writes."""
    text = re.sub(r"<!-- table .*?<!-- end -->", "", text, flags=re.DOTALL)
    return len(re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE).split())


def test_pages_that_the_code_names_exist() -> None:
    folders = [ROOT / name for name in (*PACKAGES, "scripts", "tests", "examples")]
    sources = [
        path for folder in folders for kind in ("py", "toml") for path in folder.rglob(f"*.{kind}")
    ]
    named = {name for path in sources for name in re.findall(r"docs/[\w/]+\.md", path.read_text())}
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


def test_words_are_counted_without_generated_tables_and_code() -> None:
    text = "a b\n<!-- table x -->\n| c | d |\n<!-- end -->\n```bash\ne f\n```\ng h\n"
    assert words_of(text) == 4


def test_the_page_of_environment_variables_has_all_that_are_read() -> None:
    sources = [path for folder in PACKAGES for path in (ROOT / folder).rglob("*.py")]
    text = "".join(path.read_text() for path in sources)
    read = set(re.findall(r"\"(SWEEPD_[A-Z_]*[A-Z])\"", text))
    read |= set(
        re.findall(r"\{(SWEEPD_\w+)\W", (ROOT / "start_vectorized_training.sh").read_text())
    )
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    assert read - set(re.findall(r"`(SWEEPD_\w+)`", page)) == OF_CHILD_PROCESSES
