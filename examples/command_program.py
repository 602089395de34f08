"""A program for `sweepd train --env command:…` that continues from its checkpoint after a kill.

    sweepd train --env 'command:python examples/command_program.py' --search-space space.toml

with `[params]`, `learning_rate = { low = 1e-3, high = 1.0, log = true }` in space.toml. By hand it
prints its reports.
"""

from __future__ import annotations

import json
import os

import sweepd

STEPS = 100


def main() -> None:
    rate = sweepd.params().get("learning_rate", 0.1)
    kept = sweepd.checkpoint_dir() / "checkpoint.json"
    step, weight = json.loads(kept.read_text()) if kept.exists() else (0, 5.0)
    while step < STEPS:
        weight -= rate * 2.0 * (weight - 3.0)  # of the loss (weight - 3)²
        step += 1
        if step % 10 == 0:
            sweepd.report(step, -((weight - 3.0) ** 2), weight=weight)
            new = kept.with_suffix(".new")
            new.write_text(json.dumps([step, weight]))
            os.replace(new, kept)  # whole or not at all
    (sweepd.out_dir() / "weight.txt").write_text(f"{weight}\n")


if __name__ == "__main__":
    main()
