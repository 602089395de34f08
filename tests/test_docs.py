"""What the pages name exists: links, included files, documented modules and paths of the code.

`mkdocs build --strict` checks more; this test needs no MkDocs.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
GENERATED = {"reference/cli.md", "reference/search_space.md"}  # written while the site is built
CODE = r"(?:envs|agents|optimize|deploy|scripts|tests|examples)/[\w/.-]+"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text)
    folder = ROOT if page.parent == ROOT else page.parent
    missing = [link for link in links if link not in GENERATED and not (folder / link).exists()]
    for included in re.findall(r'^--8<-- "(.+)"$', text, re.MULTILINE):
        missing += [included] if not (ROOT / included).exists() else []
    for module in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE):
        path = ROOT / module.replace(".", "/")
        if not path.is_dir() and not path.with_suffix(".py").exists():
            missing.append(module)
    for path in re.findall(rf"`({CODE})`", text):
        missing += [path] if not (ROOT / path).exists() else []
    assert not missing


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r"[\w/]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert named == pages | GENERATED
