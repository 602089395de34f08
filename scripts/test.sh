#!/usr/bin/env bash
# Run the test-suite, in an environment of its own (.venv by default; SWEEPD_VENV names another). Arguments go to pytest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=${SWEEPD_VENV:-.venv}
scripts/install.sh "$venv" dev
exec "$venv/bin/python" -m pytest "$@"
