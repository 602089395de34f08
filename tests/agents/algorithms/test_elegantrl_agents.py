"""ElegantRL's own agents as a program: they behave as in ElegantRL, independently of each other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from elegantrl.train.replay_buffer import ReplayBuffer
from torch import Tensor

from scripts.bench.speed.elegantrl_run import ElegantEnv
from sweepd.agents.algorithms.elegantrl_agents import ElegantAgents
from sweepd.agents.algorithms.elegantrl_kinds import BROKEN, KINDS, kind_of
from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import actor_of
from sweepd.envs.support.errors import InputError
from tests.agents.helpers import assert_same, shape_for
from tests.agents.own_agents import PatientAgent, SmoothActor
from tests.agents.toy_env import ChoiceEnv, ToyEnv

SLOTS = 3
BOTH = [
    (name, numbers)
    for name, kind in KINDS.items()
    for numbers in (True, False)
    if (kind.continuous if numbers else kind.discrete)
]


def program_for(name: str, env: ToyEnv, **changes: Any) -> ElegantAgents:
    sizes = {
        "minibatch": 8,
        "epochs": 2,
        "updates": 5,
        "buffer": 20 * env.envs_per_member,
        "horizon": 8,
    } | changes
    return ElegantAgents(shape_for(env, algorithm=f"elegantrl:{name}", **sizes))


def params_for(program: ElegantAgents, index: int, **changes: Any) -> Any:
    warmup = {"warmup": (0, 40, 80)[index % 3]} if program.kind.replays else {}
    return program.params_type(
        **{
            "learning_rate": 1e-3 * (1 + index),
            "gamma": 0.9 + 0.01 * index,
            "reward_scale": 1.0 + index,
        }
        | warmup
        | changes
    )


def started(name: str, env: ToyEnv, members: dict[int, int], **changes: Any) -> ElegantAgents:
    program = program_for(name, env)
    for slot, member in members.items():
        program.add_member(
            slot,
            params_for(program, member, **changes),
            100 + member,
            8,
            env.state_avg,
            env.state_std,
        )
        env.streams.seed(slot, 200 + member)
    program.begin(env.reset())
    return program


@pytest.mark.parametrize(("name", "numbers"), BOTH)
def test_one_member_equals_elegantrl_to_the_bit(name: str, numbers: bool) -> None:
    """Three rollouts by its own exploration and `update_net` give the same weights, to the bit."""
    kind = ToyEnv if numbers else ChoiceEnv
    env, other = kind(1, 4), kind(1, 4)
    warmup = {"warmup": 32} if KINDS[name].replays else {}  # the first rollout's
    program, theirs = (started(name, own, {0: 1}, **warmup) for own in (env, other))
    agent, adapted, shape = theirs.agents[0], ElegantEnv(other), theirs.shape
    agent.reward_scale = theirs._member(0).params.reward_scale
    agent.last_state = theirs.obs.clone()
    buffer = ReplayBuffer(
        20, shape.state_dim, 1 if shape.if_discrete else shape.action_dim, gpu_id=-1, num_envs=4
    )
    before = {key: tensor.clone() for key, tensor in agent.act.state_dict().items()}
    updates = [float(stats.updates[0]) for stats in program.train(env, 3)]
    assert updates == [5.0 if theirs.kind.replays else 8.0] * 3
    with torch.random.fork_rng():
        for rollout in range(3):
            torch.set_rng_state(theirs._seeded(0))
            other.draw(8)
            with torch.no_grad():
                if numbers or theirs.kind.replays:
                    items = agent.explore_env(
                        adapted, 8, if_random=theirs.kind.replays and not rollout
                    )
                else:
                    items = explore_choices(agent, adapted)
            if theirs.kind.replays:
                buffer.update(items)
            agent.update_net(buffer if theirs.kind.replays else items)
    for key, tensor in program.agents[0].act.state_dict().items():
        assert torch.equal(tensor, agent.act.state_dict()[key]), key
        frozen = key.startswith(("state_", "value_"))
        assert frozen or not torch.equal(tensor, before[key]), key


def explore_choices(agent: Any, env: ElegantEnv) -> tuple[Tensor, ...]:
    """ElegantRL's discrete on-policy exploration with correct action shapes; its own fails."""
    kept: list[list[Tensor]] = [[], [], [], [], []]
    for _ in range(8):
        action, log_prob = agent.act.get_action(agent.last_state)
        state, reward, done, _ = env.step(action)
        row = (
            agent.last_state,
            action.unsqueeze(1),
            log_prob,
            reward * agent.reward_scale,
            1.0 - done.float(),
        )
        for parts, part in zip(kept, row, strict=True):
            parts.append(part)
        agent.last_state = state
    return tuple(torch.stack(parts) for parts in kept)


