"""Kill promoters at random, let promoters race, and check the registry after each.

    python -m tests.chaos.registry --kills 200 --races 50 [--storage postgresql]
        [--save scripts/bench/results/registry_chaos_sqlite.json]

Two processes promote, store challengers, roll back and clear continuously. One of them is killed
(SIGKILL) at a random time while the other continues, and is replaced. After each kill the registry
must open, every slot must match its history, and its champion, previous champion and challengers
must load with their hashes. In a race, processes promote different bundles into an empty slot at
once: the result must be one champion and a history in which each promotion replaced the one before.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from scripts.bench.harness import benchmark_parser, print_machine, save_results
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.garbage import clear_garbage
from tests.deploy.builders import small_bundle
from tests.deploy.registry_chaos import SLOT, audit, audit_race, live, race
from tests.postgres_server import PostgresServer

FORK = multiprocessing.get_context("fork")


def kill(folder: Path, url: str, bundles: list[Bundle], kills: int, seed: int) -> dict[str, Any]:
    """Kill that many processes one after the other, with an audit after each."""
    rng = random.Random(seed)
    running: list[Any] = []
    states: set[tuple[str | None, str | None]] = set()
    failures: list[str] = []
    moves = found_orphans = 0

    def start() -> None:
        process = FORK.Process(target=live, args=(str(folder), url, rng.getrandbits(30), bundles))
        process.start()
        running.append(process)

    try:
        for number in range(kills):
            while len(running) < 2:
                start()
            time.sleep(rng.uniform(0.0, 0.15))
            process = running.pop(rng.randrange(len(running)))
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            if process.exitcode != -signal.SIGKILL:
                failures.append(
                    f"kill {number}: a process had already ended with exit code {process.exitcode}"
                )
            try:
                champion, previous, _, moves = settled(folder, url)
            except Exception as error:
                failures.append(f"kill {number}: {type(error).__name__}: {error}")
                continue
            states.add((champion, previous))
            found_orphans += len(list((folder / "bundles").glob(".*")))
    finally:
        for process in running:
            process.kill()
            process.join()
    clear_garbage(Registry(folder, url))
    audit(folder, url)
    return {
        "kills": kills,
        "failures": failures,
        "promotions_and_rollbacks": moves,
        "different_states_seen": len(states),
        "interrupted_writes_seen": found_orphans,
        "events": len(Registry(folder, url).events(SLOT)),
    }


def settled(folder: Path, url: str) -> tuple[str | None, str | None, frozenset[str], int]:
    """Audit while another process continues.

    Slot and history are read one after the other, so a change in between is retried. All other
    errors are raised.
    """
    registry = Registry(folder, url)
    for _ in range(200):
        events = len(registry.events())
        try:
            return audit(folder, url)
        except Exception:
            if len(registry.events()) == events:
                raise
    raise AssertionError("the registry never stood still long enough to be looked at")


def main(arguments: list[str]) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--races", type=int, default=50)
    parser.add_argument("--racers", type=int, default=4, help="processes per race")
    parser.add_argument("--storage", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    bundles = [small_bundle(seed) for seed in range(max(4, given.racers))]
    found = print_machine()
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(PostgresServer()) if given.storage == "postgresql" else None

        def database() -> str:
            return (
                server.new_database() if server else f"sqlite:///{root / f'{uuid.uuid4().hex}.db'}"
            )

        start = time.perf_counter()
        killed = kill(root / "kills", database(), bundles, given.kills, given.seed)
        print(
            f"{given.storage}: {killed['kills']} kills, {len(killed['failures'])} invalid "
            "registries after them; "
            f"{killed['promotions_and_rollbacks']} moves of the champion, "
            f"{killed['different_states_seen']} states "
            f"and {killed['interrupted_writes_seen']} interrupted writes seen on the way"
        )
        lost: list[str] = []
        for number in range(given.races):
            folder, url, barrier = root / f"race{number}", database(), FORK.Barrier(given.racers)
            racing = bundles[: given.racers]
            racers = [
                FORK.Process(target=race, args=(str(folder), url, one, barrier)) for one in racing
            ]
            for racer in racers:
                racer.start()
            for racer in racers:
                racer.join()
            try:
                assert [racer.exitcode for racer in racers] == [0] * given.racers, "a racer failed"
                audit_race(folder, url, racing)
            except Exception as error:
                lost.append(f"race {number}: {type(error).__name__}: {error}")
        print(
            f"{given.storage}: {given.races} races of {given.racers} processes into a new "
            f"registry, {len(lost)} "
            "without exactly one champion and a whole history"
        )
        seconds = time.perf_counter() - start
    for failure in (*killed["failures"], *lost):
        print(failure)
    result = {
        "machine": found,
        "storage": given.storage,
        "seed": given.seed,
        "kills": killed,
        "races": {"races": given.races, "racers": given.racers, "failures": lost},
        "seconds": round(seconds, 1),
    }
    save_results(given.save, result)
    return 1 if killed["failures"] or lost else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
