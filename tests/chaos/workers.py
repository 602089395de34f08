"""Kill and suspend workers of tiny studies at random and audit the results.

    python -m tests.chaos.workers --kills 100 [--kind market|program] [--storage sqlite|postgresql]
        [--save scripts/bench/results/chaos.json] [--seed 1 --add]
    python -m tests.chaos.workers --evict [--kills 12] [--interval 3 10]
        [--save scripts/bench/results/chaos.json]

Workers are killed at random times, before a file is synced or renamed, and before and after a
commit; others are suspended for longer than the grace period. With --evict, two workers share a
study with the usual heartbeats, and one of them is killed every 3 to 10 seconds, which is less than
a batch takes. Every finished study must have exactly its trials, all complete or pruned, none
trained twice at the same time, all files complete, and all numbers equal to those of undisturbed
trials. Of a study of programs, no process may be left.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scripts.bench.harness import benchmark_parser, load_results, machine, save_results
from sweepd.optimize.study.record.database import storage_url
from tests.chaos.harness import run_chaos, run_evictions
from tests.chaos.kinds import KINDS
from tests.postgres_server import PostgresServer


def add(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Combine the figures of two runs."""
    if set(before["seeds"]) & set(now["seeds"]):
        raise SystemExit(
            f"seed {now['seeds'][0]} is among the figures already; choose another --seed"
        )
    kills = Counter(before["kills"]) + Counter(now["kills"])
    counted = ("seeds", "rounds", "trials", "suspended", "retrained", "seconds", "problems")
    return {**now, **{name: before[name] + now[name] for name in counted}, "kills": dict(kills)}


def main(arguments: list[str]) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--kills", type=int, help="default: 100; with --evict 12")
    parser.add_argument("--trials", type=int, help="per study; default: 12; with --evict 24")
    parser.add_argument("--workers", type=int, help="concurrent; default: 3; with --evict 2")
    parser.add_argument(
        "--evict", action="store_true", help="kill the workers of one study in turn, periodically"
    )
    parser.add_argument(
        "--interval", type=float, nargs=2, default=[3.0, 10.0], help="seconds between evictions"
    )
    parser.add_argument(
        "--budget", type=int, default=20_000, help="with --evict: environment steps per trial"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=list(KINDS), default="market", help="of study")
    parser.add_argument("--storage", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="start no new study after this time"
    )
    parser.add_argument(
        "--add", action="store_true", help="add to the file's figures from other seeds"
    )
    args = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kind = KINDS[args.kind]
        kind.prepare(folder)
        if args.storage == "sqlite":
            url = storage_url(str(folder / "s.db"), folder)
        else:
            url = stack.enter_context(PostgresServer()).new_database()

        def say(text: str) -> None:
            print(text, flush=True)

        if args.evict:
            figures = run_evictions(
                folder,
                url,
                kind,
                kills=args.kills or 12,
                trials=args.trials or 24,
                at_once=args.workers or 2,
                interval=(args.interval[0], args.interval[1]),
                budget=args.budget,
                seed=args.seed,
                say=say,
            )
        else:
            figures = run_chaos(
                folder,
                url,
                kind,
                kills=args.kills or 100,
                trials=args.trials or 12,
                at_once=args.workers or 3,
                seed=args.seed,
                seconds=args.seconds,
                say=say,
            )
    result = {
        "seeds": [args.seed],
        **vars(figures),
        "kills": dict(figures.kills),
        "machine": machine(),
    }
    name = args.storage if args.kind == "market" else f"{args.storage}, {args.kind}"
    name += ", evicted" if args.evict else ""
    kept = load_results(args.save)
    if args.add and name in kept:
        result = add(kept[name], result)
    result["killed"] = sum(result["kills"].values())
    print(json.dumps(result, indent=1))
    save_results(args.save, {**kept, name: result})
    return 1 if figures.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
