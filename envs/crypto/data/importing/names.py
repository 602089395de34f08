"""Tickers and timeframes from the names of files and markets."""

from __future__ import annotations

import re

from sweepd.envs.crypto.data.timeframe import SECONDS

# Quote currencies. Of two that end a name, the longer one counts: BTCUSDT is BTC/USDT. But DOTUSD is
# no DO/TUSD, so these two count only behind one of the coins that were mostly traded in them.
_STABLE = ("USDT", "USDC", "FDUSD", "USDP", "DAI")
_LIKE_USD = ("BUSD", "TUSD")
_QUOTES = (*_STABLE, *_LIKE_USD, "USD", "EUR", "GBP", "JPY", "AUD", "CAD", "CHF", "TRY", "BRL",
           "KRW", "BTC", "ETH", "BNB")  # fmt: skip
_LARGE_COINS = ("BTC", "ETH", "BNB", "XRP", "ADA", "SOL", "DOGE", "LTC", "LINK", "DOT", "MATIC",
                "AVAX", "SHIB", "TRX", "BCH", "EOS", "ETC", "FIL", "ATOM", "UNI", "AAVE", "NEAR",
                "APT", "ARB", "USDC", "USDT")  # fmt: skip
_OTHER_NAMES = {"XBT": "BTC", "XDG": "DOGE"}  # Kraken's
_KRAKEN_OLD = re.compile(r"X([A-Z]{3})Z([A-Z]{3})")  # XXBTZUSD

_UNITS = {"m": "m", "min": "m", "minute": "m", "minutes": "m", "h": "h", "hr": "h", "hour": "h",
          "hourly": "h", "hours": "h", "d": "d", "day": "d", "daily": "d", "days": "d"}  # fmt: skip
# Words in the names of files that are neither ticker nor timeframe.
_WORDS = (
    "binance", "binanceus", "bitstamp", "kraken", "coinbase", "coinbasepro", "gemini",
    "bitfinex", "okx", "okex", "bybit", "kucoin", "huobi", "htx", "gateio", "bittrex",
    "poloniex", "ftx", "cexio", "deribit", "mexc", "bitget", "cryptocom", "yahoo", "yfinance",
    "stooq", "data", "ohlc", "ohlcv", "ohlcvt", "history", "historical", "klines", "kline",
    "candles", "bars", "spot", "price", "prices", "stock", "stocks", "dat", "ascii", "full", "all", "part",
    "max", "us",
)  # fmt: skip
# Bars of other things than spot prices, as freqtrade names them.
_OTHER_BARS = ("futures", "mark", "index", "funding_rate", "premiumindex")


def is_other_bars(stem: str) -> bool:
    """Return whether freqtrade's name says futures, mark prices or funding rates."""
    return stem.lower().rsplit("-", 1)[-1] in _OTHER_BARS and "-" in stem


def read_name(stem: str) -> tuple[str | None, str | None]:
    """Return the market's name and the timeframe that a file's name contains; None without.

    BTCUSDT-1h-2024-01 gives BTCUSDT and 1h; Bitstamp_BTCUSD_d gives BTCUSD and 1d; XBTUSD_60 gives
    XBTUSD and 1h.
    """
    timeframe = None
    rest: list[str] = []
    for token in filter(None, re.split(r"[-_ .()^=]+", stem)):
        minutes = _minutes(token) if rest and timeframe is None else None
        found = _timeframe(token) or minutes
        if found is not None and rest:
            timeframe = timeframe or found
        elif not token.isdecimal() and token.lower() not in _WORDS:
            rest.append(token)
    if len(rest) == 1:
        return rest[0], timeframe
    # BTC_USDT and BTC-USD are pairs; BRK-B is one share.
    if len(rest) == 2:
        pair = rest[1].upper() in _QUOTES
        return (f"{rest[0]}/{rest[1]}" if pair else "".join(rest)), timeframe
    return None, timeframe


def _timeframe(token: str) -> str | None:
    """Return the timeframe that a part of a name is: 1h, 1min, minute, d, H1."""
    metatrader = re.fullmatch(r"([MHD])(\d+)", token)
    if metatrader is not None:
        token = f"{metatrader[2]}{metatrader[1].lower()}"
    match = re.fullmatch(r"(\d*)([A-Za-z]+)", token)
    # Binance's 1M is a month.
    if match is None or match[2].lower() not in _UNITS or match[2] == "M":
        return None
    count = int(match[1] or 1)
    name = f"{count}{_UNITS[match[2].lower()]}"
    if name in SECONDS:
        return name
    return _minutes(str(count)) if name.endswith("m") else None


def _minutes(token: str) -> str | None:
    """Return the timeframe of Kraken's 60, 240, 1440."""
    if not token.isdecimal() or token.startswith("0"):
        return None
    return next((name for name, seconds in SECONDS.items() if seconds == 60 * int(token)), None)


def to_ticker(name: str, quote: str) -> str | None:
    """Return a market's name as BASE/QUOTE; None if it has no letters.

    Args:
        name: such as BTCUSDT, BTC-USD, XXBTZUSD, btc_usdt, AAPL, BRK.B, ^GSPC.
        quote: currency of what is not named as a pair, such as a share.
    """
    text = name.strip().upper()
    parts = [re.sub(r"[^A-Z0-9]", "", part) for part in re.split(r"[/_\-:]", text)]
    parts = [part for part in parts if part]
    if len(parts) >= 2 and parts[1] in _QUOTES:
        base, quote = parts[0], parts[1]
    else:
        base, quote = _split("".join(parts), quote)
    base = _OTHER_NAMES.get(base, base)
    return f"{base}/{_OTHER_NAMES.get(quote, quote)}" if base else None


def _split(text: str, quote: str) -> tuple[str, str]:
    old = _KRAKEN_OLD.fullmatch(text)
    if old is not None:
        return old[1], old[2]
    for known in sorted(_QUOTES, key=len, reverse=True):
        base = text.removesuffix(known)
        if known in _LIKE_USD and base not in _LARGE_COINS:
            continue
        # GBTC is a share, TUSDT a coin priced in USDT.
        if base != text and len(base) >= (1 if known in _STABLE else 2):
            return base, known
    return text, quote
