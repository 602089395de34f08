"""Studies with several values and constraints: of programs, games and markets."""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from optuna.study import StudyDirection
from optuna.trial import TrialState
from rich.console import Console

from sweepd.envs.crypto.scoring.figures import path_metric_names
from sweepd.envs.support.errors import InputError
from sweepd.optimize.api.study import Study
from sweepd.optimize.cli.progress import study_progress
from sweepd.optimize.cli.study_request import make_request
from sweepd.optimize.cli.watch import study_screen
from sweepd.optimize.objectives.games.evaluation import NUMBERS
from sweepd.optimize.objectives.table import check_request
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.frame import trials_frame
from sweepd.optimize.study.insight.watch import StudyInsight
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.fresh import fresh_seeds
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.freeze import open_study, spec_flags
from sweepd.optimize.worker.tracked import trial_picture
from tests.optimize.conftest import Running, Sweepd
from tests.optimize.objectives.command.programs import command_study, work_on
from tests.optimize.study_files import finish, killed_at_checkpoint, numbers, open_handle

CPU = torch.device("cpu")
# The value grows with x, and so does the cost: every trial is on the frontier.
TRADE = 'report(1, params["lr"], cost=params["lr"] ** 2)\n'
BOTH = {"also": ("minimize:cost",), "choose": "balanced"}


def printed(found: Any) -> str:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(found)
    return console.export_text()


@pytest.fixture
def traded(tmp_path: Path) -> StudyHandle:
    """A complete study of six trials, all of which are on the frontier."""
    handle = command_study(tmp_path, TRADE, **BOTH)
    work_on(handle, 6)
    return handle


def test_optuna_sees_directions_names_and_all_values(traded: StudyHandle) -> None:
    assert traded.study.directions == [StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE]
    assert traded.study.metric_names == ["value", "cost"]
    for trial in traded.study.trials:
        assert trial.values == [trial.params["lr"], trial.params["lr"] ** 2]
    assert {t.number for t in traded.study.best_trials} == set(range(6))
    assert [row.values for row in traded.rows.read()] == [
        tuple(trial.values) for trial in traded.study.trials
    ]


def test_one_trial_of_the_frontier_is_selected_by_the_stated_rule(traded: StudyHandle) -> None:
    best = traded.best_trial()
    assert best is not None
    rates = sorted(trial.params["lr"] for trial in traded.trials())
    assert best.params["lr"] in rates[1:-1]  # neither the best value nor the lowest cost
    first = dataclasses.replace(traded.spec.selection, choose="first")
    chosen = first.best(traded.judged())
    assert chosen is not None
    assert chosen.best_trial.params["lr"] == rates[-1]
    assert Study(traded, None).best_trial == best.number
    assert Study(traded, None).best_trials[0] == best.number
    assert sorted(Study(traded, None).best_trials) == list(range(6))


def test_every_screen_shows_the_frontier(traded: StudyHandle) -> None:
    best = traded.best_trial()
    assert best is not None
    found = study_progress(traded)
    frontier = json.loads(json.dumps(found))["frontier"]
    assert frontier["values"] == [
        {"name": "value", "direction": "maximize"},
        {"name": "cost", "direction": "minimize"},
    ]
    shown = [point["values"] for point in frontier["frontier"]]
    assert shown == sorted((t.values for t in traded.trials()), reverse=True)
    assert frontier["chosen"] == best.number == found["best"]["trial"]
    text = printed(study_screen(found))
    assert f"selected: trial {best.number}, the one nearest to the best of every value" in text
    assert "and 1 more" in text
    frame = trials_frame(traded)
    assert list(frame["values_value"]) == list(frame["value"])
    assert list(frame["values_cost"]) == [t.values[1] for t in traded.trials()]
    view = StudyInsight(traded).parameters()["values"]
    assert len(view["points"]) == 6
    assert all(point["feasible"] for point in view["points"])
    row = next(r for r in StudyInsight(traded).trials(None)["table"] if r["trial"] == best.number)
    assert (row["value"], row["further"]) == (best.values[0], [best.values[1]])
    picture = trial_picture(traded, best, "k")
    assert picture.final["objective"] == best.values[0]
    assert picture.final["objective_cost"] == best.values[1]


def test_the_summary_has_the_frontier_and_its_picture(tmp_path: Path) -> None:
    handle = command_study(tmp_path, TRADE, **BOTH)
    text = work_on(handle, 4)
    assert "frontier: 4 of 4 complete trials; selected: trial" in text
    assert "complete: objective" in text
    assert ", cost +" in text
    path = handle.run_dir / "frontier.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    assert f"picture of the frontier: {path}" in text
    kept = handle.storage.get_study_system_attrs(handle.study_id)
    assert any("frontier.png" in str(value) for value in kept.values())


