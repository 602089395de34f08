"""Load a bundle, inspect it, and trade it on paper over recorded bars.

`bundles/a1ece71a178b0d24` was trained for seconds on the synthetic demo market and promoted with
loosened limits: it shows the format and is no useful strategy.
"""

from pathlib import Path

from sweepd.deploy.market.bundle import load_bundle
from sweepd.deploy.trading.replay import replay
from sweepd.envs.crypto.data.demo_market import make_demo_market

BUNDLE = Path(__file__).parent / "bundles" / "a1ece71a178b0d24"


def main() -> None:
    """Print the bundle's origin, and replay it over the newest 200 bars of the demo market."""
    bundle = load_bundle(BUNDLE)  # raises if a file is missing, changed or inconsistent
    manifest = bundle.manifest
    print(f"bundle {bundle.name} trades {', '.join(manifest.tickers)} on {manifest.timeframe} bars")
    print(f"from trial {bundle.origin.trial} of study {bundle.origin.study!r}")
    for trial in bundle.trials:
        print(f"{trial.policy.size} members, observations of {trial.policy.state_dim} numbers")

    bars = make_demo_market(assets=2, bars=4000)
    metrics = replay(bundle, bars, (len(bars) - 200, len(bars) - 1)).score.metrics
    print(f"return {metrics.total_return:+.2%} after fees, {metrics.trades} trades")
    print(f"return of the equal-weight portfolio {metrics.equal_weight_return:+.2%}")


if __name__ == "__main__":
    main()
