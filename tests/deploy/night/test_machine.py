"""What a night does next, over every set of steps that are over and every way they ended."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweepd.deploy.night.config import NightConfig
from sweepd.deploy.night.machine import (
    LASTS,
    LATE,
    MOST_FAILURES,
    Done,
    Perform,
    Settle,
    is_over,
    next_step,
    steps_of,
    which_nights,
)
from sweepd.deploy.night.records import Name, Night, NightStep, Outcome
from sweepd.deploy.registry.database import utc_text
from sweepd.envs.support.errors import InputError

BARS = {"dir": "d", "tickers": ["A"], "timeframe": "1h"}
MARKET = NightConfig.of({"slot": "s", "bars": BARS, "study": {}})
CONFIGS = [
    MARKET,
    NightConfig.of({"slot": "s", "bars": BARS}),
    NightConfig.of({"slot": "s", "bars": BARS | {"source": "folder"}, "study": {}}),
    NightConfig.of({"slot": "s", "study": {"env": "cartpole"}}),
]
OUTCOMES: tuple[Outcome, ...] = ("done", "skipped", "refused", "failed", "late")
NOW = 1_795_919_400.0  # 2026-11-29 02:30 UTC
TONIGHT = "20261129"


def night_of(config: NightConfig, name: str = TONIGHT, **changes: Any) -> Night:
    return replace(Night("s", name, "t", config.record, utc_text(NOW)), **changes)


def row_of(step: Name, outcome: Outcome, **facts: Any) -> NightStep:
    known = {"deadline": NOW + 60.0, "refit": False, "passes": True, "reason": "r"}
    return NightStep("s", TONIGHT, step, utc_text(NOW), 1.0, outcome, known | facts)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("over", [False, True])
def test_a_night_does_its_steps_once_in_order_and_ends(config: NightConfig, over: bool) -> None:
    """Whichever steps are over: the first of the others is next."""
    wanted, night = steps_of(config), night_of(config)
    for count in range(len(wanted) + 1):
        for present in itertools.combinations(wanted, count):
            rows = {name: row_of(name, "done") for name in present}
            found = next_step(config, night, rows, over=over)
            left = [name for name in wanted if name not in present]
            if not left:
                assert found == Done("done")
                continue
            # A step whose ground is missing cannot be decided; no row is ever written before it.
            assert not isinstance(found, Done)
            assert found.step == left[0]


@given(st.sampled_from(CONFIGS), st.data())
def test_every_night_ends_and_its_report_is_written_last(
    config: NightConfig, data: st.DataObject
) -> None:
    night, rows = night_of(config), dict[Name, NightStep]()
    performed: list[str] = []
    for _ in range(200):
        over = data.draw(st.booleans()) if "disk" not in rows else True
        found = next_step(config, night, rows, over=over)
        if isinstance(found, Done):
            break
        assert found.step not in rows
        if isinstance(found, Settle):
            rows[found.step] = row_of(found.step, found.outcome, reason=found.reason)
            night = replace(night, failures=0, problem=None)
        elif data.draw(st.integers(0, 3)) == 0:
            night = replace(night, failures=night.failures + 1, problem="no network")
            assert night.failures <= MOST_FAILURES
        else:
            performed.append(found.step)
            outcome = data.draw(st.sampled_from(OUTCOMES))
            asked = {name: data.draw(st.booleans()) for name in ("passes", "refit")}
            rows[found.step] = row_of(found.step, outcome, **asked)
            night = replace(night, failures=0, problem=None)
    assert isinstance(found, Done)
    assert tuple(rows) == steps_of(config)
    assert len(performed) == len(set(performed))
    failed = {row.outcome for row in rows.values() if row.step != "study"}
    broken = failed | ({rows["study"].outcome} - {"late"} if "study" in rows else set())
    expected = "late" if "late" in failed else "done"
    if "late" not in failed and broken & {"failed", "refused"}:
        expected = "broken"
    assert found.outcome == expected


def after(**outcomes: Outcome) -> dict[Name, NightStep]:
    return {name: row_of(name, outcome) for name, outcome in outcomes.items()}  # type: ignore[arg-type]


def test_a_step_needs_those_before_it() -> None:
    night = night_of(MARKET)
    cases: list[tuple[dict[Name, NightStep], object]] = [
        ({}, Perform("bars")),
        (after(bars="failed"), Settle("check", "skipped", "bars was failed")),
        (after(bars="done", check="refused"), Settle("begin", "skipped", "check was refused")),
        (after(bars="done", check="done", begin="done"), Perform("study", NOW + 60.0)),
    ]
    for rows, wanted in cases:
        assert next_step(MARKET, night, rows, over=False) == wanted
    before = after(bars="done", check="done", begin="done")
    for outcome in OUTCOMES:
        trained = before | {"study": row_of("study", outcome, study="s-1")}
        found = next_step(MARKET, night, trained, over=False)
        judged = outcome in ("done", "late")  # a study that was stopped is judged as it is
        assert found == (
            Perform("stage") if judged else Settle("stage", "skipped", f"study was {outcome}")
        )
    given_up = before | {"study": NightStep("s", TONIGHT, "study", "", 0.0, "late", {"reason": ""})}
    assert next_step(MARKET, night, given_up, over=False) == Settle(
        "stage", "skipped", "study was late"
    )
    judged_rows = before | {"study": row_of("study", "done", study="s-1")}
    outside = judged_rows | {"stage": row_of("stage", "done", passes=False, reason="it lost")}
    assert next_step(MARKET, night, outside, over=False) == Settle("admit", "skipped", "it lost")
    due = outside | {"begin": row_of("begin", "done", refit=True)}
    assert next_step(MARKET, night, due, over=False) == Perform("admit")
    passed = judged_rows | after(stage="done")
    assert next_step(MARKET, night, passed, over=False) == Perform("admit")
    # The arena is judged whatever became of the study.
    rows = outside | after(admit="skipped")
    assert next_step(MARKET, night, rows, over=False) == Perform("arena")


def test_a_games_champion_is_defended_whatever_became_of_the_study() -> None:
    game, rows = CONFIGS[3], after(begin="done", study="failed", stage="skipped", admit="skipped")
    assert next_step(game, night_of(game), rows, over=False) == Perform("defend")


def test_a_step_that_fails_again_and_again_is_given_up_and_the_others_go_on() -> None:
    night = night_of(MARKET, failures=2, problem="no network")
    assert next_step(MARKET, night, {}, over=False) == Perform("bars")
    night = replace(night, failures=3)
    assert next_step(MARKET, night, {}, over=False) == Settle("bars", "failed", "no network")


def test_a_late_night_is_closed_and_reported() -> None:
    night, rows = night_of(MARKET), after(bars="done", check="done", begin="done")
    assert next_step(MARKET, night, rows, over=True) == Settle("study", "late", LATE)
    rows |= after(study="late", stage="late", admit="late", arena="late", certify="late")
    rows |= after(disk="late")
    assert next_step(MARKET, night, rows, over=True) == Perform("report")
    rows |= after(report="done")
    assert next_step(MARKET, night, rows, over=True) == Done("late")


def test_a_study_that_was_stopped_at_its_deadline_does_not_make_a_night_late() -> None:
    rows = {name: row_of(name, "done") for name in steps_of(MARKET)} | after(study="late")
    assert next_step(MARKET, night_of(MARKET), rows, over=False) == Done("done")


def test_a_night_is_continued_until_the_next_one_is_due() -> None:
    night = night_of(MARKET)
    assert not is_over(night, [night], NOW + LASTS)
    assert is_over(night, [night], NOW + LASTS + 1.0)
    assert is_over(night, [night, night_of(MARKET, "20261130")], NOW + 60.0)
    assert not is_over(night, [night_of(MARKET, "20261128"), night], NOW)


def test_a_start_works_on_an_open_night_or_on_todays_and_closes_older_ones() -> None:
    before = night_of(MARKET, "20261128", started=utc_text(NOW - 3600.0))
    assert which_nights([], None, NOW) == [TONIGHT]
    # It began an hour ago, before midnight.
    assert which_nights([before], None, NOW) == ["20261128"]
    old = replace(before, started=utc_text(NOW - LASTS - 60.0))
    assert which_nights([old], None, NOW) == ["20261128", TONIGHT]
    ended = replace(before, ended="now", outcome="done")
    assert which_nights([ended], None, NOW) == [TONIGHT]
    tonight = night_of(MARKET, ended="now", outcome="done")
    assert which_nights([old, tonight], None, NOW) == ["20261128", TONIGHT]
    assert which_nights([old], "20261120", NOW) == ["20261120"]
    for wrong, why in {
        "20261130": "has not come: today is 20261129",
        "2026-11-29": "is not a day; write it as 20261129",
        "20261301": "is not a day",
        "yesterday": "is not a day",
    }.items():
        with pytest.raises(InputError, match=why):
            which_nights([], wrong, NOW)
