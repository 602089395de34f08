"""The rules of the arena, and their performance from the record: numbers, seats, kills."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import Connection
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.gates import bundle_types
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.promotion.betting import bound, log_capital_at_end, log_threshold
from sweepd.deploy.registry.arena_rows import ArenaDay, ArenaEntry, EntryKind
from sweepd.deploy.registry.database import RegistryDatabase
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.arena.arena import (
    ArenaRules,
    Conduct,
    Rounds,
    Standing,
    day_rows,
    gives_way,
    judge,
)
from sweepd.deploy.trading.arena.judge_arena import judge_arena
from sweepd.deploy.trading.live.records import (
    CHALLENGER,
    SHADOW,
    AccountBar,
    AccountKind,
    AccountRecord,
    Changes,
)
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.crypto.data.timeframe import DAY
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import START, small_bundle
from tests.deploy.trading.live.test_session import TICKERS, bars_of, bundle_of
from tests.deploy.trading.live.world import Killed, Killer

SLOT = "crypto-1h"
BUNDLES = [small_bundle(seed) for seed in range(6)]
HOUR = 3600


def entry(number: int = 1, kind: EntryKind = "challenger", **changes: Any) -> ArenaEntry:
    given = ArenaEntry(SLOT, 1, number, f"bundle {number}", kind, "", 0, 0.01, 0.02)
    return dataclasses.replace(given, **changes)


def standing(
    number: int = 1,
    kind: EntryKind = "challenger",
    *,
    days: int = 60,
    log_e: float = 0.0,
    log_loss: float = 0.0,
    conduct: Conduct | None = None,
) -> Standing:
    day = ArenaDay(SLOT, 1, "", (days - 1) * DAY, 24 * days, log_e, log_loss, 0.02, 1.0)
    return Standing(entry(number, kind), day, conduct)


# ---- the rules ----


def test_days_are_over_and_their_bars_are_those_since_the_entry() -> None:
    rng = np.random.default_rng(0)
    since = START + 5 * HOUR
    ends = since + HOUR + HOUR * np.arange(1, 61)
    own, champion = rng.normal(0.0, 0.005, (2, 60))
    asked = entry(since=since)
    days = day_rows(asked, Rounds(ends, own, champion), int(ends[-1]), "1h")
    assert [one.day for one in days] == [START, START + DAY]
    assert [one.bars for one in days] == [18, 42]  # 06:00 of the first day has no round before it
    gained = (1.0 + own) / (1.0 + champion) - 1.0
    lost = 1.0 / (1.0 + gained) - 1.0
    last = days[-1]
    assert last.log_e == pytest.approx(log_capital_at_end(gained[:42], bound(0.01)), rel=1e-12)
    own_bound = bound(0.02 / 1.02)
    assert last.log_loss == pytest.approx(log_capital_at_end(lost[:42], own_bound), rel=1e-9)
    assert last.relative == pytest.approx(float(np.log1p(gained[:42]).sum()), rel=1e-9)
    year = 365 * 24
    expected = gained[:42].mean() / gained[:42].std() * math.sqrt(year)
    assert last.ratio == pytest.approx(expected, rel=1e-3)
    # Later bars change no day that is over, and a bar that closes at midnight ends its day.
    shorter = Rounds(ends[:42], own[:42], champion[:42])
    assert day_rows(asked, shorter, START + 2 * DAY, "1h") == days
    assert day_rows(asked, shorter, START + 2 * DAY - 1, "1h") == days[:1]
    refit = day_rows(dataclasses.replace(asked, kind="refit"), shorter, START + 2 * DAY, "1h")[-1]
    margin = 0.1 / (365.25 * 24)
    harm = log_capital_at_end(-gained[:42] - margin, bound(0.02 + margin))
    assert refit.log_loss == pytest.approx(harm, rel=1e-3)
    assert day_rows(asked, Rounds(ends[:0], own[:0], own[:0]), START + 9 * DAY, "1h") == []


def test_the_threshold_is_that_of_the_entrys_number() -> None:
    needed = log_threshold(3)
    assert judge([standing(3, log_e=needed - 1e-9)], aged=False).promotion is None
    won = judge([standing(3, log_e=needed), standing(1, log_e=3.0)], aged=False).promotion
    assert won is not None
    assert won.entry.number == 3
    # Of two, the one that is further above its own threshold.
    both = [standing(1, log_e=log_threshold(1) + 1.0), standing(3, log_e=needed + 0.5)]
    best = judge(both, aged=False).promotion
    assert best is not None
    assert best.entry.number == 1


def test_an_aged_champion_is_replaced_by_one_that_is_not_behind() -> None:
    level = [standing(1, log_e=0.1), standing(2, log_e=0.3), standing(3, log_e=0.9, days=13)]
    assert judge(level, aged=False).promotion is None
    chosen = judge(level, aged=True).promotion
    assert chosen is not None
    assert chosen.entry.number == 2
    assert judge([standing(1, log_e=-0.1)], aged=True).promotion is None
    # A refit is no answer to that by this rule.
    refit = standing(0, "refit", log_e=2.0, conduct=Conduct(9.0, 0.0))
    assert judge([refit], aged=True).promotion is None


@pytest.mark.parametrize(
    ("change", "takes_over"),
    [
        ({}, True),
        ({"days": 13}, False),
        ({"conduct": Conduct(2.1, 0.0)}, False),
        ({"conduct": Conduct(1.0, -0.3)}, False),
        ({"conduct": None}, False),
        ({"log_e": -3.0}, True),
        ({"log_loss": 3.0}, False),
        ({"log_e": -math.inf}, False),
    ],
)
def test_a_refit_takes_over_unless_harm_is_shown(change: dict[str, Any], takes_over: bool) -> None:
    given: dict[str, Any] = {"conduct": Conduct(0.6, 0.1), "days": 14, "log_e": -0.5} | change
    judgement = judge([standing(0, "refit", **given)], aged=False)
    assert (judgement.promotion is not None) == takes_over
    assert bool(judgement.withdrawals) == ("log_loss" in change or given["log_e"] == -math.inf)
    if judgement.promotion:
        assert "no harm shown" in judgement.promotion.why


def test_who_is_worse_leaves() -> None:
    leaving = judge(
        [
            standing(1, log_loss=math.log(20.0)),
            standing(2, log_e=-math.inf),
            standing(3, log_loss=2.9),
        ],
        aged=True,
    ).withdrawals
    assert [one.entry.number for one in leaving] == [1, 2]
    assert [one.why for one in leaving] == [
        "lost in the arena: worse than the champion, E = 20 of 20",
        "lost in the arena: a bar cost more than 4.0% on the champion",
    ]


def test_a_seat_is_given_when_it_is_free_or_its_term_is_over_and_never_the_leaders() -> None:
    rules, day = ArenaRules(seats=2, term=56, spacing=7), 100 * DAY
    young, old = standing(1, days=20, log_e=-1.0), standing(2, days=60, log_e=0.5)
    refit = standing(0, "refit")
    assert gives_way([], None, day, rules) == (True, None)
    assert gives_way([young, refit], day - 7 * DAY, day, rules) == (True, None)
    assert gives_way([young], day - 7 * DAY + 1, day, rules) == (False, None)
    # The leader stays, however long it has been there, and the young one has not had its term.
    assert gives_way([young, old], None, day, rules) == (False, None)
    older = standing(3, days=90, log_e=0.4)
    three = dataclasses.replace(rules, seats=3)
    assert gives_way([young, old, older], None, day, three) == (True, older.entry)


# ---- from the record ----


class Diary:
    """A slot and its trader's lines, written without a market."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.registry = Registry(folder, url)
        self.store = TraderStore(self.registry.database)
        self.registry.promote(SLOT, BUNDLES[0], expected=None, reason="the first")
        self.token = self.store.take_over(SLOT, broker="sim", feed="recorded", timeframe="1h")
        self.now = START + 23 * HOUR  # open of the newest bar, which closes at midnight
        self.values: dict[str, float] = {}
        self.begun: dict[str, int] = {}
        self.trade({}, days=0)

    def ask(self, *bundles: Bundle, **flags: Any) -> None:
        for one in bundles:
            self.registry.challenger(SLOT, one, reason="passed", **flags)

    def trade(self, gains: dict[str, float], days: int = 1, *, champion: str | None = None) -> None:
        """Write bars in which bundles, by hash, gain so much on the champion per bar.

        champion: what the shadow trades, if it has not followed the slot yet.
        """
        champion = champion or self.registry.slot(SLOT).champion
        assert champion is not None
        bars, accounts = [], dict[str, AccountRecord]()
        for _ in range(24 * days or 1):
            self.now += HOUR if days else 0
            common = 0.001 * math.sin(self.now)
            lines: list[tuple[str, AccountKind, str, float]] = [(SHADOW, "shadow", champion, 0.0)]
            for hash_ in [one.bundle for one in self.registry.arena.seats(SLOT)]:
                noise = 0.0005 * math.cos(self.now * (1 + int(hash_[:2], 16)))
                lines.append((hash_[:16], CHALLENGER, hash_, gains.get(hash_, 0.0) + noise))
            for name, kind, hash_, gain in lines:
                value = self.values.get(name, 10_000.0) * (1.0 + common) * (1.0 + gain)
                self.values[name] = value
                begun = self.begun.setdefault(name, self.now)
                bars.append(AccountBar(name, self.now, hash_, value, 0.5 * value, notional=10.0))
                accounts[name] = AccountRecord(name, kind, hash_, begun, None, {})
        changes = Changes(last_bar=self.now, bars=bars, accounts=list(accounts.values()))
        self.store.commit(SLOT, self.token, changes)

    def judge(self, **rules: Any) -> list[str]:
        return list(judge_arena(self.registry, SLOT, ArenaRules(**rules)).told)

    def rows(self) -> list[object]:
        """Everything that the arena wrote, without times of the clock."""
        arena = self.registry.arena
        reign = arena.reign(SLOT)
        assert reign is not None
        found: list[object] = [self.registry.slot(SLOT)]
        found += [(event.kind, event.bundle, event.reason) for event in self.registry.events(SLOT)]
        for number in range(1, reign.number + 1):
            for one in arena.entries(SLOT, number):
                left = None if one.left is None else "some time"
                found.append(dataclasses.replace(one, admitted="", left=left))
            found += arena.days(SLOT, number)
        return found


