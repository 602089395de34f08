"""`sweepd export --to freqtrade`: the strategy decides bar for bar as the bundle does.

With the variable SWEEPD_FREQTRADE_PYTHON, a Python interpreter that has freqtrade and time-machine,
freqtrade's own commands and bot run the strategy; without, a stand-in does.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.export.freqtrade import class_name, cost, write_strategy
from sweepd.deploy.market.bundle import Bundle, recipe_part
from sweepd.deploy.registry.bundle_files import write_bundle
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.paper_trader import Entry
from sweepd.deploy.trading.replay import replay
from sweepd.envs.core.entities import Entities
from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.timeframe import format_time
from sweepd.envs.crypto.features import get_recipe
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.crypto.portfolio import Portfolio, plan, value
from sweepd.envs.crypto.rules import Rules
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import START, FakeStudy, ensemble_of, reverting_market, small_bundle
from tests.deploy.export import freqtrade_bot
from tests.deploy.export.freqtrade_bot import Bot, OperationalException, Trade, frames_of

VARIABLE = "SWEEPD_FREQTRADE_PYTHON"
HERE = Path(__file__).parent
NAME = "SweepdTest"
TICKERS = ("BTC/USDT", "ETH/USDT", "LTC/USDT")
BARS = 760
FIRST = 530
# freqtrade's fee is a slippage of the bundle: it changes what an order costs, and not its units.
FREE: dict[str, Any] = {"fee": 0.0, "slippage": 0.0}
COSTLY: dict[str, Any] = {"fee": 0.0, "slippage": 0.003}
STOPS: dict[str, Any] = {"trailing_stop": 0.05, "max_holding_bars": 9, "max_holding_fraction": 0.4}
CASES: dict[str, dict[str, Any]] = {
    "free": {"params": EnvParams(**FREE)},
    "costly": {"params": EnvParams(**COSTLY, cash_reserve=0.1, max_position=0.4)},
    "forced exits": {"params": EnvParams(**COSTLY, **STOPS, action_scale=0.4)},
    "lookback": {"params": EnvParams(**FREE, lookback=3, held_scale=20.0), "max_lookback": 5},
    "increments": {
        "params": EnvParams(**COSTLY, minimum_order=20.0),
        "instruments": Instruments((0.0, 500.0, 5.0), (0.01, 0.0, 0.5)),
    },
}


def bundle_of(case: str, **changes: Any) -> Bundle:
    fields = {"seed": 5, "tickers": TICKERS, "members": 3, "gain": 2.0}
    return small_bundle(**fields | CASES[case] | changes)


def bars_of(timeframe: str = "1h") -> Bars:
    made = reverting_market(4, bars=BARS, timeframe=timeframe)
    return dataclasses.replace(made, tickers=TICKERS, synthetic=False)


def written(bundle: Bundle, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file of a strategy, and the content of its configuration."""
    write_strategy(bundle, NAME, folder)
    return folder / f"{NAME}.py", json.loads((folder / f"config-{NAME}.json").read_text())


def replayed(bundle: Bundle, bars: Bars, last: int) -> tuple[Entry, ...]:
    """Return the paper trader's entries from bar `FIRST` on; it decides at all but the last."""
    return replay(bundle, bars, (FIRST, last)).entries[:-1]


def compare(decided: list[dict[str, Any]], entries: tuple[Entry, ...], close: np.ndarray) -> None:
    """Check that actions and accounts are equal, and that there was something to compare."""
    assert len(decided) == len(entries) > 100
    for found, entry in zip(decided, entries, strict=True):
        assert entry.action is not None
        np.testing.assert_allclose(found["actions"], entry.action, rtol=0, atol=1e-6)
        assert found["cash"] == pytest.approx(entry.cash, abs=1e-8 * entry.value)
        worth = np.abs(found["units"] - entry.units) * close
        assert worth.max() < 1e-8 * entry.value
    assert len({tuple(found["actions"]) for found in decided}) > 100
    assert sum(entry.trades for entry in entries) > 100


# ---- without freqtrade ----


@pytest.mark.parametrize("case", CASES)
def test_the_strategy_decides_as_the_bundle_does(tmp_path: Path, case: str) -> None:
    bundle, bars = bundle_of(case), bars_of()
    bot = Bot(*written(bundle, tmp_path))
    decided = list(bot.run(frames_of(bars), FIRST))
    compare(decided, replayed(bundle, bars, len(bars) - 1), bars.close[FIRST])


def test_forced_exits_were_tested() -> None:
    bars = bars_of()
    actions = [
        [entry.action for entry in replayed(bundle_of(case), bars, len(bars) - 1)]
        for case in ("costly", "forced exits")
    ]
    assert not np.array_equal(*actions)


