"""The heuristic players as a program of members."""

from __future__ import annotations

import pytest
import torch

from sweepd.agents.algorithms.heuristic import HeuristicParams, Heuristics
from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.networks.shape import Shape
from sweepd.envs.games.bucket_brigade.game import BucketBrigade
from sweepd.envs.games.bucket_brigade.players import ARCHETYPES
from sweepd.envs.games.bucket_brigade.scenarios import scenario
from sweepd.envs.games.play import play_episodes
from sweepd.envs.support.errors import InputError

PARAMS = scenario("minimal_specialization")


def program(slots: int) -> Heuristics:
    env = BucketBrigade([PARAMS] * slots, 4)
    return Heuristics(Shape.for_env(env, algorithm="heuristic", horizon=1))


def add(learner: Heuristics, slot: int, params: HeuristicParams, seed: int) -> None:
    columns = learner.shape.state_dim
    learner.add_member(slot, params, seed, 1, torch.zeros(columns), torch.ones(columns))


def returns(learner: Heuristics) -> torch.Tensor:
    """(slots, games) team returns."""
    slots = learner.shape.slots
    env = BucketBrigade([PARAMS] * slots, 4 * 250)
    env.reset([5] * slots)
    act = learner.act_fn()
    act.begin(env)
    return torch.from_numpy(play_episodes(env, act, 4).returns)


def test_members_play_by_their_parameters_in_any_slot_and_after_resume() -> None:
    one, other = program(3), program(2)
    hero = ARCHETYPES["hero"]
    lazy = HeuristicParams(honesty=1.0, work=0.1, own_first=0.5, rest=0.9)
    add(one, 0, lazy, 7)
    add(one, 2, HeuristicParams(**hero._asdict()), 8)
    played = returns(one)
    assert (
        played[2].mean() > 0 > -1000 > played[0].mean()
    )  # heroes and idlers in the reference: about 390 and -1,330
    other.set_member(1, one.get_member(0))
    other.set_member(0, one.get_member(2))
    again = returns(other)
    assert torch.equal(again[1], played[0])
    assert torch.equal(again[0], played[2])
    assert one.export_member(0)[0]["theta"].tolist() == [1.0, 0.1, 0.5, 0.9]


def test_training_takes_rollouts_without_steps_and_can_be_stopped() -> None:
    learner = program(2)
    add(learner, 0, HeuristicParams(work=0.8, rest=0.5), 0)
    heard: list[float] = []

    def on_rollout(stats: object) -> bool:
        heard.append(float(stats.works[0]))  # type: ignore[attr-defined]
        return len(heard) == 3

    learner.train(BucketBrigade([PARAMS] * 2, 4), 5, on_rollout)
    assert heard == pytest.approx([0.4] * 3)
    assert get_algorithm("heuristic").curves == ("works",)


@pytest.mark.parametrize("name", ["honesty", "work", "own_first", "rest"])
def test_parameters_are_probabilities(name: str) -> None:
    with pytest.raises(InputError, match=f"{name} must be at most 1"):
        HeuristicParams(**{name: 1.2})
