"""The worker as a process: exact totals, kills, signals, joining a study."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import optuna
import pandas as pd
import pytest
from optuna.trial import TrialState

from sweepd.agents.policy.members import load_members
from sweepd.optimize.study.record.keys import ATTEMPTS_KEY
from tests.optimize.conftest import INDEPENDENT, Sweepd
from tests.optimize.study_files import count, numbers, open_handle, training_begun, wait_for


@pytest.mark.slow
def test_a_study_ends_at_its_exact_total_with_complete_records(
    market: Path, sweepd: Sweepd
) -> None:
    out = sweepd("train", "--n-trials", 4).finish()
    assert "Using Vectorized Environments: 8 parallel envs" in out
    assert "best trial" in out
    handle = open_handle(market)
    trials = handle.trials()
    assert len(trials) == 4
    assert all(t.state in (TrialState.COMPLETE, TrialState.PRUNED) for t in trials)
    complete = [t for t in trials if t.state == TrialState.COMPLETE]
    assert complete
    for trial in complete:
        folder = handle.trial_dir(trial.number)
        assert len(load_members(folder / "members.safetensors")) == 3
        frame = pd.read_parquet(folder / "paths.parquet")
        assert set(frame.columns) >= {"path", "date", "returns", "equal_weight"}
        assert not (folder / "equity.png").exists()  # nobody has looked
        assert json.loads((folder / "metrics.json").read_text())[0]["bars"] == len(frame)
        assert len([k for k in trial.system_attrs if k.startswith("artifacts:")]) == 2
        assert list(trial.intermediate_values) == [1, 2, 3]
        assert len(trial.user_attrs["sweepd:fold_scores"]) == 3
        assert trial.user_attrs["sweepd:members"]["path"] == f"{folder.name}/members.safetensors"
        assert trial.user_attrs["sweepd:device"] == "cpu"
        assert not list(folder.glob("checkpoint-*"))
        curves = handle.run_dir / "tensorboard" / folder.name
        assert list(curves.glob("events.*"))
    pruned = [t for t in trials if t.state == TrialState.PRUNED]
    assert all("worse than its peers" in t.user_attrs["sweepd:reason"] for t in pruned)
    # Categorical values, not their indices; sampled values are the ones that were used.
    for trial in trials:
        assert trial.params["net_width"] in (8, 16)
        assert trial.params["minibatch"] in (16, 32)
        shape, ppo, env = (
            trial.user_attrs[f"sweepd:{kind}"] for kind in ("shape", "ppo_params", "env_params")
        )
        assert shape["net_width"] == trial.params["net_width"]
        assert shape["minibatch"] == trial.params["minibatch"]
        assert ppo["lr_schedule"] == trial.params["lr_schedule"]
        assert ppo["gamma"] == 1 - trial.params["one_minus_gamma"]
        assert ppo["target_kl"] == trial.params.get("target_kl", 0.0)
        assert env["lookback"] == trial.params["lookback"]
    # All trials of a batch have one shape.
    assert len({(t.params["net_width"], t.params["minibatch"]) for t in trials[:3]}) == 1
    assert handle.flags["budget"] == 192
    assert handle.flags["search_space"] == "tiny.toml"
    assert {
        "fee",
        "slippage",
        "seed",
        "timeframe",
        "tickers",
        "pruner",
        "holdout",
        "n_trials",
        "auto_deploy",
    } <= set(handle.flags)
    # A second start has nothing to do, more trials continue it, and other settings are refused.
    assert "training trial" not in sweepd("train", "--n-trials", 4).finish()
    sweepd("train", "--n-trials", 5, "--pruner", "hyperband").finish()
    assert len(open_handle(market).trials()) == 5
    refused = sweepd("train", "--n-trials", 6, "--budget", "193").finish(2)
    assert "budget = 192" in refused
    assert "--study-name" in refused
    sweepd("train", "--n-trials", 6, "--tickers", "ASSET2/USDT").finish(2)
    out = sweepd("status", "--json").finish()
    assert json.loads(out)[0]["trials"]["RUNNING"] == 0


@pytest.mark.slow
def test_two_racing_workers_reach_the_total_exactly(market: Path, sweepd: Sweepd) -> None:
    racers = [
        sweepd("train", "--n-trials", 6, "--trials-per-batch", 2, "--alongside", "--pruner", "none")
        for _ in range(2)
    ]
    for racer in racers:
        racer.finish()
    trials = open_handle(market).trials()
    assert [t.number for t in trials] == list(range(6))
    assert {t.state for t in trials} == {TrialState.COMPLETE}


@pytest.mark.extra
def test_interruptions_and_kills_change_no_result(market: Path, sweepd: Sweepd) -> None:
    """SIGINT within a rung and SIGKILL after a later one change no bit of the results."""
    long = ("--budget", 960, *INDEPENDENT)
    sweepd(
        "train", "--n-trials", 2, *long, "--study-name", "s", "--runs-dir", "alone/runs"
    ).finish()

    first = sweepd("train", "--n-trials", 2, *long)
    wait_for(lambda: training_begun(market))
    first.signal(signal.SIGINT)
    out = first.finish()
    assert "stopped by a signal" in out
    states = {t.state for t in open_handle(market).trials()}
    assert states <= {TrialState.WAITING, TrialState.COMPLETE}, states

    reported = count(market, "SELECT count(*) FROM trial_intermediate_values")
    second = sweepd("train", "--n-trials", 2, *long)
    wait_for(
        lambda: (
            count(market, "SELECT count(*) FROM trial_intermediate_values") > reported
            or second.ended
        )
    )
    second.signal(signal.SIGKILL)
    second.finish(-signal.SIGKILL)
    third = sweepd("train", "--n-trials", 2, *long)
    third.finish()
    interrupted, alone = numbers(market), numbers(market / "alone")
    assert interrupted == alone
    assert {row["state"] for row in alone.values()} == {TrialState.COMPLETE}


@pytest.mark.slow
def test_a_second_start_takes_over_and_sigterm_requeues_all_trials(
    market: Path, sweepd: Sweepd
) -> None:
    endless = ("--budget", 200_000, "--pruner", "none")
    first = sweepd("train", "--n-trials", 3, *endless)
    wait_for(lambda: training_begun(market))
    second = sweepd("train", "--n-trials", 3, *endless)
    second_out = []
    assert "stopped by a signal" in first.finish()
    wait_for(lambda: training_begun(market))
    second.signal(signal.SIGTERM)
    second_out.append(second.finish())
    assert "asking the running worker" in second_out[0]
    assert {t.state for t in open_handle(market).trials()} == {TrialState.WAITING}
    assert [t.number for t in open_handle(market).trials()] == [0, 1, 2]


def test_a_second_signal_ends_the_process_at_once_and_the_next_worker_takes_its_trials(
    market: Path, sweepd: Sweepd
) -> None:
    endless = ("--budget", 200_000, "--pruner", "none")
    first = sweepd("train", "--n-trials", 1, *endless)
    wait_for(lambda: training_begun(market))
    first.signal(signal.SIGTERM)
    first.signal(signal.SIGINT)
    first.process.join(20)
    assert first.process.exitcode in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert count(market, "SELECT count(*) FROM trials WHERE state = 'RUNNING'") == 1
    second = sweepd("train", "--n-trials", 1, *endless)
    wait_for(lambda: "training trial 0" in second.output.read_text())
    second.signal(signal.SIGTERM)
    assert "trial 0: requeued, its worker died" in second.finish()
    assert [t.state for t in open_handle(market).trials()] == [TrialState.WAITING]


def test_a_suspect_trial_runs_alone_and_an_interrupted_batch_gets_no_new_trials(
    market: Path, sweepd: Sweepd
) -> None:
    sweepd("train", "--n-trials", 1, "--trials-per-batch", 1).finish()
    handle = open_handle(market)
    for _ in range(3):
        handle.study.enqueue_trial({"net_width": 8, "minibatch": 16})
    plans = handle.ask_batch(3, "w", total=4)
    assert [p.number for p in plans] == [1, 2, 3]

    def put_back_with_suspect(number: int) -> None:
        for plan in plans:
            if plan.trial_id in handle.storage.held():
                history = (
                    [{"evidence": "in company", "checkpoint": 0}] if plan.number == number else []
                )
                handle.storage.set_trial_user_attrs(plan.trial_id, {ATTEMPTS_KEY: history})
                handle.put_back(plan.trial_id)

    put_back_with_suspect(2)  # the others come first, without it; then it comes alone
    assert [p.number for p in handle.ask_batch(3, "w", total=4)] == [1, 3]
    assert [p.number for p in handle.ask_batch(3, "w", total=6)] == [2]
    put_back_with_suspect(1)
    assert [p.number for p in handle.ask_batch(3, "w", total=6)] == [1]
    begun = handle.ask_batch(3, "w", total=4)
    assert [p.number for p in begun] == [2, 3]
    handle.report(begun[0], 1, 0.5)
    for plan in (plans[0], *begun):
        handle.put_back(plan.trial_id)
    [last] = handle.ask_batch(3, "w", total=4)
    handle.fail(last.trial_id, "out of the way")
    # An interrupted batch continues unchanged: a new trial would be sampled from less history.
    assert [p.number for p in handle.ask_batch(3, "w", total=9)] == [2, 3]
    assert [p.number for p in handle.ask_batch(3, "w", total=9)] == [4, 5, 6]


def test_waiting_trials_of_the_batch_shape_come_first(market: Path, sweepd: Sweepd) -> None:
    sweepd("train", "--n-trials", 1, "--trials-per-batch", 1).finish()
    handle = open_handle(market)
    wide = {
        "net_width": 16,
        "minibatch": 16,
        "learning_rate": 1e-3,
        "one_minus_gamma": 0.05,
        "target_kl_on": False,
        "lr_schedule": "linear",
        "action_scale": 0.2,
        "time_decay_floor": 1.0,
        "lookback": 1,
    }
    handle.study.enqueue_trial(wide)
    handle.study.enqueue_trial({**wide, "net_width": 8})
    handle.study.enqueue_trial({**wide, "lookback": 2})
    handle.study.enqueue_trial({**wide, "action_scale": 7.0})
    plans = handle.ask_batch(4, "w", total=10)
    assert [p.number for p in plans] == [1, 3, 5, 6]
    assert {p.settings.shape["net_width"] for p in plans} == {16}
    assert plans[0].settings.env["action_scale"] == 0.2
    failed = handle.trials()[4]
    assert failed.state == TrialState.FAIL
    assert "action_scale = 7.0" in failed.user_attrs["sweepd:reason"]
    assert [t.number for t in handle.trials() if t.state == TrialState.WAITING] == [2]
    seeds = {p.seed for p in plans}
    assert len(seeds) == 4
    for plan in plans:
        handle.put_back(plan.trial_id)
    again = open_handle(market).ask_batch(4, "w2", total=10)
    assert [p.number for p in again] == [1, 3, 5, 6]
    assert [p.params for p in again] == [p.params for p in plans]
    assert {p.seed for p in again} == seeds
    assert optuna.__version__
