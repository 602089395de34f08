"""Small distributions, laid out as pip installs them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(
    site: Path,
    name: str,
    files: Mapping[str, str],
    entry_points: Mapping[str, Mapping[str, str]],
    version: str = "1.2.3",
) -> Path:
    """Install a distribution into a folder, which must be on `sys.path` to be found.

    Args:
        site: the folder.
        name: of the distribution.
        files: text of its modules by path.
        entry_points: by group, what each name stands for.
        version: of the distribution.
    """
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    groups = [
        "\n".join([f"[{group}]", *(f"{own} = {value}" for own, value in names.items())])
        for group, names in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups) + "\n")
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))
    return site
