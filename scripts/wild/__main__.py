"""Try environments of other packages, as their users would: install each and train in it.

    python -m scripts.wild --folder /tmp/wild [--only NAME …] [--save scripts/bench/results/wild.json]

Every package is installed into a virtual environment of its own, next to which the project's
packages are importable. A tiny study then says whether it trains. Where a study is refused and the
message names a wrapper, the study is tried again with that flag. The exit code is 1 if any is
broken: what cannot be installed, is refused with a reason or is too slow is no failure.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.bench.harness import load_results, machine, save_results
from scripts.wild.packages import WILD_ENVS
from scripts.wild.trial import BROKEN, Tried, attempt


def main(argv: list[str] | None = None) -> int:
    """Try the environments, print a line for each, and write the table's file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="for virtual environments and studies")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="of these names only")
    parser.add_argument("--seconds", type=float, default=300.0, help="that a study may take")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write the results as JSON")
    given = parser.parse_args(argv)
    unknown = set(given.only) - {wild.name for wild in WILD_ENVS}
    if unknown:
        names = ", ".join(wild.name for wild in WILD_ENVS)
        parser.error(f"--only {', '.join(sorted(unknown))}: there are {names}")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="sweepd-wild-"))
    folder.mkdir(parents=True, exist_ok=True)
    # Results of others are kept: a few are tried again after a change.
    before = {entry["name"]: entry for entry in load_results(given.save).get("tried", ())}
    found: dict[str, Any] = {}
    for wild in WILD_ENVS:
        if given.only and wild.name not in given.only:
            continue
        result: Tried = attempt(wild, folder.resolve(), given.seconds)
        described = machine()
        described["source"]["peers"] = {}  # each environment has versions of its own
        found[wild.name] = result.to_dict() | {"commit": described["source"]["commit"]}
        print(f"{wild.name}: {result.verdict} {result.reason}", flush=True)
        kept = {**before, **found}
        tried = [kept[one.name] for one in WILD_ENVS if one.name in kept]
        save_results(given.save, {"machine": described, "tried": tried})
    return int(any(entry["verdict"] == BROKEN for entry in found.values()))


if __name__ == "__main__":
    sys.exit(main())
