"""Folders of moved, copied and shared studies; dry runs; the commands printed after a promotion."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.market.candidates import open_study
from sweepd.deploy.promotion.studies import find_study, where_flags
from sweepd.deploy.registry.flags import registry_flags
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.invocation import install_extra, program
from sweepd.optimize.study.record.folder import study_folder
from sweepd.optimize.study.record.keys import FOLDER_KEY
from tests.deploy.builders import FakeStudy

Cli = Callable[..., str]


@pytest.fixture
def fake(tmp_path: Path) -> FakeStudy:
    study = FakeStudy(tmp_path / "first")
    study.add(2.0, study.contrarian())
    return study


@pytest.fixture
def cli() -> Cli:
    app = build_app()

    def call(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return call


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def recorded(fake: FakeStudy) -> list[dict[str, Any]]:
    """All attributes in the study's database, including artifacts."""
    storage = optuna.storages.RDBStorage(fake.storage)
    number = storage.get_study_id_from_name(fake.name)
    return [storage.get_study_user_attrs(number), storage.get_study_system_attrs(number)]


def test_a_copied_study_writes_nothing_into_the_original(
    fake: FakeStudy, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(fake.folder, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    before = files(fake.folder)
    assert "PROMOTED" in cli("promote", "--storage", "studies.db")
    written = files(tmp_path / "copy")
    assert any(name.endswith("gate/gate.html") for name in written)
    assert {name: files(fake.folder)[name] for name in before} == before
    assert files(fake.folder).keys() == before.keys()


def test_a_moved_study_is_found(fake: FakeStudy, tmp_path: Path) -> None:
    fake.folder.rename(tmp_path / "second")
    study = open_study(fake.name, f"sqlite:///{tmp_path / 'second' / 'studies.db'}")
    assert study.run_dir.is_relative_to(tmp_path / "second")
    assert study.run_dir.is_dir()
    assert study.runs_dir is None


def test_runs_dir_names_the_folder_and_a_missing_one_is_refused(
    fake: FakeStudy, tmp_path: Path
) -> None:
    (fake.folder / "runs").rename(tmp_path / "elsewhere")
    with pytest.raises(
        InputError,
        match=f"does not exist; name the folder that holds {fake.run_dir.name}: --runs-dir",
    ):
        open_study(fake.name, fake.storage)
    study = find_study(fake.name, fake.storage, tmp_path / "elsewhere")
    assert study.run_dir == tmp_path / "elsewhere" / fake.run_dir.name
    assert where_flags(study)[-2:] == ["--runs-dir", str(tmp_path / "elsewhere")]


def test_a_study_on_a_server_is_found_in_runs_on_any_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "postgresql+psycopg://me:secret@host/db"
    assert study_folder(url, {FOLDER_KEY: "s-01234567"}) == tmp_path / "runs" / "s-01234567"
    assert (
        study_folder(url, {FOLDER_KEY: "s-01234567"}, Path("mnt"))
        == tmp_path / "mnt" / "s-01234567"
    )
    with pytest.raises(InputError, match=r"records no folder .* another version of sweepd"):
        study_folder(url, {})


def test_a_dry_run_writes_only_the_hold_out_evaluation(
    fake: FakeStudy, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fake.folder)
    before = {
        name: content
        for name, content in files(fake.folder).items()
        if not name.startswith("studies.db")
    }
    attributes = recorded(fake)
    printed = cli("promote", "--storage", "studies.db", "--dry-run")
    assert "--dry-run: evaluation 1 was counted, because its results were shown" in printed
    assert "--dry-run: nothing was written" in cli(
        "promote", "--storage", "studies.db", "--dry-run"
    )  # the evaluation is repeated
    after = files(fake.folder)
    new = {name for name in after.keys() - before.keys() if not name.startswith("studies.db")}
    assert all(name.startswith("deployments/registry.db") for name in new)
    assert {name: after[name] for name in before} == before
    assert recorded(fake) == attributes
    registry = Registry(fake.folder / "deployments")
    assert registry.events() == []
    assert (
        registry.evaluations.count_holdout(
            fake.bars.tickers, int(fake.bars.time[0]), int(fake.bars.time[-1])
        )
        == 1
    )


def test_promotions_without_hold_out_evaluation_write_nothing(
    fake: FakeStudy, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fake.folder)
    fake.add(3.0, fake.contrarian())
    weights = fake.run_dir / "trial-00001" / "members.safetensors"
    weights.write_bytes(weights.read_bytes() + b"changed")
    before = {
        name: content
        for name, content in files(fake.folder).items()
        if not name.startswith("studies.db")
    }
    assert "FIRST STAGE" in cli("promote", "--storage", "studies.db", "--first-stage")
    printed = cli("promote", "--storage", "studies.db", "--dry-run", "--trial", "1")
    assert "NO CANDIDATE PASSES" in printed
    assert "--dry-run: nothing was written" in printed
    for wrong in (["--trial", "9"], ["--data-dir", "nowhere"], ["--slot", "a/b"]):
        with pytest.raises(InputError):
            cli("promote", "--storage", "studies.db", *wrong)
    after = {
        name: content
        for name, content in files(fake.folder).items()
        if not name.startswith("studies.db")
    }
    assert after == before


def test_a_read_only_registry_is_refused_before_bars_are_read(
    fake: FakeStudy, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fake.folder)
    (fake.folder / "file").write_text("")
    monkeypatch.setattr(
        "sweepd.deploy.market.gate.load_study_bars", lambda *_: pytest.fail("bars were read")
    )
    with pytest.raises(InputError, match=r"registry .* cannot be used \(.*file is not a folder\)"):
        cli("promote", "--storage", "studies.db", "--deployments", "file/deployments")


def test_the_printed_commands_run_as_printed(
    fake: FakeStudy, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(fake.folder)
    place = ("--deployments", "my deployments")
    printed = cli("promote", "--storage", "studies.db", "--slot", "mine", *place)
    lines = [line for line in printed.splitlines() if line.startswith(program())]
    assert len(lines) == 2  # a trader, and a replay
    words = shlex.split(
        lines[1].removeprefix(program())
    )  # without comments, as an interactive zsh does
    assert words == ["trade", "--replay", "mine", *place]
    assert "agree with its canonical score" in cli(*words)


def test_flags_of_the_registry_are_printed_without_a_password(tmp_path: Path) -> None:
    assert registry_flags(Registry(tmp_path / "d", f"sqlite:///{tmp_path / 'other.db'}")) == (
        f" --deployments {tmp_path / 'd'} --registry sqlite:///{tmp_path / 'other.db'}"
    )


def test_the_command_that_installs_an_extra_is_quoted() -> None:
    assert install_extra("ccxt").endswith(" -m pip install 'sweepd[ccxt]'")
    assert shlex.split(install_extra("ccxt"))[1:] == ["-m", "pip", "install", "sweepd[ccxt]"]
