"""What hosts and installers read: workflows, templates, locks, and the versions that they name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# The head of a locked package, before its hashes.
LOCKED = re.compile(r"^([a-z0-9-]+)==(\S+)(?: ; .+)? \\$", re.MULTILINE)


def read(path: Path) -> dict[Any, Any]:
    """Return a YAML file; the key `on` of a workflow is read as True."""
    found = yaml.safe_load(path.read_text())
    assert isinstance(found, dict)
    return found


def pythons() -> list[str]:
    """Return the Pythons that the classifiers name, in order."""
    label = "Programming Language :: Python :: "
    found = [name.removeprefix(label) for name in PROJECT["classifiers"] if label in name]
    return [name for name in found if re.fullmatch(r"3\.\d+", name)]


def test_the_matrices_have_the_pythons_of_the_classifiers() -> None:
    minors = [int(name.partition(".")[2]) for name in pythons()]
    assert minors == [*range(minors[0], minors[-1] + 1)]
    allowed = SpecifierSet(PROJECT["requires-python"])
    assert pythons()[0] in allowed
    assert f"3.{minors[0] - 1}" not in allowed
    jobs = read(GITHUB / "workflows" / "ci.yml")["jobs"]
    for name in ("check", "install"):
        assert jobs[name]["strategy"]["matrix"]["python"] == pythons()
    assert pythons()[0] in {
        step["with"]["python-version"]
        for step in jobs["lowest"]["steps"]
        if "setup-python" in step.get("uses", "")
    }


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_only_read_and_name_versions_of_actions(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}
    assert "group" in workflow["concurrency"]
    for name, job in workflow["jobs"].items():
        if "uses" in job:
            assert (ROOT / job["uses"]).exists()
            continue
        assert job["timeout-minutes"] <= 180, name
        uses = [step["uses"] for step in job["steps"] if "uses" in step]
        assert all(re.search(r"@(?:release/)?v\d+$", action) for action in uses), uses
        for step in job["steps"]:
            if "checkout" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_what_workflows_run_exists(path: Path) -> None:
    text = path.read_text()
    for module in re.findall(r"-m (tests\.[\w.]+)", text):
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists(), module
    for name in re.findall(r"(?<![\w/.])(?:tests|scripts|requirements)/[\w/.-]+", text):
        assert (ROOT / name).exists(), name


def test_templates_have_what_forms_need() -> None:
    for path in (GITHUB / "ISSUE_TEMPLATE").glob("[!c]*.yml"):
        form = read(path)
        assert form["name"]
        assert form["description"]
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields) > 0
    folders = {update["package-ecosystem"] for update in read(GITHUB / "dependabot.yml")["updates"]}
    assert folders == {"pip", "github-actions", "docker"}


def test_the_version_is_everywhere_the_same() -> None:
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["keywords"] == PROJECT["keywords"]
    assert [author["name"] for author in citation["authors"]] == [
        author["name"] for author in PROJECT["authors"]
    ]
    sections = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(name for name in sections if name != "Unreleased") == PROJECT["version"]


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_every_locked_package_has_hashes(name: str) -> None:
    lock = (ROOT / name).read_text()
    blocks = re.split(r"^(?=[a-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(LOCKED.findall(lock)) > 0
    for block in blocks:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}$", block.rstrip()), block.splitlines()[0]


def test_the_locks_have_what_pyproject_requires() -> None:
    locks = [(ROOT / f"requirements{kind}.lock").read_text() for kind in ("", "-dev")]
    runtime, development = (dict(LOCKED.findall(lock)) for lock in locks)
    assert not set(runtime) & set(development)
    extras = PROJECT["optional-dependencies"]
    always = [*PROJECT["dependencies"], *extras["dashboard"], *extras["metrics"]]
    for texts, versions in (
        (always, runtime),
        ([text for group in extras.values() for text in group], runtime | development),
    ):
        for requirement in map(Requirement, texts):
            version = versions.get(canonicalize_name(requirement.name))
            assert version in requirement.specifier, f"{requirement}, locked: {version}"


@pytest.mark.parametrize(
    ("reference", "called"),
    [
        ("main", ["deploy --push dev", "list latest", "set-default --push dev"]),
        ("v0.1.2", ["deploy --push 0.1"]),  # there is a newer version
        ("v1.0.0", ["deploy --push --update-aliases 1.0 latest", "set-default --push latest"]),
    ],
)
def test_versions_of_the_documentation(tmp_path: Path, reference: str, called: list[str]) -> None:
    """With a stand-in for mike, whose site has no version yet."""
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(ROOT / "scripts" / "publish_docs.sh", tmp_path / "scripts")
    mike = tmp_path / "mike"
    mike.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/calls\ntest "$1" != list\n')
    mike.chmod(0o755)
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org"]
    for words in (
        ["init", "--quiet"],
        ["commit", "--quiet", "--allow-empty", "--message=x"],
        *(["tag", tag] for tag in ("v0.1.2", "v0.9.0", "v0.10.0", "v1.0.0")),
    ):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    path = f"{tmp_path}:{os.environ['PATH']}"
    subprocess.run([script, reference], env={**os.environ, "PATH": path}, check=True)
    assert (tmp_path / "calls").read_text().splitlines() == called
