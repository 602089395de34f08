#!/usr/bin/env bash
# Start sweepd: create .venv if needed, install the locked packages, run `sweepd train`.
#
#   ./start_vectorized_training.sh                    the demo: synthetic market, small study,
#                                                     promotion, paper replay (about 5 minutes)
#   ./start_vectorized_training.sh --smoke            the same in under a minute
#   ./start_vectorized_training.sh --data-dir DIR …   your bars; all flags of `sweepd train` work
#   ./start_vectorized_training.sh --env cartpole …   a game
#   ./start_vectorized_training.sh --study-name S …   continue an existing study
#   ./start_vectorized_training.sh --detach …         run in the background and log to
#                                                     logs/worker_vectorized.log; returns when the
#                                                     worker is ready, or with its exit code if it
#                                                     ends before (2: wrong input)
#   ./start_vectorized_training.sh --install-only     install and exit
#
# Without arguments that say what to train on, the demo runs (also with --n-trials 80 alone). Such
# arguments are --data-dir, --config, --env, --scenario, --env-param, --tickers, --study-name,
# --storage, and the variable SWEEPD_STORAGE.
#
# If a worker of the study is already running, it requeues its trials and the new one takes over.
#
#   SWEEPD_TORCH        cpu | cuda | rocm: build of torch     (default: detected)
#   SWEEPD_TORCH_INDEX  package index for torch; "pip" for pip's configured index
#   SWEEPD_PYTHON       interpreter of the environment        (default: python3)
#   SWEEPD_VENV         directory of the virtual environment  (default: .venv)
#   SWEEPD_DEV=1        also install the packages for testing
#   SWEEPD_EXTRAS       also install these extras, e.g. ccxt,mlflow
set -euo pipefail

here=$PWD
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${SWEEPD_VENV:-$root/.venv}
say() { printf 'sweepd: %s\n' "$*"; }
refuse() { say "$*" >&2; exit 2; }

# As in envs/support/database_url.py: scheme://user:password@host, or a parameter ?password=.
has_password() ( # a subshell: nocasematch ends with it
    after_user='://[^:/@[:space:]]*:[^[:space:]]*@'
    parameter='[?&](password|passwd|pwd|sslpassword)='
    shopt -s nocasematch
    [[ $1 =~ $after_user || $1 =~ $parameter ]]
)

choose_torch_build() {
    if [ -n "${SWEEPD_TORCH:-}" ]; then
        echo "$SWEEPD_TORCH"
    elif command -v nvidia-smi >/dev/null && nvidia-smi -L 2>/dev/null | grep -q GPU; then
        echo cuda
    elif [ -e /dev/kfd ]; then
        echo rocm
    else
        echo cpu
    fi
}

# Installs torch first, with its own dependencies, from the index of the chosen build; then everything
# else exactly as locked. The stamp file shows that an environment is complete and up to date.
install() {
    local python=${SWEEPD_PYTHON:-python3} build index torch stamp pip
    build=$(choose_torch_build)
    case $build in
        cpu) index=https://download.pytorch.org/whl/cpu ;;
        cuda) index=pip ;; # the Linux build on the common index is the CUDA one
        rocm) index=https://download.pytorch.org/whl/rocm7.2 ;;
        *) refuse "SWEEPD_TORCH is '$build'; choose cpu, cuda or rocm" ;;
    esac
    stamp="$(cat "$root"/requirements*.lock "$root/pyproject.toml" | cksum)"
    stamp="$stamp $build ${SWEEPD_DEV:-0} $root"
    [ "$(cat "$venv/.sweepd-installed" 2>/dev/null)" != "$stamp" ] || return 0

    command -v "$python" >/dev/null ||
        refuse "no '$python' found; install Python 3.11 or newer, or name one with SWEEPD_PYTHON"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        refuse "$("$python" --version) is too old; name Python 3.11 or newer with SWEEPD_PYTHON"
    torch=$(grep -o '^torch==[^ ]*' "$root/requirements.lock")
    say "installing into $venv: $torch ($build build), then the locked packages"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)

    if [ -n "${SWEEPD_TORCH_INDEX:-}" ]; then
        index=$SWEEPD_TORCH_INDEX
    elif [ "$index" != pip ] &&
        ! "$python" -c 'import sys, urllib.request