def names(*bundles: Bundle) -> list[str]:
    return [one.name for one in bundles]


def test_entries_are_spaced_and_numbered_and_a_winner_is_followed_by_the_former_champion(
    tmp_path: Path,
) -> None:
    diary = Diary(tmp_path)
    _, second, third, fourth, *_ = BUNDLES
    diary.ask(second, third, fourth)
    assert diary.judge() == [f"{second.name} takes part as a challenger"]
    assert diary.judge() == []
    for _ in range(8):
        diary.trade({})
        diary.judge()
    assert [seat.number for seat in judge_arena(diary.registry, SLOT).seats] == [1, 2]
    days = diary.registry.arena.days(SLOT, 1)
    assert [one.bars for one in days if one.bundle == second.hash] == [
        24 * n - 1 for n in range(1, 9)
    ]
    for _ in range(40):
        diary.trade({third.hash: 0.02})
        told = diary.judge()
        if told and "is the champion" in told[0]:
            break
    assert told[0].startswith(f"{third.name} is the champion: won in the arena: E = ")
    slot, reign = diary.registry.slot(SLOT), diary.registry.arena.reign(SLOT)
    assert (slot.champion, slot.previous) == (third.hash, BUNDLES[0].hash)
    assert reign is not None
    assert reign.number == 2
    seats = diary.registry.arena.seats(SLOT)
    assert [(one.number, one.bundle, one.kind) for one in seats] == [
        (1, BUNDLES[0].hash, "former"),
        (2, second.hash, "challenger"),
        (3, fourth.hash, "challenger"),
    ]
    # The same rule undoes a swap, and the shadow's bars of another champion never count.
    assert diary.registry.arena.days(SLOT, 2) == []
    for _ in range(60):
        diary.trade({BUNDLES[0].hash: 0.02})
        told = diary.judge()
        if told and "is the champion" in told[0]:
            break
    assert diary.registry.slot(SLOT).champion == BUNDLES[0].hash


