"""An objective of your own: the mean return of the worst quarter of the evaluation episodes.

PYTHONPATH=examples sweepd train --env cartpole --objective 'own_objective:risk_adjusted' --n-trials 8
"""

import numpy as np


def risk_adjusted(returns, lengths, infos):
    """Return the value of one seed; the larger, the better.

    Args:
        returns: of the episodes, (n,) float64.
        lengths: their steps, (n,).
        infos: the last `info` of each episode.
    """
    del lengths, infos
    worst = np.sort(returns)[: max(1, len(returns) // 4)]
    return float(worst.mean())


def main() -> None:
    """Judge eight episodes."""
    returns = np.array([500.0, 480.0, 20.0, 500.0, 40.0, 500.0, 450.0, 500.0])
    print(
        f"mean {returns.mean():.0f}, of the worst quarter {risk_adjusted(returns, None, None):.0f}"
    )


if __name__ == "__main__":
    main()