urllib.request.urlopen(sys.argv[1], timeout=10).close()' "$index/torch/" 2>/dev/null; then
        say "PyTorch's index of $build builds does not answer; using pip's configured index"
        index=pip
    fi
    if [ "$index" = pip ]; then
        "${pip[@]}" "$torch"
    else
        "${pip[@]}" "$torch" --index-url "$index"
    fi
    "${pip[@]}" --no-deps -r "$root/requirements.lock"
    [ "${SWEEPD_DEV:-0}" = 0 ] || "${pip[@]}" --no-deps -r "$root/requirements-dev.lock"
    "${pip[@]}" --no-deps --no-build-isolation --editable "$root"
    printf '%s' "$stamp" >"$venv/.sweepd-installed"
}

install_extras() {
    local extras=${SWEEPD_EXTRAS:-} stamp
    stamp="$(cat "$venv/.sweepd-installed") $extras"
    [ -n "$extras" ] && [ "$(cat "$venv/.sweepd-extras" 2>/dev/null)" != "$stamp" ] || return 0
    # pip would only warn of an extra that does not exist.
    "$venv/bin/python" -c 'import sys; from importlib.metadata import metadata
known = metadata("sweepd").get_all("Provides-Extra")
for extra in map(str.strip, sys.argv[1].split(",")):
    if extra not in known:
        sys.exit(f"SWEEPD_EXTRAS names {extra!r}; the extras are " + ", ".join(known))' "$extras" ||
        refuse "no extra was installed"
    say "installing the extras $extras"
    # Versions only: with hashes, pip would refuse the requirements of extras, which are ranges.
    grep -ho '^[^ #]*==[^\]*' "$root"/requirements*.lock >"$venv/.sweepd-constraints"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --constraint "$venv/.sweepd-constraints" "sweepd[$extras]"
    printf '%s' "$stamp" >"$venv/.sweepd-extras"
}

detach=0
install_only=0
subject=${SWEEPD_STORAGE:-} # not empty if an argument says what to train on
unset storage
arguments=()
while [ $# -gt 0 ]; do
    argument=$1
    shift
    if [ "$argument" = --storage ] && [ $# -gt 0 ]; then
        argument=--storage=$1
        shift
    fi
    case ${argument%%=*} in
        --data-dir | --config | --env | --scenario | --env-param | --tickers | \
            --study-name | --storage | --demo | --smoke | --help)
            subject=$argument
            ;;
    esac
    case $argument in
        --detach) detach=1 ;;
        --install-only) install_only=1 ;;
        --storage=*) storage=${argument#--storage=} ;; # the last one counts
        *) arguments+=("$argument") ;;
    esac
done

if has_password "${storage-}"; then
    say "warning: all users of this machine can read the password in --storage; use SWEEPD_STORAGE"
    export SWEEPD_STORAGE=$storage
elif [ -n "${storage+given}" ]; then
    arguments+=("--storage=$storage")
fi

install
install_extras
[ "$install_only" = 0 ] || exit 0
if [ -z "$subject" ]; then
    say "no --data-dir, --env, --config or --study-name: running the demo (--demo)"
    arguments=(--demo ${arguments[@]+"${arguments[@]}"})
fi
cd "$here"
# ROCm: look up kernels instead of benchmarking each new shape for minutes.
export MIOPEN_FIND_MODE=${MIOPEN_FIND_MODE:-FAST} MIOPEN_LOG_LEVEL=${MIOPEN_LOG_LEVEL:-3}
if [ "$detach" = 0 ]; then
    exec "$venv/bin/sweepd" train ${arguments[@]+"${arguments[@]}"}
fi

# The worker creates this file when its input is valid and it is about to train.
signs=$(mktemp -d)
trap 'rm -rf "$signs"' EXIT
log=logs/worker_vectorized.log
mkdir -p logs
touch "$log"
begin=$(($(wc -c <"$log") + 1))
SWEEPD_READY_FILE=$signs/ready setsid nohup "$venv/bin/sweepd" train \
    ${arguments[@]+"${arguments[@]}"} >>"$log" 2>&1 </dev/null &
worker=$!
say "starting process $worker, which logs to $log"
trap 'say "process $worker continues to start; stop it with: kill $worker"; exit 130' INT
while [ ! -e "$signs/ready" ] && kill -0 "$worker" 2>/dev/null; do
    sleep 0.2
done
if ! kill -0 "$worker" 2>/dev/null; then
    code=0
    wait "$worker" || code=$?
    tail -c "+$begin" "$log" | tail -n 20 >&2
    say "the worker has ended with exit code $code; the end of $log is above" >&2
    exit "$code"
fi
say "the worker runs in the background as process $worker; follow it with: tail -f $log"
say "stop it (its trials are requeued) with: kill $worker"
