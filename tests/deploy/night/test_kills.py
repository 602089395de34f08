"""A night that is killed before or after any effect or row ends as an undisturbed one.

The study is made by `FakeStudy` in place of training (`test_night.py` trains). The first stage,
bundles and the registry are real; commands of the arena are stood in for.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.gates import named_trial
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.night.config import NightConfig, RefitPart
from sweepd.deploy.night.processes import Commands, Finished, Stopped
from sweepd.deploy.night.records import (
    Name,
    Night,
    NightOutcome,
    NightReplaced,
    NightStep,
    NightStore,
)
from sweepd.deploy.night.shell import Context, NightShell, Result, Step
from sweepd.deploy.night.steps import PERFORM
from sweepd.deploy.night.study import begin
from sweepd.deploy.promotion.studies import find_study
from sweepd.deploy.registry.flags import DEPLOYMENTS_VARIABLE
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.live.records import Changes
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.support.errors import RunError, TryAgainLater
from sweepd.envs.support.supervisor import Supervisor
from tests.deploy.builders import FakeStudy
from tests.deploy.trading.live.world import Killed, Killer

SLOT, NIGHT = "demo-1h", "20261129"
NOW = 1_795_919_400.0  # 2026-11-29 02:30 UTC
STUDY = f"{SLOT}-{NIGHT}"
# Facts that differ with the folder and the time.
PLACES = ("free", "used", "deadline", "bytes", "kinds", "html", "markdown")


class KillableNights(NightStore):
    """A database at which the process may be killed before and after each transaction."""

    killer: Killer

    def write(self, night: Night, step: NightStep) -> None:
        self.killer.step()
        super().write(night, step)
        self.killer.step()

    def end(self, night: Night, outcome: NightOutcome, now: str) -> None:
        self.killer.step()
        super().end(night, outcome, now)
        self.killer.step()


class FakeCommands(Commands):
    """Commands of sweepd in this process; training adds trials whose results are made up."""

    def __init__(self, world: World, killer: Killer) -> None:
        folder = world.folder / "deployments"
        super().__init__(
            Registry(folder), folder, folder / "lock", Supervisor({}), threading.Event()
        )
        self._world, self._killer = world, killer

    def run(self, name: str, words: Sequence[str], until: float | None = None) -> Finished:  # noqa: ARG002
        self._killer.step()
        self._world.commands.append(name)
        output = ""
        if name == "study":
            self._train(words)
        elif name == "stage":
            output = self._world.judge(words)
        elif name.startswith("admit--"):
            output = json.dumps(self._ask(name.removeprefix("admit")))
        elif name == "certify":
            output = '{"certificates": []}'
        self._killer.step()
        return Finished(0, output, "")

    def _train(self, words: Sequence[str]) -> None:
        assert words[:3] == ["train", "--study-name", STUDY]
        assert words[words.index("--holdout") + 1] == "0"
        assert words[words.index("--try-first") + 1] == "first#0"
        self._world.train()

    def _ask(self, flag: str) -> dict[str, Any]:
        """Stands for `sweepd promote --arena` and `--refit`, which are idempotent."""
        storage = f"sqlite:///{self._world.folder / 'studies.db'}"
        trial = 0 if flag == "--refit" else find_study(STUDY, storage).trials()[-1].number
        bundle = named_trial(f"{STUDY}#{trial}", storage)
        registry = Registry(self._world.folder / "deployments")
        if bundle.hash not in registry.slot(SLOT).challengers:
            registry.challenger(SLOT, bundle, reason=f"trial {trial} asks")
        registry.database.engine.dispose()
        candidate = {"bundle": bundle.hash}
        return {"outcome": "challenger", "reason": f"trial {trial} asks", "candidates": [candidate]}


class World:
    """A slot with a champion."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[str] = []
        self.now = NOW
        if (folder / "deployments").exists():
            return
        first = FakeStudy(folder, name="first", holdout=0.0)
        first.add(2.0, first.follower())
        registry = Registry(folder / "deployments")
        champion = named_trial("first#0", first.storage)
        registry.promote(SLOT, champion, expected=None, reason="test", data_dir=str(first.data_dir))
        registry.database.engine.dispose()

    @property
    def config(self) -> NightConfig:
        bars = {
            "source": "folder",
            "dir": str(self.folder / "data"),
            "tickers": ["TEST0/USDT", "TEST1/USDT", "TEST2/USDT"],
            "timeframe": "1h",
        }
        storage = f"sqlite:///{self.folder / 'studies.db'}"
        study = {"n_trials": 2, "storage": storage, "runs_dir": str(self.folder / "runs")}
        report = {"folder": str(self.folder / "reports"), "notify": False}
        return NightConfig.of({"slot": SLOT, "bars": bars, "study": study, "report": report})

    def train(self) -> None:
        """Make the study of two trials, unless it exists: trial 0 is the champion's."""
        try:
            find_study(STUDY, f"sqlite:///{self.folder / 'studies.db'}")
        except Exception:
            study = FakeStudy(self.folder, name=STUDY, holdout=0.0)
            study.add(0.5, study.idle())
            study.add(2.0, study.contrarian())

    def judge(self, words: Sequence[str]) -> str:
        """Return what the first stage prints."""
        found = CliRunner().invoke(build_app(), list(words))
        assert found.exit_code == 0, found.output
        return found.stdout

    def run(self, killer: Killer | None = None, **steps: Step) -> NightOutcome:
        """Do the night in a process of its own."""
        killer = killer or Killer()
        registry = Registry(self.folder / "deployments")
        own: dict[Name, Step] = {**PERFORM, **steps}  # type: ignore[dict-item]
        commands, tell = FakeCommands(self, killer), self.commands.append
        shell = NightShell(registry, own, commands, Supervisor({}), tell, lambda: self.now)
        shell.store = KillableNights(registry.database)
        shell.store.killer = killer
        try:
            return shell.run(self.config, NIGHT)
        finally:
            registry.database.engine.dispose()

    def copy(self, folder: Path) -> World:
        shutil.copytree(self.folder, folder)
        return World(folder)

    def state(self) -> tuple[Any, ...]:
        """Everything that a night leaves, without times and places."""
        registry = Registry(self.folder / "deployments")
        [night], store = NightStore(registry.database).nights(SLOT), NightStore(registry.database)
        rows = [(row.step, row.outcome, _without(row.facts, *PLACES)) for row in store.steps(SLOT)]
        slot = registry.slot(SLOT)
        events = [(one.kind, one.bundle, one.reason) for one in registry.events(SLOT)]
        study = find_study(STUDY, f"sqlite:///{self.folder / 'studies.db'}")
        trials = [(trial.number, trial.state, trial.value) for trial in study.trials()]
        registry.database.engine.dispose()
        return night.outcome, night.ended is not None, rows, slot, events, trials


