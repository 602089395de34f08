"""`StudyReader`: what status, frames, dashboard and gate read a study with."""

from __future__ import annotations

import json
from pathlib import Path

import optuna
import pytest
import sqlalchemy as sa
from optuna.exceptions import StorageInternalError

from sweepd.deploy.games.candidates import GameStudy
from sweepd.deploy.promotion.studies import find_study
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.record.database import open_to_read, our_studies, storage_url
from sweepd.optimize.study.record.keys import FOLDER_KEY, SPEC_KEY
from sweepd.optimize.study.record.optuna_tables import REVISION, study_attributes
from sweepd.optimize.study.record.reader import StudyReader
from tests.deploy.dashboard.studies import filled_study
from tests.entry_point import answer


def reader(folder: Path, name: str = "s") -> StudyReader:
    return StudyReader(open_to_read(storage_url(None, folder)), name)


def test_a_reader_has_what_the_worker_and_the_gate_have(tmp_path: Path) -> None:
    handle = filled_study(tmp_path, 6)
    read, found = reader(tmp_path), find_study("s", handle.storage.url)
    with pytest.raises(InputError, match=r"has no files: .* does not exist"):
        GameStudy(found)
    handle.run_dir.mkdir()
    judged = GameStudy(found)
    for one in (read, found, judged):
        assert (one.uid, one.spec, one.run_dir) == (handle.uid, handle.spec, handle.run_dir)
    assert read.counts() == handle.counts()
    order = [one.trials[0].number for one in handle.spec.selection.configurations(handle.judged())]
    assert order
    assert [one.best_trial.number for one in read.configurations()] == order
    assert read.best() is read.configurations()[0]
    assert [one.number for one in judged.complete] == order
    assert judged.finished == sum(trial.state.is_finished() for trial in read.trials())
    handle.study.tell(handle.study.ask(), 1e6)
    assert judged.finished == 6, "the gate's numbers are those of one moment"
    assert len(read.trials()) == 7


def test_a_reader_follows_the_study_and_cannot_write(tmp_path: Path) -> None:
    handle = filled_study(tmp_path, 3)
    read = reader(tmp_path)
    kept = read.configurations()
    assert read.configurations() is kept, "nothing has changed"
    before = len(read.trials())
    trial = handle.study.ask()
    trial.report(9.0, 1)
    assert len(read.trials()) == before + 1
    with pytest.raises(StorageInternalError):
        read.study.set_user_attr("x", 1)


def test_the_leading_trial_is_that_of_a_study_without_a_complete_one(tmp_path: Path) -> None:
    handle = filled_study(tmp_path, 0)
    read = reader(tmp_path)
    assert read.leading() is None
    for value in (0.5, 2.5, 1.5):
        handle.study.ask().report(value, 1)
    leading = read.leading()
    assert leading is not None
    assert leading.intermediate_values == {1: 2.5}


def test_studies_of_others_and_of_other_versions_are_refused(tmp_path: Path) -> None:
    handle = filled_study(tmp_path, 0)
    filled_study(tmp_path, 0, "newer")
    optuna.create_study(study_name="plain", storage=handle.storage.url)
    assert list(our_studies(handle.storage)) == ["newer", "s"]
    with pytest.raises(InputError, match=r"'plain' is an Optuna study that was not made by sweepd"):
        reader(tmp_path, "plain")
    unknown = json.loads(handle.spec.to_json()) | {"colour": "red"}
    handle.study.set_user_attr(SPEC_KEY, json.dumps(unknown))
    with pytest.raises(InputError, match=r"--study-name s: .* another version of sweepd .*colour"):
        reader(tmp_path)
    with pytest.raises(InputError, match=r"'none' is not in .*; there are: s, newer, plain"):
        reader(tmp_path, "none")
    older = json.loads(handle.spec.to_json())
    del older["average"]
    handle.study.set_user_attr(SPEC_KEY, json.dumps(older))
    words = ["status", "--study-name", "s", "--storage", handle.storage.url]
    code, said = answer(words, tmp_path / "said.txt")
    assert code == 2
    assert (
        "--study-name s: the study was made by another version of sweepd (its record lacks" in said
    )
    handle.study.set_user_attr(SPEC_KEY, handle.spec.to_json())
    with handle.storage.transaction() as session:
        study_attributes.delete(session, handle.study_id, FOLDER_KEY)
    with pytest.raises(InputError, match=r"--study-name s: the study records no folder .*version"):
        reader(tmp_path)
    (tmp_path / "empty.db").touch()
    with pytest.raises(InputError, match="is not a database of studies"):
        open_to_read(f"sqlite:///{tmp_path / 'empty.db'}")


def set_revision(storage: StudyStorage, revision: str) -> None:
    with storage.transaction() as session:
        session.execute(sa.text("UPDATE alembic_version SET version_num = :one"), {"one": revision})


def test_tables_of_another_version_of_optuna_are_refused(tmp_path: Path) -> None:
    handle = filled_study(tmp_path, 0)
    assert handle.storage.get_head_version() == REVISION, "update the tables in optuna_tables.py"
    reader(tmp_path)
    set_revision(handle.storage, "v99.0.0.a")
    with pytest.raises(InputError, match="try updating optuna"):
        reader(tmp_path)
    other = f"sqlite:///{tmp_path / 'other.db'}"
    with sa.create_engine(other).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32))")
    with pytest.raises(InputError, match="is not a database of studies"):
        open_to_read(other)


def test_attributes_are_those_of_one_study(tmp_path: Path) -> None:
    first, second = filled_study(tmp_path, 0), filled_study(tmp_path, 0, "t")
    second.study.set_user_attr("own", {"a": [1, None]})
    storage = open_to_read(first.storage.url)
    for one in (first, second):
        assert storage.attributes(one.study_id) == one.study.user_attrs
    assert list(storage.study_ids()) == ["s", "t"]
