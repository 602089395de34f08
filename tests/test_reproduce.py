"""`sweepd reproduce`: the same weights from the record, or what differs; nothing is changed."""

from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

import sweepd
from sweepd.commands import build_app
from sweepd.deploy.registry.bundle_files import sha256
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.crypto.data.demo_market import make_planted_market
from sweepd.envs.support.errors import InputError, RunError
from sweepd.optimize.objectives.members.trainer import MemberTraining, Trainer
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.keys import CHANGES_KEY, SPEC_KEY, UID_KEY
from sweepd.optimize.study.record.retrained import Retrained
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.sampling.evolution import Change
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.reproduction import CHECKPOINT, Reproduction
from sweepd.optimize.worker.retrain import needed_rungs
from sweepd.optimize.worker.telemetry import Telemetry
from tests.optimize.conftest import SPACE
from tests.optimize.worker.test_evolution import SPACE as GAME_SPACE
from tests.test_study_in_python import GAME, MARKET

CPU = torch.device("cpu")
ANY_MARKET = [
    *("deflated-sharpe=0", "pbo=1", "constant-policy=2", "holdout-excess=9", "max-drawdown=1")
]
ANY_GAME = ["beats-baselines=-1e9", "ahead-of-baselines=-1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two champions: an ensemble of a market's trials, and a player."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("SWEEPD_STORAGE", raising=False)
        write_bars(make_planted_market(1, assets=2, bars=700), folder / "bars")
        (folder / "tiny.toml").write_text(SPACE)
        study = sweepd.create_study("market", n_trials=3, pruner="none", **MARKET)
        study.run()
        assert (
            sweepd.promote(study, ensemble=2, limit=ANY_MARKET, slot="market").outcome == "promoted"
        )
        study = sweepd.create_study("game", n_trials=2, **GAME)
        study.run()
        assert sweepd.promote(study, games=4, limit=ANY_GAME, slot="pole").outcome == "promoted"
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, to change things in."""
    own = tmp_path / "own"
    shutil.copytree(made, own)
    monkeypatch.chdir(own)
    monkeypatch.delenv("SWEEPD_STORAGE", raising=False)
    change_spec("market", lambda text: text.replace(str(made), str(own)))  # where the bars are
    return own


def reproduce(*words: str) -> str:
    result = CliRunner().invoke(build_app(), ["reproduce", *words])
    if isinstance(result.exception, Exception):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def content(folder: Path) -> dict[str, str]:
    """Return what must not change: hashes of files, and the content of databases."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".db":
            with closing(sqlite3.connect(path)) as database:
                text = "\n".join(database.iterdump())
            found[path.name] = hashlib.sha256(text.encode()).hexdigest()
        elif path.is_file() and not path.name.endswith(("-wal", "-shm")):
            found[str(path)] = sha256(path.read_bytes())
    return found


def change_spec(study: str, change: Callable[[str], str]) -> None:
    """Record another spec of a study. change: of its JSON."""
    with closing(sqlite3.connect("runs/sweepd.db")) as database, database:
        [(number, text)] = database.execute(
            "select a.study_user_attribute_id, a.value_json from study_user_attributes a "
            "join studies s using (study_id) where s.study_name = ? and a.key = ?",
            (study, SPEC_KEY),
        )
        database.execute(
            "update study_user_attributes set value_json = ? where study_user_attribute_id = ?",
            (json.dumps(change(json.loads(text))), number),
        )


@pytest.mark.parametrize("slot", ["market", "pole"])
def test_a_champion_is_trained_to_the_same_bytes_and_nothing_is_changed(
    slot: str, folder: Path
) -> None:
    before = content(folder)
    said = reproduce(slot, "--out", "../new")
    assert "is reproduced: its weights are the same bytes" in said
    assert "every number as the gate recorded it" in said
    assert content(folder) == before
    found = json.loads(Path("../new/reproduction.json").read_text())
    assert found["same"]
    assert found["score"]["agrees"]
    assert len(found["trials"]) == (2 if slot == "market" else 1)
    for one in found["trials"]:
        assert one["weights"]["then"] == one["weights"]["now"]
        assert one["value"]["then"] == one["value"]["now"]
        assert one["scores"]["then"] == one["scores"]["now"]
        assert one["differs"] == []
    assert not [*Path("../new").rglob(CHECKPOINT)]
    assert json.loads(reproduce(slot, "--json")) == found  # in runs/reproduce-HASH


def test_what_differs_is_stated_and_the_numbers_are_compared(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"code_version": "0.0.9", "processor": "an abacus", "torch_version": "1.0"}
    other["kernels"] = "native 0123456789abcdef, torch 4"
    change_spec("game", lambda text: json.dumps(json.loads(text) | other))
    said = reproduce("pole")
    assert "is reproduced" in said  # what is here has not changed in truth
    for words in ("sweepd 0.0.9 then", "processor an abacus then", "torch 1.0 then"):
        assert words in said, words
    assert "trains with the kernels 'native 0123456789abcdef, torch 4'" in said
    monkeypatch.setenv("SWEEPD_KERNELS", "torch")
    with pytest.raises(RunError, match="are not the same bytes: processor an abacus then"):
        reproduce("pole", "--out", str(folder / "torch"))
    found = json.loads((folder / "torch" / "reproduction.json").read_text())
    assert not found["same"]
    [one] = found["trials"]
    assert one["weights"]["then"] != one["weights"]["now"]
    assert len(one["scores"]["now"]) == 2


def missing_bars(folder: Path) -> None:
    (folder / "bars").rename(folder / "elsewhere")


def other_bars(folder: Path) -> None:
    write_bars(make_planted_market(2, assets=2, bars=700), folder / "bars")


def other_study(_: Path) -> None:
    with closing(sqlite3.connect("runs/sweepd.db")) as database, database:
        database.execute(
            "update study_user_attributes set value_json = '\"another\"' where key = ?", (UID_KEY,)
        )


def no_study(folder: Path) -> None:
    (folder / "runs" / "sweepd.db").rename(folder / "kept.db")


def unfinished(_: Path) -> None:
    with closing(sqlite3.connect("runs/sweepd.db")) as database, database:
        database.execute("update trials set state = 'FAIL'")


@pytest.mark.parametrize(
    ("change", "words", "said"),
    [
        (missing_bars, (), "bars"),
        (other_bars, (), "are not those of the study"),
        (other_study, (), "is not the one that trained this bundle"),
        (no_study, (), "sweepd.db does not exist"),
        (unfinished, (), "has no complete trial"),
        (None, ("--gpu", "all"), "--gpu all is for train"),
        (None, ("--gpu", "0"), "no GPU that torch can use"),
        (None, ("--data-dir", "nowhere"), "nowhere"),
    ],
)
def test_what_is_missing_is_one_sentence(
    change: Callable[[Path], None] | None, words: tuple[str, ...], said: str, folder: Path
) -> None:
    if change is not None:
        change(folder)
    with pytest.raises(InputError, match=said):
        reproduce("market", *words)
    assert not [*folder.glob("runs/reproduce-*")]


@pytest.mark.usefixtures("folder")
def test_bars_that_were_moved_are_named() -> None:
    missing_bars(Path())
    assert "is reproduced" in reproduce("market", "--data-dir", "elsewhere")
    with pytest.raises(InputError, match="--data-dir is for markets"):
        reproduce("pole", "--data-dir", "elsewhere")


# Of trials, without a champion.


def handle_of(name: str) -> StudyHandle:
    return StudyHandle(open_storage(storage_url(None, Path("runs"))), name)


def retrained(
    study: StudyHandle, number: int, folder: Path, stop: Callable[[], bool] = lambda: False
) -> Retrained | None:
    telemetry = Telemetry(Console(quiet=True), "again", CPU)
    return Reproduction(study, number, Request(threads=1), CPU, telemetry).train(folder, stop)


def stops() -> Iterator[Callable[[], bool]]:
    """Yield functions that ask to stop at their first call, at their second, and so on, later."""
    for count in (
        *range(8),
        *(2**power for power in range(3, 13)),
    ):  # evaluations ask at every step
        left = iter([False] * count + [True])
        yield lambda left=left: next(left, True)
    pytest.fail("the training makes no progress")


def test_a_stopped_reproduction_goes_on_from_its_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, own = handle_of("game"), folder / "again"
    interrupted = 0
    for stop in stops():
        found = retrained(study, 0, own, stop)
        if found is not None:
            break
        interrupted += 1
        assert (own / CHECKPOINT).exists()
    assert interrupted >= 3
    assert found.sha256 == found.recorded
    # A checkpoint of another trial is not used, nor one of other kernels.
    other = retrained(study, 1, own)
    assert other is not None
    assert other.sha256 == other.recorded
    monkeypatch.setenv("SWEEPD_KERNELS", "torch")
    torchs = retrained(study, 1, own)
    assert torchs is not None
    assert torchs.sha256 != other.sha256


def test_a_trial_that_diverges_now_is_an_error_with_what_differs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_spec("game", lambda text: json.dumps(json.loads(text) | {"torch_version": "1.0"}))

    def diverges(_: Trainer, states: Sequence[MemberTraining]) -> None:
        states[0].fault = "diverged: seed 0, by rollout 1"

    monkeypatch.setattr(Trainer, "advance", diverges)
    monkeypatch.setattr(Trainer, "evaluate", lambda *_: [None])
    with pytest.raises(RunError, match=r"does not train as it did: diverged: .*; here, torch 1\.0"):
        retrained(handle_of("game"), 0, folder / "again")


@pytest.fixture(scope="module")
def population(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with `--search pbt`, and a run of its best trial's schedule."""
    folder = tmp_path_factory.mktemp("population")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("SWEEPD_STORAGE", raising=False)
        (folder / "tiny.toml").write_text(GAME_SPACE)
        settings = GAME | {"budget": 256, "rungs": 4, "horizon": 16, "episodes": 2}
        sweepd.create_study(
            "s", n_trials=8, trials_per_batch=8, search="pbt", search_space="tiny.toml", **settings
        ).run()
        words = ["run", "--trial", "s", "--seeds", "2", "--study-name", "again", "--gpu", "cpu"]
        assert CliRunner().invoke(build_app(), words).exit_code == 0
    return folder


def test_members_of_a_population_are_trained_with_those_whose_weights_they_copied(
    population: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(population)
    study = handle_of("s")
    copied = [trial.number for trial in study.trials() if trial.user_attrs.get(CHANGES_KEY)]
    assert copied
    for number in [*copied[:3], next(n for n in range(8) if n not in copied)]:
        for stop in stops():  # in every rung, with and without copies
            found = retrained(study, number, tmp_path / str(number), stop)
            if found is not None:
                break
        assert found.sha256 == found.recorded, number


def test_a_run_with_a_schedule_is_reproduced(
    population: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(population)
    study = handle_of("again")
    assert (study.origin or {})["schedule"]
    found = retrained(study, 0, tmp_path)
    assert found is not None
    assert found.sha256 == found.recorded


def test_opponents_from_the_league_are_the_recorded_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SWEEPD_STORAGE", raising=False)
    settings = GAME | {"env": "kuhn", "horizon": 16, "budget": 128, "trials_per_batch": 1}
    del settings["fresh_seeds"]
    sweepd.create_study("kuhn", n_trials=3, opponents="self=0.5,league=0.5", **settings).run()
    study = handle_of("kuhn")
    before = content(tmp_path / "runs")
    for number in range(3):
        found = retrained(study, number, tmp_path / str(number))
        assert found is not None
        assert found.sha256 == found.recorded, number
    assert content(tmp_path / "runs") == before
    first = TrialRecord.from_attributes(study.trials()[0].user_attrs).members
    assert first is not None
    (study.run_dir / first.path).unlink()
    with pytest.raises(InputError, match="trial-00000"):
        retrained(study, 2, tmp_path / "missing")


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(0, 4)), max_size=12))
def test_needed_rungs_are_those_of_a_plain_search(copies: list[tuple[int, int, int]]) -> None:
    unique = {(rung, own): source for rung, own, source in copies}
    changes: dict[int, list[Change]] = {number: [] for number in range(5)}
    for (rung, own), source in sorted(unique.items()):
        changes[own].append(Change(rung, source, {}))

    def reached(number: int, rung: int, found: dict[int, int]) -> dict[int, int]:
        """Mark a trial's state after a rung, with what it went on with there, and its origins."""
        if found.get(number, 0) < rung:
            found[number] = rung
            for at in range(1, rung + 1):
                for change in changes[number]:
                    if change.rung == at:
                        reached(change.source, at, found)
        return found

    for rung in (2, 5):
        assert needed_rungs(0, rung, changes) == reached(0, rung, {})