CHANGES: dict[str, Any] = {
    "learning_rate": 2e-3,
    "gamma": 0.6,
    "gae_lambda": 0.5,
    "clip": 0.001,
    "entropy_coef": 0.1,
    "soft_update_tau": 0.2,
    "reward_scale": 2.0,
    "max_grad_norm": 0.01,
    "adam_eps": 1e-2,
    "weight_decay": 0.3,
    "warmup": 64,
    "lr_schedule": "linear",
    "explore_rate": 0.9,
    "explore_noise_std": 0.5,
    "policy_noise_std": 0.5,
    "target_entropy": 0.5,
    "initial_alpha": 1.5,
}


@pytest.mark.parametrize(("name", "numbers"), BOTH)
def test_every_hyperparameter_changes_the_update(name: str, numbers: bool) -> None:
    kind = ToyEnv if numbers else ChoiceEnv

    def weights(**changes: Any) -> Tensor:
        env = kind(1, 4)
        program = program_for(name, env, minibatch=16, updates=3)
        given: dict[str, Any] = {"warmup": 32} if program.kind.replays else {}
        program.add_member(
            0, program.params_type(**given | changes), 1, 6, env.state_avg, env.state_std
        )
        program.begin(env.reset(5))
        program.train(env, 2)
        return torch.cat([part.flatten() for part in program.agents[0].act.state_dict().values()])

    base = weights()
    for field in program_for(name, kind(1, 4)).params_type.model_fields:
        assert not torch.equal(base, weights(**{field: CHANGES[field]})), field
    assert torch.equal(base, weights())


def test_exported_actors_act_alike_when_frozen() -> None:
    for name, numbers in BOTH:
        kind = ToyEnv if numbers else ChoiceEnv
        env = kind(1, 4)
        program = started(name, env, {0: 0})
        obs = torch.randn(20, env.state_dim)
        frozen = FrozenPolicy([actor_of(program, 0)]).act_batch(obs)
        acts = program.act_fn()(obs)
        torch.testing.assert_close(frozen.to(acts.dtype), acts, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("name", "numbers"), BOTH)
def test_a_member_with_nan_observations_is_reported_and_does_not_affect_others(
    name: str, numbers: bool
) -> None:
    """ElegantRL's agents that draw their actions from a distribution raise where it is none."""
    kind = ToyEnv if numbers else ChoiceEnv
    warmup = {"warmup": 0} if KINDS[name].replays else {}
    programs, envs = [], []
    for blind in (False, True):
        env = kind(SLOTS, 4)
        programs.append(started(name, env, {0: 1, 1: 2, 2: 4}, **warmup))
        envs.append(env)
        programs[-1].train(env, 1)
        if blind:
            env._s[4] = torch.nan  # of member 1
        programs[-1].train(env, 1)
    assert programs[1].diverged == [False, True, False]
    assert not envs[1].faults().any()  # its actions stayed legal
    for slot in (0, 2):
        assert_same(programs[0].get_member(slot), programs[1].get_member(slot))


