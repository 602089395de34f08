"""Rows of nights: one process writes, what is over is never written again."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sa

from sweepd.deploy.night.records import NightReplaced, NightStep, NightStore
from sweepd.deploy.registry.database import RegistryDatabase
from sweepd.envs.support.errors import RunError

NIGHT = "20261129"


@pytest.fixture
def store(registry_url: str) -> NightStore:
    return NightStore(RegistryDatabase(registry_url, create=True))


def step(name: str, at: str = "2026-11-29T02:00:00.000Z") -> NightStep:
    return NightStep("s", NIGHT, name, at, 1.5, "done", {"bars": 3, "reason": None})


def test_a_night_is_written_and_read(store: NightStore) -> None:
    assert store.night("s", NIGHT) is None
    night = store.begin("s", NIGHT, {"slot": "s"}, "now")
    store.write(night, step("bars"))
    assert store.fail(night, "no network") == 1
    assert store.fail(night, "still none") == 2
    found = store.night("s", NIGHT)
    assert found is not None
    assert (found.failures, found.problem, found.ended) == (2, "still none", None)
    store.write(night, step("check", "2026-11-29T02:00:01.000Z"))
    store.end(night, "done", "later")
    [found] = store.nights("s")
    assert (found.failures, found.problem) == (0, None)  # of the step that is next
    assert (found.ended, found.outcome, found.config) == ("later", "done", {"slot": "s"})
    assert [row.step for row in store.steps("s", NIGHT)] == ["bars", "check"]
    assert store.steps("s")[0] == step("bars")
    assert store.steps("other") == []


def test_a_process_that_was_replaced_cannot_write(store: NightStore) -> None:
    old = store.begin("s", NIGHT, {"a": 1}, "now")
    new = store.begin("s", NIGHT, {"a": 2}, "later")
    assert (new.config, new.started) == ({"a": 1}, "now")  # as it began
    for write in (
        lambda: store.write(old, step("bars")),
        lambda: store.fail(old, "no network"),
        lambda: store.end(old, "done", "now"),
    ):
        with pytest.raises(NightReplaced, match="is continued by another process"):
            write()
    assert store.steps("s") == []
    store.write(new, step("bars"))


def test_a_step_is_over_once(tmp_path: Path) -> None:
    store = NightStore(RegistryDatabase(f"sqlite:///{tmp_path / 'r.db'}", create=True))
    night = store.begin("s", NIGHT, {}, "now")
    store.write(night, step("bars"))
    with pytest.raises((RunError, sa.exc.IntegrityError)):
        store.write(night, step("bars"))
    assert len(store.steps("s")) == 1
