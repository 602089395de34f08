"""Every environment keeps the laws of `VecEnv` (`sweepd.testing`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import torch

from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.external.vec_env import ExternalVecEnv
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.scenarios import BucketParams, scenario
from sweepd.envs.games.card_duel.game import CardDuel, CardDuelParams
from sweepd.envs.games.cartpole import CartPole, CartPoleParams
from sweepd.envs.games.hockey.game import Hockey, HockeyParams
from sweepd.testing import EnvSubject, VecEnvTestCase
from sweepd.testing.env_subject import subjects_of
from tests.envs.external.samples import Counter, Masked, Tag
from tests.envs.games.toys import NIM
from tests.envs.market_samples import WINDOWS, random_params, random_short_params, sample_market

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def example(name: str) -> ModuleType:
    """Return an example as a module."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Native(VecEnvTestCase):
    """An environment with a native step, tested with it or without."""

    native: ClassVar[bool] = True
    kind: ClassVar[Any]

    @classmethod
    def make(
        cls, worlds: Sequence[Any], games: int, device: torch.device | str, native: bool
    ) -> VecEnv:
        raise NotImplementedError

    @classmethod
    def subjects(cls) -> list[EnvSubject]:
        def make(worlds: Sequence[Any], games: int, device: torch.device | str) -> VecEnv:
            return cls.make(worlds, games, device, cls.native)

        def configure(env: Any, member: int, world: Any) -> None:
            env.configure_member(member, world, *cls.configured)

        return [EnvSubject(cls.__name__, make, cls.worlds, configure=configure)]

    configured: ClassVar[tuple[Any, ...]] = ()


class TestCartPole(Native):
    worlds = (
        CartPoleParams(max_steps=30),
        CartPoleParams(force_mag=15.0, max_steps=12),
        CartPoleParams(gravity=12.0, x_threshold=0.06),
    )

    @classmethod
    def make(
        cls, worlds: Sequence[Any], games: int, device: torch.device | str, native: bool
    ) -> VecEnv:
        return CartPole(worlds, games, device=device, native=native)


class TestCartPoleOfTorch(TestCartPole):
    native = False


class TestCrypto(Native):
    worlds = (
        EnvParams(episode_bars=20),
        random_params(
            3,
            episode_bars=25,
            trailing_stop=0.02,
            max_holding_bars=7,
            time_decay_floor=0.1,
            drawdown_penalty=0.5,
            lookback=3,
        ),
        random_params(8, lookback=2),
    )
    configured = (WINDOWS,)

    @classmethod
    def make(
        cls, worlds: Sequence[Any], games: int, device: torch.device | str, native: bool
    ) -> VecEnv:
        market = sample_market(4, assets=3, hole_share=0.1)
        return CryptoEnv(
            market,
            worlds,
            WINDOWS,
            games,
            max_lookback=4,
            privileged_age=True,
            stagger=True,
            device=device,
            native=native,
        )


class TestCryptoOfTorch(TestCrypto):
    native = False


class TestCryptoShort(TestCrypto):
    worlds = tuple(random_short_params(seed, episode_bars=20 + seed) for seed in (1, 2, 3))


class TestCryptoShortOfTorch(TestCryptoShort):
    native = False


class TestBucketBrigade(VecEnvTestCase):
    env = "bucket-brigade"
    worlds = (
        scenario("hard", min_nights=3, max_nights=9, action_shaping_alpha=1.0),
        scenario("default_continuous", prob_house_catches_fire=0.1, max_nights=17),
        scenario("easy", semantics="persistent"),
    )

    @classmethod
    def subjects(cls) -> list[EnvSubject]:
        return [replace(own, many=5000) for own in super().subjects()]


class TestBucketBrigadeTogether(VecEnvTestCase):
    """Two members in the same games: a unit is both."""

    native: ClassVar[bool] = True

    @classmethod
    def subjects(cls) -> list[EnvSubject]:
        def make(worlds: Sequence[Any], games: int, device: torch.device | str) -> VecEnv:
            return BucketBrigade(worlds, 4 * games, together=2, device=device, native=cls.native)

        worlds = (
            BucketParams(max_nights=7),
            scenario("default_continuous", prob_house_catches_fire=0.1, max_nights=17),
        )
        return [EnvSubject("together", make, worlds, together=2, many=0)]


class TestBucketBrigadeTogetherOfTorch(TestBucketBrigadeTogether):
    native = False


class TestHockey(VecEnvTestCase):
    env = "hockey"
    worlds = (
        HockeyParams(max_timesteps=20),
        HockeyParams(mode="train_defense", closeness=0.3, touch=1.0, max_timesteps=11),
    )

    @classmethod
    def subjects(cls) -> list[EnvSubject]:
        return [replace(own, steps=32, many=own.many and 3000) for own in super().subjects()]


class TestHockeyOfTorch(VecEnvTestCase):
    @classmethod
    def subjects(cls) -> list[EnvSubject]:
        def make(worlds: Sequence[Any], games: int, device: torch.device | str) -> VecEnv:
            return Hockey(worlds, 2 * games, device=device, native=False)

        return [EnvSubject("torch", make, TestHockey.worlds, steps=32, many=3000)]


class TestHockeyOfChoices(TestHockey):
    worlds = (HockeyParams(discrete=True, keep_mode=False, max_timesteps=9),)

    @classmethod
    def subjects(cls) -> list[EnvSubject]:
        return [replace(own, many=0) for own in super().subjects()[:1]]


class TestCardDuel(VecEnvTestCase):
    env = "card-duel"
    worlds = (CardDuelParams(), CardDuelParams(decks="reef"))

    @classmethod
    def subjects(cls) -> list[EnvSubject]:
        alone, against = super().subjects()
        return [replace(alone, steps=32, many=500), replace(against, games=12)]


class TestCardDuelOfTorch(VecEnvTestCase):
    @classmethod
    def subjects(cls) -> list[EnvSubject]:
        def make(worlds: Sequence[Any], games: int, device: torch.device | str) -> VecEnv:
            return CardDuel(worlds, games, device=device, native=False)

        return [EnvSubject("torch", make, TestCardDuel.worlds, steps=32, many=500)]


class TestKuhn(VecEnvTestCase):
    env = "kuhn"


class TestLeduc(VecEnvTestCase):
    env = "leduc"


class TestNim(VecEnvTestCase):
    """A game in turns with two choices per action, bytes as observations, and opponents."""

    env = NIM


class TestOwnGame(VecEnvTestCase):
    @classmethod
    def subjects(cls) -> list[EnvSubject]:
        module = example("own_game")
        wind = module.Wind
        return [
            replace(own, steps=128) for own in subjects_of(module.TARGET, (wind(2.5), wind(0.2)))
        ]


class TestPursuit(VecEnvTestCase):
    @classmethod
    def subjects(cls) -> list[EnvSubject]:
        return subjects_of(example("pursuit").PURSUIT)


class TestGymnasium(VecEnvTestCase):
    env = "gym:CartPole-v1"


class TestExternal(VecEnvTestCase):
    """Environments of one agent with masks, and of several agents that come and go."""

    @classmethod
    def subjects(cls) -> list[EnvSubject]:
        def tag(worlds: Sequence[Any], games: int, device: torch.device | str) -> VecEnv:
            return ExternalVecEnv(Tag, worlds, 3 * games, device=device)

        several = EnvSubject("tag", tag, ({},), on_host=True, many=0)
        return [*subjects_of(Counter), *subjects_of(Masked), several]
