"""What a study trains on: market, folds, environments and normalisers, built from its frozen spec."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from agents.ppo import PPOParams, Shape
from envs.crypto.bars import Bars, load_bars
from envs.crypto.env import CryptoEnv
from envs.crypto.features import get_recipe
from envs.crypto.market import make_market, observation_normaliser
from envs.crypto.params import EnvParams
from envs.crypto.splits import Fold, Splits, Window, make_splits
from envs.errors import InputError
from optimize.search_space import Settings
from optimize.spec import StudySpec


def load_study_bars(spec: StudySpec, data_dir: Path | None = None) -> Bars:
    """The bars a study was frozen with, from its own folder or another. Raises InputError where they are not the same
    bars.
    """
    folder = data_dir or Path(spec.data.dir)
    bars = load_bars(folder, spec.data.timeframe, spec.data.tickers)
    start = int(np.searchsorted(bars.time, int(np.datetime64(spec.data.first.removesuffix("Z"), "s").astype(np.int64))))
    if len(bars) != spec.data.bars:  # the folder has grown since: the study goes on with the bars it began with
        bars = bars.slice(start, start + spec.data.bars)
    if bars.fingerprint != spec.data.fingerprint:
        raise InputError(
            f"--data-dir {folder} holds other bars than the study was created with "
            f"({spec.data.bars:,} bars from {spec.data.first} to {spec.data.last}); restore them, or choose another "
            "--study-name"
        )
    return bars


class Experiment:
    """Market, folds and environments of one study. device: where training runs.

    Raises InputError where the bars are too few, or the feature recipe is another version than the study's.
    """

    def __init__(self, spec: StudySpec, bars: Bars, device: torch.device) -> None:
        recipe = get_recipe(spec.recipe["name"])
        if recipe.version != spec.recipe["version"]:
            raise InputError(
                f"the study uses version {spec.recipe['version']} of feature recipe {recipe.name!r}, and this is "
                f"version {recipe.version}"
            )
        self.spec, self.device = spec, device
        self.market = make_market(bars, recipe.name)
        self.splits: Splits = make_splits(
            len(bars),
            spec.data.timeframe,
            spec.cross_validation,
            first_bar=spec.first_bar,
            holdout=spec.holdout,
            lookback=spec.max_lookback,
            memory=recipe.memory,
        )
        # Only where some trial's reward depends on an episode's age does the critic get to see it.
        self.privileged_age = "time_decay_floor" in spec.space["env"] or spec.env.get("time_decay_floor", 1.0) < 1.0

    @property
    def folds(self) -> tuple[Fold, ...]:
        return self.splits.folds

    def normaliser(self, fold: int, lookback: int) -> tuple[Tensor, Tensor]:
        """state_avg and state_std, (state_dim,) float32, over the bars at which this fold's training decides."""
        return observation_normaliser(self.market, self.folds[fold].train, lookback, self.spec.max_lookback)

    def env_params(self, settings: Settings) -> EnvParams:
        """Raises InputError where a value is out of range."""
        return EnvParams(**self.spec.env_settings(settings))

    def ppo_params(self, settings: Settings) -> PPOParams:
        """Raises InputError where a value is out of range."""
        return PPOParams(**settings.ppo)

    def training_env(self, slots: int, num_envs: int) -> CryptoEnv:
        """An environment of `slots` members, all still dummies on the first fold's training windows."""
        params = EnvParams(**self.spec.env)
        windows = [list(self.folds[0].train)] * slots
        env = CryptoEnv(
            self.market,
            [params] * slots,
            windows,
            num_envs,
            max_lookback=self.spec.max_lookback,
            privileged_age=self.privileged_age,
            device=self.device,
        )
        env.reset([0] * slots)  # so that slots which stay empty compute along with sound numbers
        return env

    def evaluation_env(self, params: Sequence[EnvParams], windows: Sequence[Sequence[Window]]) -> CryptoEnv:
        """One row per member and test window, each trading its window once from flat cash."""
        return CryptoEnv.for_windows(
            self.market,
            list(params),
            [list(w) for w in windows],
            max_lookback=self.spec.max_lookback,
            device=self.device,
        )

    def shape(self, settings: Settings, env: CryptoEnv, slots: int) -> Shape:
        """The program's shape for a trial's shape parameters on this environment."""
        return Shape(
            state_dim=env.state_dim,
            action_dim=env.action_dim,
            privileged_dim=env.privileged_dim,
            slots=slots,
            num_envs=env.envs_per_member,
            horizon=self.spec.horizon,
            net_width=settings.shape["net_width"],
            net_depth=settings.shape["net_depth"],
            minibatch=settings.shape["minibatch"],
            epochs=settings.shape["epochs"],
        )
