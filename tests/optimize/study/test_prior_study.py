"""`--prior`: copied when the study is created, counted, and refused where it cannot be used."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import optuna
import pytest

from sweepd.deploy.market.candidates import MarketStudy, study_search
from sweepd.deploy.promotion.studies import GateStudy, find_study
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.outlook import study_outlook
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.prior import make_prior, open_earlier, refuse_other_prior
from sweepd.optimize.study.record.bars import TIME_FORMAT
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.specs import CryptoSpec, GameSpec
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.parsing import study_space
from sweepd.optimize.study.study import StudyHandle, create_study
from sweepd.optimize.worker.trial_run import _origin
from tests.optimize.study.test_race_study import fill, spec
from tests.optimize.study_files import finish, make_handle
from tests.optimize.worker.test_batch import make_spec

RESULTS = ((1e-3, 4.0), (1e-2, 9.0), (1e-3, 8.0), (1e-4, 5.0), (1e-5, 1.0), (1e-1, 2.0))


@pytest.fixture
def earlier(tmp_path: Path) -> StudyHandle:
    return fill(make_handle(tmp_path, spec("race")), RESULTS)


def on_market(bars: Bars, count: int, holdout: float = 0.05) -> CryptoSpec:
    """A race on the first `count` bars."""
    spec, part = make_spec(bars, sampler="race", holdout=holdout), bars.slice(0, count)
    first, last = (part.time_of(bar).strftime(TIME_FORMAT) for bar in (0, -1))
    data = dataclasses.replace(
        spec.data, first=first, last=last, bars=count, fingerprint=part.fingerprint
    )
    return dataclasses.replace(spec, data=data)


@pytest.mark.parametrize(
    ("count", "before", "holdout", "allowed"),
    [
        (500, 0.2, 0.2, True),  # the same bars: both begin at bar 400
        (500, 0.2, 0.1, True),
        (500, 0.1, 0.2, False),
        (600, 0.1, 0.1, True),  # newer bars: 450 before 540
        (600, 0.0, 0.1, True),  # without a hold-out it used bars to 499
        (600, 0.0, 0.2, False),  # 500 after 480
        (600, 0.1, 0.251, False),  # 450 after 449: a single bar was seen
        (600, 0.1, 0.25, True),
        (400, 0.1, 0.1, False),  # older bars: it has seen all of the hold-out
        (600, 0.1, 0.0, True),  # no hold-out, no leak
    ],
)
def test_on_markets_a_prior_has_seen_no_bar_of_the_hold_out(
    tmp_path: Path, bars: Bars, count: int, before: float, holdout: float, allowed: bool
) -> None:
    storage, runs = make_handle(tmp_path, spec("race")).storage, tmp_path / "runs"
    own, first = on_market(bars, count, holdout), on_market(bars, 500, before)
    assert create_study(storage, "before", first, runs, {})
    seen = first.data.bars - round(before * first.data.bars)
    assert allowed == (not holdout or seen <= count - round(holdout * count))  # in numbers of bars

    def refusal(of: CryptoSpec) -> str:
        with pytest.raises(InputError) as refused:
            make_prior(open_earlier(storage, ["before"]), of, print)
        return str(refused.value)

    said = refusal(own)
    assert ("it has seen a part of this study's hold-out" in said) != allowed
    if allowed:
        assert "before has 0 complete configurations" in said  # the next check
    elif advised := re.search(r"use --holdout ([\d.]+) or less", said):
        followed = dataclasses.replace(own, holdout=float(advised[1]))
        assert "before has 0 complete configurations" in refusal(followed)
    else:
        assert count < 500
        assert said.endswith("; leave it out")


def new(earlier: StudyHandle, name: str, of: GameSpec, *priors: str) -> StudyHandle:
    lines: list[str] = []
    storage, runs = earlier.storage, earlier.run_dir.parent
    prior = make_prior(open_earlier(storage, priors), of, lines.append)
    assert create_study(storage, name, of, runs, {}, prior=prior)
    return StudyHandle(storage, name)


def draws(handle: StudyHandle, count: int) -> list[dict[str, Any]]:
    for _ in range(count):
        [plan] = handle.ask_batch(1, "w", 20)
        for rung in (1, 2):
            handle.report(plan, rung, plan.params["learning_rate"])
        handle.storage.set_trial_user_attrs(plan.trial_id, {"sweepd:seed": 1})
        finish(handle, plan.trial_id, plan.params["learning_rate"])
    return [trial.params for trial in handle.trials()]


def test_the_record_is_a_copy_and_decisions_outlive_the_earlier_study(earlier: StudyHandle) -> None:
    first = new(earlier, "a", spec("race"), "s")
    again = new(earlier, "b", spec("race"), "s")
    plain = new(earlier, "c", spec("race"))
    assert first.prior is not None
    assert [one["study"] for one in first.prior["studies"]] == ["s"]
    # One entry per configuration: 1e-3 has two seeds.
    seeds = {c["params"]["learning_rate"]: c["seeds"] for c in first.prior["configurations"]}
    assert seeds == {1e-3: 2, 1e-2: 1, 1e-4: 1, 1e-5: 1, 1e-1: 1}
    expected = draws(first, 5)
    optuna.delete_study(study_name="s", storage=earlier.storage)
    assert draws(StudyHandle(earlier.storage, "b"), 5) == expected
    assert again.prior == first.prior
    assert draws(plain, 5) != expected
    assert len(first.trials()) == 5  # the prior's configurations are no trials


def test_its_trials_count_as_trials_of_the_search(earlier: StudyHandle) -> None:
    first = new(earlier, "a", spec("race"), "s")
    draws(first, 5)  # the third trial is a further seed
    second = new(earlier, "b", spec("race"), "a")
    [trial] = [t for t in first.trials() if t.number == 0]
    for handle in (earlier, first, second):
        handle.run_dir.mkdir(parents=True, exist_ok=True)
    counts = {}
    for name in ("s", "a", "b"):
        found = GateStudy(find_study(name, earlier.storage.url, earlier.run_dir.parent))
        counts[name] = found.finished, found.chosen_from
    # The prior of b was informed by s.
    assert counts == {"s": (6, 0), "a": (5, 6), "b": (0, 11)}
    request = type("Request", (), {"from_weights": False})()
    assert _origin(first, trial, request)["finished"] == 5 + 6


def test_the_outlook_counts_its_trials_as_the_gate_does(bars: Bars, tmp_path: Path) -> None:
    storage = open_storage(storage_url(None, tmp_path))
    prior = {"studies": [{"study": "a", "uid": "u", "finished": 7}], "configurations": []}
    spec = on_market(bars, len(bars))
    assert create_study(storage, "s", spec, tmp_path, {}, prior=prior)
    handle = StudyHandle(storage, "s")
    assert study_search(MarketStudy(handle)).trials == 7
    found = study_outlook(handle, 0)
    assert found is not None
    assert found["trials"] == 7


def test_configurations_outside_of_the_space_are_dropped_and_said(earlier: StudyHandle) -> None:
    rate = Dimension("learning_rate", low=1e-4, high=1e-1, log=True)
    small = dataclasses.replace(study_space(spec("race")))
    tables = {**small.tables, "ppo": {"learning_rate": rate}}
    of = dataclasses.replace(
        spec("race"), space=dataclasses.replace(small, tables=tables).to_dict()
    )
    lines: list[str] = []
    record = make_prior(open_earlier(earlier.storage, ["s"]), of, lines.append)
    assert record is not None
    assert len(record["configurations"]) == 4
    assert lines == [
        "prior s: 4 of 5 configurations are used; 1 are outside of this study's search space"
    ]


def test_what_cannot_be_used_is_refused(earlier: StudyHandle, bars: Bars, tmp_path: Path) -> None:
    storage = earlier.storage

    def refused(of: Any, message: str, *names: str) -> None:
        with pytest.raises(InputError, match=message):
            make_prior(open_earlier(storage, names), of, print)

    race = spec("race")
    refused(race, "--prior nothing: the database has no study", "nothing")
    refused(race, "--prior s is given twice", "s", "s")
    refused(race, "at most 8", *map(str, range(9)))
    refused(spec("tpe"), "--prior needs --sampler race; this study has --sampler tpe", "s")
    new(earlier, "empty", race)
    refused(race, "has 0 complete configurations .* needs at least 4", "empty")
    more = study_space(race)
    gamma = {"gamma": Dimension("gamma", low=0.9, high=0.99)}
    wider = dataclasses.replace(
        more, tables={**more.tables, "ppo": {**more.tables["ppo"], **gamma}}
    )
    refused(
        dataclasses.replace(race, space=wider.to_dict()), "does not have the parameter gamma", "s"
    )
    market = on_market(bars, len(bars))
    refused(market, "a market, a game and a program cannot inform", "s")

    def add(name: str, **changes: Any) -> None:
        own = dataclasses.replace(market, **changes)
        assert create_study(storage, name, own, tmp_path / "runs", {})

    other = dataclasses.replace(market.data, tickers=("OTHER/USDT",))
    add("other", data=other)
    refused(market, "other is a study on OTHER/USDT .* only a study on the same tickers", "other")
    add("slower", data=dataclasses.replace(market.data, timeframe="4h"))
    refused(market, "slower is a study on .* .4h., and this one is on .* .1h.", "slower")


def test_a_studys_prior_cannot_change(earlier: StudyHandle) -> None:
    handle = new(earlier, "a", spec("race"), "s")
    refuse_other_prior("a", handle.prior, ["s"], "a-2")
    with pytest.raises(InputError, match="created with --prior s, and now it is t; a study's"):
        refuse_other_prior("a", handle.prior, ["t"], "a-2")
    with pytest.raises(InputError, match="created with --prior none, and now it is s"):
        refuse_other_prior("s", earlier.prior, ["s"], "s-2")
