"""The arrows between the packages, and the rules that hold in every file."""

from __future__ import annotations

import ast
import functools
import importlib
import itertools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from scripts.house_diagram import IMAGE, ROOMS, drawing
from sweepd.agents.algorithms.elegantrl_kinds import REQUIREMENT

ROOT = Path(__file__).resolve().parent.parent
MAY_IMPORT = {
    "envs": set(),
    "agents": {"envs"},
    "optimize": {"envs", "agents", "record"},
    "deploy": {"envs", "agents", "record"},
}
RECORD = "sweepd.optimize.study.record"  # what a study wrote down: all of `optimize` for `deploy`
SOURCES = [
    *sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py")),
    *sorted((ROOT / "sweepd").glob("*.py")),
    *sorted((ROOT / "sweepd" / "testing").glob("*.py")),
]


@functools.cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Return all nodes of a module's syntax tree, which is read once."""
    return list(ast.walk(ast.parse(path.read_text())))


def calls_in(path: Path) -> list[ast.Call]:
    """Return all calls of a module."""
    return [node for node in nodes_of(path) if isinstance(node, ast.Call)]


def modules_imported(path: Path) -> Iterator[str]:
    """Yield the dotted names of everything that a module imports, inside functions too."""
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported(path: Path) -> Iterator[str]:
    """Yield the top-level names of everything that a module imports."""
    for name in modules_imported(path):
        yield name.partition(".")[0]


