"""`sweepd train`, `promote`, `registry` and `dashboard` with a program, and their output."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

import sweepd as package
from sweepd.commands import build_app
from sweepd.deploy.gates import load_bundle
from sweepd.envs.support.errors import InputError
from tests.deploy.programs.studies import SLOT, TEXT
from tests.optimize.objectives.command.programs import PYTHON, program

SPACE = "[params]\nlr = { low = 0.5, high = 0.6 }\n"
Run = Callable[..., str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    program(folder, TEXT)
    (folder / "space.toml").write_text(SPACE)
    return folder


@pytest.fixture
def sweepd(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command in the folder, and return what it prints; wrong input is raised."""
    monkeypatch.chdir(folder)
    app = build_app()

    def run(*words: object) -> str:
        result = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "160"})
        if isinstance(result.exception, Exception):
            raise result.exception
        assert result.exit_code == 0, result.output
        return result.output

    return run


@pytest.mark.slow
def test_a_study_is_promoted_shown_verified_and_exported(folder: Path, sweepd: Run) -> None:
    env = ("--env", f"command:{PYTHON} program.py")
    said = sweepd("train", *env, "--search-space", "space.toml", "--n-trials", 2)
    assert "gate: the selected parameters are judged by their values on seeds" in said
    # The worker asks for promotion in a process of its own, whose output is printed.
    assert "PROMOTED: THE CANDIDATE IS THE NEW CHAMPION" in said
    assert f"registry export --out champion {SLOT}" in said
    gate = next((folder / "runs").glob("program-*/gate"))
    page = (gate / "gate.html").read_text()
    for words in ("Values on fresh seeds", "biased upwards", "fresh-failures", "<img"):
        assert words in page, words
    assert (gate / "gate.pdf").read_bytes().startswith(b"%PDF")

    shown = sweepd("registry", "show")
    for words in (
        "files (sha256)",
        "files/model.bin",
        "biased upwards",
        "fresh-seeds",
        "program.py",
    ):
        assert words in shown, words
    facts = json.loads(sweepd("registry", "show", SLOT, "--json"))
    assert (facts["look"], facts["looks_now"]) == (1, 1)
    assert set(facts["files"]) == {"files/model.bin", "files/deep/empty"}
    assert SLOT in sweepd("registry", "list")

    verified = sweepd("registry", "verify")
    assert "its 2 files" in verified
    assert "does not run the program again" in verified.replace("\n", " ")
    assert json.loads(sweepd("registry", "verify", "--json"))["replayed"] is False
    with pytest.raises(InputError, match="--data-dir is not for programs"):
        sweepd("registry", "verify", "--data-dir", ".")

    assert "3 files in champion" in sweepd("registry", "export", "--out", "champion", SLOT)
    copy = folder / "champion" / "files" / "model.bin"
    assert copy.read_bytes() == (Path(facts["folder"]) / "files" / "model.bin").read_bytes()
    copy.write_bytes(copy.read_bytes())  # it may be changed
    load_bundle(folder / "champion")
    with pytest.raises(InputError, match="--out champion exists"):
        sweepd("registry", "export", "--out", "champion")

    again = sweepd("promote", "--study-name", "program")
    assert "IT IS THE CHAMPION ALREADY" in again
    dry = json.loads(sweepd("promote", "--study-name", "program", "--dry-run", "--json"))
    assert dry["candidates"][0]["fresh"]["study"].startswith("program-run")
    assert sweepd("registry", "diff", SLOT, facts["bundle"]).strip().endswith("are the same")

    # What does not trade, play or act says so.
    with pytest.raises(InputError, match=f"trades: {SLOT} holds the files of a program"):
        sweepd("dashboard", "--once")
    with pytest.raises(InputError, match="does not trade: sweepd registry show shows it"):
        sweepd("trade", "--replay", "--bundle", "champion")
    with pytest.raises(
        InputError, match="files of a program and plays no game: sweepd registry show"
    ):
        sweepd("play", SLOT)
    with pytest.raises(InputError, match="which has no policy that sweepd can load"):
        package.load_policy(package.load_study("program"))
    promotion = package.promote(package.load_study("program"), dry_run=True)
    assert promotion.outcome == "champion already"
    for flag, value in (("--games", 3), ("--ensemble", 2), ("--looks", 2), ("--play", "sampled")):
        with pytest.raises(InputError, match=f"{flag} is not for commands"):
            sweepd("promote", "--study-name", "program", flag, value)
