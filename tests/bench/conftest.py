"""Benchmarks run in this process: importing torch takes longer than most of their tiny runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import optuna
import pytest
import torch

from sweepd.envs.crypto import features
from tests.conftest import use_empty_cache

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"
Importer = Callable[[str], ModuleType]


def import_bench(name: str) -> ModuleType:
    """Import a module of the benchmarks, in whichever folder it is."""
    [path] = BENCH.rglob(f"{name}.py")
    module = path.relative_to(BENCH.parents[1]).with_suffix("")
    return importlib.import_module(".".join(module.parts))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Importer]:
    """Import modules by name. What they change in this process is put back afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(features, "_RECIPES", features._RECIPES.copy())
    use_empty_cache(tmp_path, monkeypatch)
    verbosity = optuna.logging.get_verbosity()
    # Tests run beside other processes.
    monkeypatch.setattr(import_bench("harness"), "SHARED", float("inf"))
    with torch.random.fork_rng():
        yield import_bench
    optuna.logging.set_verbosity(verbosity)


def run(script: ModuleType, *arguments: str | Path) -> None:
    """Run a benchmark as from the command line. Missed goals are no error; a message is one."""
    try:
        code = script.main([str(argument) for argument in arguments])
    except SystemExit as end:
        code = end.code
    # 2: the arguments are wrong.
    assert code is None or (isinstance(code, int) and code != 2), code


def entry(content: Any, path: str) -> Any:
    """Return the entry of a results file at a path, see `Case.keys`."""
    for name in path.split("."):
        if isinstance(content, list):
            content = content[int(name)]
        else:
            content = content[next(iter(content)) if name == "*" else name]
    return content


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")
