"""Simulate by command: many seeds, or one tape.

    python -m tests.simulation --seeds 10000 [--what worker] [--processes 2] [--keep]
    python -m tests.simulation --what worker --replay "18:3 24:11"

A failing seed is shrunk and printed with the command that repeats it; the exit code is then 1. With
--keep, the figures go to scripts/bench/results/simulation.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
from collections.abc import Sequence
from pathlib import Path

from scripts.bench.harness import load_results, print_machine, save_results
from tests.simulation.runs import WORLDS, Figures, first_failure, run, shrunk
from tests.simulation.scheduler import Tape

RESULTS = Path("scripts/bench/results/simulation.json")
CHUNK = 50  # seeds that a process simulates at a time


def simulate(what: str, seeds: int, processes: int) -> Figures:
    """Simulate seeds 0 … `seeds` - 1 and return the figures; those of a failing run stop it."""
    found = Figures()
    chunks = [range(at, min(at + CHUNK, seeds)) for at in range(0, seeds, CHUNK)]
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        for done in pool.imap_unordered(functools.partial(first_failure, what), chunks):
            found = found + done
            print(f"{what}: {found.seeds:,} seeds, {found.seconds:,.0f} s", flush=True)
            if found.failure is not None:
                break
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Run the command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--what", choices=[*WORLDS], help="default: all")
    parser.add_argument("--seeds", type=int, default=100, help="number of seeds of each")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--replay", metavar="TAPE", help="repeat one run, and print its log")
    parser.add_argument("--keep", action="store_true", help="write the figures into the results")
    given = parser.parse_args(words)
    if given.replay is not None:
        if given.what is None:
            parser.error("--replay needs --what")
        found = run(given.what, Tape.parse(given.replay))
        print("no violation" if found is None else "\n".join([*found.log, str(found)]))
        return int(found is not None)
    for what in [given.what] if given.what else WORLDS:
        figures = simulate(what, given.seeds, given.processes)
        if figures.failure is not None:
            print(f"seed {figures.failing}: {shrunk(figures.failure)}")
            return 1
        print(json.dumps(figures.record, indent=1))
        if given.keep:
            known = load_results(RESULTS)
            save_results(RESULTS, known | {what: figures.record | {"machine": print_machine()}})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
