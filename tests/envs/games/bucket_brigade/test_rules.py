"""Bucket Brigade's rules against recorded games and the scalar reference, step by step."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.observation import ObservationEncoder
from sweepd.envs.games.bucket_brigade.rules import NightEvents, Rules, night_events
from sweepd.envs.games.bucket_brigade.scenarios import (
    PER_AGENT,
    SCENARIOS,
    BucketParams,
    params_from,
    scenario,
)
from sweepd.envs.games.drawn_ahead import Numbers
from sweepd.envs.support.errors import InputError
from tests.envs.games.bucket_brigade.samples import Recorded, ScalarGame, recorded_games

CPU = torch.device("cpu")


def random_params(seed: int, houses: int = 10, agents: int = 4) -> BucketParams:
    """Return random rules in which every parameter has an effect."""
    rng = np.random.default_rng(seed)

    def maybe_each(high: float) -> Any:
        return (
            tuple(rng.uniform(-5, high, agents))
            if rng.random() < 0.5
            else float(rng.uniform(0, high))
        )

    return BucketParams(
        num_houses=houses,
        num_agents=agents,
        prob_fire_spreads_to_neighbor=float(rng.choice([0.0, 0.3, 0.6, 1.0])),
        prob_solo_agent_extinguishes_fire=float(rng.choice([0.0, 0.3, 0.8, 1.0])),
        prob_house_catches_fire=float(rng.choice([0.02, 0.2, 0.5])),
        team_reward_house_survives=float(rng.uniform(-10, 100)),
        team_penalty_house_burns=float(rng.uniform(0, 100)),
        **{name: maybe_each(50) for name in PER_AGENT},
        cost_to_work_one_night=float(rng.uniform(0, 2)),
        reward_rest=float(rng.uniform(-1, 2)),
        agent_home_positions=tuple(int(h) for h in rng.integers(0, houses, agents))
        if rng.random() < 0.5
        else (),
        distance_cost_alpha=float(rng.choice([0.0, 0.7])),
        progress_shaping_coef=float(rng.choice([0.0, 3.0])),
        action_shaping_alpha=float(rng.choice([0.0, 2.0])),
        action_shaping_beta=float(rng.choice([0.0, 0.3])),
        team_welfare_kind=str(rng.choice(["none", "team_welfare_closed_form"])),
        team_welfare_lambda=float(rng.uniform(0, 1)),
        team_welfare_gamma=float(rng.uniform(0.8, 1)),
        action_validity_mode=str(rng.choice(["always_valid", "adjacent_only"])),
        extinguish_mode=str(rng.choice(["bernoulli", "continuous"])),
        suppression_per_worker=float(rng.choice([0.1, 1 / 3, 0.5, 1.0])),
        semantics=str(rng.choice(["default", "persistent"])),
        min_nights=int(rng.integers(0, 8)),
        max_nights=int(rng.integers(1, 30)),
    )


def random_actions(generator: torch.Generator, rows: int, houses: int) -> Tensor:
    options = torch.tensor([houses, 2, 2])
    return (torch.rand(rows, 3, generator=generator) * options).to(torch.int64)


# ---- the recorded games ----


def test_recorded_games_are_reproduced() -> None:
    """Play all games with the same numbers of houses and agents at once, each by its own rules."""
    together: dict[tuple[int, int], list[Recorded]] = {}
    for game in recorded_games():
        together.setdefault((game.params.num_houses, game.params.num_agents), []).append(game)
    for (houses, agents), batch in together.items():
        count, longest = len(batch), max(len(game.fields["done"]) for game in batch)
        rules, night = Rules(houses, agents, count, CPU), torch.zeros(count, dtype=torch.int64)
        now = {
            "houses": torch.zeros(houses, count, dtype=torch.uint8),
            "acts": rules.no_acts,
            "progress": rules.no_progress,
        }
        seen = ObservationEncoder(houses, agents, count, scaled=False, device=CPU)
        acts = torch.zeros(longest, agents, 3, count, dtype=torch.uint8)
        needed = torch.ones(longest, houses, count, dtype=torch.uint8)
        ignites = torch.zeros(longest, houses, count, dtype=torch.bool)
        spreads = torch.zeros(longest, houses, 2, count, dtype=torch.bool)
        for at, game in enumerate(batch):
            one, params = slice(at, at + 1), game.params
            rules.configure(one, params, at)
            seen.configure(one, params)
            given = {
                name: torch.tensor(values).unsqueeze(-1) for name, values in game.fields.items()
            }
            now["houses"][:, one] = given["u_init"] < params.prob_house_catches_fire
            events, nights = (
                night_events(params, given["u_ign"], given["u_ext"], given["u_spread"]),
                len(given["actions"]),
            )
            acts[:nights, ..., one] = given["actions"].to(torch.uint8)
            needed[:nights, :, one], ignites[:nights, :, one] = events.needed, events.ignites
            if events.spreads is not None:
                spreads[:nights, ..., one] = events.spreads
        states, rewards, ends = [], [], []
        for at in range(longest + 1):
            rows = torch.empty(count * agents, seen.size)
            seen.show(
                now["houses"], now["acts"], rows, torch.arange(count * agents) // agents, None
            )
            shown = rows[::agents, : seen.shared].t()  # common to all agents of a game
            states.append((now["houses"], now["progress"], shown))
            if at < longest:
                events = NightEvents(needed[at], ignites[at], spreads[at])
                now, reward, terminated = rules.play(now, acts[at], night + at, events)
                rewards.append(reward)
                ends.append(terminated)
        state = [torch.stack(part).numpy() for part in zip(*states, strict=True)]
        reward, end = torch.stack(rewards).numpy(), torch.stack(ends).numpy()
        for at, game in enumerate(batch):
            nights, fields = len(game.fields["done"]), game.fields
            for name, values in zip(("houses", "fire_progress", "obs"), state, strict=True):
                np.testing.assert_array_equal(
                    values[: nights + 1, :, at], fields[name], err_msg=game.case
                )
            np.testing.assert_allclose(
                reward[:nights, :, at], fields["rewards"], rtol=0, atol=1e-4, err_msg=game.case
            )
            np.testing.assert_array_equal(end[:nights, at], fields["done"], err_msg=game.case)
    assert sum(len(batch) for batch in together.values()) >= 60


def test_the_scalar_reference_reproduces_recorded_games() -> None:
    for game in recorded_games():
        fields, scalar = game.fields, ScalarGame(game.params)
        scalar.reset(fields["u_init"])
        for night in range(len(fields["done"])):
            np.testing.assert_array_equal(scalar.observation(), fields["obs"][night])
            now = [fields[name][night] for name in ("actions", "u_ext", "u_spread", "u_ign")]
            rewards, over, _ = scalar.step(*now)
            np.testing.assert_array_equal(scalar.houses, fields["houses"][night + 1])
            np.testing.assert_allclose(rewards, fields["rewards"][night], rtol=0, atol=1e-4)
            assert over == fields["done"][night]


# ---- the scalar reading ----


def follow(env: BucketBrigade, steps: int, act: Callable[[int], Tensor], per_draw: int = 0) -> int:
    """Compare every game with the scalar reference; return how many games ended."""
    agents, houses, seen = env.num_agents, env.num_houses, env.encoder
    rules = [env._params[game // env.games_per_member] for game in range(env.num_games)]
    scalars = [ScalarGame(params) for params in rules]
    env.reset(5)
    drawn: list[Numbers] = []
    upcoming = env._numbers.next

    def noted() -> Numbers:
        drawn.append(upcoming())
        return drawn[-1]

    env._numbers.next = noted  # type: ignore[method-assign]

    def start(game: int, burning: Tensor) -> None:
        scalars[game].reset([0.0 if fire else 1.0 for fire in burning.tolist()])

    def shown(row: int) -> np.ndarray:
        game, agent = divmod(int(env._seat_of[row]), agents)
        return np.concatenate(
            [scalars[game].observation(), np.eye(agents, dtype=np.float32)[agent]]
        )

    for game in range(env.num_games):
        start(game, env.state["houses"][:, game] == 1)
    ended = 0
    for step in range(steps):
        if per_draw and step % per_draw == 0:
            env.draw(per_draw)
        obs = env.observe().numpy()
        assert obs.shape == (env.num_envs, seen.size)
        np.testing.assert_array_equal(obs, [shown(row) for row in range(env.num_envs)])
        action = act(step)
        made = env.step(action)
        starts, (needed, ignites, spreads) = env._split(drawn[-1])
        last, unit = env.final_obs().numpy(), env.reward_unit
        for game, scalar in enumerate(scalars):
            rows = [int(env._row_of[game * agents + agent]) for agent in range(agents)]
            p = rules[game]
            below = [
                1.0 - (1.0 - p.prob_solo_agent_extinguishes_fire) ** k for k in range(agents + 1)
            ]
            u_ext = [below[k - 1] if k <= agents else 1.0 for k in needed[:, game].tolist()]
            u_ign = (~ignites[:, game]).double().tolist()
            u_spread = (
                np.ones((houses, 2)) if spreads is None else (~spreads[..., game]).double().numpy()
            )
            rewards, over, cut = scalar.step(action[rows].numpy(), u_ext, u_spread, u_ign)
            np.testing.assert_allclose(
                (made.reward.double() * unit)[rows], rewards, rtol=1e-6, atol=1e-5
            )
            assert made.terminated[rows].tolist() == [over] * agents
            assert made.truncated[rows].tolist() == [cut] * agents
            if over or cut:
                np.testing.assert_array_equal(last[rows], [shown(row) for row in rows])
                start(game, starts[:, game])
                ended += 1
            np.testing.assert_array_equal(made.obs[rows], [shown(row) for row in rows])
            np.testing.assert_array_equal(env.state["progress"][:, game], scalar.progress)
    return ended


@pytest.mark.parametrize(
    ("houses", "agents", "native"),
    [(10, 4, True), (10, 4, False), (7, 3, True), (2, 4, True), (1, 1, False)],
)
def test_batched_games_equal_the_scalar_reference(houses: int, agents: int, native: bool) -> None:
    """Every member has its own rules."""
    params = [random_params(seed, houses, agents) for seed in range(10)]
    generator = torch.Generator().manual_seed(0)
    env = BucketBrigade(params, agents, scaled=False, native=native)
    assert (
        follow(env, 30, lambda _: random_actions(generator, env.num_envs, houses), per_draw=20) > 10
    )


def test_shared_games_equal_the_scalar_reference() -> None:
    """Members play together, with other seats after every draw."""
    generator = torch.Generator().manual_seed(0)
    env = BucketBrigade(
        [random_params(seed) for seed in (1, 1, 1, 2, 2, 2)], 4, together=3, scaled=False
    )
    assert follow(env, 30, lambda _: random_actions(generator, 24, 10), per_draw=10) > 10


@settings(max_examples=20)
@given(seed=st.integers(0, 2**32), houses=st.integers(1, 12), agents=st.integers(1, 6))
def test_any_rules_equal_the_scalar_reference(seed: int, houses: int, agents: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    env = BucketBrigade(random_params(seed, houses, agents), agents, scaled=False)
    follow(env, 12, lambda _: random_actions(generator, agents, houses))


# ---- observations made for learning ----


@pytest.mark.parametrize(("houses", "agents"), [(10, 4), (7, 3), (2, 4), (1, 1)])
def test_scaled_observations_contain_the_same(houses: int, agents: int) -> None:
    params = [random_params(seed, houses, agents) for seed in range(4)]
    raw, scaled = (BucketBrigade(params, 3 * agents, scaled=flag) for flag in (False, True))
    plain, made = raw.reset(3), scaled.reset(3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(15):
        assert made.shape == (12 * agents, 3 * houses + agents * (houses + 2) + 12 + agents)
        state, signals, locations, last, told, who = plain.split(
            [houses, agents, agents, 2 * agents, 12, agents], 1
        )
        one_hot = torch.nn.functional.one_hot
        each = torch.cat(
            [
                one_hot(locations.long(), houses),
                last[:, 1::2, None].long(),
                signals[..., None].long(),
            ],
            dim=2,
        )
        scale, nights = (
            torch.tensor([getattr(own, name) for own in params])
            .repeat_interleave(3 * agents)
            .unsqueeze(1)
            for name in ("reward_scale", "max_nights")
        )
        told = torch.cat(
            [
                told[:, :3],
                told[:, 3:9] / scale,
                told[:, 9:10],
                told[:, 10:11] / nights,
                told[:, 11:] / 10,
            ],
            1,
        )
        expected = torch.cat(
            [one_hot(state.long(), 3).flatten(1), each.flatten(1), told, who], dim=1
        )
        torch.testing.assert_close(made, expected.float(), rtol=1e-6, atol=1e-7)
        for env, obs in ((raw, plain), (scaled, made)):
            assert torch.equal(env.encoder.houses_in(obs), state.long())
            assert torch.equal(env.encoder.agent_in(obs), who.argmax(1))
        action = random_actions(generator, raw.num_envs, houses)
        step, learned = raw.step(action), scaled.step(action)
        torch.testing.assert_close(
            learned.reward * scale.squeeze(1).float(), step.reward, rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(
            learned.reward * scaled.reward_unit, step.reward.double(), rtol=1e-5, atol=1e-5
        )
        plain, made = step.obs, learned.obs


# ---- scenarios and parameters ----

SHAPED = {"team_welfare_kind": "team_welfare_closed_form", "team_welfare_lambda": 0.5}
CONTINUOUS = {"extinguish_mode": "continuous", "suppression_per_worker": 0.5}
# Another value of each parameter, and other parameters under which it has an effect.
OTHER: dict[str, tuple[Any, dict[str, Any]]] = {
    "prob_fire_spreads_to_neighbor": (0.9, CONTINUOUS),
    "prob_solo_agent_extinguishes_fire": (0.9, {}),
    "prob_house_catches_fire": (0.3, {}),
    "team_reward_house_survives": (90.0, {}),
    "team_penalty_house_burns": (90.0, {}),
    "reward_own_house_survives": (21.0, {}),
    "reward_other_house_survives": (1.0, {}),
    "penalty_own_house_burns": (41.0, {}),
    "penalty_other_house_burns": (1.0, {}),
    "cost_to_work_one_night": (0.6, {}),
    "reward_rest": (0.4, {}),
    "agent_home_positions": ((5, 3, 2, 9), {"distance_cost_alpha": 0.2}),
    "distance_cost_alpha": (0.1, {}),
    "progress_shaping_coef": (1.0, {}),
    "action_shaping_alpha": (1.0, {}),
    "action_shaping_beta": (1.0, {}),
    "team_welfare_kind": ("none", SHAPED),
    "team_welfare_lambda": (0.4, SHAPED),
    "team_welfare_gamma": (0.9, SHAPED),
    "action_validity_mode": ("adjacent_only", {}),
    "extinguish_mode": ("continuous", {"suppression_per_worker": 0.5}),
    "suppression_per_worker": (0.3, CONTINUOUS),
    "semantics": ("persistent", {}),
    "min_nights": (3, {}),
    "max_nights": (5, {}),
}


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", OTHER)
def test_every_parameter_has_an_effect_on_its_own_games_alone(name: str, scaled: bool) -> None:
    """On the course of a game, not only on the observed scenario."""
    assert {field.name for field in dataclasses.fields(BucketParams)} == {
        *OTHER,
        "num_houses",
        "num_agents",
    }
    value, world = OTHER[name]
    base = scenario("default", prob_house_catches_fire=0.1, **world)
    seen = []
    for changed in (base, dataclasses.replace(base, **{name: value})):
        env = BucketBrigade([base, changed], 32, scaled=scaled)
        generator = torch.Generator().manual_seed(0)
        env.reset([1, 2])
        steps = [env.step(random_actions(generator, 64, 10)) for _ in range(40)]
        score = torch.stack([step.reward * env.reward_unit for step in steps])
        done = torch.stack([step.terminated | step.truncated for step in steps])
        seen.append(torch.cat([score, done]))
    assert torch.equal(seen[0][:, :32], seen[1][:, :32])
    assert not torch.allclose(seen[0][:, 32:], seen[1][:, 32:], atol=1e-3)


@pytest.mark.parametrize(
    ("name", "houses", "agents"), [("num_houses", 6, 4), ("num_agents", 10, 5)]
)
def test_shapes_follow_houses_and_agents(name: str, houses: int, agents: int) -> None:
    env = BucketBrigade(
        scenario("default", **{name: {"num_houses": houses, "num_agents": agents}[name]}),
        2 * agents,
    )
    assert (env.num_houses, env.num_agents, env.action_dims) == (houses, agents, (houses, 2, 2))
    assert env.reset(0).shape == (2 * agents, 3 * houses + agents * (houses + 2) + 12 + agents)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prob_house_catches_fire", 1.5),
        ("prob_house_catches_fire", float("nan")),
        ("num_agents", 0),
        ("num_houses", 101),
        ("min_nights", 2.5),
        ("max_nights", True),
        ("reward_rest", "much"),
        ("reward_own_house_survives", (1.0, 2.0)),
        ("agent_home_positions", (0, 1, 2, 10)),
        ("agent_home_positions", (0, 1)),
        ("semantics", "other"),
        ("extinguish_mode", "sometimes"),
        ("suppression_per_worker", -0.1),
    ],
)
def test_a_wrong_parameter_is_named(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"parameter {name} is ") as refused:
        BucketParams(**{name: value})
    assert "\n" not in str(refused.value)


def test_parameter_names_are_those_of_the_original() -> None:
    assert (
        params_from({"distance_metric": "ring_arc", "commitment_mode": "simultaneous"})
        == BucketParams()
    )
    with pytest.raises(
        InputError, match="commitment_mode is 'two_phase'; it must be 'simultaneous'"
    ):
        params_from({"commitment_mode": "two_phase"})
    with pytest.raises(InputError, match="no parameter 'wind'"):
        params_from({"wind": 1})
    with pytest.raises(InputError, match="'defualt' is not known"):
        scenario("defualt")
    assert params_from({"agent_home_positions": [1, 2, 3, 4]}).homes == (1, 2, 3, 4)


def test_all_scenarios_are_valid() -> None:
    assert len(SCENARIOS) == 18
    assert scenario("default") == BucketParams()
    assert scenario("v2_minimal").homes == (0, 1, 0, 1)
    assert scenario("asym_b09_k09_c05", max_nights=7).max_nights == 7
    for name in SCENARIOS:  # which also validates them
        assert scenario(name).reward_scale == 100.0
