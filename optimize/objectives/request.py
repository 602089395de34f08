"""The settings of a study that is to be created or joined, as they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sweepd.envs.crypto.params import SHORTS
from sweepd.envs.crypto.scoring.metrics import DEFAULT_OBJECTIVE
from sweepd.envs.crypto.splits import CrossValidation
from sweepd.envs.external.roles import KEY as ROLES
from sweepd.envs.external.wrapping import KEY as WRAPPERS
from sweepd.envs.games.curriculum import Curriculum
from sweepd.envs.games.parameters import game_params
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.games.curriculum import LoadBundle
from sweepd.optimize.study.record.specs import CRYPTO, Play
from sweepd.optimize.study.settings.market import CostSettings
from sweepd.optimize.study.settings.setting import declared
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.subject import Subject, subject_of


@dataclass(frozen=True)
class Request(StudySettings):
    """Settings whose defaults no longer depend on others.

    None means: chosen automatically when the study is created, and taken from the study when it
    is joined.

    Attributes:
        given: names of the settings that were given; only these are compared with an existing
            study.
        curriculum: phases and opponents; None: those of the search space, if it has some.
        load_bundle: finds champions that are opponents; None: there is no registry.
    """

    data_dir: Path = Path(".")
    recipe: str = "default"
    play: Play = "deterministic"
    horizon: int = 64
    search_space: str = "wide"
    objective: str = DEFAULT_OBJECTIVE
    given: frozenset[str] = frozenset()
    curriculum: Curriculum | None = None
    load_bundle: LoadBundle | None = None

    @property
    def subject(self) -> Subject:
        """What the search space is for."""
        return subject_of(self.env, self.algo)

    @property
    def folds(self) -> CrossValidation:
        """The cross-validation of a market."""
        return CrossValidation(self.cv, self.groups, self.test_groups, self.embargo)

    @property
    def ticker_names(self) -> tuple[str, ...] | None:
        """The tickers of a market; None: all. Raises InputError if --tickers names none."""
        return parse_tickers(self.tickers)

    @property
    def env_params(self) -> dict[str, Any]:
        """The parameters of the environment that all trials share.

        Raises:
            InputError: a text of --env-param is not NAME=VALUE.
        """
        if self.env == CRYPTO:
            names = declared(CostSettings)
            return {n: getattr(self, n) for n in names if self.allow_short or n not in SHORTS}
        params = game_params(self.scenario, self.env_param or ())
        params |= {WRAPPERS: list(self.wrappers)} if self.wrappers else {}
        return params | ({ROLES: self.roles} if self.roles is not None else {})


def parse_tickers(text: str | None) -> tuple[str, ...] | None:
    """Return the names in `--tickers`; None for all.

    Raises:
        InputError: there is none.
    """
    if text is None:
        return None
    tickers = tuple(text.replace(",", " ").split())
    if not tickers:
        raise InputError(
            "--tickers is empty; give tickers like BTC/USDT,ETH/USDT, or leave the flag out to use "
            "all in the directory"
        )
    return tickers
