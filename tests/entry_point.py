"""The `sweepd` command in a forked process: a new interpreter needs seconds to import torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import matplotlib.backends.backend_pdf
import scipy.fft
import scipy.special
import torch.utils.tensorboard
import typer

import sweepd.app
from sweepd.commands import CommandTable, build_app
from sweepd.deploy.dashboard import web
from sweepd.deploy.games import pictures as game_pictures
from sweepd.deploy.market import pictures as market_pictures
from sweepd.deploy.promotion import documents
from sweepd.deploy.trading import replay_picture
from sweepd.optimize.cli import run, train
from sweepd.optimize.study.sampling import race

# What takes longest of the modules that commands import late. Imported once: the forked processes
# have them.
PRELOADED = (
    matplotlib.backends.backend_pdf,
    scipy.fft,
    scipy.special,
    torch.utils.tensorboard,
    web,
    documents,
    game_pictures,
    market_pictures,
    replay_picture,
    run,
    train,
    race,
)
_table = typer.main.get_group(build_app())
assert isinstance(_table, CommandTable)
_table.load_all()


def enter(words: Sequence[str]) -> NoReturn:
    """Go on as the command, in a forked process, on the standard files that it has now."""
    become(["sweepd", *words], sweepd.app.main)


def become(words: Sequence[str], main: Callable[[], None]) -> NoReturn:
    """Go on as a program of Python, see `enter`.

    Args:
        words: of its command line.
        main: what it runs.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
    sys.argv = [*words]
    code = 0
    try:
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:
        traceback.print_exc()
        code = 1
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        traceback.print_exc()
        code = 120  # as of an interpreter that cannot write what is left
    os._exit(code)


def run_sweepd(words: Sequence[str], output: Path, code: int = 0) -> str:
    """Run the command to its end, and check its exit code.

    Args:
        words: of the command line.
        output: a file to which all output is appended.
        code: the expected exit code.

    Returns:
        The output.
    """
    found, said = answer(words, output)
    assert found == code, said
    return said


def answer(words: Sequence[str], output: Path) -> tuple[int | None, str]:
    """Run the command to its end. Returns its exit code and its output, see `run_sweepd`."""
    before = output.stat().st_size if output.exists() else 0
    process = multiprocessing.get_context("fork").Process(target=_enter, args=(words, output))
    process.start()
    process.join(120)
    # In bytes, since a character may have several.
    return process.exitcode, output.read_bytes()[before:].decode()


def _enter(words: Sequence[str], output: Path) -> NoReturn:
    with output.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    enter(words)
