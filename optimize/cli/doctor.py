"""`sweepd doctor`: checks of this machine and the installation."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from sweepd.agents.algorithms.acceptance import Trial
from sweepd.agents.algorithms.elegantrl_kinds import install_elegantrl
from sweepd.agents.algorithms.identity import processor_kind, prove
from sweepd.agents.native.choice import KERNELS
from sweepd.agents.networks.precision import PRECISIONS, set_precision, why_not
from sweepd.envs.core.native import RANDOM
from sweepd.envs.core.sizing import available_memory, cpu_count
from sweepd.envs.crypto.native.choice import STEP as CRYPTO
from sweepd.envs.games.bucket_brigade.native import STEP as BUCKET_BRIGADE
from sweepd.envs.games.card_duel.native import STEP as CARD_DUEL
from sweepd.envs.games.hockey.native import STEP as HOCKEY
from sweepd.envs.games.native.cartpole import STEP as CARTPOLE
from sweepd.envs.native.build import BuildError, processor_kinds, vector_flags
from sweepd.envs.support.errors import InputError, TryAgainLater
from sweepd.envs.support.formatting import counted, duration
from sweepd.envs.support.invocation import install_extra
from sweepd.envs.support.mkl import MODE, VARIABLE
from sweepd.envs.support.passwords import hide_password
from sweepd.optimize.cli.findings import Finding, print_findings
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.worker.gpu_meter import GpuMeter

GIB = 2**30
NATIVE = (KERNELS, RANDOM, CRYPTO, CARTPOLE, CARD_DUEL, HOCKEY, BUCKET_BRIGADE)
VERSIONS = ("optuna", "numpy", "pandas", "sqlalchemy", "TA-Lib", "gymnasium", "safetensors")
# Optional packages: (package, its extra, what it is for).
EXTRAS = (
    ("optuna-dashboard", "dashboard", "sweepd dashboard in a browser"),
    ("ccxt", "ccxt", "bars from exchanges"),
    ("alpaca-py", "alpaca", "trading on Alpaca's paper account"),
    ("psycopg", "postgres", "PostgreSQL"),
    ("prometheus-client", "metrics", "--metrics-port"),
    ("apprise", "notify", "SWEEPD_NOTIFY"),
    ("mlflow-skinny", "mlflow", "--track mlflow"),
    ("wandb", "wandb", "--track wandb"),
    ("imageio-ffmpeg", "video", "MP4 of games"),
    ("pygame-ce", "classic-control", "pictures of Gymnasium's small environments"),
)


def examine(storage: str, folder: Path) -> Iterator[Finding]:
    """Yield the results of all checks.

    Args:
        storage: URL of the database.
        folder: the runs directory.
    """
    yield Finding(
        sys.version_info >= (3, 11), "python", platform.python_version(), "use Python 3.11 or newer"
    )
    yield from _torch()
    cores = cpu_count()
    yield Finding(
        True, "cores", f"{cores} usable, {counted(torch.get_num_threads(), 'torch thread')}"
    )
    yield from _identity()
    memory = available_memory("cpu") / GIB
    yield Finding(
        memory > 2,
        "memory",
        f"{memory:.1f} GiB available",
        "free some memory; otherwise, fewer members are computed at once",
    )
    # The directory may not exist yet; then its nearest parent decides.
    place = next(p for p in (folder.resolve(), *folder.resolve().parents) if p.exists())
    free = shutil.disk_usage(place).free / GIB
    yield Finding(
        free > 2,
        "disk",
        f"{free:.0f} GiB free at {place}",
        "free some space, or choose another --runs-dir",
    )
    yield Finding(
        os.access(place, os.W_OK),
        "runs directory",
        str(place),
        "make it writable, or choose another --runs-dir",
    )
    yield _database(storage)
    advice = "install from requirements.lock, as start_vectorized_training.sh does"
    for name in VERSIONS:
        version = _installed(name)
        yield Finding(version is not None, name, version or "not installed", advice)
    optional = [(name, install_extra(extra), purpose) for name, extra, purpose in EXTRAS]
    optional.append(("elegantrl", install_elegantrl(), "--algo elegantrl:NAME"))
    for name, command, purpose in optional:
        missing = f"not installed; needed only for {purpose}: {command}"
        yield Finding(True, name, _installed(name) or missing)


def _torch() -> Iterator[Finding]:
    hip, cuda = torch.version.hip, torch.version.cuda
    build = f"ROCm {hip}" if hip else f"CUDA {cuda}" if cuda else "CPU"
    yield Finding(True, "torch", f"{torch.__version__} ({build} build)")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            yield Finding(
                free > GIB,
                f"GPU {index}",
                f"{torch.cuda.get_device_name(index)}, "
                f"{free / GIB:.1f} of {total / GIB:.1f} GiB free",
                "another process uses its memory: see nvidia-smi or rocm-smi, or choose another "
                "--gpu",
            )
    elif build != "CPU":
        yield Finding(
            False,
            "GPU",
            "none visible to torch",
            "check the driver (nvidia-smi, rocm-smi) and CUDA_VISIBLE_DEVICES or "
            "HIP_VISIBLE_DEVICES, or install the CPU build (SWEEPD_TORCH=cpu)",
        )
    # Device files exist without any library, so they also show GPUs that torch cannot use.
    elif Path("/dev/nvidia0").exists() or Path("/dev/kfd").exists():
        kind = "cuda" if Path("/dev/nvidia0").exists() else "rocm"
        yield Finding(
            False,
            "GPU",
            "the machine has one, but torch is the CPU build",
            f"reinstall with SWEEPD_TORCH={kind}",
        )
    else:
        yield Finding(True, "GPU", "none; training runs on the CPU")
    if hip:
        mode = os.environ.get("MIOPEN_FIND_MODE")
        yield Finding(
            mode in ("FAST", "2"),
            "MIOpen",
            f"MIOPEN_FIND_MODE={mode}, MIOPEN_LOG_LEVEL={os.environ.get('MIOPEN_LOG_LEVEL')}",
            "export MIOPEN_FIND_MODE=FAST MIOPEN_LOG_LEVEL=3; otherwise, the first step of every "
            "shape takes minutes",
        )


def _identity() -> Iterator[Finding]:
    """Check that a member's numbers do not depend on slot, other members and number of threads."""
    own = os.environ.get(VARIABLE, "")
    whose = "" if own == MODE else ", not sweepd's default"
    yield Finding(True, "numbers", f"{processor_kind()} ({VARIABLE}={own}{whose})")
    for code in NATIVE:
        yield Finding(True, f"native code: {code.of}", code.status())
    advice = (
        f"results are not reproducible on this machine: unset {VARIABLE} or set {VARIABLE}={MODE}, "
        "and run this command again"
    )
    for part in prove():
        yield Finding(part.holds, f"numbers: {part.name}", part.found, advice)