def test_unsupported_agents_are_refused_with_a_sentence() -> None:
    for name in BROKEN:
        with pytest.raises(
            InputError, match=rf"elegantrl:{name} does not work in ElegantRL 0.3.6: .*choose one of"
        ):
            kind_of(f"elegantrl:{name}")
    with pytest.raises(InputError, match="'elegantrl:x' is not one of ElegantRL's agents"):
        kind_of("elegantrl:x")
    with pytest.raises(InputError, match="elegantrl:td3 takes actions that are numbers"):
        program_for("td3", ChoiceEnv(1, 4))
    with pytest.raises(
        InputError, match="elegantrl:dqn takes actions that are one of several choices"
    ):
        program_for("dqn", ToyEnv(1, 4))
    with pytest.raises(InputError, match="privileged observations"):
        program_for("td3", ToyEnv(1, 4, privileged=True))
    program = started("td3", ToyEnv(SLOTS, 4), {0: 0})
    state = program.get_member(0)
    for change, words in (
        ({"act.net.0.weight": torch.zeros(1, 1)}, r"act.net.0.weight is \(1, 1\)"),
        ({"replay.next": None}, "must hold"),
        ({"act_target.net.0.bias": None}, "is missing"),
    ):
        wrong = {name: tensor for name, tensor in {**state, **change}.items() if tensor is not None}
        with pytest.raises(InputError, match=words):
            program.set_member(0, wrong)
    assert_same(state, program.get_member(0))


def test_where_elegantrl_is_missing_a_sentence_says_how_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lonely_agent.py").write_text("from elegantrl.agents import AgentPPO as Agent\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "elegantrl", None)
    found = get_algorithm("elegantrl:td3")  # a study of others can be read
    command = "-m pip install --no-deps elegantrl==0.3.6"
    with pytest.raises(InputError, match=command):
        found.check_installed()
    with pytest.raises(InputError, match=command):
        found.learner(shape_for(ToyEnv(1, 4), algorithm=found.name), torch.device("cpu"))
    with pytest.raises(InputError, match=command):
        get_algorithm("lonely_agent:Agent")
    for name in ("ppo", "sac", "d3qn"):
        get_algorithm(name).check_installed()


def test_the_command_line_does_not_import_elegantrl() -> None:
    code = "import sweepd.optimize.cli.train, sys; print('elegantrl' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


OWN = "tests.agents.own_agents"


@pytest.mark.parametrize("name", ["SmoothAgent", "HiddenSmoothAgent"])
def test_an_agent_with_its_own_network_is_trained_but_not_deployed(name: str) -> None:
    """In docs/how_to/plugins.md it takes eleven lines; `own_agents` has the same."""
    found = get_algorithm(f"{OWN}:{name}")
    algorithm = found.program.removeprefix("elegantrl:")
    assert algorithm == f"ppo:{OWN}:{name}"
    assert (found.table, found.frozen, found.deployed) == ("elegantrl", False, False)
    assert (found.continuous, found.discrete) == (True, False)
    program = started(algorithm, ToyEnv(2, 4), {0: 1, 1: 2})
    assert type(program.agents[0].act) is SmoothActor
    before = program.get_member(0)
    program.train(ToyEnv(2, 4), 2)
    after = program.get_member(0)
    assert not torch.equal(before["act.net.0.weight"], after["act.net.0.weight"])
    again = started(algorithm, ToyEnv(2, 4), {0: 5, 1: 6})
    again.set_member(1, after)
    assert_same(again.get_member(1), after)


def test_an_agent_with_its_own_update_is_deployed_like_its_parent() -> None:
    found = get_algorithm(f"{OWN}:PatientAgent")
    algorithm = found.program.removeprefix("elegantrl:")
    assert found.frozen
    assert found.deployed
    assert found.shape == get_algorithm("elegantrl:td3").shape
    program = started(algorithm, ToyEnv(1, 4), {0: 1}, warmup=0)
    assert type(program.agents[0]) is PatientAgent
    program.train(ToyEnv(1, 4), 2)
    FrozenPolicy([actor_of(program, 0)])


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (f"{OWN}:SmoothActor", "neither an Algorithm .* nor a subclass of one of ElegantRL's"),
        (f"{OWN}:Nobody", "has nothing called 'Nobody'"),
        ("nowhere_at_all:Agent", "No module named 'nowhere_at_all'"),
        (f'{OWN}:SmoothAgent {{"clip": 0.1}}', "only a function takes arguments"),
        (f"elegantrl:ppo:{OWN}:SmoothAgent", f"is named alone: --algo {OWN}:SmoothAgent"),
        ("elegantrl:sarsa", "not one of ElegantRL's agents"),
    ],
)
def test_invalid_agent_classes_are_refused(name: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        get_algorithm(name)
