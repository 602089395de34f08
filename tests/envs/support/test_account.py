"""An account without a name or a home directory, as in many containers."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import optuna
import pytest

from sweepd.envs.support.account import home, user_name
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.measurement_cache import cache_dir
from sweepd.optimize.cli.service import unit_folder
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.pause import pause_of, pause_study
from sweepd.optimize.study.record.database import storage_url


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    names = (
        "HOME",
        "USER",
        "LOGNAME",
        "LNAME",
        "USERNAME",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "SWEEPD_CACHE_DIR",
    )
    for name in names:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("nobody")
def test_an_account_without_name_and_home_can_train_and_pause(tmp_path: Path) -> None:
    assert home() is None
    assert user_name() == f"uid {os.getuid()}"
    assert cache_dir() == Path(tempfile.gettempdir()) / f"sweepd-{os.getuid()}"
    storage = open_storage(storage_url(None, tmp_path))
    study = optuna.create_study(study_name="s", storage=storage)
    pause_study(storage, study._study_id)
    paused = pause_of(storage.get_study_user_attrs(study._study_id))
    assert paused is not None
    assert paused.by.startswith(f"uid {os.getuid()}@")
    with pytest.raises(InputError, match="set HOME or XDG_CONFIG_HOME"):
        unit_folder()
