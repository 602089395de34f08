"""Bit-reproducibility of training on three processors emulated by `qemu-user`.

On each of Haswell, EPYC and Skylake-Client (all with AVX2, none with AVX-512) it checks

    products   small batched products as in a population's networks: how many depend on the slot, in
               MKL's default mode and in the reproducible mode that sweepd sets
               (`sweepd.envs.support.mkl`)
    digests    some programs of `tests.agents.digests`: whether weights depend on slot, batch mates
               or threads, and whether they match those stored

    python -m tests.agents.emulated_processors [--quick] [--save FILE]

It requires an x86-64 machine and `qemu-x86_64` (apt-get install qemu-user); otherwise it prints a
message and exits with 0. The exit code is 1 if a check fails. --quick runs two programs, for CI.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scripts.bench.harness import benchmark_parser, print_machine, save_results
from sweepd.envs.support.mkl import VARIABLE
from tests.agents.digests import known

ROOT = Path(__file__).resolve().parents[2]

PROCESSORS = ("Haswell", "EPYC", "Skylake-Client")
QUICK = ("d3qn, 7 choices", "ppo, cartpole")
PROGRAMS = (*QUICK, "sac, 5 actions", "ppo, gru", "ppo, lstm", "ppo, images")
# The first product is computed before sweepd is imported, so MKL stays in its default mode.
_PRODUCTS = (
    "import json, warnings, torch; torch.ones(3, 3) @ torch.ones(3, 3); "
    "warnings.simplefilter('ignore'); "
    "from sweepd.agents.algorithms.identity import processor_kind, products_by_slot; "
    "total, wrong = products_by_slot(); "
    "print(json.dumps({'kind': processor_kind(), 'total': total, "
    "'depend on the slot': len(wrong)}))"
)


def emulated(processor: str, *arguments: str) -> dict[str, Any]:
    """Run Python on an emulated processor and parse the last line of its output as JSON."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["qemu-x86_64", "-cpu", processor, sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{processor}: Python ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def look(processor: str, programs: tuple[str, ...]) -> dict[str, Any]:
    """Check products in both modes, and programs."""
    before = emulated(processor, "-c", _PRODUCTS)
    reproducible = emulated(
        processor, "-m", "tests.agents.digests", "--json", "--products", "--only", *programs
    )
    return {"processor": processor, "default mode": before, "reproducible mode": reproducible}


def show(result: dict[str, Any]) -> bool:
    """Print the results of a processor. Returns whether all checks passed."""
    before, found = result["default mode"], result["reproducible mode"]
    total, wrong = found["products"]
    print(f"\n{result['processor']}: {found['kind']}")
    by_default = f"{before['depend on the slot']} of {before['total']} in MKL's default mode"
    print(
        f"  products that depend on the slot: {by_default}, {wrong} of {total} in the "
        "reproducible mode"
    )
    changed = False
    every = [(kind, *pair) for kind, some in found["digests"].items() for pair in some.items()]
    for kind, name, digest in every:
        was = known().get(kind, {}).get(name)
        said = (
            "as kept"
            if was == digest
            else "none kept"
            if was is None
            else f"CHANGED, {was} is kept"
        )
        changed |= was not in (None, digest)
        print(f"  {name:20} {digest}  {said}")
    print(
        *(f"  {line}" for line in found["wrong"] or ["slot, company and threads change nothing"]),
        sep="\n",
    )
    return not (wrong or found["wrong"] or changed)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="two programs only")
    parser.add_argument("--jobs", type=int, default=2, help="processors emulated at a time")
    args = parser.parse_args()
    if platform.machine() not in ("x86_64", "AMD64") or shutil.which("qemu-x86_64") is None:
        print(
            "skipped: emulated processors need an x86-64 machine and qemu-x86_64 "
            "(apt-get install qemu-user)"
        )
        return
    found = print_machine()
    programs = QUICK if args.quick else PROGRAMS
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda processor: look(processor, programs), PROCESSORS))
    fine = [show(result) for result in results]
    save_results(args.save, {"machine": found, "results": results})
    sys.exit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