def packages_imported(path: Path) -> Iterator[str]:
    """Yield the packages of sweepd that a module imports; "app" for what is in none of them.

    `RECORD` is a package of its own, "record".
    """
    for name in modules_imported(path):
        first, _, rest = name.partition(".")
        if f"{name}.".startswith(f"{RECORD}."):
            yield "record"
        elif first == "sweepd":
            package = rest.partition(".")[0]
            yield package if package in MAY_IMPORT else "app"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_packages_import_only_what_the_arrows_allow(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        wrong = set(packages_imported(path)) - MAY_IMPORT[package] - {package}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_the_record_of_a_study_imports_only_envs() -> None:
    """So that deploy, which reads it, imports nothing else of optimize."""
    for path in (ROOT / "optimize/study/record").rglob("*.py"):
        wrong = set(packages_imported(path)) - {"envs", "record"}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


@pytest.mark.parametrize("package", ROOMS)
def test_rooms_of_a_package_import_only_those_below_them(package: str) -> None:
    rooms = {room for level in ROOMS[package] for room in level}
    assert rooms == {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    below: set[str] = set()
    for level in ROOMS[package]:
        for room in level:
            for path in (ROOT / package / room).rglob("*.py"):
                own = f"sweepd.{package}."
                named = {n.split(".")[2] for n in modules_imported(path) if n.startswith(own)}
                wrong = (named & rooms) - below - {room}
                assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"
        below |= {*level}


def test_the_page_of_the_house_shows_every_folder() -> None:
    assert IMAGE.read_text() == drawing(), "run python -m scripts.house_diagram"
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    rooms = re.findall(r"^\| (\w+/\w+) \| .+\. \| `([\w/.-]+)` \|$", page, re.MULTILINE)
    files = [path for package in MAY_IMPORT for path in (ROOT / package).glob("*/*.*")]
    files += (ROOT / "sweepd/testing").glob("*.py")
    folders = {str(path.parent.relative_to(ROOT)) for path in files if path.suffix != ".pyc"}
    assert sorted(room for room, _ in rooms) == sorted(folders)
    assert [room for room, first in rooms if not (ROOT / room / first).exists()] == []


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_has_one_name(package: str) -> None:
    """A class that is imported under two names is two classes."""
    found = subprocess.run(
        [sys.executable, "-c", f"import sweepd.{package}; import {package}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stderr.rstrip().endswith(
        f"ImportError: this folder is the package sweepd.{package}: import it by that name"
    )


def test_sources_of_native_code_are_package_data() -> None:
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    for package in MAY_IMPORT:
        folder = ROOT / package
        patterns = packaged["package-data"][f"sweepd.{package}"]
        shipped = {file for pattern in patterns for file in folder.glob(pattern)}
        assert {*folder.rglob("*.h"), *folder.rglob("*.cpp")} <= shipped, package


def _parts(path: Path) -> tuple[str, ...]:
    """Return the names of a module's packages below `sweepd`, and its own."""
    return path.relative_to(ROOT).with_suffix("").parts[path.is_relative_to(ROOT / "sweepd") :]


def test_no_modules_import_each_other() -> None:
    """Imports inside functions count too."""
    sources = {
        ".".join(("sweepd", *_parts(path))): path
        for path in SOURCES
        if path.name != "__init__.py" and path.parent.name != "sweepd"
    }
    graph = {}
    for module, path in sources.items():
        names = {*modules_imported(path)}
        names |= {name.rpartition(".")[0] for name in names}
        graph[module] = names & set(sources) - {module}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


UNSAFE_MODULES = {"pickle", "dill", "joblib", "cloudpickle"}
UNSAFE_CALLS = {"eval", "exec", "torch.load", "torch.save", "np.load", "pd.read_pickle"}


def test_nothing_is_evaluated_or_unpickled() -> None:
    for path in SOURCES:
        found = UNSAFE_MODULES & set(imported(path))
        found |= UNSAFE_CALLS & {ast.unparse(call.func) for call in calls_in(path)}
        assert not found, f"{path.relative_to(ROOT)} uses {sorted(found)}"


def test_modules_are_documented_and_not_overlong() -> None:
    """600 lines are as much as a reader can hold: split longer ones by subject."""
    for path in SOURCES:
        module, name = nodes_of(path)[0], path.relative_to(ROOT)
        assert isinstance(module, ast.Module)
        assert ast.get_docstring(module), f"{name} has no docstring"
        assert len(path.read_text().splitlines()) <= 600, f"{name} is too long"


def parameters_of(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """Names of a function's parameters; of a class, those of `__init__`, or its fields."""
    if isinstance(node, ast.ClassDef):
        made_by = [f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"]
        if not made_by:
            fields = [f.target for f in node.body if isinstance(f, ast.AnnAssign)]
            return {field.id for field in fields if isinstance(field, ast.Name)}
        node = made_by[0]
    return {arg.arg for arg in ast.walk(node.args) if isinstance(arg, ast.arg)}


def parameters_named(node: ast.FunctionDef | ast.ClassDef) -> set[str]:
    """Names of the parameters that a docstring describes."""
    _, _, section = (ast.get_docstring(node) or "").partition("\nArgs:\n")
    lines = itertools.takewhile(lambda line: line[:1] in ("", " "), section.splitlines())
    named = [re.match(r" {4}\*{0,2}([^\s:(][^:(]*)", line) for line in lines]
    return {name[1].strip() for name in named if name}


def test_docstrings_name_parameters_that_exist() -> None:
    """`mkdocs build --strict` demands it, one name per line of `Args:`."""
    for path in SOURCES:
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                wrong = parameters_named(node) - parameters_of(node)
                where = f"{node.name} in {path.relative_to(ROOT)}"
                assert not wrong, f"{where} has no parameter {sorted(wrong)}"


def test_no_order_can_reach_real_money() -> None:
    """Paper only: no code names a live trading endpoint or an exchange's order call."""
    live = re.compile(r"//api\.alpaca\.markets|paper\s*=\s*False|create_(market_|limit_)?order\(")
    for path in SOURCES:
        found = live.search(path.read_text())
        assert not found, f"{path.relative_to(ROOT)}: {found and found.group()}"


def test_names_from_outside_are_printed_without_control_characters() -> None:
    """Names of files, tickers and slots reach a terminal through `Terminal` or `printable`."""
    for path in [path for path in SOURCES if path.parent.name != "sweepd"]:
        name = path.relative_to(ROOT)
        for call in calls_in(path):
            called = ast.unparse(call.func)
            assert called != "Console", f"{name}: a console prints escape sequences: use Terminal"
            if called == "typer.echo" and call.args and not isinstance(call.args[0], ast.Call):
                made = [one for one in ast.walk(call.args[0]) if isinstance(one, ast.JoinedStr)]
                assert not made, f"{name}: {ast.unparse(made[0])}: use printable"


def test_extras_that_are_named_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {*project["optional-dependencies"]}
    named = re.compile(r"install_extra\(\"(\w+)\"|\b(?:sweepd|\.)\[([\w,]+)\]")
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "Dockerfile"]
    for path in [*SOURCES, *pages]:
        found = {name for pair in named.findall(path.read_text()) for name in pair if name}
        wrong = {name for names in found for name in names.split(",")} - extras
        assert not wrong, f"{path.relative_to(ROOT)} names {sorted(wrong)}"


def test_elegantrl_is_imported_only_by_its_agents() -> None:
    """Its requirements cannot be installed, so that it is none of sweepd's."""
    found = {path.name for path in SOURCES if "elegantrl" in set(imported(path))}
    assert found == {"elegantrl_agents.py", "elegantrl_kinds.py"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert not [name for name in project["dependencies"] if "elegantrl" in name]
    lock = (ROOT / "requirements.lock").read_text()
    assert REQUIREMENT in {line.partition(" ")[0] for line in lock.splitlines()}


def test_private_tables_of_optuna_are_imported_in_one_module() -> None:
    """A release of Optuna may rename them: one place to change."""
    others = [path for one in ("scripts", "tests") for path in (ROOT / one).rglob("*.py")]
    found = {
        str(path.relative_to(ROOT))
        for path in [*SOURCES, *others]
        if "_rdb" in path.read_text()  # parsing all of them takes seconds
        and any(name.startswith("optuna.storages._rdb") for name in modules_imported(path))
    }
    assert found == {"optimize/study/record/optuna_tables.py"}


def test_the_database_of_studies_is_opened_in_two_modules() -> None:
    """One for readers, one for workers; `deploy` and others get it from there."""
    found = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if "optuna.storages.RDBStorage" in set(modules_imported(path))
        or "RDBStorage" in {ast.unparse(call.func).rpartition(".")[2] for call in calls_in(path)}
    }
    assert found == {"optimize/study/record/database.py", "optimize/study/database/storage.py"}


def test_keys_of_study_and_trial_attributes_are_defined_once() -> None:
    """What `optimize` writes into a study and `deploy` reads is named in one module."""
    key = re.compile(r"""["']sweepd:[a-z{]""")
    record = ROOT / "optimize/study/record/keys.py"
    for path in SOURCES:
        found = path != record and key.search(path.read_text())
        assert not found, f"{path.relative_to(ROOT)} names {found.group()}…: use {RECORD}.keys"


# Packages of deploy that are a kind of study each, and the modules outside of them that are about
# one kind only: what trades, plays, plans a market's study, or needs a player.
KINDS = {
    "market": (
        *("deploy/trading/", "deploy/cli/trade_commands.py", "deploy/cli/plan.py"),
        "deploy/export/freqtrade.py",
    ),
    "games": ("deploy/cli/play.py", "sweepd/hooks.py"),
    "programs": (),
}
NAMES_OF_KINDS = {"CRYPTO", "is_command", "CryptoSpec", "GameSpec", "CommandSpec"}
NAMES_OF_KINDS |= {"MARKET", "GAME", "PROGRAM"}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_table_of_gates_and_its_own_package_know_a_kind_of_study(kind: str) -> None:
    """The kinds share `promotion` only, and everything else asks `deploy/gates.py`."""
    # `sweepd/parts.py` has the public names of each kind's evidence, which are imported when used.
    own = (f"deploy/{kind}/", "deploy/gates.py", "sweepd/parts.py", *KINDS[kind])
    for path in SOURCES:
        name = str(path.relative_to(ROOT))
        if not name.startswith(own):
            found = [
                one
                for one in modules_imported(path)
                if f"{one}.".startswith(f"sweepd.deploy.{kind}.")
            ]
            assert not found, f"{name} imports {found}"


def test_deploy_does_not_test_the_kind_of_a_study_outside_of_the_kinds() -> None:
    kinds = tuple(f"deploy/{kind}/" for kind in KINDS)
    # The table, and the registry's rows, which have a column for the kind.
    known = (*kinds, "deploy/gates.py", "deploy/registry/")
    for path in (ROOT / "deploy").rglob("*.py"):
        name = str(path.relative_to(ROOT))
        if not name.startswith(known):
            found = {one.rpartition(".")[2] for one in modules_imported(path)} & NAMES_OF_KINDS
            assert not found, f"{name} imports {sorted(found)}"


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_what_the_examples_import_exists(path: Path) -> None:
    """`test_examples.py` runs them; this check is quick enough for every change."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "sweepd":
            module = importlib.import_module(node.module or "")
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            assert not missing, f"{node.module} has no {missing}"
