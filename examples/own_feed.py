"""A feed of your own for the paper trader, from a function that returns the bars of one ticker.

`LiveFeed` asks it for closed bars only, orders them, and reports a ticker without a bar as a hole.
PYTHONPATH=examples sweepd trade --feed 'own_feed:my_feed {"seed": 0}'
"""

import time

import numpy as np

from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.parts import LiveFeed

TICKERS = make_demo_market(assets=2, bars=1000).tickers


def my_feed(tickers=TICKERS, timeframe="1h", say=print, sleep=time.sleep, *, seed=0):
    """Return a feed; the trader passes the first four arguments, and JSON the others."""
    market = make_demo_market(seed, assets=2, bars=1000)

    def fetch(ticker: str, start: int, end: int) -> np.ndarray:
        """Return rows (n, 6): time, open, high, low, close, volume with start <= time < end.

        Request them from your server here.
        """
        asset = market.tickers.index(ticker)
        names = ("open", "high", "low", "close", "volume")
        rows = np.column_stack([market.time, *(getattr(market, n)[:, asset] for n in names)])
        return rows[(market.time >= start) & (market.time < end)]

    return LiveFeed(fetch, tickers, timeframe, name="my source", say=say, sleep=sleep)


def main() -> None:
    """Start with 100 bars of history, then poll every half hour for three hours."""
    feed = my_feed()
    now = int(make_demo_market(assets=2, bars=1000).time[500])
    history = feed.start(100, now)
    print(f"{len(history)} bars of history, the newest opened at {history.time_of(-1)}")
    for half_hours in range(7):
        # A source needs some seconds to publish a bar that has closed.
        for bar in feed.poll(now + 1800 * half_hours + 5):
            print(f"bar {bar.time}: closes {', '.join(f'{close:.2f}' for close in bar.close)}")


if __name__ == "__main__":
    main()
