"""The search's fast batch against the canonical path: one row at a time, float64."""

from __future__ import annotations

import pytest

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.algorithms.ppo_params import PPOParams
from sweepd.agents.networks.shape import Shape
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import actor_of
from sweepd.deploy.market.scoring import score
from sweepd.envs.crypto.data.demo_market import make_demo_market
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.market import make_market, observation_normaliser
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.crypto.scoring.evaluate import trade_windows
from sweepd.envs.crypto.scoring.metrics import TRADE_COLUMNS, summarise

SLOTS = 4
WINDOWS = ((600, 800), (720, 900))
PARAMS = (
    EnvParams(action_scale=0.4),
    EnvParams(action_scale=0.2, trailing_stop=0.03, lookback=2),
    EnvParams(action_scale=0.5, max_holding_bars=12, max_position=0.4, fee=0.001),
    EnvParams(action_scale=0.4, allow_short=True, borrow_fee=1.0, trailing_stop=0.05),
)


@pytest.mark.slow
def test_search_time_evaluation_agrees_with_the_canonical_path_to_a_thousandth() -> None:
    market = make_market(make_demo_market(3, assets=3, bars=1000))
    env = CryptoEnv.for_windows(market, PARAMS, [WINDOWS] * SLOTS, max_lookback=2)
    shape = Shape(
        state_dim=env.state_dim, action_dim=3, slots=SLOTS, net_width=32, minibatch=64, num_envs=1
    )
    ppo = PPO(shape)
    for slot, params in enumerate(PARAMS):
        average, deviation = observation_normaliser(market, [(600, 900)], params.lookback, 2)
        ppo.add_member(slot, PPOParams(), 20 + slot, 1, average, deviation)
    # New members hardly trade; members with a larger gain reach limits and minimum orders.
    ppo.population.flat *= 1.6
    batch = trade_windows(env, ppo.act_fn())
    for slot, params in enumerate(PARAMS):
        policy = FrozenPolicy([actor_of(ppo, slot)])
        for number, window in enumerate(WINDOWS):
            row, length = slot * len(WINDOWS) + number, window[1] - window[0]
            columns = {name: getattr(batch, name)[row, :length] for name in TRADE_COLUMNS}
            fast = summarise(timeframe="1h", **columns).to_dict()
            canonical = score(policy, market, params, window, max_lookback=2).metrics.to_dict()
            assert canonical["trades"] > 100
            assert fast.pop("reason") == canonical.pop("reason")
            assert fast == pytest.approx(canonical, rel=1e-3, abs=1e-3), (slot, window)