def test_a_study_with_one_value_has_no_frontier(tmp_path: Path) -> None:
    handle = command_study(tmp_path, TRADE)
    text = work_on(handle, 2)
    assert "frontier" not in text
    assert not (handle.run_dir / "frontier.png").exists()
    assert "frontier" not in study_progress(handle)
    assert "also" not in handle.spec.to_json()
    assert not {"feasible", "values_value"} & set(trials_frame(handle))
    assert StudyInsight(handle).parameters()["values"] is None


# -- constraints


def limited(folder: Path, text: str, *constraints: str, **settings: Any) -> StudyHandle:
    return command_study(folder, text, constraints=constraints, **settings)


def test_trials_that_break_a_constraint_are_shown_and_never_selected(tmp_path: Path) -> None:
    handle = limited(tmp_path, TRADE, "cost<=0.25")
    text = work_on(handle, 8)
    broken = [t.number for t in handle.trials() if t.params["lr"] > 0.5]
    assert 0 < len(broken) < 8
    best = handle.best_trial()
    assert best is not None
    assert (
        best.number
        == max(
            (t for t in handle.trials() if t.number not in broken), key=lambda t: t.values[0]
        ).number
    )
    for number in broken:
        assert f"trial {number} complete" in text
    assert text.count("; does not meet cost<=0.25 (by ") == len(broken)
    assert f"constraints: {8 - len(broken)} of 8 complete trials meet cost<=0.25" in text
    frame = trials_frame(handle)
    assert [n for n, own in frame["feasible"].items() if not own] == broken
    found = study_progress(handle)
    assert found["frontier"]["infeasible"] == len(broken)
    assert found["frontier"]["frontier"] == []
    assert not set(broken) & {one["trial"] for one in found["history"]["values"]}
    table = StudyInsight(handle).trials(None)["table"]
    assert [row["trial"] for row in table if row["broken"]] == [
        row["trial"] for row in table[-len(broken) :]
    ]
    # Optuna reads what was written.
    for trial in handle.study.trials:
        assert trial.constraints == {"cost<=0.25": trial.user_attrs["cost"] - 0.25}
    assert handle.study.best_trial.number == best.number
    tags = trial_picture(handle, handle.trials()[broken[0]], "k").tags
    assert tags["constraints_not_met"].startswith("cost<=0.25 (by ")


def test_the_limit_itself_is_allowed(tmp_path: Path) -> None:
    text = 'report(1, 1.0, cost=[0.25, 0.25000000000000006][int(env["SWEEPD_TRIAL"])])\n'
    handle = limited(tmp_path, text, "cost<=0.25", "value>=1.0")
    work_on(handle, 2)
    assert [row.feasible for row in handle.rows.read()] == [True, False]
    best = handle.best_trial()
    assert best is not None
    assert best.number == 0


def test_where_no_trial_meets_the_constraints_nothing_is_selected(tmp_path: Path) -> None:
    handle = limited(tmp_path, TRADE, "cost>=2.0", also=("minimize:cost",), choose="first")
    text = work_on(handle, 2, fresh_seeds=1)
    assert "No trial is complete and meets the constraints, so there is no best trial." in text
    assert handle.best() is None
    assert handle.frontier() == []
    assert study_progress(handle)["best"] is None
    assert StudyInsight(handle).parameters()["best"] is None
    assert Study(handle, None).best_trials == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("report(1, 1.0, cots=2.0)\n", "its evaluation has no 'cost'; it has value, cots, mean"),
        ('report(1, 1.0, cost=float("nan"))\n', "its evaluation has no 'cost'"),
    ],
)
@pytest.mark.parametrize("settings", [BOTH, {"constraints": ("cost<=1.0",)}])
def test_a_trial_without_a_value_fails_with_what_it_has(
    tmp_path: Path, text: str, reason: str, settings: dict[str, Any]
) -> None:
    handle = command_study(tmp_path, text, **settings)
    printed_ = work_on(handle, 1)
    [trial] = handle.trials()
    assert trial.state == TrialState.FAIL
    own = TrialRecord.from_attributes(trial.user_attrs).reason
    assert own is not None
    assert own.startswith(reason)
    assert f"trial 0 failed: {own}" in printed_


def test_a_missing_value_fails_at_the_first_rung_and_ends_the_program(tmp_path: Path) -> None:
    text = "report(1, 1.0)\nopen(env['SWEEPD_OUT'] + '/begun', 'w')\ntime.sleep(60)\nreport(2, 2.0)"
    handle = command_study(tmp_path, text, budget=2, rungs=2, **BOTH)
    assert "trial 0 failed: its evaluation has no 'cost'" in work_on(handle, 1)
    assert list(handle.trials()[0].intermediate_values) == []


