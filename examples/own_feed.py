"""Feed a trader with bars from your own source: a function that returns the bars of one ticker.

`LiveFeed` asks it for closed bars only, orders them, and reports a ticker without a bar as a hole.
"""

import numpy as np

from sweepd.deploy.trading.feeds import LiveFeed
from sweepd.envs.crypto.data.demo_market import make_demo_market

MARKET = make_demo_market(assets=2, bars=1000)


def fetch(ticker: str, start: int, end: int) -> np.ndarray:
    """Return rows (n, 6) of time, open, high, low, close, volume with start <= time < end.

    Request them from your server here.
    """
    asset = MARKET.tickers.index(ticker)
    prices = [getattr(MARKET, name)[:, asset] for name in ("open", "high", "low", "close")]
    rows = np.column_stack([MARKET.time, *prices, MARKET.volume[:, asset]])
    return rows[(MARKET.time >= start) & (MARKET.time < end)]


def main() -> None:
    """Start with 100 bars of history, then poll every half hour for three hours."""
    feed = LiveFeed(fetch, MARKET.tickers, "1h", name="my source")
    now = int(MARKET.time[500])
    history = feed.start(100, now)
    print(f"{len(history)} bars of history, the newest opened at {history.time_of(-1)}")
    for half_hours in range(7):
        # A source needs some seconds to publish a bar that has closed.
        for bar in feed.poll(now + 1800 * half_hours + 5):
            print(f"bar {bar.time}: closes {', '.join(f'{close:.2f}' for close in bar.close)}")


if __name__ == "__main__":
    main()
