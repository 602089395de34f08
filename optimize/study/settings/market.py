"""The settings that only studies on a market have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from sweepd.envs.crypto.data.jumps import ACCEPT_JUMPS
from sweepd.optimize.study.settings.setting import Panel, Setting


@dataclass(frozen=True)
class BarSettings:
    """Which bars a study on a market is about."""

    data_dir: Annotated[
        Path | None,
        Setting(
            Panel.DATA,
            "Folder of bars with one file per ticker, e.g. BTC_USDT-1h.parquet (see sweepd data).",
            fixes="data.dir",
        ),
    ] = None
    timeframe: Annotated[
        str,
        Setting(
            Panel.DATA,
            "Length of a bar: 1m, 5m, 15m, 1h, 4h, 1d, …; of a market with hours, with its calendar: 1d-XNYS, 1h-XNYS.",
            fixes="data.timeframe",
        ),
    ] = "1h"
    tickers: Annotated[
        str | None,
        Setting(
            Panel.DATA,
            "Tickers in the order of the portfolio, e.g. BTC/USDT,ETH/USDT. Default: all in the "
            "folder.",
            fixes="data.tickers",
        ),
    ] = None


@dataclass(frozen=True)
class FoldSettings:
    """Which of the bars it takes, and how many it needs."""

    accept_jumps: Annotated[bool, Setting(Panel.DATA, ACCEPT_JUMPS, "--accept-jumps")] = False
    recipe: Annotated[
        str | None,
        Setting(
            Panel.DATA,
            "Name of the feature recipe. Default: default; for bars of a day, which are few, short.",
            fixes="recipe.name",
        ),
    ] = None
    holdout: Annotated[
        float,
        Setting(
            Panel.DATA,
            "Share of the bars, the newest ones, that no trial uses; they decide on promotion.",
            fixes="holdout",
        ),
    ] = 0.15
    cv: Annotated[
        str,
        Setting(
            Panel.DATA,
            "Cross-validation: cpcv (combinatorial purged), kfold, walk-forward or single.",
            fixes="cv.scheme",
        ),
    ] = "cpcv"
    groups: Annotated[
        int,
        Setting(
            Panel.DATA,
            "Number of contiguous groups that the bars are divided into.",
            fixes="cv.groups",
        ),
    ] = 5
    test_groups: Annotated[
        int, Setting(Panel.DATA, "Test groups per fold (cpcv only).", fixes="cv.test_groups")
    ] = 2
    embargo: Annotated[
        float,
        Setting(
            Panel.DATA,
            "Share of the bars after each test group that is not trained on, in addition to the "
            "purge; at least one day.",
            fixes="cv.embargo_share",
        ),
    ] = 0.01


@dataclass(frozen=True)
class CostSettings:
    """What trading costs, and may do."""

    episode_bars: Annotated[
        int,
        Setting(
            Panel.MARKET,
            "Bars per training episode; 0: one week of bars.",
            fixes="env.episode_bars",
        ),
    ] = 0
    fee: Annotated[
        float, Setting(Panel.MARKET, "Fee as a share of each order's value.", fixes="env.fee")
    ] = 0.0025
    slippage: Annotated[
        float,
        Setting(
            Panel.MARKET,
            "Slippage as a share of the price, always against the trader.",
            fixes="env.slippage",
        ),
    ] = 0.0005
    minimum_order: Annotated[
        float,
        Setting(
            Panel.MARKET,
            "Smallest value of an order, in the quote currency.",
            fixes="env.minimum_order",
        ),
    ] = 10.0
    initial_cash: Annotated[
        float,
        Setting(
            Panel.MARKET,
            "Cash at the start of every episode, in the quote currency.",
            fixes="env.initial_cash",
        ),
    ] = 10_000.0
    allow_short: Annotated[
        bool,
        Setting(
            Panel.MARKET,
            "Allow short positions: an action below 0 sells an asset that is not held. See "
            "docs/how_to/shorts.md.",
            "--allow-short",
            fixes="env.allow_short",
        ),
    ] = False
    borrow_fee: Annotated[
        float,
        Setting(
            Panel.MARKET,
            "With --allow-short: fee per year for what is borrowed, as a share of its value (0.1 "
            "is 10%), charged every bar.",
            fixes="env.borrow_fee",
        ),
    ] = 0.1
    max_leverage: Annotated[
        float,
        Setting(
            Panel.MARKET,
            "With --allow-short: orders keep the values of all positions, long and short, "
            "together within this many times the account's value.",
            fixes="env.max_leverage",
        ),
    ] = 1.0
    maintenance_margin: Annotated[
        float,
        Setting(
            Panel.MARKET,
            "With --allow-short: at a close where the account is worth less than this share of "
            "the values of all positions together, all are liquidated.",
            fixes="env.maintenance_margin",
        ),
    ] = 0.25


@dataclass(frozen=True)
class MarketSettings(CostSettings, FoldSettings, BarSettings):
    """Settings that only studies on a market have."""