def test_a_shadow_that_has_not_swapped_yet_gives_no_rounds(tmp_path: Path) -> None:
    diary = Diary(tmp_path)
    diary.ask(BUNDLES[2])
    diary.registry.promote(SLOT, BUNDLES[1], expected=BUNDLES[0].hash, reason="better")
    diary.judge()
    diary.trade({}, days=2, champion=BUNDLES[0].hash)
    diary.judge()
    assert diary.registry.arena.days(SLOT, 2) == []
    diary.trade({}, days=1)
    diary.judge()
    assert [one.bars for one in diary.registry.arena.days(SLOT, 2)] == [23, 23]


def test_a_loser_leaves_and_its_place_is_free(tmp_path: Path) -> None:
    diary = Diary(tmp_path)
    diary.ask(BUNDLES[1], BUNDLES[2])
    diary.judge(seats=1, spacing=0)
    told: list[str] = []
    while not told and diary.now < START + 90 * DAY:
        diary.trade({BUNDLES[1].hash: -0.02})
        told = diary.judge(seats=1, spacing=0)
    assert [text.split(":")[0] for text in told] == [
        f"{BUNDLES[1].name} leaves",
        f"{BUNDLES[2].name} takes part as a challenger",
    ]
    assert [one.number for one in diary.registry.arena.seats(SLOT)] == [2]


