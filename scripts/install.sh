#!/usr/bin/env bash
# Make or complete a virtual environment:  scripts/install.sh DIR [dev]
#
#   SWEEPD_PYTHON       the interpreter to build from (default: python3)
#   SWEEPD_TORCH        cpu | cuda | rocm           (default: guessed from the machine)
#   SWEEPD_TORCH_INDEX  package index for torch     (default: PyTorch's own for that build; "pip" = whatever pip is configured with)
#
# torch goes first, at the version pinned in pyproject.toml and with its own dependencies, from the source of the chosen build; then
# everything else exactly as locked. A finished environment is recognised by a stamp of the lock files, and left alone.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$1
kind=${2:-user}
python=${SWEEPD_PYTHON:-python3}
say() { printf 'sweepd: %s\n' "$*"; }

command -v "$python" >/dev/null || { say "no '$python' found; install Python 3.11 or newer, or set SWEEPD_PYTHON" >&2; exit 2; }
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    { say "$("$python" --version) is too old; Python 3.11 or newer is needed (set SWEEPD_PYTHON to one)" >&2; exit 2; }

build=${SWEEPD_TORCH:-}
if [ -z "$build" ]; then
    build=cpu
    if command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
        build=cuda
    elif [ -e /dev/kfd ]; then
        build=rocm
    fi
fi
case $build in
    cpu) public=https://download.pytorch.org/whl/cpu ;;
    cuda) public=https://download.pytorch.org/whl/cu130 ;;
    rocm) public=https://download.pytorch.org/whl/rocm7.2 ;;
    *) say "SWEEPD_TORCH is '$build'; choose cpu, cuda or rocm" >&2; exit 2 ;;
esac
torch=$(sed -n 's/^ *"\(torch==[0-9.]*\)".*/\1/p' "$root/pyproject.toml")

stamp=$(cat "$root/requirements.lock" "$root/requirements-dev.lock" "$root/pyproject.toml" | cksum; echo "$kind $build $root")
if [ -f "$venv/.sweepd-installed" ] && [ "$(cat "$venv/.sweepd-installed")" = "$stamp" ]; then
    exit 0
fi

say "installing into $venv with $torch ($build build)"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)

index=${SWEEPD_TORCH_INDEX:-}
if [ -z "$index" ] && ! "$python" - "$public" <<'PY' 2>/dev/null
import sys, urllib.request
urllib.request.urlopen(sys.argv[1] + "/torch/", timeout=10).close()
PY
then
    say "PyTorch's index for the $build build does not answer; taking $torch from where pip is configured to look"
    index=pip
fi
if [ "${index:-$public}" = pip ]; then
    "${pip[@]}" "$torch"
else
    "${pip[@]}" "$torch" --index-url "${index:-$public}"
fi
"${pip[@]}" --no-deps -r "$root/requirements.lock"
if [ "$kind" = dev ]; then
    "${pip[@]}" --no-deps -r "$root/requirements-dev.lock"
fi
"${pip[@]}" --no-deps --no-build-isolation --editable "$root"
printf '%s' "$stamp" >"$venv/.sweepd-installed"
