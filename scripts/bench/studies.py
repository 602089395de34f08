"""Studies for benchmarks, run by the real worker."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from sweepd.envs.crypto.data.bars import Bars, load_bars
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.optimize.objectives.market.experiment import CryptoExperiment
from sweepd.optimize.objectives.members.experiment import Experiment
from sweepd.optimize.objectives.members.trainer import Trainer
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url, study_exists
from sweepd.optimize.study.recovery.registration import leave, register_worker
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.freeze import open_study
from sweepd.optimize.worker.stopping import StopRequest
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.worker import Worker, WorkerOptions

NAME = "bench"
# The standard study: one shape, one observation, and parameters that ElegantRL can also train with.
STANDARD_SPACE = """
name = "standard"
version = 1
[shape]
net_width = { value = 128 }
net_depth = { value = 2 }
minibatch = { value = 512 }
epochs = { value = 4 }
[ppo]
learning_rate = { low = 1e-4, high = 2e-3, log = true }
one_minus_gamma = { low = 3e-3, high = 0.1, log = true }
gae_lambda = { low = 0.8, high = 0.99 }
clip = { low = 0.1, high = 0.4 }
entropy_coef = { low = 1e-4, high = 0.1, log = true }
initial_log_std = { low = -2.0, high = 0.0 }
value_coef = { low = 0.25, high = 1.0 }
max_grad_norm = { low = 0.3, high = 5.0, log = true }
adam_eps = { low = 1e-8, high = 1e-5, log = true }
lr_schedule = { choices = ["constant", "linear", "cosine"] }
[env]
action_scale = { low = 0.05, high = 0.5, log = true }
cash_reserve = { low = 0.0, high = 0.3 }
max_position = { low = 0.2, high = 1.0 }
trailing_stop = { low = 0.02, high = 0.3, off = 0.0 }
alpha_weight = { low = 0.0, high = 1.0 }
drawdown_penalty = { low = 0.0, high = 1.0 }
volatility_penalty = { low = 0.0, high = 5.0 }
concentration_penalty = { low = 0.0, high = 0.1 }
"""
STANDARD: dict[str, Any] = {"budget": 200_000, "n_envs": 32, "horizon": 64, "pruner": "none"}
TICKERS = ("AAVE/USDT", "BCH/USDT", "BTC/USDT", "ETH/USDT", "LINK/USDT", "LTC/USDT", "UNI/USDT")
REAL_BARS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "binance_2021_2023_1h"


def standard_bars() -> tuple[Bars, str]:
    """Return hourly bars of seven assets, 2021 to 2023, and their description.

    Without the files, the demo market of the same length.
    """
    if REAL_BARS.exists():
        return load_bars(REAL_BARS, "1h", TICKERS), "real 1h bars of 7 assets, 2021 to 2023"
    return make_demo_market(
        0, assets=7, bars=23_987
    ), "the demo market, 7 assets, 23,987 bars (no real bars here)"


def study_in(
    folder: Path, bars: Bars, request: dict[str, Any], space: str | None = None
) -> tuple[StudyHandle, CryptoExperiment]:
    """Open the study in `folder`, or create it.

    Args:
        folder: of the study and its database.
        bars: its market.
        request: fields of `sweepd.optimize.worker.freeze.Request`.
        space: text of a search space; None for the request's.
    """
    storage = open_storage(storage_url(None, folder))
    if study_exists(storage, NAME):
        handle = StudyHandle(storage, NAME)
        torch.set_num_threads(handle.spec.threads)
        return handle, CryptoExperiment(handle.spec, bars, torch.device("cpu"))
    if space is not None:
        (folder / "space.toml").write_text(space)
        request = {**request, "search_space": str(folder / "space.toml")}
    wanted = Request(
        data_dir=folder,
        **{"threads": torch.get_num_threads(), "timeframe": bars.timeframe, **request},
    )
    handle, trainer = open_study(
        storage, NAME, wanted, torch.device("cpu"), folder, {}, lambda _: None, bars
    )
    return handle, trainer.experiment


def quiet_telemetry(handle: StudyHandle) -> Telemetry:
    """Return telemetry that prints nothing."""
    return Telemetry(Console(file=io.StringIO()), handle.name, torch.device("cpu"))


def work(
    handle: StudyHandle,
    experiment: Experiment,
    more: int,
    telemetry: Telemetry | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[Worker, float]:
    """Train `more` trials with the real worker. Returns the worker and the seconds it took.

    clock: measures them, and the worker's phases; `time.thread_time` for processor time.
    """
    total = len(handle.trials()) + more
    telemetry = telemetry or quiet_telemetry(handle)
    telemetry.total = total
    name = register_worker(handle.storage, handle.study_id, alongside=False, say=lambda _: None)
    worker = Worker(
        handle,
        Trainer(experiment),
        WorkerOptions(total),
        telemetry,
        name,
        StopRequest(lambda _: None),
    )
    worker.phases.clock = clock
    began = clock()
    worker.run()
    seconds = clock() - began
    leave(handle.storage, name)
    return worker, seconds