@pytest.mark.parametrize(("timeframe", "recipe"), [("5m", "default"), ("1d", "short")])
def test_other_timeframes_and_recipes(tmp_path: Path, timeframe: str, recipe: str) -> None:
    part = recipe_part(get_recipe(recipe))
    bundle = bundle_of("costly", timeframe=timeframe, recipe=part)
    bars = bars_of(timeframe)
    decided = list(Bot(*written(bundle, tmp_path)).run(frames_of(bars), FIRST))
    compare(decided, replayed(bundle, bars, len(bars) - 1), bars.close[FIRST])


def test_a_dry_run_with_few_candles_and_a_restart_decides_the_same(tmp_path: Path) -> None:
    """It gets as many candles as it asks for, asks several times a candle, and starts again then."""
    bundle, bars = bundle_of("forced exits"), bars_of()
    path, config = written(bundle, tmp_path)
    frames = frames_of(bars)
    whole = list(Bot(path, config).run(frames, FIRST))
    decided = list(Bot(path, config, dry_run=True).run(frames, FIRST, range(FIRST, BARS, 9)))
    for one, other in zip(decided, whole, strict=True):
        assert np.array_equal(one["actions"], other["actions"])
        np.testing.assert_allclose(one["units"], other["units"], rtol=1e-9)


def test_a_missing_candle_is_waited_for_and_old_orders_expire(tmp_path: Path) -> None:
    bot = Bot(*written(bundle_of("free"), tmp_path), dry_run=True)
    frames = frames_of(bars_of())

    def stakes(number: int, late: int = 0) -> list[float]:
        """Return what is bought at the open of a candle; late: candles that the last pair lacks."""
        bot.analyze({p: f.iloc[: number - late * (p == TICKERS[-1])] for p, f in frames.items()})
        now = frames[TICKERS[0]]["date"][number].to_pydatetime()
        return [bot.strategy.custom_stake_amount(pair=p, current_time=now) for p in TICKERS]

    numbers = range(FIRST, FIRST + 20)
    number = next(one for one in numbers if max(stakes(one)) > 0.0)
    assert stakes(number) == [0.0] * 3  # each order is taken once
    bot.start()
    assert stakes(number, late=1) == [0.0] * 3
    assert max(stakes(number)) > 0.0
    bot.strategy.orders = {TICKERS[0]: 100.0}  # not taken in its candle
    assert stakes(number + 1, late=1) == [0.0] * 3


def test_the_highest_close_is_kept_when_candles_are_cut_off(tmp_path: Path) -> None:
    bot = Bot(*written(bundle_of("forced exits"), tmp_path), dry_run=True)
    frames = frames_of(bars_of())
    bot.analyze(frames)
    trade = Trade(TICKERS[1], frames[TICKERS[1]]["date"][700].to_pydatetime(), 0.0)
    trade.amount = trade.stake_amount = 1.0
    Trade.open_trades = {trade.pair: trade}
    closed = int(frames[TICKERS[1]]["date"][720].timestamp())
    highest = frames[TICKERS[1]]["close"][700:721].max()
    account = bot.strategy.account(closed, np.ones(3))
    assert account.high.tolist() == [0.0, highest, 0.0]
    assert account.held.tolist() == [0.0, 20.0, 0.0]
    bot.start()
    bot.analyze({pair: frame.iloc[719:] for pair, frame in frames.items()})
    assert bot.strategy.account(closed, np.ones(3)).high[1] == highest


@pytest.mark.parametrize(
    "network",
    [{"activation": name} for name in ("relu", "tanh", "silu", "elu")]
    + [{"entities": Entities(3, ((10, 12), (1, 1), (4, 1)))}],
)
def test_networks_act_as_in_sweepd(tmp_path: Path, network: dict[str, Any]) -> None:
    bundle = bundle_of("free", **network)
    path, _ = written(bundle, tmp_path)
    module = freqtrade_bot.load(path)
    policy, expected = module.Policy(path.with_suffix(".safetensors")), bundle.trials[0].policy
    rows = np.random.default_rng(0).normal(size=(50, expected.state_dim)).astype(np.float32)
    for row in rows:
        assert np.array_equal(policy.act(row), expected.act(row))


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModuleType, Rules]:
    """The order rules of a strategy, and those of sweepd."""
    params = EnvParams(**STOPS, minimum_order=15.0)
    limits = Instruments((0.0, 30.0, 5.0), (0.0, 0.01, 2.0))
    bundle = bundle_of("free", params=params, instruments=limits)
    path, _ = written(bundle, tmp_path_factory.mktemp("rules"))
    return freqtrade_bot.load(path), Rules.of(params, limits)


triple = st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3).map(np.array)


