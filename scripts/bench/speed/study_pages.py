"""Time the dashboard's pages of a study with thousands of trials.

    python -m scripts.bench run study_pages --trials 5000 --save FILE

The study is one of a synthetic market in the preset `wide`, with half of its trials pruned or
failed; it is kept in --folder for the next run. `first` is the first request after the server has
started, which reads all trials; the others find most of them in memory. Times are processor time of
the thread that answers.
"""

from __future__ import annotations

import tempfile
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np
import optuna
import sqlalchemy as sa
import torch
from optuna.trial import TrialState
from sqlalchemy.orm import Session
from werkzeug.test import Client

from scripts.bench.harness import benchmark_parser, print_machine, save_results
from scripts.bench.speed.page_times import page_times
from sweepd.deploy.dashboard.source import PaperSource
from sweepd.deploy.dashboard.web import Dashboard
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.optimize.cli.progress import StudyWatch
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url, study_exists
from sweepd.optimize.study.record.keys import rung_key
from sweepd.optimize.study.record.optuna_tables import (
    rung_values,
    trial_attributes,
    trial_params,
    trial_values,
    trials,
)
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.freeze import open_study

BEGIN = datetime(2026, 1, 1)
FAILED, PRUNED = 0.03, 0.47  # shares of the trials
PAGES = {
    "progress": "/training",
    "parameters": "/training/parameters",
    "all parameters": "/training/parameters?rows=all",
    "trials": "/training/trials",
    "last page of trials": "/training/trials?page=100&trials=1,2,3,4,5,6",
    "trial": "/training/trial?study=bench&trial=0",
    "compare": "/training/compare?study=bench&with=other",
}


def filled_study(folder: Path, name: str, trials: int, seed: int) -> StudyHandle:
    """Open a study, or create it with finished trials.

    Values depend on `learning_rate` most, on `entropy_coef` less.
    """
    storage = open_storage(storage_url(None, folder))
    if study_exists(storage, name):
        return StudyHandle(storage, name)
    bars = make_demo_market(0, assets=3, bars=8_000)
    request = Request(
        data_dir=folder, timeframe=bars.timeframe, threads=1, search_space="wide", seed=seed
    )
    handle, _ = open_study(
        storage, name, request, torch.device("cpu"), folder, {}, lambda _: None, bars
    )
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    drawing = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed))
    rng = np.random.default_rng(seed)
    with storage.transaction() as session:
        for number in range(trials):
            trial = drawing.ask()
            handle.space.suggest(trial)
            _add(session, handle, trial, number, rng)
    return handle


def _add(
    session: Session,
    handle: StudyHandle,
    drawn: optuna.Trial,
    number: int,
    rng: np.random.Generator,
) -> None:
    """Add a trial as rows: `Study.add_trial` takes minutes for thousands of trials."""
    params, rungs, settings = drawn.params, handle.spec.rungs, handle.space.resolve(drawn.params)
    peak = np.log(params["learning_rate"] / 4e-4) ** 2
    value = float(1.0 - peak + 0.1 * np.log(params["entropy_coef"]) + rng.normal(0.0, 0.3))
    fate = rng.random()
    state = TrialState.COMPLETE
    if fate < FAILED + PRUNED:
        state = TrialState.FAIL if fate < FAILED else TrialState.PRUNED
    reached = rungs if state == TrialState.COMPLETE else int(rng.integers(1, rungs))
    curve = {rung: value - 1.5 / rung + rng.normal(0.0, 0.1) for rung in range(1, reached + 1)}
    scores = {rung: (at + rng.normal(0.0, 0.4, 6)).tolist() for rung, at in curve.items()}
    seconds = float(40.0 * reached * (1 + settings.shape["net_width"] / 128) * rng.uniform(0.9, 1))
    record = TrialRecord(
        seed=number,
        shape=settings.shape,
        env_params=settings.env,
        learner_params=settings.learner,
        scores=tuple(scores[reached]),
        path_scores=tuple(scores[reached]),
        metrics={f"metric_{index}": float(rng.normal()) for index in range(18)},
        reason="" if state == TrialState.COMPLETE else "worse than its peers",
        num_envs=handle.spec.num_envs,
        device="cpu",
        steps_per_second=20_000.0,
        seconds=seconds,
    )
    attributes = record.to_attributes(handle.spec)
    attributes |= {rung_key(rung): members for rung, members in scores.items()}
    begin = BEGIN + timedelta(seconds=30.0 * number)
    row = trials.insert().values(
        study_id=handle.study_id,
        number=number,
        state=state,
        datetime_start=begin,
        datetime_complete=begin + timedelta(seconds=seconds),
    )
    [trial_id] = cast(sa.CursorResult[Any], session.execute(row)).inserted_primary_key or ()
    key = {"trial_id": trial_id}
    kinds = {
        name: (optuna.distributions.distribution_to_json(kind), kind)
        for name, kind in drawn.distributions.items()
    }
    parts: list[tuple[sa.Table, list[dict[str, Any]]]] = [
        (
            trial_params,
            [
                key
                | {
                    "param_name": name,
                    "param_value": kinds[name][1].to_internal_repr(one),
                    "distribution_json": kinds[name][0],
                }
                for name, one in params.items()
            ],
        ),
        (
            rung_values,
            [
                key
                | {
                    "step": rung,
                    "intermediate_value": float(at),
                    "intermediate_value_type": "FINITE",
                }
                for rung, at in curve.items()
            ],
        ),
    ]
    if state == TrialState.COMPLETE:
        final = key | {"objective": 0, "value": value, "value_type": "FINITE"}
        parts.append((trial_values, [final]))
    for table, rows in parts:
        session.execute(sa.insert(table), rows)
    trial_attributes.put(session, {trial_id: attributes})


def main(argv: list[str] | None = None) -> None:
    parser = benchmark_parser(__doc__ or "")
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--runs", type=int, default=40, help="requests per page")
    parser.add_argument("--folder", type=Path, help="of the study; default: a temporary one")
    args = parser.parse_args(argv)
    described = print_machine()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        filled_study(folder, "bench", args.trials, 0)
        filled_study(folder, "other", args.trials // 10, 1)
        pages = []
        for name, path in PAGES.items():
            search = StudyWatch("bench", str(folder / "sweepd.db"), folder)
            source = PaperSource(RegistryFlags(folder / "deployments"))
            pages.append(page_times(Client(Dashboard(source, search)), name, path, args.runs))
    save_results(args.save, {"machine": described, "trials": args.trials, "pages": pages})