def _without(facts: dict[str, Any], *names: str) -> dict[str, Any]:
    found = {name: value for name, value in facts.items() if name not in names}
    if "folder" in found:
        found["folder"] = Path(found["folder"]).name
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("night") / "start"
    folder.mkdir()
    World(folder)
    return folder


@pytest.fixture
def world(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    shutil.copytree(made, tmp_path / "world")
    # `FakeStudy` records its folder; copies are found by --runs-dir.
    monkeypatch.setenv(DEPLOYMENTS_VARIABLE, str(tmp_path / "world" / "deployments"))
    found = World(tmp_path / "world")
    found.now = time.time()
    return found


def facts(world: World) -> dict[str, dict[str, Any]]:
    store = NightStore(Registry(world.folder / "deployments").database)
    return {row.step: row.facts for row in store.steps(SLOT)}


def test_a_night_judges_the_best_trial_and_lets_it_ask_for_a_seat(world: World) -> None:
    assert world.run() == "done"
    found, registry = facts(world), Registry(world.folder / "deployments")
    assert list(found) == [
        *("check", "begin", "study", "stage", "admit", "arena", "certify", "disk", "report")
    ]
    assert found["begin"]["first"] == ["first#0"]
    assert found["begin"]["deadline"] == world.now + 6 * 3600.0
    stage = found["stage"]
    assert (stage["trial"], stage["objective"], stage["control"]) == (1, 2.0, 0.5)
    assert stage["passes"]
    asked = found["admit"]["challenger"]["bundle"]
    assert registry.slot(SLOT).challengers == (asked,)
    candidate = registry.bundle(asked, Bundle)
    assert (candidate.origin.study, candidate.origin.trial) == (STUDY, 1)
    assert "refit" not in found["admit"]
    assert (
        found["arena"]["reason"]
        == f"slot '{SLOT}' was never traded, so there is no record to judge"
    )
    # The same command does nothing now.
    world.commands.clear()
    assert world.run() == "done"
    assert world.commands == []


@pytest.mark.parametrize(
    ("weeks", "days", "due"), [(8, 55.9, False), (8, 56.1, True), (0, 99, False)]
)
def test_the_champions_refit_asks_for_a_seat_every_so_many_weeks(
    world: World, monkeypatch: pytest.MonkeyPatch, weeks: int, days: float, due: bool
) -> None:
    world.now = time.time() + days * 86_400.0
    changed = world.config.model_copy(update={"refit": RefitPart(weeks=weeks)})
    monkeypatch.setattr(World, "config", changed)
    assert world.run() == "done"
    assert facts(world)["begin"]["refit"] == due
    assert ("admit--refit" in world.commands) == due
    # The next one is due so many weeks after this one.
    store = NightStore(Registry(world.folder / "deployments").database)
    context = Context(
        changed,
        store.nights(SLOT)[0],
        {},
        Registry(world.folder / "deployments"),
        FakeCommands(world, Killer()),
        None,
        lambda: world.now + 7 * 86_400.0,
    )
    assert begin(context).facts["refit"] == (weeks == 8 and not due)


def test_the_arena_of_a_traded_slot_is_judged(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = TraderStore(Registry(world.folder / "deployments").database)
    token = store.take_over(SLOT, broker="sim", feed="recorded", timeframe="1h")
    store.commit(SLOT, token, Changes(last_bar=3600))
    asked: list[str] = []

    def run(_name: str, words: Sequence[str], _until: float | None) -> Finished:
        asked.extend(words)
        return Finished(0, '{"told": ["x"]}', "")

    def arena(context: Context) -> Result:
        monkeypatch.setattr(context.commands, "run", run)
        found = PERFORM["arena"](context)
        monkeypatch.undo()
        return found

    assert world.run(arena=arena) == "done"
    flags = ["--seats", "8", "--term", "56", "--spacing", "7", "--json"]
    assert asked == ["trader", "arena", SLOT, *flags]
    assert facts(world)["arena"] == {"told": ["x"]}


@pytest.mark.parametrize("alarming", [False, True])
def test_missing_days_are_certified(
    world: World, monkeypatch: pytest.MonkeyPatch, alarming: bool
) -> None:
    store = TraderStore(Registry(world.folder / "deployments").database)
    token = store.take_over(SLOT, broker="sim", feed="recorded", timeframe="1h")
    store.commit(SLOT, token, Changes(last_bar=3600))
    made = [{"alarming": alarming, "text": "it differs"}, {"alarming": False, "text": "equal"}]
    asked: list[str] = []

    def run(_name: str, words: Sequence[str], _until: float | None) -> Finished:
        asked.extend(words)
        return Finished(int(alarming), json.dumps({"certificates": made}), "")

    def certify(context: Context) -> Result:
        monkeypatch.setattr(context.commands, "run", run)
        found = PERFORM["certify"](context)
        monkeypatch.undo()
        return found

    judged = Result("done", {})
    assert world.run(certify=certify, arena=lambda _context: judged) == "done"
    assert asked == ["trader", "parity", SLOT, "--certify", "--json"]
    told = {"reason": "it differs"} if alarming else {}
    assert facts(world)["certify"] == {"days": 2, "alarming": int(alarming), **told}


@pytest.mark.slow
def test_a_night_that_is_killed_anywhere_ends_as_an_undisturbed_one(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = world.copy(tmp_path / "alone")
    alone.now = world.now
    count = Killer()
    monkeypatch.setenv(DEPLOYMENTS_VARIABLE, str(alone.folder / "deployments"))
    # It is slow, and the same in every copy.
    known, judge = list[str](), World.judge

    def judged(self: World, words: Sequence[str]) -> str:
        known.extend([] if known else [judge(self, words)])
        return known[0]

    monkeypatch.setattr(World, "judge", judged)
    alone.run(count)
    wanted = alone.state()
    assert count.steps > 20
    for step in range(1, count.steps + 1):
        killed = world.copy(tmp_path / str(step))
        killed.now = world.now
        monkeypatch.setenv(DEPLOYMENTS_VARIABLE, str(killed.folder / "deployments"))
        with pytest.raises(Killed):
            killed.run(Killer(step))
        killed.run()
        assert killed.state() == wanted, f"killed at step {step} of {count.steps}"
        shutil.rmtree(killed.folder)


def test_of_two_loops_the_later_one_writes(world: World) -> None:
    """On two machines; on one, a lock refuses the second."""

    def disturbed(context: Context) -> Result:
        store = NightStore(context.registry.database)
        store.begin(SLOT, NIGHT, {}, "now")  # the other machine's process takes over
        return Result("done", {})

    with pytest.raises(NightReplaced):
        world.run(check=disturbed)
    assert facts(world) == {}
    assert world.run() == "done"


def test_settings_that_change_within_a_night_apply_to_the_next(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(context: Context) -> Result:  # noqa: ARG001
        raise Stopped

    with pytest.raises(Stopped):
        world.run(study=asked)
    assert facts(world)["begin"]["total"] == 2
    study = world.config.study
    assert study is not None
    changed = world.config.model_copy(update={"study": study.model_copy(update={"n_trials": 99})})
    monkeypatch.setattr(World, "config", changed)
    assert world.run() == "done"
    assert facts(world)["study"]["total"] == 2


def failing(error: Exception) -> Callable[[Context], Result]:
    def step(context: Context) -> Result:  # noqa: ARG001
        raise error

    return step


def test_a_step_that_fails_is_tried_again_and_then_given_up(world: World) -> None:
    broken = failing(OSError("no network"))
    for _ in range(2):
        with pytest.raises(TryAgainLater, match=r"check failed \(no network\); the same command"):
            world.run(check=broken)
    assert world.run(check=broken) == "broken"
    found = facts(world)
    assert found["check"] == {"reason": "no network"}
    assert found["stage"] == {"reason": "study was skipped"}
    assert found["disk"]["kinds"]["bundles"] > 0  # the rest goes on


def test_a_fault_of_the_program_is_a_failure_too(world: World) -> None:
    with pytest.raises(TryAgainLater, match="KeyError"):
        world.run(disk=failing(KeyError("x")))  # type: ignore[arg-type]
    assert any("Traceback" in line for line in world.commands)
    assert world.run() == "done"


def test_a_slot_without_a_champion_admits_nobody(world: World) -> None:
    shutil.rmtree(world.folder / "deployments")

    def trained(context: Context) -> Result:
        assert context.rows["begin"].facts["no control"] == "the slot has no champion"
        world.train()
        return PERFORM["study"](dataclasses.replace(context, until=context.now()))

    assert world.run(study=trained) == "done"
    assert facts(world)["begin"]["first"] == []


def test_a_study_that_was_stopped_at_its_deadline_is_judged_as_it_is(world: World) -> None:
    """And is never resumed: which trials count must not change after it was judged."""

    def stopped(context: Context) -> Result:
        study = FakeStudy(world.folder, name=STUDY, holdout=0.0)
        study.add(2.0, study.contrarian())
        return PERFORM["study"](dataclasses.replace(context, until=context.now()))

    assert world.run(study=stopped) == "done"
    found = facts(world)
    assert found["study"]["reason"] == "1 of 2 trials were finished at the deadline"
    assert (found["stage"]["trial"], found["stage"]["control"]) == (0, 2.0)
    assert "study" not in world.commands


def test_a_night_without_room_for_its_study_does_not_train(world: World) -> None:
    store = NightStore(Registry(world.folder / "deployments").database)
    before = store.begin(SLOT, "20261128", world.config.record, "2026-11-28T00:00:00.000Z")
    last = {"study": "x", "folder": "gone", "bytes": 10**18}
    store.write(before, NightStep(SLOT, "20261128", "study", "a", 1.0, "done", last))
    store.end(before, "done", "b")
    assert world.run() == "broken"
    found = NightStore(Registry(world.folder / "deployments").database).steps(SLOT, NIGHT)
    rows = {row.step: row for row in found}
    assert rows["begin"].outcome == "refused"
    assert "less than twice the 1000000000.00 GB" in rows["begin"].facts["reason"]
    assert rows["study"].outcome == "skipped"


def test_a_worker_that_was_stopped_from_outside_is_started_again(world: World) -> None:
    world.train = lambda: FakeStudy(world.folder, name=STUDY, holdout=0.0)  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(TryAgainLater, match="the worker was stopped after 0 of 2 trials"):
        world.run()
    assert issubclass(TryAgainLater, RunError)
