"""Which columns are whose, in general and in a market."""

from __future__ import annotations

import pytest

from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.entities import Entities
from sweepd.envs.crypto.data.demo_market import make_planted_market
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.features import get_recipe
from sweepd.envs.crypto.market import make_market
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.support.errors import InputError


def test_the_order_is_entity_by_entity_and_then_the_other_columns() -> None:
    entities = Entities(2, ((4, 1), (0, 2)))
    assert entities.width == 3
    assert [entities.columns(0), entities.columns(1)] == [[4, 0, 1], [5, 2, 3]]
    assert entities.order(8) == [4, 0, 1, 5, 2, 3, 6, 7]


@pytest.mark.parametrize(
    ("count", "blocks"), [(2, ()), (0, ((0, 1),)), (2, ((0, 1), (1, 1))), (1, ((-1, 1),))]
)
def test_columns_that_are_missing_or_in_two_blocks_are_refused(
    count: int, blocks: tuple[tuple[int, int], ...]
) -> None:
    with pytest.raises(InputError, match="entities need columns"):
        Entities(count, blocks)


def test_entities_must_fit_observations() -> None:
    with pytest.raises(InputError, match="a column 5, and observations have 5"):
        Shape(state_dim=5, action_dim=1, entities=Entities(2, ((2, 2),)))
    with pytest.raises(InputError, match="the environment has no entities"):
        Shape(state_dim=5, action_dim=1, entity_width=16)
    with pytest.raises(InputError, match="a multiple of 16, not 8"):
        Shape(state_dim=5, action_dim=1, entities=Entities(1, ((0, 1),)), entity_width=8)


def test_a_markets_entities_are_its_assets() -> None:
    market = make_market(make_planted_market(0, assets=3, bars=900))
    params = [EnvParams(lookback=2), EnvParams(lookback=1)]
    env = CryptoEnv(market, params, [(800, 850)], 1, privileged_age=True)
    names = ["cash", *(f"{ticker} {part}" for part in "abc" for ticker in market.tickers)]
    names += list(get_recipe("default").columns(market.tickers)) * 2
    assert len(names) == env.state_dim
    entities = env.spec.entities
    assert entities is not None
    for asset, ticker in enumerate(market.tickers):
        assert all(names[column].startswith(ticker) for column in entities.columns(asset))
    others = entities.order(env.spec.obs_dim)[entities.count * entities.width :]
    shared = ["cash", *get_recipe("default").shared_features * 2]
    assert [names[column] for column in others[:-1]] == shared
    assert others[-1] == env.state_dim  # the episode's age, which critics see
