"""The processor's highest rate of single-precision operations, as measured.

The best of three: torch's matrix products (MKL), oneDNN's, and a compiled loop of fused
multiply-adds in registers (`peak.cpp`), which no memory and no library slows down. The loop needs a
C++ compiler and is left out without one.

    python -m scripts.bench run peak
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scripts.bench.harness import benchmark_parser, print_machine, save_results
from sweepd.agents.algorithms.sample_programs import now
from sweepd.agents.native.kernels import SOURCE
from sweepd.envs.native.build import FLAGS, SHARED, BuildError, compiler, vector_flags

SIZES = ((1, 2048, 2048, 2048), (1, 4096, 1024, 1024), (20, 2048, 512, 256))
ROUNDS = 2_000_000  # of the loop per call: some hundredths of a second


def peaks(device: torch.device, seconds: float) -> dict[str, float]:
    """Return the highest rate found of each kind, in operations per second.

    Args:
        device: where products run; "onednn" and "loop" are measured on CPUs only.
        seconds: time to spend, about.
    """
    kinds: dict[str, Callable[[float], float]] = {"torch": lambda time: _products(device, time)}
    if device.type == "cpu":
        if torch.backends.mkldnn.is_available():
            kinds["onednn"] = _onednn
        if _loop() is not None:
            kinds["loop"] = _multiply_adds
    return {name: kind(seconds / len(kinds)) for name, kind in kinds.items()}


def _products(device: torch.device, seconds: float) -> float:
    """Measure torch's products, plain and batched."""
    best = 0.0
    for batch, rows, inner, columns in SIZES:
        a = torch.randn(batch, rows, inner, device=device)
        b = torch.randn(batch, inner, columns, device=device)
        out = a @ b

        def product(a: Tensor = a, b: Tensor = b, out: Tensor = out) -> None:
            if len(a) == 1:
                torch.mm(a[0], b[0], out=out[0])
            else:
                torch.bmm(a, b, out=out)

        operations = 2.0 * batch * rows * inner * columns
        best = max(best, _fastest(product, operations, device, seconds / len(SIZES)))
    return best


def _onednn(seconds: float) -> float:
    """Measure oneDNN's product, in its own layout."""
    _, rows, inner, columns = SIZES[1]
    a, b = torch.randn(rows, inner).to_mkldnn(), torch.randn(columns, inner).to_mkldnn()
    cpu = torch.device("cpu")

    def product() -> None:
        torch.nn.functional.linear(a, b)

    return _fastest(product, 2.0 * rows * inner * columns, cpu, seconds)


def _fastest(
    run: Callable[[], None], operations: float, device: torch.device, seconds: float
) -> float:
    run()
    best, until = 0.0, time.perf_counter() + seconds
    while True:
        start = now(device)
        run()
        best = max(best, operations / (now(device) - start))
        if time.perf_counter() >= until:
            return best


def _multiply_adds(seconds: float) -> float:
    """Measure the loop on torch's number of threads."""
    function, threads = _loop(), torch.get_num_threads()
    assert function is not None
    best, until = 0.0, time.perf_counter() + seconds
    with ThreadPoolExecutor(threads) as pool:
        while True:
            start = time.perf_counter()
            # ctypes releases the interpreter's lock.
            done = sum(pool.map(lambda _: function(ROUNDS), range(threads)))
            best = max(best, done / (time.perf_counter() - start))
            if time.perf_counter() >= until:
                return best


@cache
def _loop() -> Callable[[int], float] | None:
    """Compile the loop; None if that is not possible."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "peak.so"
        source = Path(__file__).with_suffix(".cpp")
        try:
            folders = [f"-I{SOURCE.parent}", f"-I{SHARED}"]
            command = [compiler(), *FLAGS, *vector_flags(), *folders, str(source)]
            subprocess.run([*command, "-o", str(made)], check=True, capture_output=True)
        except (BuildError, subprocess.CalledProcessError) as error:
            print(f"no loop of multiply-adds: {error}")
            return None
        library = ctypes.CDLL(str(made))
    library.sweepd_peak.restype = ctypes.c_double
    library.sweepd_peak.argtypes = [ctypes.c_int64, ctypes.POINTER(ctypes.c_float)]

    def call(rounds: int) -> float:
        return float(library.sweepd_peak(rounds, ctypes.byref(ctypes.c_float())))

    return call


def main(arguments: list[str]) -> None:
    """Measure, print and save."""
    parser = benchmark_parser(__doc__, threads=2)
    parser.add_argument("--seconds", type=float, default=3.0, help="time to spend")
    args = parser.parse_args(arguments)
    torch.set_num_threads(args.threads)
    found: dict[str, Any] = {"machine": print_machine()}
    found["gflops"] = {
        name: rate / 1e9 for name, rate in peaks(torch.device("cpu"), args.seconds).items()
    }
    for name, rate in found["gflops"].items():
        print(f"{name:>7} {rate:7.1f} GFLOP/s")
    save_results(args.save, found)
