"""Studies on a market: settings, flags and data."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.envs.crypto.data.bar_files import select_files
from sweepd.envs.crypto.data.bars import Bars, load_bars
from sweepd.envs.crypto.data.limits import limits_of_files
from sweepd.envs.crypto.features import get_recipe
from sweepd.envs.crypto.params import SHORTS, EnvParams
from sweepd.envs.crypto.scoring.figures import path_metric_names
from sweepd.envs.crypto.scoring.metrics import OBJECTIVES
from sweepd.envs.crypto.splits import TooFewBars, first_decision
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.artifacts import draw_equity
from sweepd.optimize.objectives.games.curriculum import LoadBundle
from sweepd.optimize.objectives.market.experiment import CryptoExperiment
from sweepd.optimize.objectives.members.objective import MemberObjective
from sweepd.optimize.objectives.objective import Say
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.study.record.bars import (
    TIME_FORMAT,
    accepted_jumps,
    load_study_bars,
    other_tickers,
)
from sweepd.optimize.study.record.data_spec import AcceptedJump, DataSpec
from sweepd.optimize.study.record.spans import study_splits
from sweepd.optimize.study.record.specs import CRYPTO, CryptoSpec
from sweepd.optimize.study.settings.market import MarketSettings
from sweepd.optimize.study.settings.setting import flag_of
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.spec import check_folds


class MarketObjective(MemberObjective[CryptoSpec]):
    """Studies on a market: folds as members, bars as data."""

    settings = MarketSettings
    title = "--env crypto"
    objectives = tuple(OBJECTIVES)
    default_space = "wide"
    needs_data = True
    first_stage = True

    def check(self, request: Request) -> None:
        if not get_algorithm(request.algo).markets:
            raise InputError(
                f"--algo {request.algo} is for games; --env crypto trains with --algo ppo"
            )
        if request.folds.test_groups < 1:
            raise InputError(f"--test-groups {request.folds.test_groups} must be at least 1")
        if request.minimum_order > request.initial_cash:
            raise InputError(
                f"--minimum-order {request.minimum_order} is more than --initial-cash "
                f"{request.initial_cash}: no order would ever be placed"
            )
        given = [name for name in SHORTS if name in request.given]
        if given and not request.allow_short:
            raise InputError(
                f"{flag_of(given[0])} needs --allow-short: without it no position is short"
            )
        _check_margin(request.env_params)
        get_recipe(request.recipe)
        check_folds(request.folds, request.budget)

    def number_names(self, request: Request) -> tuple[str, ...]:  # noqa: ARG002
        return path_metric_names()

    def warning(self, request: Request) -> str | None:
        return check_folds(request.folds, request.budget)

    def default_name(self, settings: StudySettings) -> str:
        return f"{CRYPTO}-{settings.timeframe}"

    def load_bars(self, request: Request) -> Bars:
        return load_bars(
            request.data_dir,
            request.timeframe,
            request.ticker_names,
            accept_jumps=request.accept_jumps,
        )

    def load_recorded_bars(self, spec: CryptoSpec, folder: Path | None, newer: Say) -> Bars:
        return load_study_bars(spec.data, folder, newer)

    def other_assets(self, spec: CryptoSpec, folder: Path | None) -> str:
        return other_tickers(spec.data, folder)

    def members(self, request: Request) -> int:
        return request.folds.folds

    def make_spec(
        self, request: Request, common: Mapping[str, Any], max_lookback: int, bars: Bars | None
    ) -> CryptoSpec:
        assert bars is not None
        recipe = get_recipe(request.recipe)
        first, last = (bars.time_of(bar).strftime(TIME_FORMAT) for bar in (0, -1))
        jumps: tuple[AcceptedJump, ...] = ()
        with contextlib.suppress(InputError):  # bars that are not from files
            jumps = accepted_jumps(request.data_dir, bars)
        spec = CryptoSpec(
            **common,
            data=DataSpec(
                dir=str(request.data_dir.resolve()),
                tickers=bars.tickers,
                timeframe=bars.timeframe,
                fingerprint=bars.fingerprint,
                first=first,
                last=last,
                bars=len(bars),
                synthetic=bars.synthetic,
                accepted_jumps=jumps,
            ),
            recipe={"name": recipe.name, "version": recipe.version, "memory": recipe.memory},
            cv=dataclasses.asdict(request.folds),
            holdout=request.holdout,
            first_bar=first_decision(recipe.memory, max_lookback),
            max_lookback=max_lookback,
        )
        try:
            study_splits(spec)
        except TooFewBars as error:
            raise _with_limits(error, request) from None
        return spec

    def asked_value(self, spec: CryptoSpec, request: Request, name: str) -> Any:
        data, asked = spec.data, request.ticker_names
        if name == "data_dir":
            return str(request.data_dir)
        if name != "tickers" or asked is None:
            return super().asked_value(spec, request, name)
        tickers = tuple(_as_recorded(ticker, data.tickers) for ticker in asked)
        if tickers == data.tickers:
            return tickers
        # Other ones, or names that the folder does not have.
        folder = request.data_dir if "data_dir" in request.given else Path(data.dir)
        return tuple(select_files(folder, data.timeframe, asked))

    def draw(self, spec: CryptoSpec, folder: Path, title: str) -> None:  # noqa: ARG002
        draw_equity(folder, f"{title}: out of sample, cross-validated")

    def make_experiment(
        self,
        spec: CryptoSpec,
        bars: Bars | None,
        device: torch.device,
        say: Say,  # noqa: ARG002
        load_bundle: LoadBundle | None = None,  # noqa: ARG002
    ) -> CryptoExperiment:
        assert bars is not None
        return CryptoExperiment(spec, bars, device)


def _check_margin(env: Mapping[str, Any]) -> None:
    """Refuse flags of shorts that are out of range, or contradict each other, by their names."""
    settings = {name: env[name] for name in SHORTS if name in env}
    try:
        EnvParams(**settings)
    except InputError as error:
        raise InputError(f"--allow-short: {error}") from None


def _with_limits(error: TooFewBars, request: Request) -> InputError:
    """Name the tickers that limit the range of the bars."""
    try:
        limits = limits_of_files(
            request.data_dir, request.timeframe, request.ticker_names, error.needed
        )
    except InputError:  # bars that are not from files
        limits = ""
    return InputError(f"{error}; {limits}" if limits else str(error))


def _as_recorded(ticker: str, known: tuple[str, ...]) -> str:
    """Return the study's own name of a ticker given as BTC or BTC_USDT."""
    for name in known:
        if ticker.upper().replace("_", "/") in (name, name.partition("/")[0]):
            return name
    return ticker
