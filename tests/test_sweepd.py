"""The entry point: error messages, exit codes, and the functions passed to the packages."""

from __future__ import annotations

import errno
import io
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from optuna.trial import TrialState
from rich.console import Console
from rich.table import Table
from typer.testing import CliRunner

import sweepd.app
import sweepd.commands
import sweepd.hooks
from sweepd.deploy.market.candidates import open_study
from sweepd.deploy.market.gate import MarketGate
from sweepd.deploy.registry.bundle_files import write_bundle
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.crypto.scoring.figures import MEDIAN_RATIO
from sweepd.envs.crypto.scoring.selection import TrialReturns
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.logs import LogConsole
from sweepd.optimize.objectives.outlook import sentence, study_outlook
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import open_to_read, storage_url, study_exists
from sweepd.optimize.study.record.reader import StudyReader
from tests.deploy.builders import FakeStudy, promoter_of
from tests.deploy.games.test_promotion import bundle_of
from tests.optimize.objectives.test_outlook import spec


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (InputError("--gpu 3: there is none"), 2, "--gpu 3: there is none"),
        (RunError("the market is gone"), 1, "the market is gone"),
        (
            OSError(errno.ENOSPC, "No space left on device", "runs/x"),
            1,
            "no space left at runs/x; free some",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "no space left; free some"),
    ],
)
def test_errors_are_one_sentence_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    says: str,
) -> None:
    def app(**_: str) -> None:
        raise error

    monkeypatch.setattr(sweepd.commands, "build_app", lambda: app)
    with pytest.raises(SystemExit) as left:
        sweepd.app.main()
    assert left.value.code == code
    said = capsys.readouterr().err
    assert said.startswith("error:")
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_missing_in_the_encoding_are_question_marks(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """As with PYTHONIOENCODING=ascii, or LANG=C without UTF-8 mode: tables, curves, JSON lines."""
    output, errors = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(errors, encoding))

    def app(**_: str) -> None:
        table = Table(title="paths φ")
        table.add_row("▁▅█", "1.2 … 1.3")
        for form in ("plain", "json"):
            console = LogConsole(None, form)
            console.print(table, "✓ done")
            console.say("2 steps · ETA", {})
        raise InputError("--data-dir “x”: not a folder")

    monkeypatch.setattr(sweepd.commands, "build_app", lambda: app)
    with pytest.raises(SystemExit) as left:
        sweepd.app.main()
    assert left.value.code == 2
    sys.stdout.flush()
    sys.stderr.flush()
    assert b"??? | 1.2 ? 1.3" in output.getvalue()
    assert b"--data-dir ?x?: not a folder" in errors.getvalue()


def test_unexpected_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def app(**_: str) -> None:
        raise OSError(errno.ENOENT, "No such file")

    monkeypatch.setattr(sweepd.commands, "build_app", lambda: app)
    with pytest.raises(OSError, match="No such file"):
        sweepd.app.main()


def test_the_priority_of_a_process_is_lowered() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        sweepd.hooks._lower_priority(process)
        assert psutil.Process(process.pid).nice() == 19
        process.kill()
    sweepd.hooks._lower_priority(process)  # it may have ended


@pytest.mark.extra
def test_new_best_trials_are_evaluated_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # On a busy machine, a process of the lowest priority makes no progress for minutes.
    lowered: list[object] = []
    monkeypatch.setattr(sweepd.hooks, "_lower_priority", lowered.append)
    fake = FakeStudy(tmp_path)
    fake.add(2.0, fake.contrarian())
    handle = SimpleNamespace(
        name=fake.name, run_dir=fake.run_dir, storage=SimpleNamespace(url=fake.storage)
    )
    judge, began = sweepd.hooks.BackgroundEvaluation(), time.monotonic()
    handle.spec = SimpleNamespace(environment="cartpole")
    judge(handle)  # type: ignore[arg-type]
    assert judge.process is None  # all rules of games need an evaluation
    handle.spec = SimpleNamespace(environment="crypto")
    judge(handle)  # type: ignore[arg-type]
    first = judge.process
    judge(handle)  # type: ignore[arg-type]
    assert time.monotonic() - began < 2.0
    assert first is not None
    assert judge.process is first  # one at a time
    assert lowered == [first]
    assert first.wait(120) == 0
    said = (fake.run_dir / "gate" / "first-stage.log").read_text()
    assert "FIRST STAGE" in said
    assert "meets every rule that needs no hold-out evaluation" in " ".join(said.split())
    monkeypatch.setattr(sweepd.hooks.sys, "executable", str(tmp_path / "none"))
    judge(handle)  # type: ignore[arg-type]
    assert judge.process is first  # a failure to start does not stop training


