#!/usr/bin/env bash
# Run the test suite, two processes more than cores, in .venv (or $SWEEPD_VENV), which is created if
# needed. Arguments are passed to pytest (-n 0: a single process).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export SWEEPD_VENV=${SWEEPD_VENV:-$PWD/.venv} SWEEPD_DEV=1
./start_vectorized_training.sh --install-only
# Once, not in each process at the same time.
"$SWEEPD_VENV/bin/python" -m compileall -qq -j 0 agents deploy envs optimize scripts sweepd
# For -n auto: many tests wait for processes that they have started, and leave a core idle meanwhile.
# Without OMP_NUM_THREADS, which nproc would print.
cores=$(env -u OMP_NUM_THREADS nproc)
export PYTEST_XDIST_AUTO_NUM_WORKERS=${PYTEST_XDIST_AUTO_NUM_WORKERS:-$((cores + 2))}
# One thread per process, since the processes share the cores; idle processes steal work from others.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
exec "$SWEEPD_VENV/bin/python" -m pytest -n auto --dist worksteal "$@"