@settings(max_examples=300, deadline=None)
@given(
    held=st.lists(st.integers(0, 20), min_size=3, max_size=3).map(lambda x: np.array(x, float)),
    cash=st.floats(0.0, 5000.0),
    shares=triple,
    falls=triple,
    wishes=triple,
    flat=st.sets(st.integers(0, 2)),
)
def test_orders_are_those_of_the_environment(
    rules: tuple[ModuleType, Rules],
    held: np.ndarray,
    cash: float,
    shares: np.ndarray,
    falls: np.ndarray,
    wishes: np.ndarray,
    flat: set[int],
) -> None:
    module, own = rules
    close = np.array([3.0, 70.0, 0.4])
    units = np.array([0.0 if i in flat else 4000.0 * shares[i] / close[i] for i in range(3)])
    held, high = held * (units > 0), np.where(units > 0, close * (1.0 + 0.1 * falls), 0.0)
    action = np.round(2.0 * wishes - 1.0, 6)
    if not cash + units @ close:
        return
    found = module.plan(module.Account(cash, close, units, units * close, high, held), action)
    rows = [torch.from_numpy(one)[None] for one in (units, units * close, high, held)]
    book = Portfolio(torch.tensor([[cash]], dtype=torch.float64), *rows)
    wanted = torch.from_numpy(action)[None]
    expected = plan(book, value(book, torch.from_numpy(close)[None]), wanted, own)
    assert expected.part is not None
    np.testing.assert_allclose(found.buys, expected.buy_notional[0], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(found.parts, expected.part[0], rtol=1e-9, atol=1e-12)
    assert np.array_equal(found.parts == 1.0, expected.whole[0].numpy())
    assert np.array_equal(found.restarts, expected.restart_clock[0].numpy())


# ---- what is written, and what is refused ----


def test_the_weights_are_the_bundles_to_the_byte_and_changed_ones_are_refused(
    tmp_path: Path,
) -> None:
    bundle = bundle_of("free")
    path, config = written(bundle, tmp_path)
    weights = path.with_suffix(".safetensors")
    assert weights.read_bytes() == bundle.files["members.safetensors"]
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(OperationalException, match="is not the file that came with"):
        Bot(path, config)


def test_it_trades_on_paper_only(tmp_path: Path) -> None:
    path, config = written(bundle_of("free"), tmp_path)
    assert config["dry_run"] is True
    with pytest.raises(OperationalException, match="trades on paper only"):
        Bot(path, config | {"dry_run": False})


def test_the_strategy_is_formatted_and_needs_no_sweepd(tmp_path: Path) -> None:
    path, _ = written(bundle_of("increments"), tmp_path)
    for words in (["check", "--isolated", "--select=E4,E7,E9,F,I,UP"], ["format", "--check"]):
        command = ["ruff", *words, "--line-length=100", "--target-version=py311", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "import sweepd" not in path.read_text()
    assert "from sweepd" not in path.read_text()


def export(*words: str) -> Result:
    """Run `sweepd export WORD … --to freqtrade`."""
    return CliRunner().invoke(
        build_app(), ["export", *words, "--to", "freqtrade"], catch_exceptions=False
    )


def test_the_command_takes_a_folder_a_slot_and_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = bundle_of("free", params=EnvParams())
    folder = write_bundle(bundle, tmp_path / "bundles")
    result = export(str(folder), "--out", "own")
    name = class_name(bundle.name)
    assert result.stdout.split() == [
        f"own/{name}.safetensors", f"own/config-{name}.json", f"own/{name}.py"
    ]  # fmt: skip
    assert "fee 0.0025 and slippage 0.0005 became a fee of 0.003" in result.stderr
    assert cost(bundle) == 0.003

    registry = Registry(tmp_path / "deployments")
    registry.promote("crypto-1h", bundle, expected=None, reason="it was the first", data_dir="data")
    assert export("crypto-1h").stdout.split()[-1] == "SweepdCrypto1h.py"
    text = Path("SweepdCrypto1h.py").read_text()
    assert text.replace("SweepdCrypto1h", name) == Path(f"own/{name}.py").read_text()

    study = FakeStudy(tmp_path)
    study.add(1.0, study.idle())
    with pytest.raises(InputError, match="no exchange has TEST0/USDT"):
        export("fake#0", "--storage", study.storage)


def test_flags_without_effect_are_refused(tmp_path: Path) -> None:
    folder = write_bundle(bundle_of("free"), tmp_path)
    with pytest.raises(InputError, match="--member 0 is for --to onnx and torch, not freqtrade"):
        export(str(folder), "--member", "0")
    words = ["export", "own#1", "--to", "json", "--deployments", "x"]
    with pytest.raises(InputError, match="are for --to freqtrade, not json"):
        CliRunner().invoke(build_app(), words, catch_exceptions=False)


def test_names_of_classes() -> None:
    assert class_name("crypto-1h") == "SweepdCrypto1h"
    assert class_name("crypto-1h@3") == "SweepdCrypto1h3"
    assert class_name("own study#7") == "SweepdOwnStudy7"


def test_what_freqtrade_cannot_do_is_refused(tmp_path: Path) -> None:
    one = bundle_of("free")
    data = one.manifest.data.model_copy(update={"synthetic": True})
    session = format_time(START + 86_400)
    in_york = data.model_copy(update={"synthetic": False, "first": session, "last": session})
    mixed = ("BTC/USDT", "ETH/BTC", "LTC/USDT")
    wrong: dict[str, Bundle] = {
        "has 2 trials": ensemble_of([one, bundle_of("free", seed=6)]),
        "sells short": bundle_of("free", params=EnvParams(allow_short=True)),
        "no exchange has BTC/USDT": bundle_of("free", data=data),
        "are in BTC, USDT": bundle_of("free", tickers=mixed),
        "without hours": bundle_of(
            "free", tickers=("AAPL", "MSFT", "SPY"), timeframe="1d-XNYS", data=in_york,
            last_seen=START + 86_400,
        ),
    }  # fmt: skip
    for said, bundle in wrong.items():
        with pytest.raises(InputError, match=said):
            write_strategy(bundle, NAME, tmp_path)
    assert not list(tmp_path.iterdir())


# ---- with freqtrade ----


def run_program(bundle: Bundle, bars: Bars, folder: Path, program: str, *words: str) -> str:
    """Run a program of this folder on a strategy and candles; return what it printed."""
    python = os.environ.get(VARIABLE)
    if python is None:
        pytest.skip(f"{VARIABLE} does not name a Python interpreter that has freqtrade")
    write_strategy(bundle, NAME, folder)
    for pair, frame in frames_of(bars).items():
        (folder / "candles").mkdir(exist_ok=True)
        frame.to_feather(folder / "candles" / f"{pair.replace('/', '_')}-1h.feather")
    (folder / "user").mkdir(exist_ok=True)
    command = [python, str(HERE / program), "decisions.json", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())  # its lines are broken


def run_freqtrade(bundle: Bundle, bars: Bars, folder: Path, command: str, *more: str) -> str:
    """Run a command of freqtrade on a strategy, on whole days; return what it printed."""
    start = pd.Timestamp(int(bars.time[FIRST]), unit="s").ceil("D")
    end = pd.Timestamp(int(bars.time[-1]), unit="s").floor("D")
    words = (
        *(command, "--userdir", "user", "--config", f"config-{NAME}.json", "--strategy-path", "."),
        *("--datadir", "candles", "--timerange", f"{start:%Y%m%d}-{end:%Y%m%d}", *more),
    )
    return run_program(bundle, bars, folder, "freqtrade_offline.py", *words)


def compare_recorded(folder: Path, bundle: Bundle, bars: Bars) -> None:
    """Compare what a program recorded with the paper trader over the same bars."""
    decided = json.loads((folder / "decisions.json").read_text())
    first, last = np.searchsorted(bars.time, [decided[0]["time"], decided[-1]["time"]])
    entries = replay(bundle, bars, (int(first), int(last) + 1)).entries[:-1]
    compare(decided, entries, bars.close[first])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_freqtrades_backtest_decides_as_the_bundle_does(tmp_path: Path, case: str) -> None:
    bundle, bars = bundle_of(case), bars_of()
    run_freqtrade(bundle, bars, tmp_path, "backtesting", "--cache", "none", "--export", "none")
    compare_recorded(tmp_path, bundle, bars)


@pytest.mark.slow
def test_freqtrades_dry_run_decides_as_the_bundle_does(tmp_path: Path) -> None:
    bundle, bars = bundle_of("forced exits"), bars_of()
    words = (f"config-{NAME}.json", str(FIRST), "120")
    run_program(bundle, bars, tmp_path, "freqtrade_dry_run.py", *words)
    compare_recorded(tmp_path, bundle, bars)


@pytest.mark.slow
def test_freqtrade_finds_no_lookahead_and_no_recursion(tmp_path: Path) -> None:
    bars = bars_of()
    bars = dataclasses.replace(
        bars,
        tickers=TICKERS[:1],
        **{n: getattr(bars, n)[:, :1] for n in ("open", "high", "low", "close", "volume", "hole")},
    )  # the analysis of looking ahead loads the candles of one pair alone
    bundle = small_bundle(8, tickers=TICKERS[:1], gain=2.0, params=EnvParams(trailing_stop=0.02))
    said = run_freqtrade(bundle, bars, tmp_path, "lookahead-analysis")
    assert f"{NAME}: no bias detected" in said
    more = ("--pairs", "BTC/USDT", "--startup-candle", "513", "600")
    said = run_freqtrade(bundle, bars, tmp_path, "recursive-analysis", *more)
    assert "No variance on indicator(s) found" in said
    assert "No lookahead bias on indicators found" in said
