"""A bundle as a strategy for freqtrade.

The strategy is one Python file that imports no sweepd: `templates/freqtrade_strategy.py.txt` with
the bundle's numbers, and with the functions that compute features, which are copied from the module
that training uses. Beside it lie the weights, to the byte, and a configuration.
"""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from sweepd.deploy.market.bundle import Bundle, market_bundle
from sweepd.deploy.registry.bundle_files import MEMBERS_FILE, StoredBundle
from sweepd.envs.crypto import features
from sweepd.envs.crypto.data.timeframe import bar_seconds, bars_per_week, has_hours
from sweepd.envs.crypto.rules import SMALLEST_ORDER
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import write_atomic

RECIPES = ("default", "short")  # those whose functions are copied
NETWORK = {"kind", "columns", "actions", "hidden", "activation", "entities", "entity_width"}
FUNCTIONS: tuple[Callable[..., Any], ...] = (
    features.blockwise,
    features._ratio,
    features._lagged,
    features._default_asset,
    features._clock,
)
_WIDTH = 100  # of a line


class Written(NamedTuple):
    """The files of a strategy, and a sentence for everything that is only similar in freqtrade."""

    paths: list[Path]
    notes: list[str]


def class_name(word: str) -> str:
    """Return the name of the strategy of a bundle that was named by a word, such as crypto-1h."""
    parts = re.findall(r"[A-Za-z0-9]+", word)
    return "Sweepd" + "".join(part[:1].upper() + part[1:] for part in parts)


def write_strategy(stored: StoredBundle[Any], name: str, folder: Path) -> Written:
    """Write `NAME.py`, `NAME.safetensors` and `config-NAME.json` into a folder.

    Args:
        stored: the bundle.
        name: the strategy's class.
        folder: made if it is not there; files of these names are replaced.

    Raises:
        InputError: freqtrade cannot act as the bundle does.
    """
    bundle = market_bundle(stored)
    check(bundle)
    # freqtrade reads NAME.json as what its hyperopt has found.
    contents: dict[Path, bytes | str] = {
        folder / f"{name}.safetensors": bundle.files[MEMBERS_FILE],
        folder / f"config-{name}.json": configuration(bundle, name),
        folder / f"{name}.py": strategy(bundle, name),
    }
    for path, content in contents.items():
        write_atomic(path, content)
    return Written(list(contents), notes_of(bundle))


def check(bundle: Bundle) -> None:
    """Raise InputError if freqtrade cannot act as the bundle does."""
    if reason := _reason(bundle):
        raise InputError(
            f"bundle {bundle.name} cannot be a strategy of freqtrade: {reason}. "
            "docs/reference/bundle.md shows how other programs read it"
        )


def _reason(bundle: Bundle) -> str | None:
    """Return why freqtrade cannot act as the bundle does, None if it can."""
    manifest = bundle.manifest
    quotes = {ticker.partition("/")[2] for ticker in manifest.tickers}
    if len(manifest.trials) > 1:
        return (
            f"it has {len(manifest.trials)} trials, which trade as accounts of their own, and a bot "
            "has one account"
        )
    if bundle.account.allow_short:
        return (
            "it sells short with borrowed coins on one margin for all, and a bot that sells short "
            "trades futures"
        )
    if manifest.data.synthetic:
        return f"no exchange has {manifest.tickers[0]}, whose candles are generated"
    if "" in quotes or has_hours(manifest.timeframe):
        return "it does not trade pairs of coins on an exchange without hours"
    if len(quotes) > 1:
        return f"its tickers are in {', '.join(sorted(quotes))}, and a bot has one stake currency"
    if manifest.recipe.name not in RECIPES:
        return f"it reads the features {manifest.recipe.name!r}, which are of other code"
    specs = [member.spec for member in bundle.trials[0].policy.members]
    if any(spec.kind != "ActorPPO" or set(spec.to_dict()) - NETWORK for spec in specs):
        return "its networks are not those of PPO on markets"
    return None


def strategy(bundle: Bundle, name: str) -> str:
    """Return the text of the strategy. The bundle is one that `check` accepts."""
    origin = bundle.origin
    about = (
        f"The policy of trial {origin.trial} of study {origin.study}, bundle {bundle.name}, exported "
        "by sweepd."
    )
    template = files("sweepd.deploy.export").joinpath("templates/freqtrade_strategy.py.txt")
    copied = [inspect.getsource(function).rstrip() for function in FUNCTIONS]
    return Template(template.read_text(encoding="utf-8")).substitute(
        about="\n".join(textwrap.wrap(about, _WIDTH)),
        constants="\n".join(_constants(bundle, name)),
        features="\n\n\n".join(copied),
        name=name,
    )