def test_a_number_that_not_all_seeds_report_is_missing(tmp_path: Path) -> None:
    text = 'report(1, 1.0, **({"cost": 1.0} if "seed-0" in env["SWEEPD_OUT"] else {}))\n'
    handle = command_study(tmp_path, text, seeds=2, **BOTH)
    work_on(handle, 1)
    assert handle.trials()[0].state == TrialState.FAIL


# -- the search


@pytest.mark.parametrize(
    "sampler",
    [
        "tpe",
        "random",
        'optuna.samplers:NSGAIISampler {"population_size": 4}',
        pytest.param(
            'optuna.samplers:GPSampler {"n_startup_trials": 3, "deterministic_objective": true}',
            marks=pytest.mark.extra,
        ),
    ],
)
def test_samplers_of_several_values_and_constraints_are_repeatable(
    sampler: str, tmp_path: Path
) -> None:
    drawn = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        handle = limited(tmp_path / name, TRADE, "cost<=0.5", sampler=sampler, **BOTH)
        while len(handle.trials()) < 12:
            [plan] = handle.ask_batch(1, "w", 12)
            rate = plan.params["lr"]
            handle.report(plan, 1, rate)
            broken = {"constraints:cost<=0.5": rate**2 - 0.5}
            handle.storage.set_trial_user_attrs(plan.trial_id, {"sweepd:seed": 1}, broken)
            assert handle.judge([plan]) == [False]
            finish(handle, plan.trial_id, rate, rate**2)
            handle = StudyHandle(handle.storage, handle.name)  # as another process
        drawn.append([trial.params for trial in handle.trials()])
        assert all(trial.intermediate_values for trial in handle.trials())
    assert drawn[0] == drawn[1]
    assert len({params["lr"] for params in drawn[0]}) == 12


@pytest.mark.parametrize("sampler", ["race", "tpe", "cmaes"])
def test_searches_learn_from_constraints(sampler: str, tmp_path: Path) -> None:
    # The value grows with x and y; only small ones are allowed.
    params = {name: {"low": 0.0, "high": 1.0} for name in ("x", "y")}
    shares = []
    for constraints in ((), ("cost<=0.5",)):
        folder = tmp_path / str(len(constraints))
        folder.mkdir()
        handle = limited(folder, "", *constraints, params=params, sampler=sampler)
        while len(handle.trials()) < 30:
            [plan] = handle.ask_batch(1, "w", 30)
            total = plan.params["x"] + plan.params["y"]
            handle.report(plan, 1, total)
            broken = {"constraints:cost<=0.5": total - 0.5} if constraints else {}
            handle.storage.set_trial_user_attrs(plan.trial_id, {"sweepd:seed": 1}, broken)
            finish(handle, plan.trial_id, total)
        late = [sum(trial.params.values()) for trial in handle.trials()[15:]]
        shares.append(sum(total <= 0.5 for total in late) / len(late))
    assert shares[0] <= 0.2
    assert shares[1] >= shares[0] + 0.25


# -- flags


