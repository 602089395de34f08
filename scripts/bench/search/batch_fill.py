"""How full batches are in the `wide` space: a study whose trials are asked and told, not trained.

Each batch draws its shape once, and all its trials are asked with that shape. So batches are not
full only at the end of the study, or if trials that were put back wait with shapes of their own.
Values are computed from the parameters, and some trials are put back as by an interrupted worker.
"""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import optuna

from scripts.bench.harness import benchmark_parser, machine, print_machine, save_results
from scripts.bench.studies import study_in
from sweepd.envs.crypto.data.demo_market import make_demo_market


def main(argv: list[str]) -> None:
    """Run the study, print and save the figures."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument(
        "--put-back", type=float, default=0.05, help="fraction of batches that are interrupted"
    )
    args = parser.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rng = np.random.default_rng(0)
    sizes: list[int] = []
    shapes: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        handle, _ = study_in(
            Path(folder), make_demo_market(0, assets=2, bars=6_000), {"n_envs": 32}
        )
        while plans := handle.ask_batch(handle.spec.trials_per_batch, "bench", args.trials):
            sizes.append(len(plans))
            if rng.random() < args.put_back:
                for plan in plans[: int(rng.integers(1, len(plans) + 1))]:
                    handle.put_back(plan.trial_id)
                plans = [plan for plan in plans if plan.trial_id in handle.storage.held()]
            for plan in plans:
                shapes[" ".join(map(str, plan.settings.shape.values()))] += 1
                value = (
                    -abs(math.log(plan.params["learning_rate"] / 1e-3))
                    + plan.params["net_width"] / 256
                )
                handle.complete(plan.trial_id, value + float(rng.normal()) / 4)
    mean = sum(sizes) / len(sizes)
    print_machine()
    print(
        f"{args.trials} trials in {len(sizes)} batches: {mean:.2f} trials per batch (goal: at "
        "least 4)"
    )
    print("batches by size:", dict(sorted(Counter(sizes).items())))
    print(
        f"{len(shapes)} shapes (width, depth, minibatch, epochs), most asked:",
        dict(shapes.most_common(5)),
    )
    result = {
        "trials": args.trials,
        "mean": mean,
        "sizes": dict(Counter(sizes)),
        "shapes": dict(shapes),
    }
    save_results(args.save, {**result, "machine": machine()})