def test_after_its_term_a_seat_is_given_to_who_waits(tmp_path: Path) -> None:
    diary = Diary(tmp_path)
    diary.ask(*BUNDLES[1:4])
    rules = {"seats": 2, "term": 5, "spacing": 1}
    for _ in range(6):
        diary.judge(**rules)
        diary.trade({BUNDLES[1].hash: 0.0001})
    told = diary.judge(**rules)
    # The leader has had its term, too.
    assert told[0] == f"{BUNDLES[2].name} leaves: its term is over, and another challenger waits"
    assert [one.bundle for one in diary.registry.arena.seats(SLOT)] == [
        BUNDLES[1].hash,
        BUNDLES[3].hash,
    ]


def test_an_aged_champion_gives_way_and_a_new_reign_ends_the_mark(tmp_path: Path) -> None:
    diary = Diary(tmp_path)
    diary.ask(BUNDLES[1])
    diary.judge()
    diary.trade({BUNDLES[1].hash: 0.0001}, days=15)
    assert diary.judge() == []
    diary.registry.note(SLOT, "aged", "it earns less than scored", BUNDLES[0].hash)
    assert "the champion has aged, and it is not behind" in diary.judge()[0]
    verdict = judge_arena(diary.registry, SLOT)
    assert (verdict.champion, verdict.aged) == (BUNDLES[1].name, False)


def test_a_refit_takes_over_without_a_new_reign(tmp_path: Path) -> None:
    diary = Diary(tmp_path)
    champion = BUNDLES[0]
    later = START + DAY
    refit, newer = (small_bundle(seed, last_seen=later - HOUR) for seed in (20, 21))
    stranger = small_bundle(
        22, origin=champion.origin.model_copy(update={"parameters": {"gamma": 0.5}})
    )
    diary.ask(BUNDLES[1])
    diary.ask(stranger, refit=True)
    assert diary.judge()[0].endswith("leaves: the champion that it refits was replaced")
    diary.ask(refit, refit=True)
    diary.ask(newer, refit=True)
    told = diary.judge()
    assert told == [
        f"{refit.name} leaves: a newer refit waits",
        f"{newer.name} takes part as a refit",
    ]
    diary.trade({newer.hash: -0.000001}, days=13)
    assert diary.judge() == []
    diary.trade({}, days=2)
    assert "a refit of the champion, no harm shown" in diary.judge()[0]
    assert diary.registry.slot(SLOT).champion == newer.hash
    diary.trade({}, days=1)
    diary.judge()
    reign = diary.registry.arena.reign(SLOT)
    assert reign is not None
    assert (reign.number, reign.champion) == (1, champion.hash)
    # The challengers' E goes on, over the refit's bars too.
    one = diary.registry.arena.days(SLOT, 1)[-1]
    assert (one.bundle, one.bars) == (BUNDLES[1].hash, 16 * 24 - 1)


def test_a_challenger_that_does_not_fit_or_is_a_copy_is_refused(tmp_path: Path) -> None:
    bars = bars_of(660)
    write_bars(bars, tmp_path / "bars")
    registry = Registry(tmp_path / "deployments")
    store, data_dir = TraderStore(registry.database), str(tmp_path / "bars")
    registry.promote(SLOT, bundle_of(), expected=None, reason="", data_dir=data_dir)
    token = store.take_over(SLOT, broker="sim", feed="recorded", timeframe="1h")
    store.commit(SLOT, token, Changes(last_bar=int(bars.time[-1])))
    copy = bundle_of(code_version="another")
    other = small_bundle(1, tickers=TICKERS[:2])
    for one in (copy, other, bundle_of(3)):
        registry.challenger(SLOT, one, reason="", data_dir=data_dir)
    told = judge_arena(registry, SLOT).told
    assert told == (
        f"{copy.name} leaves: its returns are those of {bundle_of().name}",
        f"{other.name} leaves: it trades other tickers or bars than the champion",
        f"{bundle_of(3).name} takes part as a challenger",
    )
    [seat] = registry.arena.seats(SLOT)
    assert 0.0 < seat.worst < 0.2
    assert 0.0 < seat.best < 0.2


