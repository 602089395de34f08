#!/usr/bin/env bash
# Start sweepd: make .venv if needed, install the locked packages, run the main job.
#
#   ./start_vectorized_training.sh                    a demo: synthetic market, small study, promotion, paper replay (≈ 5 minutes)
#   ./start_vectorized_training.sh --smoke            the same in under a minute
#   ./start_vectorized_training.sh --data-dir DIR …   your bars; every flag of `sweepd train` passes through (see --help)
#   ./start_vectorized_training.sh --env cartpole …   a game
#   ./start_vectorized_training.sh --study-name S …   an existing study goes on
#   ./start_vectorized_training.sh --detach …         in the background, logging to logs/worker_vectorized.log; returns once the
#                                                     worker is ready, or has ended: then with its exit code (2: wrong input)
#   ./start_vectorized_training.sh --install-only     install and stop
#
# The demo runs only where no argument says what to train on (also with --n-trials 80 alone): none of --data-dir, --config, --env,
# --scenario, --env-param, --tickers, --study-name, --storage, and no SWEEPD_STORAGE.
#
# Started again for a study that a worker is already running, it asks that worker to put its trials back and takes over.
#
#   SWEEPD_TORCH        cpu | cuda | rocm   which build of torch          (default: guessed from the machine)
#   SWEEPD_TORCH_INDEX  a package index for torch; "pip" = wherever pip is configured to look
#   SWEEPD_PYTHON       the interpreter to build from                     (default: python3)
#   SWEEPD_VENV         the virtual environment                           (default: .venv)
#   SWEEPD_DEV=1        install the packages for testing as well
set -euo pipefail

here=$PWD
root=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
venv=${SWEEPD_VENV:-$root/.venv}
say() { printf 'sweepd: %s\n' "$*"; }
refuse() { say "$*" >&2; exit 2; }

# The same URLs as envs/support/database_url.py finds: scheme://user:password@host, or a parameter ?password=.
has_password() ( # a subshell: nocasematch ends with it
    after_user='://[^:/@[:space:]]*:[^[:space:]]*@' parameter='[?&](password|passwd|pwd|sslpassword)='
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

# torch goes first, at the version pinned in pyproject.toml and with its own dependencies, from the source of the chosen build; then
# everything else exactly as locked. A finished environment is recognised by a stamp of what it was made from, and left alone.
install() {
    local python=${SWEEPD_PYTHON:-python3} build index torch stamp pip
    build=$(choose_torch_build)
    case $build in
        cpu) index=https://download.pytorch.org/whl/cpu ;;
        cuda) index=pip ;; # the Linux build on the common index is the CUDA one
        rocm) index=https://download.pytorch.org/whl/rocm7.2 ;;
        *) refuse "SWEEPD_TORCH is '$build'; choose cpu, cuda or rocm" ;;
    esac
    stamp="$(cat "$root"/requirements*.lock "$root/pyproject.toml" | cksum) $build ${SWEEPD_DEV:-0} $root"
    [ "$(cat "$venv/.sweepd-installed" 2>/dev/null)" != "$stamp" ] || return 0

    command -v "$python" >/dev/null || refuse "no '$python' found; install Python 3.11 or newer, or name one with SWEEPD_PYTHON"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        refuse "$("$python" --version) is too old; Python 3.11 or newer is needed (name one with SWEEPD_PYTHON)"
    torch=$(sed -n 's/^ *"\(torch==[0-9.]*\)".*/\1/p' "$root/pyproject.toml")
    say "installing into $venv: $torch ($build build), then the locked packages"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)

    if [ -n "${SWEEPD_TORCH_INDEX:-}" ]; then
        index=$SWEEPD_TORCH_INDEX
    elif [ "$index" != pip ] &&
        ! "$python" -c 'import sys, urllib.request as u; u.urlopen(sys.argv[1], timeout=10).close()' "$index/torch/" 2>/dev/null; then
        say "PyTorch's index of $build builds does not answer; taking $torch from where pip is configured to look"
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

detach=0
install_only=0
subject=${SWEEPD_STORAGE:-} # not empty: something says what to train on, or in which database the study is
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
        --data-dir | --config | --env | --scenario | --env-param | --tickers | --study-name | --storage | --demo | --smoke | --help)
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
    say "warning: all users of this machine can read the password in --storage; set SWEEPD_STORAGE instead (passed on as that variable)"
    export SWEEPD_STORAGE=$storage
elif [ -n "${storage+given}" ]; then
    arguments+=("--storage=$storage")
fi

install
[ "$install_only" = 0 ] || exit 0
if [ -z "$subject" ]; then
    say "no argument says what to train on (--data-dir, --env, --config, --study-name, …): running the demo (--demo)"
    arguments=(--demo ${arguments[@]+"${arguments[@]}"})
fi
cd "$here"
# ROCm: look kernels up instead of benchmarking each new shape for minutes.
export MIOPEN_FIND_MODE=${MIOPEN_FIND_MODE:-FAST} MIOPEN_LOG_LEVEL=${MIOPEN_LOG_LEVEL:-3}
if [ "$detach" = 0 ]; then
    exec "$venv/bin/sweepd" train ${arguments[@]+"${arguments[@]}"}
fi

# The worker creates this file once it has joined its study and is about to train. Until then it may still find that its input is wrong.
signs=$(mktemp -d)
trap 'rm -rf "$signs"' EXIT
log=logs/worker_vectorized.log
mkdir -p logs
touch "$log"
begin=$(($(wc -c <"$log") + 1))
SWEEPD_READY_FILE=$signs/ready setsid nohup "$venv/bin/sweepd" train ${arguments[@]+"${arguments[@]}"} >>"$log" 2>&1 </dev/null &
worker=$!
say "starting process $worker, which logs to $log"
trap 'say "process $worker goes on starting; stop it with: kill $worker"; exit 130' INT
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
