"""The contents of files as text that can be reviewed and compared."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.numpy
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TEXTS = (".json", ".toml", ".txt", ".html", ".log")
LONG = 12  # values; longer lists are shortened
# Lists of figures, and columns of tables, that are measured or random.
MEASURED = {"rates": ("x", "y", "width", "customdata"), "frontier": ("x",), "hours": ("x",)}
COLUMNS = ("started", "ended", "seconds", "steps_per_second")


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def contents(path: Path) -> str:
    """Return a file as text.

    Tables, tensors, pictures and TensorBoard's events are listed with hashes of their values, so
    that neither compression nor metadata count. Of a PDF, which has its date, only the number of
    pages is compared.
    """
    if path.suffix == ".csv":
        return _rows(path.read_text())
    if path.suffix in TEXTS:
        return page(path.read_text())
    if path.suffix == ".safetensors":
        return _tensors(path.read_bytes())
    if path.suffix == ".parquet":
        return _table(pd.read_parquet(path))
    if path.suffix == ".png":
        return _picture(path.read_bytes())
    if path.suffix == ".pdf":
        pages = re.findall(rb"/Type /Page\b", path.read_bytes())
        return f"{len(pages)} pages"
    if ".tfevents." in path.name:
        return _events(path)
    raise AssertionError(f"{path}: a kind of file without a text")


def listing(folder: Path, without: str = "") -> str:
    """Return all files of a folder with their contents, in the order of their names.

    Of optuna-dashboard's artifacts, which are copies with random names, only the number.
    """
    lines: list[str] = []
    copies = list(folder.glob("artifacts/*"))
    if copies:
        lines.append(f"artifacts: {len(copies)} files")
    for path in sorted((found for found in folder.rglob("*") if found.is_file()), key=_by_numbers):
        if path in copies or (without and str(path).endswith(without)):
            continue
        name = re.sub(r"\.tfevents\..*", ".tfevents", str(path.relative_to(folder)))
        lines += [name, *(f"  {line}" for line in contents(path).splitlines())]
    return "\n".join(lines)


def _by_numbers(path: Path) -> list[str]:
    """Sort key with numbers in their order: those of TensorBoard's files count a process's files."""
    return [re.sub(r"\d+", lambda found: f"{int(found[0]):020}", part) for part in path.parts]


def page(text: str) -> str:
    """Return HTML with its figures as indented JSON, and its pictures as hashes."""
    text = re.sub(
        r"data:image/png;base64,([\w+/=]+)",
        lambda found: f"[{_picture(base64.b64decode(found[1]))}]",
        text,
    )
    return re.sub(
        r'(<script type="application/json"[^>]*>)(.*?)(</script>)',
        lambda found: found[1] + "\n" + _figures(found[2]) + "\n" + found[3],
        text,
        flags=re.DOTALL,
    )


def _figures(text: str) -> str:
    """Return figures as indented JSON, whose long lists of values are ends and a hash."""
    figures = json.loads(text)
    for name, measured in MEASURED.items():
        for part in figures.get(name, {}).get("data", []):
            part |= dict.fromkeys(measured, "<measured>")
    return indented(_shortened(figures))


def indented(value: Any) -> str:
    """Return JSON with indentation, in which lists of numbers and texts have one line each."""
    text = json.dumps(value, indent=1, ensure_ascii=False, sort_keys=True)
    return re.sub(r"\[\n[^\[\]{}]*\n *\]", lambda found: re.sub(r"\s*\n\s*", " ", found[0]), text)


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > LONG and not any(isinstance(item, dict | list) for item in value):
        return [*value[:2], f"{len(value)} values, {sha(json.dumps(value).encode())}", value[-1]]
    return [_shortened(item) for item in value]


def _rows(text: str) -> str:
    table = pd.read_csv(io.StringIO(text), dtype=str)
    measured = table.columns.intersection(list(COLUMNS))
    table[measured] = "<measured>"
    return str(table.to_csv(index=False))


def _tensors(content: bytes) -> str:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    tensors = safetensors.numpy.load(content)
    lines = [f"metadata {json.dumps(header, sort_keys=True)}"] if header else []
    for name, tensor in sorted(tensors.items()):
        lines.append(f"{name} {tensor.dtype} {list(tensor.shape)} {sha(tensor.tobytes())}")
    return "\n".join(lines)


def _table(table: pd.DataFrame) -> str:
    lines = [f"{len(table)} rows"]
    for name in table.columns:
        values = table[name]
        text = "\n".join(map(repr, values.tolist()))
        ends = f"{values.iloc[0]} … {values.iloc[-1]}" if len(values) else "empty"
        lines.append(f"{name} {values.dtype} {sha(text.encode())} {ends}")
    return "\n".join(lines)


def _picture(content: bytes) -> str:
    pixels = np.asarray(Image.open(io.BytesIO(content)).convert("RGBA"))
    return f"picture {pixels.shape[1]}x{pixels.shape[0]} {sha(pixels.tobytes())}"


def _events(path: Path) -> str:
    read = EventAccumulator(str(path), size_guidance={"scalars": 0})
    read.Reload()
    # Last digits depend on the vector instructions of the processor.
    series = {
        tag: [(point.step, f"{point.value:.3g}") for point in read.Scalars(tag)]
        for tag in sorted(read.Tags()["scalars"])
    }
    return f"{len(series)} series {sha(repr(series).encode())}"