def test_a_slot_that_was_never_traded_has_no_arena(tmp_path: Path) -> None:
    registry = Registry(tmp_path)
    registry.promote(SLOT, BUNDLES[0], expected=None, reason="")
    with pytest.raises(InputError, match="was never traded, so there is no record"):
        judge_arena(registry, SLOT)


@pytest.fixture
def killer(monkeypatch: pytest.MonkeyPatch) -> Killer:
    """Ends the process before or after the chosen transaction."""
    found, writing = Killer(), RegistryDatabase.writing

    @contextmanager
    def killable(database: RegistryDatabase) -> Iterator[Connection]:
        found.step()
        with writing(database) as connection:
            yield connection
        found.step()

    monkeypatch.setattr(RegistryDatabase, "writing", killable)
    return found


def test_a_kill_between_any_two_effects_changes_nothing(tmp_path: Path, killer: Killer) -> None:
    """A night in which one leaves, one wins, a new reign begins and one enters."""

    def prepared(folder: Path) -> Diary:
        diary = Diary(folder)
        diary.ask(*BUNDLES[1:5])
        for _ in range(3):
            diary.judge(spacing=0)
            diary.trade({})
        edges = {BUNDLES[1].hash: 0.02, BUNDLES[2].hash: -0.02}
        diary.trade(edges, days=35)
        return diary

    undisturbed = prepared(tmp_path / "undisturbed")
    killer.steps = 0
    undisturbed.judge(spacing=0)
    steps, expected = killer.steps, undisturbed.rows()
    assert undisturbed.registry.slot(SLOT).champion == BUNDLES[1].hash
    assert steps >= 10
    for at in range(1, steps + 1):
        diary = prepared(tmp_path / str(at))
        killer.steps, killer.at = 0, at
        with pytest.raises(Killed):
            diary.judge(spacing=0)
        killer.at = None
        diary.judge(spacing=0)
        assert diary.rows() == expected, at


def test_a_rollback_begins_a_reign_too(tmp_path: Path) -> None:
    diary = Diary(tmp_path)
    diary.registry.promote(SLOT, BUNDLES[1], expected=BUNDLES[0].hash, reason="better")
    diary.judge()
    assert tuple(one.bundle for one in diary.registry.arena.seats(SLOT)) == (BUNDLES[0].hash,)
    diary.registry.rollback(SLOT, "worse", *bundle_types(), expected=BUNDLES[1].hash)
    diary.judge()
    assert tuple(one.bundle for one in diary.registry.arena.seats(SLOT)) == (BUNDLES[1].hash,)


def test_the_command_judges_and_shows_each_seat(tmp_path: Path) -> None:
    diary = Diary(tmp_path)
    diary.ask(*BUNDLES[1:3])
    words = ["trader", "arena", SLOT, "--deployments", str(tmp_path)]
    first = CliRunner().invoke(build_app(), words)
    assert first.exit_code == 0, first.output
    assert f"{BUNDLES[1].name} takes part as a challenger" in first.output
    assert "reign 1; 1 take part, 1 wait" in first.output
    diary.trade({BUNDLES[1].hash: 0.001}, days=3)
    shown = CliRunner().invoke(build_app(), [*words, "--json"])
    [seat] = json.loads(shown.output)["seats"]
    assert (seat["name"], seat["number"], seat["days"]) == (BUNDLES[1].name, 1, 3)
    assert seat["threshold"] == pytest.approx(80.0)
    assert seat["e"] > 1.0
    assert seat["relative"] == pytest.approx(1.001**71 - 1.0, rel=0.1)
    assert 0.0 < seat["expected_days"] < 60.0
    table = CliRunner().invoke(build_app(), words).output.splitlines()[-1].split()
    assert table[:3] == [BUNDLES[1].name, "1", "3"]
