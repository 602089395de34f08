"""The benchmarks: what there is, and the one way to run it.

    python -m scripts.bench list
    python -m scripts.bench run NAME [arguments of the benchmark]

`run NAME --help` shows what a benchmark measures, and its arguments. A benchmark is a module with
`main(argv)` in one of the folders `speed`, `quality` (of training, of the gate and of intervals)
and `search`; the other modules are parts of them.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import sys
from pathlib import Path

FOLDERS = ("speed", "quality", "search")


def benchmarks() -> dict[str, str]:
    """Return the module of each benchmark by its name, without importing any.

    Their peers need not be installed to list them.
    """
    root = Path(__file__).parent
    return {
        path.stem: f"scripts.bench.{folder}.{path.stem}"
        for folder in FOLDERS
        for path in sorted((root / folder).glob("*.py"))
        if any(getattr(part, "name", "") == "main" for part in _tree(path).body)
    }


def summary(module: str) -> str:
    """Return the first line of a benchmark's docstring."""
    path = Path(__file__).parent.joinpath(*module.split(".")[2:]).with_suffix(".py")
    return (ast.get_docstring(_tree(path)) or "").partition("\n")[0]


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def main(argv: list[str] | None = None) -> int | None:
    """List the benchmarks, or run one; returns its exit code."""
    found = benchmarks()
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="names and subjects")
    run = commands.add_parser("run", help="run one")
    run.add_argument("name", choices=found, metavar="NAME")
    run.add_argument("arguments", nargs=argparse.REMAINDER, help="of the benchmark")
    options = parser.parse_args(argv)
    if options.command == "list":
        for folder in FOLDERS:
            print(f"{folder}:")
            for name, module in found.items():
                if f".{folder}." in module:
                    print(f"  {name:18} {summary(module)}")
        return None
    sys.argv = [options.name, *options.arguments]  # which results record as their command
    code: int | None = importlib.import_module(found[options.name]).main(options.arguments)
    return code


if __name__ == "__main__":
    sys.exit(main())
