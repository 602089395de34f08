"""Tests of the native code, built with a sanitizer of the C++ compiler.

    address      reads and writes outside of allocated memory, tensors included, and after its end
    undefined    undefined behaviour: overflows of integers, misaligned pointers, wrong shifts
    thread       data races, among the threads of the pool and among Python's

    python -m tests.agents.sanitizers [address] [undefined] [thread] [--tests PATH …]

The sources and tests are those that users have: only the compiler is another, one that adds the
sanitizer. It requires Linux and g++ with its sanitizers' libraries; otherwise it prints a message
and exits with 0. The exit code is 1 if a sanitizer reports something, or a test fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "tests/agents/native",
    "tests/envs/core/test_streams.py",
    "tests/envs/test_native_steps.py",
    "tests/envs/crypto/test_native_step.py",
    "tests/envs/games/test_native_cartpole.py",
    "tests/envs/games/card_duel/test_native.py",
    "tests/envs/games/hockey/test_native.py",
    "tests/envs/games/bucket_brigade/test_native.py",
)
# The libraries that come before all others in a process, the sanitizer's options, and the tests.
SANITIZERS = {
    # Python frees little at its end. libstdc++: the exceptions of torch pass through the sanitizer.
    "address": ("libasan.so", "detect_leaks=0", ""),
    "undefined": ("libubsan.so", "print_stacktrace=1", ""),
    # It does not know threads that a forked process starts.
    "thread": ("libtsan.so", "suppressions={folder}/suppressed", "not forked"),
}
# The C library frees a thread's variables with locks that the sanitizer does not see.
SUPPRESSED = "race:_dl_deallocate_tls\n"
# Without the preloaded libraries, which are for Python. The last of two options counts.
COMPILER = """#!/bin/sh
unset LD_PRELOAD
exec g++ "$@" -O1 -g -fno-omit-frame-pointer -fsanitize={sanitizer}
"""


def libraries(names: tuple[str, ...]) -> list[str] | None:
    """Return the paths of g++'s libraries; None if one is missing."""
    if sys.platform != "linux" or shutil.which("g++") is None:
        return None
    found = []
    for name in names:
        command = ["g++", f"-print-file-name={name}"]
        path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(path).is_absolute():  # g++ prints the name alone
            return None
        found.append(str(Path(path).resolve()))
    return found


def fixed_addresses() -> list[str]:
    """Return the command for addresses that are not random, which ThreadSanitizer needs."""
    command = ["setarch", "-R"]
    if shutil.which("setarch") is None:
        return []
    works = subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0
    return command if works else []


def run(sanitizer: str, tests: list[str]) -> bool:
    """Run tests with a sanitizer; print its reports. Returns whether all is well."""
    name, options, chosen = SANITIZERS[sanitizer]
    preloaded = libraries((name, "libstdc++.so"))
    if preloaded is None:
        print(f"{sanitizer}: skipped, g++ or its library {name} is missing")
        return True
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        compiler = folder / "compiler"
        compiler.write_text(COMPILER.format(sanitizer=sanitizer), encoding="utf-8")
        compiler.chmod(0o755)
        (folder / "suppressed").write_text(SUPPRESSED, encoding="utf-8")
        environment = os.environ | {
            "CXX": str(compiler),
            "SWEEPD_CACHE_DIR": str(folder / "cache"),
            "LD_PRELOAD": " ".join(preloaded),
            "OMP_NUM_THREADS": "1",  # the sanitizers do not know the threads of OpenMP
            "PYTHONMALLOC": "malloc",
        }
        # To files: pytest keeps what a process writes to its standard error.
        for variable in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
            environment[variable] = f"{options.format(folder=folder)}:log_path={folder}/report"
        pytest = ["pytest", "-n", "0", "-o", "timeout=0", "-k", chosen]
        command = [*fixed_addresses(), sys.executable, "-m", *pytest, *tests]
        done = subprocess.run(command, env=environment, cwd=ROOT, check=False)
        reports = sorted(folder.glob("report.*"))
        for report in reports:
            print(report.read_text(encoding="utf-8", errors="replace"))
    print(f"{sanitizer}: {len(reports)} reports, tests ended with {done.returncode}", flush=True)
    return not reports and done.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sanitizers", nargs="*", metavar="SANITIZER", default=[*SANITIZERS])
    parser.add_argument("--tests", nargs="+", default=[*TESTS], help="what pytest runs")
    args = parser.parse_args()
    if unknown := set(args.sanitizers) - set(SANITIZERS):
        parser.error(f"there is no sanitizer {', '.join(sorted(unknown))}")
    fine = [run(sanitizer, args.tests) for sanitizer in args.sanitizers]
    sys.exit(0 if all(fine) else 1)


if __name__ == "__main__":
    main()
