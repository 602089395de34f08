"""What a search space is for: an environment and an algorithm, or a program.

Both are imported when they are asked for, and torch with them: a study is read without them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from sweepd.envs.crypto.params import SHORTS, EnvParams
from sweepd.envs.games.phase_files import CURRICULUM_KEYS
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.programs import COMMAND, is_command
from sweepd.optimize.study.record.specs import CRYPTO

if TYPE_CHECKING:
    from sweepd.agents.algorithms.table import Algorithm

Scalar = bool | int | float | str
# Included spaces (name: file in `optimize/spaces`) by environment and algorithm. All other pairs
# have one space named "game", that of the algorithm.
PRESETS = {
    (CRYPTO, "ppo"): {"wide": "wide.toml", "large": "large.toml", "demo": "demo.toml"},
    ("bucket-brigade", "ppo"): {"game": "bucket-brigade-ppo.toml"},
    ("card-duel", "ppo"): {"game": "card-duel-ppo.toml"},
    ("hockey", "ppo"): {"game": "hockey-ppo.toml"},
    ("kuhn", "ppo"): {"game": "kuhn-ppo.toml"},
    ("leduc", "ppo"): {"game": "leduc-ppo.toml"},
}
# Parameters that flags of the study fix, so that no trial may vary them.
STUDY_LEVEL = frozenset(
    {"initial_cash", "episode_bars", "held_scale", "minimum_order", "fee", "slippage", *SHORTS}
)


@dataclass(frozen=True)
class Subject:
    """Environment and algorithm of a space; they determine names and bounds of parameters.

    Attributes:
        free: whether the user names the parameters.
    """

    free: ClassVar[bool] = False

    environment: str = CRYPTO
    algorithm: str = "ppo"

    @property
    def learner(self) -> Algorithm:
        """The algorithm."""
        from sweepd.agents.algorithms.table import get_algorithm

        return get_algorithm(self.algorithm)

    @property
    def learner_table(self) -> str:
        """Name of the table of the parameters that are no shape and not of the environment."""
        return self.learner.table

    @property
    def shape(self) -> Mapping[str, int]:
        """What determines a program's shape, with the defaults."""
        return self.learner.shape

    @property
    def sections(self) -> frozenset[str]:
        """Keys of a file besides its tables, its head and [timeframe]."""
        return frozenset() if self.environment == CRYPTO else CURRICULUM_KEYS | {"study"}

    @property
    def env_params(self) -> Callable[..., Any]:
        """The dataclass of the environment's parameters."""
        if self.environment == CRYPTO:
            return EnvParams
        from sweepd.envs.games.registry import get_game

        return get_game(self.environment).params

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of a space's tables, in the order in which they are drawn."""
        return "shape", self.learner_table, "env"

    @property
    def presets(self) -> dict[str, str]:
        """Names of the included spaces, with their files; "" for that of the algorithm itself."""
        own = PRESETS.get((self.environment, self.algorithm))
        if self.learner.space:
            own = {"wide" if self.environment == CRYPTO else "game": ""}
        return own or {"game": f"game-{self.learner.table}.toml"}

    def names(self, table: str) -> dict[str, Any]:
        """Return the names that are allowed in `table`, with their defaults."""
        if table == "shape":
            extras = {} if self.environment == CRYPTO else self.learner.extras
            return {**self.learner.shape, **self.learner.optional, **extras}
        if table == "env":
            settings: Any = self.env_params()
            every = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
            return {name: value for name, value in every.items() if name not in STUDY_LEVEL}
        names = dict(self.learner.params())
        if "gamma" in names:
            names["one_minus_gamma"] = 1.0 - names["gamma"]
        return names

    def check(self, table: str, name: str, value: Scalar) -> None:
        """Raise InputError, TypeError or ValueError if the value of a parameter is invalid."""
        if table == "shape":
            from sweepd.agents.networks.shape import (
                check_activation,
                check_entity_width,
                check_policies,
            )

            words = {
                "activation": check_activation,
                "policies": check_policies,
                "entity_width": check_entity_width,
            }
            # The sizes of a shape are checked together when the program is built.
            if name in words:
                words[name](value)
            elif not isinstance(value, str) and (not isinstance(value, int) or value < 1):
                raise InputError("must be a whole number of at least 1")
            return
        if name == "one_minus_gamma":
            name, value = "gamma", 1.0 - float(value)
        params: Callable[..., Any] = self.env_params if table == "env" else self.learner.params
        params(**{name: value})


class CommandSubject(Subject):
    """A program, whose parameters are those of one table, under names of the user's."""

    free = True

    @property
    def learner_table(self) -> str:
        return "params"

    @property
    def shape(self) -> Mapping[str, int]:
        return {}

    @property
    def sections(self) -> frozenset[str]:
        return frozenset({"study"})

    @property
    def env_params(self) -> Callable[..., Any]:
        return dict

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.learner_table,)

    @property
    def presets(self) -> dict[str, str]:
        return {}

    def check(self, table: str, name: str, value: Scalar) -> None:  # noqa: ARG002
        if not isinstance(value, Scalar) or (isinstance(value, float) and not math.isfinite(value)):
            raise InputError("must be a finite number, text, true or false")


def subject_of(environment: str, algorithm: str) -> Subject:
    """Return what the search space of a study is for."""
    if is_command(environment):
        return CommandSubject(environment, COMMAND)
    return Subject(environment, algorithm)


MARKET_PPO = Subject()