def _database(storage: str) -> Finding:
    shown = hide_password(storage)
    if storage.startswith("sqlite:///") and not Path(storage.removeprefix("sqlite:///")).exists():
        return Finding(True, "database", f"{shown} (the first study creates it)")
    try:
        # A short timeout: a locked database is a finding, not a reason to wait.
        opened = open_storage(storage, create=False, busy_timeout=5.0)
        return Finding(True, "database", f"{shown}, studies: {len(opened.get_all_studies())}")
    except (InputError, TryAgainLater) as error:
        return Finding(False, "database", str(error), "see the message")


def _installed(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def diagnose(where: str | None, runs_dir: Path) -> int:
    """Print all checks; return the number of problems."""
    return print_findings(examine(storage_url(where, runs_dir), runs_dir))


def accept_gpu(gpu: str) -> int:
    """Try a GPU, and print each result as it arrives; return the number of problems.

    Args:
        gpu: its number.

    Raises:
        InputError: there is no such GPU.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        raise InputError(
            "sweepd doctor --gpu: torch sees no GPU on this machine (sweepd doctor says why)"
        )
    if not gpu.isdecimal() or int(gpu) >= count:
        raise InputError(f"sweepd doctor --gpu {gpu}: give the number of a GPU, 0 to {count - 1}")
    device = torch.device(f"cuda:{gpu}")
    torch.cuda.set_device(device)
    return print_findings(_accepted(device))


# What a failed part of the acceptance means, by the first word of its name.
_MEANING = {
    "kernels": "torch's operations are used instead, more slowly",
    "recorded": "training takes several times as long: report it with this line",
    "bits": "results are not reproducible on this card: report it with this line",
    "waits": "training is slower than it could be: report it with this line",
    "speed": "see the message",
}


def _accepted(device: torch.device) -> Iterator[Finding]:
    began = time.monotonic()
    build = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    name = torch.cuda.get_device_name(device)
    yield Finding(True, "GPU", f"{name}, torch {torch.__version__} ({build} build)")
    use = GpuMeter(device).read()
    missing = use is None or use.share is None or use.power is None
    advice = "; not all is known without its library" if missing else ""
    yield Finding(
        use is not None, "use", f"{use or 'not known'}{advice}", "see docs/how_to/install"
    )
    precisions = [name for name in PRECISIONS if not why_not(name, device)]
    yield Finding(True, "precision", ", ".join(precisions))
    set_precision("fp32", device)
    for part in Trial(device).findings():
        yield Finding(part.holds, part.name, part.found, _MEANING[part.name.partition(":")[0]])
    yield Finding(True, "time", duration(time.monotonic() - began))


def compile_native() -> int:
    """Compile the native code for all processors of this architecture; return the failures.

    That for this processor is tested, too.
    """
    return print_findings(_compiled())


def _compiled() -> Iterator[Finding]:
    kinds = processor_kinds()
    if not kinds:
        yield Finding(False, "native code", f"there is none for {platform.machine()}", "use torch")
    try:
        own = vector_flags()
    except BuildError:
        own = None
    for code in NATIVE:
        for kind, vectors in kinds.items():
            subject = f"native code: {code.of}, for {kind} processors"
            try:
                path = code.compiled(vectors).resolve()  # not that of a descriptor
                if vectors == own:
                    code.checked()
            except (BuildError, OSError) as error:
                yield Finding(False, subject, str(error), f"otherwise {code.instead}")
                continue
            yield Finding(True, subject, f"{path}{', tested' if vectors == own else ''}")