def requested(env: str = "cartpole", **flags: Any) -> Any:
    settings = StudySettings(env=env, **flags)
    return make_request(settings, frozenset({"env", *flags}))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"also": ["minimize:x"]}, r"--also: no evaluation of cartpole records 'x'; choose one of"),
        ({"constraint": ["x<=1"]}, r"--constraint: .* records 'x'; choose one of return, mean, "),
        ({"also": ["length"]}, r"--also 'length' is not valid: give maximize:NAME"),
        ({"constraint": ["length=1"]}, r"--constraint 'length=1' is not valid"),
        ({"also": ["maximize:return"]}, r"--also return is a value of the study already"),
        ({"also": ["maximize:worst", "minimize:worst"]}, r"--also worst is a value of the study"),
        ({"constraint": ["worst>=2", "worst<=1"]}, r"--constraint worst>=2.0 and worst<=1.0 exclu"),
        (
            {"also": ["maximize:worst"], "choose": "best"},
            r"--choose 'best' is not known; choose on",
        ),
        ({"also": ["maximize:worst"], "sampler": "race"}, r"--sampler race searches for one value"),
        ({"also": ["maximize:worst"], "sampler": "cmaes"}, r"--sampler cmaes searches for one"),
        ({"also": ["maximize:worst"], "pruner": "median"}, r"--pruner median compares trials by o"),
        ({"also": ["maximize:worst"], "search": "pbt"}, r"--also cannot be combined with --search"),
        ({"constraint": ["worst>=2"], "search": "pbt"}, r"--constraint cannot be combined with"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check_request(requested(**flags))


def opened(folder: Path, **flags: Any) -> StudyHandle:
    request = requested(
        n_envs=8, threads=1, episodes=8, look_steps=32, budget=2048, rungs=2, **flags
    )
    storage = open_storage(storage_url(None, folder))
    return open_study(storage, "s", request, CPU, folder, {}, lambda _: None)[0]


def test_the_search_of_several_values_is_chosen_and_frozen(tmp_path: Path) -> None:
    handle = opened(tmp_path, also=["minimize: deviation"], constraint=["worst >=9", "length<=99"])
    spec = handle.spec
    assert (spec.sampler, spec.pruner) == ("tpe", "none")
    assert spec.also == ("minimize:deviation",)
    assert spec.constraints == ("length<=99.0", "worst>=9.0")
    assert spec.choose == "first"  # since there are constraints
    assert StudySpec.from_json(spec.to_json()) == spec
    flags = spec_flags(spec, "game")
    given = [pair for pair in flags if pair[0] in ("also", "constraint", "choose")]
    assert given == [
        ("also", "minimize:deviation"),
        ("constraint", "length<=99.0"),
        ("constraint", "worst>=9.0"),
        ("choose", "first"),
    ]


def test_a_study_is_joined_with_its_own_values_alone(tmp_path: Path) -> None:
    own: dict[str, Any] = {"also": ["minimize:deviation"], "constraint": ["worst>=9"]}
    opened(tmp_path, **own)
    opened(tmp_path)  # what is not given is not compared
    opened(tmp_path, also=[" minimize:deviation"], constraint=["worst>= 9.0"], choose="first")
    for flag, value in (
        ("also", ["maximize:deviation"]),
        ("also", ["minimize:deviation", "maximize:worst"]),
        ("constraint", ["worst>=8"]),
        ("choose", "balanced"),
    ):
        name = "constraints" if flag == "constraint" else flag
        with pytest.raises(InputError, match=f"study 's' was created with {name} = "):
            opened(tmp_path, **{flag: value})


def test_a_rule_needs_several_values(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--choose first is for studies with several values"):
        opened(tmp_path, choose="first")


def test_a_study_with_one_value_is_not_joined_with_two(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(InputError, match=r"created with also = \"nothing\", and now it is \["):
        opened(tmp_path, also=["minimize:deviation"])


# -- games and markets


@pytest.mark.slow
def test_a_game_with_two_values_is_measured_on_fresh_seeds(market: Path) -> None:
    words = "train --env cartpole --also minimize:deviation --constraint worst>=8 --n-trials 3"
    more = "--budget 512 --rungs 2 --n-envs 8 --horizon 16 --episodes 8 --seeds 2 --fresh-seeds 2"
    command = f"{words} {more} --threads 1 --gpu cpu --no-auto-deploy --study-name s".split()
    text = Running(command, market, market / "out.txt").finish()
    handle = open_handle(market)
    assert "frontier: " in text
    best = handle.best()
    assert best is not None
    metrics = [TrialRecord.from_attributes(t.user_attrs).metrics or {} for t in handle.trials()]
    assert [t.values for t in handle.trials()] == [[m["mean"], m["deviation"]] for m in metrics]
    assert set(NUMBERS) <= set(metrics[0])
    fresh = fresh_seeds(handle, best)
    assert fresh is not None
    assert fresh.seeds == 2
    assert list(fresh.further) == ["deviation"]
    assert list(fresh.violations) == ["worst>=8.0"]
    assert fresh.to_dict()["judged"] in text
    run = StudyReader(handle.storage, fresh.study)
    assert run.spec.also == handle.spec.also
    assert run.study.directions == handle.study.directions


@pytest.mark.slow
def test_a_market_with_two_values_resumes_after_a_kill(market: Path, sweepd: Sweepd) -> None:
    study = (
        *("--n-trials", 2, "--also", "minimize:max_drawdown", "--also", "minimize:turnover"),
        *("--constraint", "max_drawdown<=0.9", "--budget", 960),
    )
    sweepd("train", *study, "--runs-dir", "alone/runs").finish()
    with killed_at_checkpoint("runs/*/trial-*/checkpoint-*"):
        sweepd("train", *study).finish(-signal.SIGKILL)
    sweepd("train", *study).finish()
    assert numbers(market) == numbers(market / "alone")
    handle = open_handle(market)
    for trial in handle.trials():
        metrics = TrialRecord.from_attributes(trial.user_attrs).metrics or {}
        assert trial.values[1:] == [metrics["max_drawdown"], metrics["turnover"]]
        assert trial.constraints == {"max_drawdown<=0.9": metrics["max_drawdown"] - 0.9}
        assert set(metrics) == set(path_metric_names())
        assert list(trial.intermediate_values) == [1, 2, 3]
