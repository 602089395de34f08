"""Markets with a known answer for benchmarks of the gate, and small studies on them.

null: the demo market without its edge, with demeaned returns in random order, traded without costs.
There is nothing to find, so any performance of a study's best trial is luck.

planted-1 … planted-3: log prices with a mean-reverting part of 4, 8 and 16% (φ = 0.97), visible
only through the ordinary features, with fee and slippage. The search space includes learning rates
at which little is learned, so that trials differ, as in any search: among equally good trials, the
selection of the best is luck even if all have skill.

oracle: the null market with the next bar's return among the features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scripts.bench.quality.leak import leaking_recipe
from scripts.bench.studies import study_in, work
from sweepd.envs.crypto.data.bars import Bars, load_bars, write_bars
from sweepd.envs.crypto.data.demo_market import make_demo_market, make_planted_market, shuffled
from sweepd.optimize.study.study import StudyHandle

ASSETS, TIMEFRAME, HOLDOUT = 3, "1h", 0.2
STRENGTHS = {"planted-1": 0.04, "planted-2": 0.08, "planted-3": 0.16}
FREE = {"fee": 0.0, "slippage": 0.0}
LEAKED = "leaked-next-bar"
SPACE = """
name = "gate"
version = 1
[shape]
net_width = { value = 64 }
net_depth = { value = 2 }
minibatch = { value = 512 }
epochs = { value = 8 }
[ppo]
learning_rate = { low = LOWEST_RATE, high = 2e-3, log = true }
one_minus_gamma = { low = 0.03, high = 0.06, log = true }
entropy_coef = { low = 0.02, high = 0.05, log = true }
initial_log_std = { low = -1.2, high = -0.8 }
[env]
action_scale = { low = 0.1, high = 0.3, log = true }
alpha_weight = { low = 0.3, high = 1.0 }
cash_reserve = { low = LEAST_CASH, high = MOST_CASH }
"""


@dataclass(frozen=True)
class Kind:
    """Settings of one kind of market and study.

    Attributes:
        bars: of the market.
        trials: per study.
        budget: environment steps per fold.
        lowest_rate: lower bound of the learning rates searched.
        cash: bounds of the cash reserves searched. More cash makes the excess over equal weight,
            which is always invested, a bet against the market whose noise hides an edge; less cash
            leads to drawdowns that the gate refuses.
        env: settings of the environment that all trials share.
    """

    bars: int
    trials: int
    budget: int
    lowest_rate: float
    cash: tuple[float, float]
    env: dict[str, Any]


KINDS = {
    "null": Kind(12_000, 8, 8_192, 7e-4, (0.3, 0.5), FREE),
    "planted-1": Kind(40_000, 6, 98_304, 1e-4, (0.4, 0.5), {}),
    "planted-2": Kind(40_000, 6, 98_304, 1e-4, (0.4, 0.5), {}),
    "planted-3": Kind(40_000, 6, 98_304, 1e-4, (0.4, 0.5), {}),
    "oracle": Kind(12_000, 4, 16_384, 7e-4, (0.3, 0.5), FREE),
}


@cache
def recipe_of(kind: str) -> str:
    """Return the recipe's name. The leaking recipe is registered only by benchmarks."""
    return leaking_recipe(LEAKED, 1, 100.0) if kind == "oracle" else "default"


def bars_of(kind: str, seed: int) -> Bars:
    """Make the market of one seed."""
    if kind in STRENGTHS:
        return make_planted_market(
            seed, assets=ASSETS, bars=KINDS[kind].bars, deviation_sd=STRENGTHS[kind]
        )
    return shuffled(make_demo_market(seed, assets=ASSETS, bars=KINDS[kind].bars, edge=0.0), seed)


def train(folder: Path, kind: str, seed: int) -> StudyHandle:
    """Create or continue the study of a market until it has all its trials."""
    chosen = KINDS[kind]
    if not folder.exists():
        write_bars(bars_of(kind, seed), folder)
    request = {
        "recipe": recipe_of(kind),
        **chosen.env,
        "budget": chosen.budget,
        "n_envs": 8,
        "horizon": 64,
        "seed": seed,
        "cv": "cpcv",
        "groups": 3,
        "test_groups": 2,
        "holdout": HOLDOUT,
        "pruner": "none",
        "rungs": 1,
        "threads": 1,
    }
    space = SPACE.replace("LOWEST_RATE", repr(chosen.lowest_rate))
    for name, share in zip(("LEAST_CASH", "MOST_CASH"), chosen.cash, strict=True):
        space = space.replace(name, repr(share))
    handle, experiment = study_in(folder, load_bars(folder, TIMEFRAME), request, space)
    work(handle, experiment, chosen.trials - len(handle.trials()))
    return handle
