"""A member goes on with another member's weights and with other hyperparameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.agents.engine.description import DESCRIPTION
from sweepd.agents.engine.program import Program
from tests.agents import off_policy_helpers
from tests.agents.helpers import member_params, shape_for
from tests.agents.toy_env import ChoiceEnv, ToyEnv

KINDS = ("ppo", "recurrent ppo", "sac", "d3qn")


def make(kind: str, env: ToyEnv) -> tuple[Program, list[Any]]:
    """A program with members 0 and 1 in its slots, and their hyperparameters."""
    if "ppo" in kind:
        from sweepd.agents.algorithms.ppo import PPO

        changes = {"recurrent": "gru", "bptt": 4, "minibatch": 12} if "recurrent" in kind else {}
        program: Program = PPO(shape_for(env, **changes))
        params: list[Any] = [member_params(index) for index in range(2)]
    else:
        program = off_policy_helpers.program_for(env)
        params = [off_policy_helpers.member_params(env, index) for index in range(2)]
    for slot, own in enumerate(params):
        program.add_member(slot, own, 100 + slot, 8, env.state_avg, env.state_std)
        env.streams.seed(slot, 200 + slot)
    program.begin(env.reset())
    return program, params


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor], names: set[str]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in names)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_and_optimizer_are_the_sources_and_the_rest_stays(kind: str) -> None:
    env = (ChoiceEnv if kind == "d3qn" else ToyEnv)(2, 4)
    program, params = make(kind, env)
    program.train(env, 2)
    own, source = program.get_member(0), program.get_member(1)
    before = {name: tensor.clone() for name, tensor in source.items()}
    changed = params[1].model_copy(update={"learning_rate": 7e-3})
    state = program.inherit(own, source, changed)
    kept = {"stream", *program.episode_state} & set(own)
    assert {"obs", "stream"} <= kept
    assert ("memory" in kept) == ("recurrent" in kind)
    assert ("held" in kept) == (kind == "d3qn")
    assert same(state, own, kept)
    assert same(state, source, set(source) - kept - {DESCRIPTION})
    learnt = set(source) - kept - {DESCRIPTION, "diverged"}
    moments = {name for name in learnt if name.endswith(("adam_m", ".adam_m", ".m"))}
    assert moments, sorted(learnt)
    assert not same(own, source, moments)
    assert same(source, before, set(before))  # the source is untouched
    program.set_member(0, state)
    assert program.members[0] is not None
    assert program.members[0].params == changed
    assert same(program.get_member(0), state, set(state))
    assert same(program.get_member(1), before, set(before))


@pytest.mark.parametrize("kind", ["ppo", "sac", "d3qn"])
def test_the_new_hyperparameters_reach_the_update(kind: str) -> None:
    def trained(**changes: float) -> Tensor:
        env = (ChoiceEnv if kind == "d3qn" else ToyEnv)(2, 4)
        program, params = make(kind, env)
        program.train(env, 6)
        state = program.inherit(
            program.get_member(0), program.get_member(1), params[1].model_copy(update=changes)
        )
        program.set_member(0, state)
        program.train(env, 1)
        found = program.get_member(0)
        return torch.cat([found[n].flatten() for n in sorted(found) if "weights" in n])

    assert torch.equal(trained(), trained())
    assert not torch.equal(trained(), trained(learning_rate=9e-3))
    assert not torch.equal(trained(), trained(gamma=0.5))


def test_members_after_another_number_of_rollouts_are_refused() -> None:
    env = ToyEnv(2, 4)
    program, params = make("ppo", env)
    early = program.get_member(0)
    program.train(env, 1)
    with pytest.raises(ValueError, match="the other member's rollouts is 1, not 0"):
        program.inherit(early, program.get_member(1), params[0])


@pytest.mark.parametrize("kind", ["ppo", "sac", "d3qn"])
def test_what_a_member_keeps_throughout_its_training_are_its_hyperparameters(kind: str) -> None:
    program, _ = make(kind, (ChoiceEnv if kind == "d3qn" else ToyEnv)(2, 4))
    kept = program.params_type.of_the_run
    assert kept
    assert set(kept) <= set(program.params_type.model_fields)
