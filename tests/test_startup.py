"""The start of a command: what it imports, and that Ctrl-C ends it without a traceback."""

from __future__ import annotations

import ast
import inspect
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

import sweepd.app
import sweepd.commands
from sweepd.commands import COMMANDS, CommandTable, UnloadedCommand, build_app
from sweepd.envs.support.errors import INTERRUPTED
from sweepd.envs.support.loading import begin_loading, end_loading, loading
from sweepd.optimize.study.record.fresh import run_name
from sweepd.optimize.study.record.keys import ORIGIN_KEY
from tests.deploy.builders import FakeStudy
from tests.deploy.dashboard.studies import filled_study
from tests.deploy.dashboard.synthetic import bundles, fill

ROOT = Path(__file__).resolve().parent.parent
# Whether a command may import torch.
TORCH = {
    "train": True,
    "profile": True,
    "run": True,
    "fork": True,
    "status": False,
    "watch": False,
    "pause": False,
    "resume": False,
    "doctor": True,
    "enqueue": True,  # the names of its parameters are those of the algorithm and the environment
    "plan": False,
    "promote": True,
    "promote-after-study": True,
    "export": False,  # of parameters; of a policy it may
    "rollback": True,
    "reproduce": True,
    "trade": True,
    "loop": True,  # it reads bundles
    "play": True,
    "league": True,
    "defend": True,
    "dashboard": False,
    "studies list": False,
    "studies compare": False,
    "studies export": False,
    "studies delete": False,
    "studies thin": False,
    "service install": False,
    "service uninstall": False,
    "service show": False,
    "trader halt": False,
    "trader resume": False,
    "trader status": False,
    "trader parity": True,
    "trader arena": True,
    "registry list": False,
    "registry show": True,  # a bundle that is loaded is checked, its networks included
    "registry diff": True,
    "registry rollback": True,
    "registry withdraw": False,
    "registry verify": True,
    "registry export": True,
    "registry gc": False,
    "data download": False,
    "data import": False,
    "data demo": False,
    "data check": True,  # the search space of a study, as for `enqueue`
}
HEAVY = ("torch", "pandas", "numpy", "optuna", "sqlalchemy", "alembic", "scipy", "matplotlib")
# Runs commands one after another in a new interpreter, and prints what each has imported.
RUN = f"""
import json, sys
from typer.testing import CliRunner
from sweepd.commands import build_app
for words in json.loads(sys.argv[1]):
    result = CliRunner().invoke(build_app(), words)
    found = [name for name in {HEAVY!r} if name in sys.modules]
    print(json.dumps([words, result.exit_code, result.output, found]))
"""


@pytest.fixture(scope="module")
def table() -> CommandTable:
    group = typer.main.get_group(build_app())
    assert isinstance(group, CommandTable)
    return group


def imports(folder: Path, *commands: tuple[str, ...]) -> Iterator[tuple[str, set[str]]]:
    """Yield each command and which of `HEAVY` are imported after it."""
    done = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(commands)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    for line in done.stdout.splitlines():
        words, code, output, found = json.loads(line)
        if "s" in words and "--json" in words:
            assert json.loads(output)[0]["best"]["fresh"], "it reads the run on fresh seeds, too"
        # 1: a study has no worker.
        assert code == 0 or (code == 1 and "status" in words), (words, output)
        yield " ".join(words), set(found)


def test_version_and_help_import_nothing_that_takes_long(tmp_path: Path) -> None:
    for words, found in imports(tmp_path, ("--version",), ("--help",)):
        assert not found, words


