"""Base classes and types for your own parts of sweepd: games, algorithms, brokers, feeds, rules, trackers.

    from sweepd.parts import TensorGame

A name is imported when it is first used, so that a broker does not wait for what a game needs.
`sweepd.testing` has a suite of tests for each kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweepd.envs.support.lazy import lazy_names

if TYPE_CHECKING:
    from sweepd.agents.algorithms.table import Algorithm as Algorithm
    from sweepd.agents.engine.hyperparameters import AboveZero as AboveZero
    from sweepd.agents.engine.hyperparameters import Hyperparameters as Hyperparameters
    from sweepd.agents.engine.program import Program as Program
    from sweepd.deploy.games.rules import GameEvidence as GameEvidence
    from sweepd.deploy.market.rules import MarketEvidence as MarketEvidence
    from sweepd.deploy.programs.rules import ProgramEvidence as ProgramEvidence
    from sweepd.deploy.promotion.rules import GateRule as GateRule
    from sweepd.deploy.promotion.rules import Measured as Measured
    from sweepd.deploy.trading.brokers.base import AccountState as AccountState
    from sweepd.deploy.trading.brokers.base import Broker as Broker
    from sweepd.deploy.trading.brokers.base import Fill as Fill
    from sweepd.deploy.trading.brokers.base import Order as Order
    from sweepd.deploy.trading.brokers.sim import SimBroker as SimBroker
    from sweepd.deploy.trading.closed_bar import ClosedBar as ClosedBar
    from sweepd.deploy.trading.feeds import Feed as Feed
    from sweepd.deploy.trading.feeds import LiveFeed as LiveFeed
    from sweepd.envs.core.items import ItemGroup as ItemGroup
    from sweepd.envs.core.items import Items as Items
    from sweepd.envs.core.vec_env import Step as Step
    from sweepd.envs.core.vec_env import VecEnv as VecEnv
    from sweepd.envs.external.vec_env import ExternalVecEnv as ExternalVecEnv
    from sweepd.envs.games.tensor_game import NoParams as NoParams
    from sweepd.envs.games.tensor_game import TensorGame as TensorGame
    from sweepd.optimize.tracking.picture import Picture as Picture
    from sweepd.optimize.tracking.picture import Sent as Sent

_MODULES = {
    "AboveZero": "sweepd.agents.engine.hyperparameters",
    "AccountState": "sweepd.deploy.trading.brokers.base",
    "Algorithm": "sweepd.agents.algorithms.table",
    "Broker": "sweepd.deploy.trading.brokers.base",
    "ClosedBar": "sweepd.deploy.trading.closed_bar",
    "ExternalVecEnv": "sweepd.envs.external.vec_env",
    "Feed": "sweepd.deploy.trading.feeds",
    "Fill": "sweepd.deploy.trading.brokers.base",
    "GameEvidence": "sweepd.deploy.games.rules",
    "GateRule": "sweepd.deploy.promotion.rules",
    "Hyperparameters": "sweepd.agents.engine.hyperparameters",
    "ItemGroup": "sweepd.envs.core.items",
    "Items": "sweepd.envs.core.items",
    "LiveFeed": "sweepd.deploy.trading.feeds",
    "MarketEvidence": "sweepd.deploy.market.rules",
    "Measured": "sweepd.deploy.promotion.rules",
    "NoParams": "sweepd.envs.games.tensor_game",
    "Order": "sweepd.deploy.trading.brokers.base",
    "Picture": "sweepd.optimize.tracking.picture",
    "Program": "sweepd.agents.engine.program",
    "ProgramEvidence": "sweepd.deploy.programs.rules",
    "Sent": "sweepd.optimize.tracking.picture",
    "SimBroker": "sweepd.deploy.trading.brokers.sim",
    "Step": "sweepd.envs.core.vec_env",
    "TensorGame": "sweepd.envs.games.tensor_game",
    "VecEnv": "sweepd.envs.core.vec_env",
}
__all__ = list(_MODULES)

if not TYPE_CHECKING:  # type checkers report names that do not exist
    __getattr__, __dir__ = lazy_names(__name__, _MODULES)