@pytest.mark.usefixtures("forked_python")
def test_finished_studies_are_evaluated_in_a_separate_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEEPD_DEPLOYMENTS", str(tmp_path / "elsewhere"))
    monkeypatch.delattr(sweepd.hooks, "_lower_priority")  # the user waits for the verdict
    fake = FakeStudy(tmp_path)
    fake.add(2.0, fake.contrarian())
    handle = SimpleNamespace(
        name=fake.name, run_dir=fake.run_dir, storage=SimpleNamespace(url=fake.storage)
    )
    console = Console(width=120, record=True, file=io.StringIO())
    sweepd.hooks.promote_best(handle, console)  # type: ignore[arg-type]
    said = console.export_text()
    for words in ("PROMOTED", "Paper replay of", "sweepd trade --feed recorded demo-1h"):
        assert words in said
    assert (tmp_path / "elsewhere" / "registry.db").exists()
    handle.spec = open_study(fake.name, fake.storage).spec

    def used(*registry: RegistryFlags) -> int:
        return sweepd.hooks.looks_so_far(handle, *registry)  # type: ignore[arg-type]

    assert used() == 1  # where the environment says the registry is
    monkeypatch.delenv("SWEEPD_DEPLOYMENTS")
    assert used() == 0
    assert used(RegistryFlags(tmp_path / "elsewhere")) == 1
    # A registry that was named but has no promotion yet does not stop a search.
    for url in (
        f"sqlite:///{tmp_path / 'named.db'}",
        f"sqlite:///{tmp_path / 'folder' / 'named.db'}",
    ):
        assert used(RegistryFlags(tmp_path / "none", url)) == 0
    assert not [path for path in tmp_path.iterdir() if path.name in ("named.db", "folder", "none")]
    # Errors in that process do not change the worker's exit code.
    fails = tmp_path / "fails"
    fails.write_text("#!/bin/sh\nexit 2\n")
    fails.chmod(0o755)
    monkeypatch.setattr(sweepd.hooks.sys, "executable", str(fails))
    sweepd.hooks.promote_best(handle, console)  # type: ignore[arg-type]
    assert (
        "ended with code 2; to try again: sweepd promote --study-name fake" in console.export_text()
    )
    monkeypatch.setattr(sweepd.hooks.sys, "executable", str(tmp_path / "none"))
    sweepd.hooks.promote_best(handle, console)  # type: ignore[arg-type]
    assert "could not be evaluated" in console.export_text()


def test_status_and_gate_require_the_same_ratio(tmp_path: Path) -> None:
    """After the study, `sweepd status` and the summary show the ratio that the gate requires."""
    fake = FakeStudy(tmp_path)
    for value in (2.0, 0.5, -1.0):
        fake.add(value, fake.contrarian())
    fake.add(0.0, fake.contrarian(), state=TrialState.PRUNED)
    trials = fake.study.get_trials()
    reader = StudyReader(open_to_read(fake.storage), fake.name)
    promotion = promoter_of(
        MarketGate,
        open_study(fake.name, fake.storage),
        Registry(tmp_path / "deployments"),
        first_stage=True,
    ).run()
    asked = promotion.to_dict()["selection"]
    for _ in range(2):  # paths are read once
        found = study_outlook(reader, len(trials))
        assert found is not None
        assert (found["best"], found["measured"], found["effective"]) == (
            0,
            3,
            asked["effective_trials"],
        )
        assert found["needed_information_ratio"] == pytest.approx(
            asked["needed_information_ratio"], rel=1e-12
        )
        assert found[MEDIAN_RATIO] == pytest.approx(asked[MEDIAN_RATIO], rel=1e-12)
    assert promotion.chosen is not None
    said = next(
        one.explanation for one in promotion.chosen.findings if one.name == "deflated-sharpe"
    )
    shown = sentence(found).partition(" has ")[2]
    assert f"{found['needed_information_ratio']:+.2f} is needed" in shown
    assert said.partition(" have ")[2].startswith(shown)  # the same words and figures
    # Where the files are on another machine, the figures are those planned.
    reader.run_dir, reader.returns = tmp_path / "none", TrialReturns()
    planned = study_outlook(reader, len(trials))
    assert planned is not None
    assert planned["measured"] == 0


def test_dashboard_counts_evaluations_in_the_given_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    handle = SimpleNamespace(spec=spec(8_760))
    end = int(datetime.fromisoformat(handle.spec.data.last).timestamp())
    seen: dict[str, Any] = {"members_sha256": "1" * 64, "study": "s", "study_uid": "u", "trial": 0}
    Registry(tmp_path / "x").evaluations.record_holdout(
        ("A/EUR", "B/EUR"), "1h", end - 3600, end, **seen
    )
    for folder, looks in (("x", 1), ("y", 0)):
        watch: Any = sweepd.hooks.watch_studies(
            None, f"sqlite:///{tmp_path}/s.db", None, RegistryFlags(tmp_path / folder)
        )
        assert watch._count_looks(handle) == looks


def test_a_wrong_registry_is_refused_before_a_study_is_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SWEEPD_REGISTRY", "nonsense")
    words = ["train", "--env", "cartpole", "--n-trials", "1", "--gpu", "cpu", "--study-name", "s"]
    result = CliRunner().invoke(sweepd.commands.build_app(), words)
    assert isinstance(result.exception, InputError)
    assert "registry" in str(result.exception)
    assert not study_exists(open_storage(storage_url(None, Path("runs"))), "s")


def test_champions_of_another_game_are_refused_as_opponents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = bundle_of(tmp_path / "study")
    path = write_bundle(bundle, tmp_path / "bundles")
    Registry(tmp_path / "deployments").promote("best", bundle, expected=None, reason="test")
    for reference in (str(path), "best", bundle.hash[:8]):
        found = sweepd.hooks.load_opponent(reference)
        assert (found.hash, found.environment, found.sampled) == (bundle.hash, "cartpole", False)
    words = ["train", "--env", "hockey", "--n-envs", "2", "--threads", "1", "--gpu", "cpu"]
    for opponent, message in (
        (str(path), f"opponent {path} plays cartpole, not hockey"),
        ("bundle:best", "opponent bundle:best plays cartpole, not hockey"),
        ("bundle:none", "opponent bundle:none: 'none' is neither a slot nor the beginning"),
        ("./none", "opponent ./none: bundle none does not exist"),
    ):
        result = CliRunner().invoke(
            sweepd.commands.build_app(), [*words, "--opponents", f"{opponent}=1"]
        )
        assert isinstance(result.exception, InputError), result.output
        assert message in str(result.exception)
    assert not open_storage(storage_url(None, tmp_path / "runs")).get_all_studies()