def names_of(group: TyperGroup, before: str = "") -> Iterator[str]:
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from names_of(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def test_the_table_of_torch_has_every_command() -> None:
    group = typer.main.get_group(build_app())
    assert isinstance(group, CommandTable)
    group.load_all()
    assert set(names_of(group)) == set(TORCH)


@pytest.mark.slow
def test_commands_without_networks_do_not_import_torch(tmp_path: Path) -> None:
    fill(tmp_path / "deployments", bars=48)
    best = filled_study(tmp_path / "runs", 4).best_trial()
    assert best is not None
    fresh = filled_study(tmp_path / "runs", 1, run_name("s", best.number))
    fresh.study.set_user_attr(ORIGIN_KEY, {"study": "s", "trial": best.number, "finished": 4})
    filled_study(tmp_path / "runs", 4, "other", seed=1)
    market = FakeStudy(tmp_path / "market")
    for value in (2.0, 1.0):
        market.add(value, market.contrarian())
    commands = (
        ("status",),
        ("status", "--json", "--study-name", "s"),
        # With its paths, and the hold-out evaluations that the registry counts.
        ("status", "--storage", market.storage),
        ("export", "fake", "--to", "json", "--storage", market.storage),
        ("pause", "s", "--wait", "0"),
        ("resume", "s"),
        ("service", "show"),
        ("service", "install", "--help"),
        ("service", "uninstall", "--help"),
        ("studies", "list"),
        ("studies", "compare", "s", "other"),
        ("studies", "export", "s", "--out", "s.csv"),
        ("studies", "thin", "other"),
        ("studies", "delete", "other", "--yes"),
        ("data", "demo", "--bars", "500"),
        ("data", "import", "--from", "data/demo", "--to", "imported"),
        ("data", "download", "--help"),
        ("plan", "--data-dir", "data/demo", "--n-trials", "2"),
        ("dashboard", "--once"),
        ("watch", "s"),
        ("watch", "--json"),
        ("trader", "status"),
        ("trader", "halt", "demo-1h"),
        ("trader", "resume", "demo-1h"),
        ("registry", "list"),
        ("registry", "withdraw", "demo-1h", bundles()[1].hash),
        ("registry", "gc"),
    )
    tried = set()
    for words, found in imports(tmp_path, *commands):
        assert "torch" not in found, words
        if words.startswith(("status", "pause", "resume")):
            assert not found & {"pandas", "matplotlib"}, words
        if words.startswith("status"):
            assert "alembic" not in found, words
        tried |= {name for name in TORCH if f"{words} ".startswith(f"{name} ")}
    assert tried == {name for name, may in TORCH.items() if not may}


def test_the_pages_of_the_dashboard_do_not_import_torch() -> None:
    """Its server runs for weeks."""
    code = "import sys, sweepd.deploy.dashboard.web; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_program_lists_a_command_with_its_own_help(table: CommandTable, name: str) -> None:
    listed = table.commands[name]
    assert isinstance(listed, UnloadedCommand)
    loaded = listed.load()
    assert loaded.name == name
    if listed.hidden:
        assert (listed.help, name) == ("", "promote-after-study")
    else:
        first = inspect.cleandoc(loaded.help or "").split("\n\n")[0].replace("\n", " ")
        assert listed.help == first


def caught(process: subprocess.Popen[str]) -> bool:
    """Return whether a process has a handler for SIGINT; without one, the signal ends it."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [mask] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(mask, 16) & 1 << (signal.SIGINT - 1))


TRAIN = ("train", "--env", "cartpole", "--n-trials", "1", "--budget", "4096", "--gpu", "cpu")


@pytest.mark.parametrize(
    ("words", "delay"),
    [
        *((("--help",), delay) for delay in (0.0, 0.05, 0.1)),
        *((("status",), delay) for delay in (0.0, 0.1, 0.2, 0.4)),
        *((TRAIN, delay) for delay in (0.0, 0.2, 0.4, 0.8)),
    ],
)
def test_an_interrupt_of_the_start_is_silent(
    tmp_path: Path, words: tuple[str, ...], delay: float
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "sweepd", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )
    # Python has its own handler from its start until the entry point runs.
    for state in (True, False):
        until = time.monotonic() + 60.0
        while caught(process) is not state:
            assert time.monotonic() < until, "the entry point leaves SIGINT to Python"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    for word in ("Traceback", "KeyboardInterrupt", "Exception ignored", "interrupted"):
        assert word not in errors
    # 0 and 2: the command ended before the signal arrived; there is no database.
    assert process.returncode in (-signal.SIGINT, INTERRUPTED, 0, 2)


def test_an_interrupt_of_a_command_is_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def app(**_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sweepd.commands, "build_app", lambda: app)
    with pytest.raises(SystemExit) as ended:
        sweepd.app.main()
    assert ended.value.code == INTERRUPTED
    assert capsys.readouterr() == ("", "")


def test_an_interrupt_ends_the_process_while_modules_are_loaded() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert before is signal.default_int_handler
    with loading():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is before
    # `nohup sweepd … &` and shells that run it in the background ignore the signal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        begin_loading()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        end_loading()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    failed: list[BaseException] = []

    def elsewhere() -> None:
        try:
            with loading():
                pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert not failed


def test_command_modules_import_their_actions_within_loading() -> None:
    search = ("commands", "study_commands", "studies_commands")
    paths = [ROOT / "optimize" / "cli" / f"{name}.py" for name in search]
    deployment = ("registry_commands", "trader_commands")
    for path in paths + [ROOT / "deploy" / "cli" / f"{name}.py" for name in deployment]:
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            within = {
                one
                for block in ast.walk(function)
                if isinstance(block, ast.With)
                and ast.unparse(block.items[0].context_expr) == "loading()"
                for one in block.body
            }
            for one in ast.walk(function):
                assert not isinstance(one, ast.ImportFrom) or one in within, (path, one.lineno)
