"""Two concurrent processes that run the same peer: often more steps per second than one with all
threads.

A script that uses them calls `serve` when its first argument is `as-pair`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from harness import steps_per_second


class Pair:
    """Two processes with half of the threads each.

    Args:
        script: path of the script that they run.
        threads: of both together.
    """

    def __init__(self, script: str, threads: int) -> None:
        command = [sys.executable, script, "as-pair", "--threads", str(max(1, threads // 2))]
        self._two = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in "ab"
        ]

    def _ask(self, request: dict[str, Any]) -> list[Any]:
        for one in self._two:
            assert one.stdin is not None
            one.stdin.write(json.dumps(request) + "\n")
            one.stdin.flush()
        answers = []
        for one in self._two:
            assert one.stdout is not None
            answers.append(json.loads(one.stdout.readline()))
        return answers

    def prepare(self, name: str, cell: dict[str, Any]) -> None:
        """Create and warm up a peer in both processes."""
        self._ask({"prepare": name, "cell": cell})

    def measure(self, name: str, seconds: float) -> float:
        """Return the steps/s of both processes, summed."""
        return float(sum(self._ask({"measure": name, "seconds": seconds})))

    def close(self) -> None:
        """End both processes."""
        for one in self._two:
            assert one.stdin is not None
            one.stdin.close()
            one.wait()


def serve(prepare: Callable[[str, dict[str, Any]], Callable[[], int]]) -> None:
    """Serve requests from stdin as one of the two processes.

    Args:
        prepare: returns a function that runs a peer, by name and sizes, and returns its steps.
    """
    made = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "prepare" in request:
            made[request["prepare"]] = run = prepare(request["prepare"], request["cell"])
            run()
            print("0", flush=True)
        else:
            print(steps_per_second(made[request["measure"]], request["seconds"]), flush=True)
