"""One environment package: installed beside the project, and searched by a tiny study.

A package has a virtual environment of its own, from which the project's packages are importable,
too. So pip installs what is missing there, and another version where the package asks for one,
without a change of the project's environment.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
import sysconfig
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench.harness import ROOT
from scripts.wild.packages import WildEnv

TRAINS, MENDED, REFUSED = "trains", "trains as the message says", "refused"
BROKEN, SLOW, MISSING = "broken", "too slow", "not installable here"
INSTALL_SECONDS = 900
MENDS = 4  # flags that a message names, and that are added to the next try
# A few hundred steps: enough for every part of a study, too few to learn anything.
STUDY = (
    *("--n-trials", "1", "--budget", "512", "--n-envs", "2", "--horizon", "64", "--rungs", "1"),
    *("--seeds", "1", "--sampler", "random", "--pruner", "none", "--episodes", "2"),
    *("--fresh-seeds", "0", "--look-steps", "16", "--threads", "1", "--no-auto-deploy"),
)
_WRAPPER = re.compile(r"--wrapper (?:'[^']*'|[\w:.-]*\w)")
_DONE = re.compile(r"trials: 1 complete")
_RATE = re.compile(r"steps in .*?\(([\d,]+) steps/s")


@dataclass
class Tried:
    """The result of a package.

    Attributes:
        name: of `WildEnv`.
        env: for `--env`.
        verdict: one of the constants of this module.
        versions: of the installed requirements.
        flags: of `train`, with those that messages named.
        reason: of a refusal or a failure, or the first refusal before it was mended.
        steps_per_second: of the study, on a machine that others use, too; 0: it did not train.
    """

    name: str
    env: str
    verdict: str = BROKEN
    versions: str = ""
    flags: list[str] = field(default_factory=list)
    reason: str = ""
    steps_per_second: int = 0

    def to_dict(self) -> dict[str, Any]:
        """Return the result for JSON."""
        return asdict(self)


def install(wild: WildEnv, folder: Path) -> tuple[Path, str]:
    """Install what an environment needs; return the Python that has it, and what went wrong."""
    name = re.sub(r"[^\w-]+", "_", "+".join(wild.requirements)) or "none"
    venv = folder / name
    python = venv / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
        own = sysconfig.get_path("purelib", vars={"base": str(venv), "platbase": str(venv)})
        # Paths of this file come after the virtual environment's own packages.
        paths = [sysconfig.get_path("purelib"), str(ROOT)]
        (Path(own) / "project.pth").write_text("\n".join(paths) + "\n", encoding="utf-8")
    if not wild.requirements:
        return python, ""
    # Without these, pip would install an older NumPy beside the project, whose packages then fail.
    limits = folder / "constraints.txt"
    limits.write_text("\n".join(own_requirements()) + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    pip += ["--prefer-binary", "--constraint", str(limits)]
    rc, output = _run([*pip, *wild.requirements], venv, INSTALL_SECONDS)
    return python, "" if rc == 0 else _last_lines(output)


def own_requirements() -> list[str]:
    """Return what the project itself requires, which packages of others must not contradict."""
    listed = importlib.metadata.requires("sweepd") or []
    plain = [
        requirement.partition(";")[0].strip()
        for requirement in listed
        if "extra ==" not in requirement
    ]
    return [re.sub(r"\[.*?\]", "", requirement) for requirement in plain]


def attempt(wild: WildEnv, folder: Path, seconds: float) -> Tried:
    """Install a package and train in its environment, with the wrappers that refusals name.

    Args:
        wild: what to try.
        folder: for virtual environments and studies.
        seconds: a study may take.
    """
    tried = Tried(wild.name, wild.env, flags=list(wild.flags))
    python, problem = install(wild, folder)
    if problem:
        tried.verdict, tried.reason = MISSING, problem
        return tried
    tried.versions = _versions(python, wild.requirements)
    place = folder / "studies" / re.sub(r"\W+", "-", wild.name)
    place.mkdir(parents=True, exist_ok=True)
    if wild.module:
        (place / "made.py").write_text(wild.module, encoding="utf-8")
    for attempt in range(MENDS + 1):
        runs = ["--runs-dir", str(place / f"runs-{time.time_ns()}")]
        train = [str(python), "-m", "sweepd", "train", "--env", wild.env, *STUDY]
        rc, output = _run([*train, *tried.flags, *runs], place, seconds)
        (place / f"output-{attempt}.txt").write_text(output, encoding="utf-8")
        if rc == 0 and _DONE.search(output):
            tried.verdict = TRAINS if tried.flags == list(wild.flags) else MENDED
            rate = _RATE.search(output)
            tried.steps_per_second = int(rate[1].replace(",", "")) if rate else 0
            return tried
        told = _last_lines(output)
        tried.reason = tried.reason or told
        mends = mends_of(told) if rc == 2 else []
        if mends:
            tried.flags += mends
            continue
        tried.verdict = REFUSED if rc == 2 else SLOW if rc is None else BROKEN
        # Without this machine's paths.
        tried.reason = told.replace(str(folder), "").replace(str(ROOT), "")
        if rc is None:
            tried.reason = f"not complete after {seconds:g} seconds"
        return tried
    return tried


def mends_of(told: str) -> list[str]:
    """Return the flags that a message says to add."""
    found = _WRAPPER.findall(told.partition("; add ")[2])
    return [word for flag in found for word in shlex.split(flag)]


def _run(command: list[str], cwd: Path, seconds: float) -> tuple[int | None, str]:
    """Run a program in a session of its own; return its exit code (None: too slow) and output."""
    settings = {"SDL_VIDEODRIVER": "dummy", "MUJOCO_GL": "disabled", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command,
        cwd=cwd,
        env=os.environ | settings,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        try:
            output, _ = process.communicate(timeout=seconds)
            return process.returncode, output
        except subprocess.TimeoutExpired:
            process.terminate()  # the worker puts its trial back and ends its own processes
            try:
                output, _ = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
            return None, output


def _last_lines(output: str, lines: int = 3) -> str:
    """Return the last lines that say something: the message of an error and what precedes it."""
    said = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in said if re.match(r"(error|sweepd): |Error: |ERROR: ", line)]
    return " ".join(errors[:1] or said[-lines:])[-2000:]


def _versions(python: Path, requirements: tuple[str, ...]) -> str:
    """Return names and versions of the installed requirements."""
    names = [re.split(r"[\[<>=]", requirement)[0] for requirement in requirements]
    program = (
        "import importlib.metadata as m, sys; "
        "print(', '.join(f'{n} {m.version(n)}' for n in sys.argv[1:]))"
    )
    shown = subprocess.run(
        [str(python), "-c", program, *names], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip()
