"""Thirty nights leave bounded files, nothing that trades loses its bundle, and full disks harm nothing."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import resource
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.night import delivery
from sweepd.deploy.night.config import NightConfig
from sweepd.deploy.night.disk import bundled_trials, disk, older_studies
from sweepd.deploy.night.processes import Commands, Finished
from sweepd.deploy.night.records import Night, NightStep, NightStore
from sweepd.deploy.night.shell import Context
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.records import CHALLENGER, SLOT_ACCOUNT, AccountBar, Changes
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.deploy.trading.live.thinning import thin_retired
from sweepd.envs.crypto.data.timeframe import DAY
from sweepd.envs.support.files import folder_size
from sweepd.envs.support.supervisor import Supervisor
from sweepd.hooks import CommandHooks
from tests.deploy.builders import FakeStudy, small_bundle
from tests.deploy.night.nights import SLOT, eventful
from tests.deploy.trading.live.test_thinning import LATER, account, lines, started

FIRST_DAY = 20_000
NIGHTS, KEPT = 30, 5
TRIALS = 4


class Here(Commands):
    """Commands of sweepd in this process."""

    def __init__(self, registry: Registry, folder: Path) -> None:
        super().__init__(registry, folder, folder / "lock", Supervisor({}), threading.Event())
        self.ran: list[Sequence[str]] = []

    def run(self, name: str, words: Sequence[str], until: float | None = None) -> Finished:
        del name, until
        self.ran.append(words)
        result = CliRunner().invoke(build_app(), list(words), obj=CommandHooks())
        return Finished(result.exit_code, result.stdout, str(result.exception or ""))


class Nights:
    """A slot whose nights leave a study, a challenger that leaves again, and lines of its account."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = Registry(folder / "deployments")
        self.store = TraderStore(self.registry.database)
        self.commands = Here(self.registry, folder)
        self.champion = small_bundle()
        self.registry.promote(SLOT, self.champion, expected=None, reason="")
        self.token = self.store.take_over(SLOT, broker="sim", feed="file", timeframe="4h")
        storage = f"sqlite:///{folder / 'studies.db'}"
        own = {"storage": storage, "runs_dir": str(folder / "runs")}
        bars = {
            "source": "folder",
            "dir": str(folder / "data"),
            "tickers": ["A/B"],
            "timeframe": "1h",
        }
        report = {"folder": str(folder / "reports"), "notify": False}
        parts = {"study": own, "bars": bars, "disk": {"studies": KEPT}, "report": report}
        self.config = NightConfig.of({"slot": SLOT, **parts})
        nights = NightStore(self.registry.database)
        self.nights = nights

    def night(self, number: int) -> dict[str, Any]:
        """Do what a night writes, and its step `disk`; return that step's facts."""
        name, now = f"night-{number:02d}", float((FIRST_DAY + number) * DAY + 3600)
        study = FakeStudy(self.folder, name=name, holdout=0.0)
        for place in range(TRIALS):
            study.add(1.0 + place, study.idle())
        bundle = small_bundle(seed=100 + number)
        self.registry.challenger(SLOT, bundle, reason="")
        rows = [
            AccountBar(account_name, int(now) + 4 * 3600 * place, self.champion.hash, 1.0, 1.0)
            for account_name in (SLOT_ACCOUNT, bundle.name)
            for place in range(5)
        ]
        gone = account(bundle.name, CHALLENGER, bundle.hash, "it lost")
        own = account(SLOT_ACCOUNT, SLOT_ACCOUNT, self.champion.hash, None)
        self.store.commit(SLOT, self.token, Changes(accounts=[own, gone], bars=rows))
        self.registry.withdraw(SLOT, bundle.hash, "it lost")
        night = self.nights.begin(SLOT, f"{20_200_101 + number}", self.config.record, "now")
        folder = str(study.run_dir)
        self._write(
            night, "study", {"study": name, "folder": folder, "bytes": folder_size(study.run_dir)}
        )
        context = Context(
            self.config, night, {}, self.registry, self.commands, None, lambda: now + DAY
        )
        found = disk(context)
        self._write(night, "disk", dict(found.facts))
        return dict(found.facts)

    def _write(self, night: Night, step: str, facts: dict[str, Any]) -> None:
        at = f"{night.night}-{step}"
        self.nights.write(night, NightStep(SLOT, night.night, step, at, 0.0, "done", facts))


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


