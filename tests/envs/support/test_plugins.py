"""Objects of users and of other packages: where they are looked up, and what is said if that fails."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.plugins import construct, find, load, resolve
from tests.distributions import install

ROOT = str(Path(__file__).resolve().parents[3])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, a repository with its own `envs`; what it imports is forgotten after."""
    before = {*sys.modules}
    # Without the checkout: a folder without __init__.py gives way to a package of that name.
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part not in ("", ROOT)])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envs").mkdir()
    yield tmp_path
    for name in {*sys.modules} - before:
        if name.partition(".")[0] in ("envs", "agents"):
            del sys.modules[name]


def test_the_current_folder_comes_first_where_it_has_the_module(folder: Path) -> None:
    (folder / "envs" / "mine.py").write_text("from agents import SIZE\nclass MyEnv: size = SIZE\n")
    (folder / "agents.py").write_text("SIZE = 3\n")
    assert find("--env envs.mine:MyEnv", "envs.mine:MyEnv").size == 3
    assert sys.path[0] == str(folder)
    assert sys.path.count(str(folder)) == 1
    load("--env agents:X", "agents")
    assert sys.path.count(str(folder)) == 1


def test_without_such_a_module_the_path_stays(folder: Path) -> None:
    load("--env json:X", "json")
    with pytest.raises(InputError, match="No module named 'nowhere'; install"):
        load("--env nowhere:X", "nowhere")
    assert str(folder) not in sys.path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "No module named 'envs.mine'; install the module, run the command in its folder"),
        ("import not_there_1", r"fails: ModuleNotFoundError: .*'not_there_1' \(.*mine\.py:1\)"),
        ("x = 1\ny = x / 0", r"fails: ZeroDivisionError: division by zero \(.*mine\.py:2\)"),
        ("def f(:", r"fails: SyntaxError: invalid syntax \(mine\.py, line 1\)$"),
    ],
)
def test_a_failing_import_names_the_cause(folder: Path, text: str | None, said: str) -> None:
    if text is not None:
        (folder / "envs" / "mine.py").write_text(text)
    with pytest.raises(InputError, match=f"^--env envs.mine:X: .*{said}"):
        load("--env envs.mine:X", "envs.mine")


MODULE = """
class Base: pass
class Part(Base):
    class Inner: pass
    def __init__(self, size=1, seed=None): self.size, self.seed = size, seed
PART = Part(3)
"""


@pytest.fixture
def site(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages; one has an object of each form."""
    monkeypatch.syspath_prepend(str(folder / "site"))
    points = {"part": "plugged_kit.parts:Part", "inner": "plugged_kit.parts:Part.Inner"}
    files = {"plugged_kit/__init__.py": "", "plugged_kit/parts.py": MODULE}
    yield install(folder / "site", "plugged-kit", files, {"sweepd.sampler": points})
    for name in [one for one in sys.modules if one.startswith("plugged_kit")]:
        del sys.modules[name]


def test_names_of_entry_points_and_of_modules_lead_to_one_object(site: Path) -> None:
    by_name = resolve("sampler", 'part {"size": 7}')
    by_module = resolve("sampler", "plugged_kit.parts:Part")
    assert by_name.made is by_module.made
    assert (by_name.place, by_name.package) == ("plugged_kit.parts:Part", "plugged-kit")
    made = construct("sampler", by_name, seed=5, other=6)
    assert (made.size, made.seed) == (7, 5)
    assert resolve("sampler", "inner").made is by_module.made.Inner
    identities = by_name.identity(), by_module.identity()
    assert {one["version"] for one in identities} == {"1.2.3"}
    assert {one["package"] for one in identities} == {"plugged-kit"}
    digest = hashlib.sha256((site / "plugged_kit" / "parts.py").read_bytes()).hexdigest()
    assert {one["sha256"] for one in identities} == {digest}


def test_an_instance_is_recorded_with_the_module_that_has_it(site: Path) -> None:
    found = resolve("sampler", "plugged_kit.parts:PART").identity()
    assert found["module"] == "plugged_kit.parts"
    assert found["sha256"] == resolve("sampler", "part").identity()["sha256"]
    (site / "plugged_kit" / "parts.py").write_text(MODULE + "# another version")
    assert found["sha256"] != resolve("sampler", "part").identity()["sha256"]


def test_a_name_that_two_packages_register_is_refused(site: Path) -> None:
    install(site, "other-kit", {}, {"sweepd.sampler": {"part": "plugged_kit.parts:PART"}})
    said = (
        "--sampler part: other-kit and plugged-kit register this name; write which one you mean: "
        "plugged_kit.parts:PART or plugged_kit.parts:Part$"
    )
    with pytest.raises(InputError, match=said):
        resolve("sampler", "part")
    install(site, "same-kit", {}, {"sweepd.pruner": {"part": "plugged_kit.parts:Part"}})
    assert resolve("pruner", "part").package == "same-kit"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nobody", "'nobody' is not known; choose one of tpe, or name a class of Optuna's or your"),
        ("nowhere.at.all:Part", "No module named 'nowhere'; install"),
        ("plugged_kit.parts:Nobody", "has nothing called 'Nobody'"),
        ("plugged_kit.parts:", "has nothing called ''"),
        ("plugged_kit.parts:Part.Nobody", "has nothing called 'Part.Nobody'"),
        ("plugged_kit.parts:Part.Inner", "is not a subclass of plugged_kit.parts.Base"),
        ("plugged_kit.parts:PART", "is not a subclass of plugged_kit.parts.Base"),
        ('part {"size": ', "the arguments are not JSON"),
        ("part 3", "the arguments must be a JSON object"),
        ('part {"no": 1}', "unexpected keyword argument 'no'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(
    site: Path,  # noqa: ARG001
    text: str,
    said: str,
) -> None:
    base = find("", "plugged_kit.parts:Base")
    with pytest.raises(InputError, match=f"^--sampler .*{re.escape(said)}") as raised:
        construct("sampler", resolve("sampler", text, ("tpe",), base))
    assert raised.value.exit_code == 2