def _constants(bundle: Bundle, name: str) -> list[str]:
    """Return lines of code that set the numbers of the bundle."""
    manifest, params, recipe = bundle.manifest, bundle.account, bundle.manifest.recipe
    limits = bundle.instruments
    minimum = [max(own, params.minimum_order, SMALLEST_ORDER) for own in limits.minimum_order]
    held_scale = params.held_scale or float(bars_per_week(manifest.timeframe))
    return [
        *_listed("PAIRS", manifest.tickers),
        f"QUOTE = {_text(_quote(bundle))}",
        f"TIMEFRAME = {_text(manifest.timeframe)}",
        f"SECONDS = {bar_seconds(manifest.timeframe)}  # of a candle",
        f"WEIGHTS = {_text(f'{name}.safetensors')}",
        f"WEIGHTS_SHA256 = {_text(manifest.files[MEMBERS_FILE].sha256)}",
        "# Orders.",
        f"ACTION_SCALE = {params.action_scale!r}  # share of the value that an action of 1 orders",
        f"CASH_RESERVE = {params.cash_reserve!r}  # share of the value that buys leave in cash",
        f"MAX_POSITION = {params.max_position!r}  # share of the value",
        f"TRAILING_STOP = {params.trailing_stop!r}  # 0: none",
        f"MAX_HOLDING_BARS = {params.max_holding_bars}  # 0: no limit",
        f"MAX_HOLDING_FRACTION = {params.max_holding_fraction!r}  # is sold then",
        f"MINIMUM = np.array({minimum!r})  # of an order, quote units",
        f"INCREMENT = np.array({list(limits.increment)!r})  # of an order, units; 0: none",
        f"FEE = {cost(bundle)!r}  # of an order, as in the configuration: fee and slippage",
        "# What the policy reads.",
        f"COLUMNS = {manifest.trials[0].policy.state_dim}",
        f"LOOKBACK = {params.lookback}  # candles",
        f"HELD_SCALE = {held_scale!r}  # candles",
        f"BLOCK = {recipe.memory // 2}",
        f"CLIP = {features.CLIP!r}",
        f"RETURN_HORIZONS = {features.RETURN_HORIZONS!r}",
        f"RANGE_BARS = {features.RANGE_BARS}",
        *_listed("ASSET_FEATURES", recipe.asset_features),
        *_listed("SHARED_FEATURES", recipe.shared_features),
    ]


def _text(word: str) -> str:
    return json.dumps(word)


def _listed(name: str, words: Sequence[str]) -> list[str]:
    """Return lines of code that set a constant to a list."""
    items = [_text(word) for word in words]
    line = f"{name} = [{', '.join(items)}]"
    return [line] if len(line) <= _WIDTH else [f"{name} = [", *(f"    {i}," for i in items), "]"]


def _quote(bundle: Bundle) -> str:
    """Return the currency that all tickers are traded in."""
    return bundle.manifest.tickers[0].partition("/")[2]


def cost(bundle: Bundle) -> float:
    """Return what an order costs, as a part of its value: freqtrade tests without slippage."""
    return round(bundle.account.fee + bundle.account.slippage, 12)


def notes_of(bundle: Bundle) -> list[str]:
    """Return a sentence for what is only similar in freqtrade."""
    fee, slippage = bundle.account.fee, bundle.account.slippage
    if not fee:  # a slippage costs exactly what freqtrade's fee does
        return []
    return [
        f"fee {fee:g} and slippage {slippage:g} became a fee of {cost(bundle):g}, which is taken from "
        "cash instead of from the coins bought: amounts differ by about "
        f"{fee * cost(bundle):.1g} per order"
    ]


def configuration(bundle: Bundle, name: str) -> str:
    """Return a configuration with which freqtrade tests the strategy and runs it on paper."""
    manifest = bundle.manifest
    price = {"price_side": "other", "use_order_book": True, "order_book_top": 1}
    found = {
        "strategy": name,
        "timeframe": manifest.timeframe,
        "trading_mode": "spot",
        "dry_run": True,
        "dry_run_wallet": bundle.account.initial_cash,
        "stake_currency": _quote(bundle),
        "stake_amount": "unlimited",
        "tradable_balance_ratio": 1.0,
        "max_open_trades": len(manifest.tickers),
        "fee": cost(bundle),
        "entry_pricing": price,
        "exit_pricing": price,
        "exchange": {"name": "binance", "pair_whitelist": list(manifest.tickers)},
        "pairlists": [{"method": "StaticPairList"}],
    }
    return json.dumps(found, indent=2) + "\n"