def test_thirty_nights_reach_a_steady_pace_and_keep_what_trades(nights: Nights) -> None:
    facts = [nights.night(number) for number in range(NIGHTS)]
    used = [one["kinds"]["studies"] for one in facts]
    whole = used[0]
    grown = [after - before for before, after in itertools.pairwise(used)]
    # Until there are older ones, each night adds a whole study; then what stays of one: its best trial.
    assert grown[0] == pytest.approx(whole, rel=0.05)
    assert max(grown[KEPT:]) < 1.3 * whole / TRIALS
    assert max(one["kinds"]["bundles"] for one in facts[1:]) <= facts[1]["kinds"]["bundles"]
    assert [one["studies"] for one in facts[KEPT:]] == [
        [f"night-{number:02d}"] for number in range(NIGHTS - KEPT)
    ]
    # Each study was thinned once, not every night again.
    assert len(nights.commands.ran) == NIGHTS - KEPT
    traded = nights.registry.bundle(nights.champion.hash, Bundle)
    assert traded.hash == nights.champion.hash
    assert len(nights.store.account_bars(SLOT, SLOT_ACCOUNT)) == 5 * NIGHTS


def test_trials_that_are_bundles_keep_their_files(nights: Nights) -> None:
    assert bundled_trials(nights.registry, "night-00") == []
    [own] = nights.champion.trained
    assert bundled_trials(nights.registry, own.study) == [own.trial]


def test_all_but_the_newest_studies_are_thinned_once() -> None:
    rows = [
        NightStep(SLOT, f"{number}", "study", "", 0.0, "done", {"study": f"gone-{number}"})
        for number in range(KEPT + 2)
    ]
    assert older_studies(rows, KEPT) == ["gone-0", "gone-1"]
    done = NightStep(SLOT, "9", "disk", "", 0.0, "done", {"studies": ["gone-0"]})
    assert older_studies([*rows, done], KEPT) == ["gone-1"]


def limited(limit: int, act: Callable[[], object]) -> int:
    """Act in a process whose files cannot grow beyond so many bytes; return its exit code."""

    def inside() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            act()
        except Exception:
            os._exit(3)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=inside)
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return process.exitcode


def test_a_disk_that_is_full_at_any_file_of_the_report_leaves_whole_files(tmp_path: Path) -> None:
    facts = eventful()
    whole = tmp_path / "whole"
    delivery.write_report(facts, whole)
    sizes = {path.name: path.stat().st_size for path in whole.iterdir()}
    assert len(sizes) == 3
    for limit in sorted({0, *(size - 1 for size in sizes.values())}):
        folder = tmp_path / str(limit)
        folder.mkdir()
        code = limited(limit, lambda folder=folder: delivery.write_report(facts, folder))  # type: ignore[misc]
        assert code == 3
        found = {path.name: path.stat().st_size for path in folder.iterdir()}
        assert found.items() <= sizes.items()
        delivery.write_report(facts, folder)
        assert {path.name: path.stat().st_size for path in folder.iterdir()} == sizes


def test_a_full_disk_keeps_thinning_from_deleting_anything_unrecorded(tmp_path: Path) -> None:
    registry, store, bundle, token = started(tmp_path)
    gone, made = account("gone", CHALLENGER, bundle, "it lost"), lines("gone", bundle, 60)
    store.commit(SLOT, token, Changes(accounts=[gone], bars=made))
    registry.database.engine.dispose()
    url = f"sqlite:///{tmp_path / 'registry.db'}"
    act = lambda: thin_retired(Registry(tmp_path, url).database, LATER)  # noqa: E731
    assert limited(4096, act) == 3
    assert store.account_bars(SLOT, "gone") == made
    assert limited(10**9, act) == 0
    assert len(store.account_bars(SLOT, "gone")) < len(made)


def test_a_full_disk_keeps_a_study_whole(nights: Nights) -> None:
    study = FakeStudy(nights.folder, name="full", holdout=0.0)
    for place in range(TRIALS):
        study.add(1.0 + place, study.idle())
    size = folder_size(study.run_dir)
    words = ["studies", "thin", "full", "--json", "--storage", study.storage]
    words += ["--runs-dir", str(nights.folder / "runs")]

    def act() -> None:
        assert nights.commands.run("disk", words).code == 0

    assert limited(4096, act) == 3
    assert folder_size(study.run_dir) == size
    assert limited(10**9, act) == 0
    assert folder_size(study.run_dir) < size
    assert json.loads(nights.commands.run("disk", words).output)["bytes"] == 0
