"""Kill and suspend workers of tiny studies at random, and audit what is left. Prints and saves the figures.

    python scripts/bench/chaos.py --kills 100 [--storage sqlite|postgresql] [--save scripts/bench/results/chaos.json]
        [--seed 1 --add]

Workers are killed by the clock, before a file is synced or named, before and after a commit; others are suspended for
longer than the grace period. Every finished study must have exactly its trials, all of them complete or pruned, none
trained twice at once, every file whole, and every number the same as that of the trial left alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from machine import machine

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from envs.files import write_atomic
from optimize.storage import storage_url
from tests.chaos.harness import prepare, run_chaos
from tests.postgres_server import PostgresServer


def add(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """The figures of two runs together."""
    if set(before["seeds"]) & set(now["seeds"]):
        raise SystemExit(f"seed {now['seeds'][0]} is among the figures already; choose another --seed")
    kills = Counter(before["kills"]) + Counter(now["kills"])
    counted = ("seeds", "rounds", "trials", "suspended", "retrained", "seconds", "problems")
    return {**now, **{name: before[name] + now[name] for name in counted}, "kills": dict(kills)}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--trials", type=int, default=12, help="of each study")
    parser.add_argument("--workers", type=int, default=3, help="at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--storage", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--seconds", type=float, default=3600.0, help="after which no new study is begun")
    parser.add_argument("--save", type=Path, help="write the figures into this JSON file, under the database's name")
    parser.add_argument("--add", action="store_true", help="to the figures that it holds of runs with other seeds")
    args = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        prepare(folder)
        if args.storage == "sqlite":
            url = storage_url(str(folder / "s.db"), folder)
        else:
            url = stack.enter_context(PostgresServer()).new_database()
        figures = run_chaos(
            folder, url, kills=args.kills, trials=args.trials, at_once=args.workers, seed=args.seed,
            seconds=args.seconds, say=lambda text: print(text, flush=True),
        )  # fmt: skip
    result = {"seeds": [args.seed], **vars(figures), "kills": dict(figures.kills), "machine": machine()}
    kept = json.loads(args.save.read_text()) if args.save and args.save.exists() else {}
    if args.add and args.storage in kept:
        result = add(kept[args.storage], result)
    result["killed"] = sum(result["kills"].values())
    print(json.dumps(result, indent=1))
    if args.save:
        write_atomic(args.save, json.dumps({**kept, args.storage: result}, indent=1) + "\n")
    return 1 if figures.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
