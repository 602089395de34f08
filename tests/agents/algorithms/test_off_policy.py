"""SAC and D3QN: bits do not depend on slot or other members, nor on saving and restoring."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby

import pytest
import torch

from sweepd.agents.algorithms.d3qn import D3QN, D3QNParams
from sweepd.agents.algorithms.off_policy import OffPolicy
from sweepd.agents.algorithms.sac import SAC, SACParams
from sweepd.agents.engine.description import DESCRIPTION, packed, unpacked
from sweepd.envs.support.errors import InputError
from tests.agents.helpers import assert_same, shape_for
from tests.agents.off_policy_helpers import member_params, program_for, started
from tests.agents.toy_env import ChoiceEnv, ToyEnv

SLOTS = 4
KINDS = pytest.mark.parametrize("kind", [ToyEnv, ChoiceEnv])


def trained(
    members: dict[int, int],
    rollouts: int = 5,
    kind: type[ToyEnv] = ToyEnv,
    actions: int = 0,
    **sizes: int,
) -> tuple[OffPolicy, ToyEnv]:
    size = (
        {} if not actions else {"choices": actions} if kind.if_discrete else {"action_dim": actions}
    )
    program, env = started(kind(SLOTS, 4, **size), members, **sizes)
    program.train(env, rollouts)
    return program, env


@KINDS
@pytest.mark.parametrize(
    ("member", "width", "minibatch", "actions"),
    [(1, 33, 17, 0), (2, 64, 96, 0), (1, 64, 17, 5), (1, 33, 48, 7)],
)
def test_the_same_bits_alone_with_others_and_in_another_slot(
    kind: type[ToyEnv], member: int, width: int, minibatch: int, actions: int
) -> None:
    torch.set_num_threads(1)
    size = {"net_width": width, "minibatch": minibatch, "actions": actions}
    alone, env = trained({1: member}, kind=kind, **size)
    stats = alone.train(env, 1)[-1]
    assert float(stats.updates[1]) == 6.0
    for company in ({1: member, 0: 5, 2: 7, 3: 4}, {0: member, 3: 7}):
        slot = next(slot for slot, who in company.items() if who == member)
        program, other_env = trained(company, kind=kind, **size)
        other = program.train(other_env, 1)[-1]
        assert_same(alone.get_member(1), program.get_member(slot))
        assert_same(env.get_member(1), other_env.get_member(slot))
        for name, value in other._asdict().items():
            assert torch.equal(value[slot], getattr(stats, name)[1]), name
        for count in (1, 2, 3):
            rows = torch.randn(SLOTS, count, alone.shape.obs_dim)
            swapped = rows.clone()
            swapped[slot] = rows[1]
            ours = alone.act_fn()(rows.flatten(0, 1)).view(SLOTS, count, -1)[1]
            assert torch.equal(
                ours, program.act_fn()(swapped.flatten(0, 1)).view(SLOTS, count, -1)[slot]
            )


@KINDS
def test_a_diverged_member_is_reported_and_does_not_affect_others(kind: type[ToyEnv]) -> None:
    calm, calm_env = trained({0: 1, 3: 2}, 4, kind)
    env = kind(SLOTS, 4)
    program, _ = started(env, {0: 1, 1: 3, 2: 4, 3: 2})
    env.poison = 1  # member 1's rewards become NaN
    program.networks["net" if env.if_discrete else "actor"].flat[2] = torch.nan
    program.train(env, 4)
    assert program.diverged == [False, True, True, False]
    for slot in (0, 3):
        assert_same(calm.get_member(slot), program.get_member(slot))
        assert_same(calm_env.get_member(slot), env.get_member(slot))
    assert not env.faults().any()  # its actions stayed legal
    program.train(env, 1)
    env.poison = 3  # from now on, of one that has learned
    program.train(env, 2)
    assert program.diverged == [False, True, True, True]
    before = program.get_member(3)
    program.train(env, 1)
    after = program.get_member(3)
    assert all(
        torch.equal(before[name], after[name])
        for name in before
        if name.startswith(("net.", "target."))
    )
    env.poison = None
    program.set_member(1, program.get_member(2))
    assert program.diverged == [False, True, True, True]  # also after a checkpoint
    program.add_member(
        1, member_params(env, 0), 7, 4, env.state_avg, env.state_std
    )  # the slot can be used again
    program.begin(env.reset(), [1])
    program.train(env, 1)
    assert program.diverged == [False, False, True, True]
    for name, tensor in program.get_member(1).items():
        assert bool(torch.isfinite(tensor.float()).all()), name


def test_warmup_acts_at_random_without_updates() -> None:
    for kind in (ToyEnv, ChoiceEnv):
        env = kind(2, 4)
        program = program_for(env)
        for slot in range(2):
            params = member_params(env, 1, warmup=97 * slot)  # rollouts of 48
            program.add_member(slot, params, 5, 8, env.state_avg, env.state_std)
        program.begin(env.reset(3))
        history = program.train(env, 3)
        assert [float(stats.updates[0]) for stats in history] == [6.0] * 3
        assert [float(stats.updates[1]) for stats in history] == [0.0, 0.0, 6.0]
    sac, sac_env = started(
        ToyEnv(1, 4, max_step=20), {0: 1}, horizon=200, buffer=800, minibatch=8
    )  # warm-up of 60
    sac.train(sac_env, 1)
    actions = sac.get_member(0)["replay.side"][..., :2]
    early, late = actions[:15].flatten(), actions[15:].flatten()
    assert float(early.abs().max()) > 0.9
    assert float(early.square().mean()) == pytest.approx(1 / 3, abs=0.08)  # uniform from -1 to 1
    assert not torch.equal(early[: late.numel()], late[: early.numel()])


def test_random_choices_follow_the_schedule() -> None:
    params = D3QNParams(explore_start=0.8, explore_end=0.2, explore_share=0.5)
    rates = [params.explore_rate_at(rollout, 8) for rollout in (0, 1, 2, 4, 7)]
    assert rates == pytest.approx([0.8, 0.65, 0.5, 0.2, 0.2])
    assert D3QNParams(explore_share=0.0).explore_rate_at(0, 8) == pytest.approx(0.05)
    env = ChoiceEnv(1, 50, choices=4)
    program = program_for(env, horizon=40, buffer=4_000)
    params = D3QNParams(explore_start=0.4, explore_end=0.4, explore_hold=1, warmup=0)
    program.add_member(0, params, 1, 4, env.state_avg, env.state_std)
    program.begin(env.reset(3))
    with torch.no_grad():
        program._collect(env)
        batch = program.replay.gather(torch.arange(2_000))
        greedy = program.act_fn()(batch.obs[0])
    assert float((batch.action[0, :, 0] != greedy).float().mean()) == pytest.approx(
        0.4 * 3 / 4, abs=0.04
    )


def test_random_choices_are_repeated() -> None:
    """For n steps or more with probability 1 / n, up to a bound; then the next is drawn."""
    env = ChoiceEnv(1, 300, choices=100)
    program = program_for(env, horizon=60, buffer=18_000)
    program.add_member(
        0,
        D3QNParams(explore_start=1.0, explore_end=1.0, warmup=0),
        1,
        4,
        env.state_avg,
        env.state_std,
    )
    program.begin(env.reset(3))
    with torch.no_grad():
        program._collect(env)
    chosen = program.replay.gather(torch.arange(18_000)).action[0, :, 0].view(60, 300)
    runs = [len(list(run)) for row in chosen.T.tolist() for _, run in groupby(row[:-8])]
    # Now and then two holds in a row are of the same choice.
    assert sum(length > 8 for length in runs) < 0.02 * len(runs)
    for least in (2, 4, 8):
        assert sum(length >= least for length in runs) / len(runs) == pytest.approx(
            1 / least, abs=0.03
        )


@pytest.mark.parametrize("algorithm", ["sac", "d3qn"])
def test_unsupported_shapes_states_and_environments_are_refused(algorithm: str) -> None:
    kind = {"sac": SAC, "d3qn": D3QN}[algorithm]
    env = ChoiceEnv(1, 4) if algorithm == "d3qn" else ToyEnv(1, 4)
    with pytest.raises(InputError, match=f"must be '{algorithm}' for this program, not 'ppo'"):
        kind(shape_for(env))
    with pytest.raises(InputError, match="takes actions that are"):
        kind(shape_for(env, algorithm=algorithm, if_discrete=not env.if_discrete))
    with pytest.raises(InputError, match="no recurrent networks"):
        kind(shape_for(env, algorithm=algorithm, recurrent="gru", bptt=4))
    program, env = trained({1: 2}, 1, type(env))
    state, updates = program.get_member(1), program.shape.updates
    other_shape, other_params = unpacked(state), unpacked(state)
    other_shape["shape"]["updates"] += 1
    other_params["params"]["warmup"] = -1
    for changes, words in (
        ({"obs": None}, "must hold"),
        ({"target.weights": None}, "must hold"),
        ({DESCRIPTION: packed(other_shape)}, f"shape: updates is {updates + 1}, not {updates}"),
        ({"target.weights": state["target.weights"][:-1]}, "target.weights is"),
        ({"replay.side": state["replay.side"][:-1]}, "replayed side"),
        ({DESCRIPTION: packed(other_params)}, "warmup must be at least 0, not -1"),
    ):
        wrong = {
            name: tensor for name, tensor in {**state, **changes}.items() if tensor is not None
        }
        with pytest.raises(InputError, match=words):
            program.set_member(1, wrong)
        assert_same(state, program.get_member(1))
    env.spec = replace(env.spec, has_absent_agents=True)
    with pytest.raises(InputError, match=r"toy has agents that come and go: use ppo"):
        program.train(env, 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be above 0"),
        ({"gamma": 1.2}, "gamma must be at most 1, not 1.2"),
        ({"warmup": -1}, "warmup must be at least 0"),
        ({"warmup": 1.5}, "whole number, not 1.5"),
        ({"target_entropy": float("nan")}, "target_entropy must be a finite number"),
        ({"initial_alpha": 0.0}, "initial_alpha must be above 0"),
    ],
)
def test_params_out_of_range_are_refused(changes: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        SACParams(**changes)
