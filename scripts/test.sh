#!/usr/bin/env bash
# Run the test-suite, one process per core, in .venv (SWEEPD_VENV names another), which is made first if needed.
# Arguments go to pytest (-n 0: one process alone).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export SWEEPD_VENV=${SWEEPD_VENV:-$PWD/.venv} SWEEPD_DEV=1
./start_vectorized_training.sh --install-only
# A thread for each of the processes, which share the cores; whoever has nothing left takes from the others.
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
exec "$SWEEPD_VENV/bin/python" -m pytest -n auto --dist worksteal "$@"
