"""Roles: their text, padded spaces, and the rows of games whose roles are members."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from sweepd.envs.external.padding import PaddedAgents, padded
from sweepd.envs.external.role_rows import RoleRows
from sweepd.envs.external.roles import assign_roles, parse_roles, suggested_roles
from sweepd.envs.games.parameters import game_params
from sweepd.envs.games.play import play_episodes, random_actions
from sweepd.envs.games.registry import get_game
from sweepd.envs.support.errors import InputError
from tests.envs.external.chase_module import STEPS, Chase
from tests.envs.external.duel_module import Bids

NAME = "pettingzoo:tests.envs.external.chase_module"
ROLES = "wolf=wolf_*;hare=hare_0"


def made(games: int = 4, groups: int = 1, roles: str = ROLES, **arguments: Any) -> RoleRows:
    game = get_game(NAME)
    params = game.params(roles=roles, **arguments)
    members = groups * len(game.roles(params).names)
    env = game.make([params] * members, games, together=1, device="cpu")
    assert isinstance(env, RoleRows)
    env.reset(list(range(members)))
    return env


def test_agents_are_assigned_by_patterns() -> None:
    agents = ["adversary_0", "adversary_1", "agent_0"]
    found = assign_roles(" hunter = adversary_[01] ; prey=agent_0;", agents)
    assert found.names == ("hunter", "prey")
    assert (found.agents, found.rows, found.of_agents) == (((0, 1), (2,)), 2, (0, 0, 1))
    assert assign_roles("all=*", agents).agents == ((0, 1, 2),)
    assert suggested_roles(agents) == "adversary=adversary_0,adversary_1;agent=agent_0"


@given(st.lists(st.text("ab_07", min_size=1), unique=True))
def test_suggested_roles_name_every_agent_once(agents: list[str]) -> None:
    found = assign_roles(suggested_roles(agents), agents) if agents else assign_roles("a=*", ["b"])
    assert sorted(index for own in found.agents for index in own) == list(range(len(agents) or 1))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no role, such as"),
        ("wolf", "'wolf' must be ROLE=AGENT,AGENT"),
        ("wolf=a;wolf=b", "'wolf=b' must be ROLE=AGENT,AGENT with a name of its own"),
        ("wolf=a,", "must be ROLE=AGENT"),
        ("w w=a", "must be ROLE=AGENT"),
        (
            "wolf=wolf_*",
            "gives agent 'hare_0' no role; each of wolf_0, hare_0, wolf_1 must have one",
        ),
        ("a=*;b=hare_0", "gives agent 'hare_0' the roles a and b"),
        (
            "wolf=wolf_*,fox;hare=hare_0",
            "'fox' of role wolf is no agent; there are: wolf_0, hare_0",
        ),
    ],
)
def test_other_texts_are_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        assign_roles(text, ["wolf_0", "hare_0", "wolf_1"])
    if "gives" in reason:
        assert parse_roles(text)


def test_roles_have_a_flag_of_their_own_and_need_agents() -> None:
    with pytest.raises(InputError, match="roles have a flag of their own, --roles"):
        game_params(None, ["roles=wolf=a"])
    game = get_game("gym:CartPole-v1")
    with pytest.raises(InputError, match="--roles is for environments of several agents"):
        game.roles(game.params(roles="a=*"))


def actions(env: Any, generator: np.random.Generator) -> dict[str, Any]:
    """Return random legal actions of the padded agents that act."""
    found = {}
    for agent, seen in env.seen.items():
        space = env.action_space(agent)
        if isinstance(space, spaces.Discrete):
            legal = seen["action_mask"] if isinstance(seen, dict) else np.ones(space.n)
            found[agent] = int(generator.choice(np.flatnonzero(legal)))
        else:
            found[agent] = generator.uniform(-1, 1, space.shape).astype(np.float32)
    return found


@pytest.mark.parametrize("arguments", [{}, {"masks": True}, {"numbers": True}, {"leaves": 3}])
def test_padded_agents_play_as_they_do_without(arguments: dict[str, Any]) -> None:
    """Every observation, reward and end beside the same environment with the agents' own spaces."""
    env, plain = padded(Chase(**arguments)), Chase(**arguments)
    assert isinstance(env, PaddedAgents)
    agents = env.possible_agents
    assert all(env.observation_space(own) == env.observation_space("wolf_0") for own in agents)
    assert all(env.action_space(own) == env.action_space("wolf_0") for own in agents)
    env.seen, seen = env.reset(seed=3)[0], plain.reset(seed=3)[0]
    generator = np.random.default_rng(0)
    for _ in range(STEPS):
        for agent, own in seen.items():
            space, shown = plain.observation_space(agent), env.seen[agent]
            assert env.observation_space(agent).contains(shown)
            mask = own["action_mask"] if arguments.get("masks") and agent == "hare_0" else None
            if not arguments.get("numbers"):
                options = 2 if agent == "hare_0" else 3
                wanted = [1] * options if mask is None else mask.tolist()
                assert shown["action_mask"].tolist() == wanted + [0] * (3 - options)
                shown = shown["observation"]
            if mask is not None:
                space, own = space["observation"], own["observation"]
            flat = spaces.flatten(space, own)
            assert shown.tolist() == pytest.approx([*flat, *[0.0] * (15 - len(flat))])
        given = actions(env, generator)
        own_actions: dict[str, Any] = {}
        for agent, action in given.items():
            if not arguments.get("numbers"):
                own_actions[agent] = action if agent == "hare_0" else action - 1
            elif agent == "hare_0":
                own_actions[agent] = 2.0 * (action + 1.0)
            else:
                own_actions[agent] = action[:1]
        (env.seen, *rest), (seen, *others) = env.step(given), plain.step(own_actions)
        assert rest == others
        assert env.cell == plain.cell
        env.seen = {agent: own for agent, own in env.seen.items() if agent in env.agents}
        seen = {agent: own for agent, own in seen.items() if agent in plain.agents}


def test_equal_spaces_stay_as_they_are() -> None:
    env = Bids()
    assert padded(env) is env


@pytest.mark.parametrize("arguments", [{}, {"masks": True}, {"numbers": True}, {"leaves": 3}])
def test_rows_of_roles_are_those_of_the_environment(arguments: dict[str, Any]) -> None:
    """Each role's rows beside the environment itself; the hare's second row is always absent."""
    env, games = made(3, **arguments), [padded(Chase(**arguments)) for _ in range(3)]
    assert (env.num_members, env.envs_per_member, env.spec.has_absent_agents) == (2, 6, True)
    places = {"wolf_0": (0, 0), "wolf_1": (0, 1), "hare_0": (1, 0)}  # role and row in its game
    for game, seed in zip(games, env.inner.last_seeds(0), strict=True):
        game.seen = game.reset(seed=seed)[0]
    generator, ended = torch.Generator().manual_seed(0), 0
    for _ in range(20):
        seen, present = env.observe().view(2, 3, 2, -1), env.present().view(2, 3, 2)
        assert not present[1, :, 1].any()
        assert not seen[1, :, 1].any()
        action = random_actions(env, generator)
        step = env.step(action)
        env.check()
        acted, reward = action.view(2, 3, 2, -1), step.reward.view(2, 3, 2)
        ends = [tensor.view(2, 3, 2) for tensor in (step.terminated, step.truncated)]
        for index, game in enumerate(games):
            given: dict[str, Any] = {}
            for agent, (role, slot) in places.items():
                assert bool(present[role, index, slot]) == (agent in game.agents)
                if agent not in game.agents:
                    assert not seen[role, index, slot].any()
                    continue
                own = game.seen[agent]
                own = own["observation"] if isinstance(own, dict) else own
                assert seen[role, index, slot].tolist() == own.tolist()
                made_by = acted[role, index, slot]
                given[agent] = made_by.numpy() if env.if_discrete is False else int(made_by)
            game.seen, rewards, over, late, _ = game.step(given)
            for agent, (role, slot) in places.items():
                assert float(reward[role, index, slot]) == pytest.approx(rewards.get(agent, 0.0))
                for found, wanted in zip(ends, (over, late), strict=True):
                    assert bool(found[role, index, slot]) == wanted.get(agent, False)
            if not game.agents:
                ended += 1
                game.seen = game.reset()[0]
            else:
                game.seen = {own: game.seen[own] for own in game.agents}
        assert not reward[1, :, 1].any()
    assert ended == 6


def test_returns_are_each_roles_own() -> None:
    env = made(8, groups=2)
    generator = torch.Generator().manual_seed(0)
    played = play_episodes(env, lambda _: random_actions(env, generator), env.roles.rows)
    wolves, hares = played.returns[::2], played.returns[1::2]
    # Two wolves get what a hare loses, each, and pay for their steps.
    assert wolves == pytest.approx(-2 * hares - 0.2 * STEPS)
    assert (played.lengths == STEPS).all()
    counts = torch.arange(env.num_envs) % 2 == 0  # one wolf of each game
    env.reset([0, 1, 2, 3])
    generator.manual_seed(0)
    act = lambda _: random_actions(env, generator)  # noqa: E731
    one = play_episodes(env, act, env.roles.rows, counts=counts)
    assert one.returns[::2] == pytest.approx(-hares - 0.1 * STEPS)


def test_groups_do_not_depend_on_each_other() -> None:
    alone, both = made(3), made(3, groups=2)
    both.reset([5, 6, 0, 1])
    alone.reset([0, 1])
    for step in range(12):
        choice = torch.arange(alone.num_envs) * (step + 1) % 2
        one = alone.step(choice)
        two = both.step(torch.cat((choice.flip(0), choice)))
        for own, other in zip(one, two, strict=True):
            assert torch.equal(own, other[-len(own) :])


def test_members_that_are_no_whole_groups_are_refused() -> None:
    game = get_game(NAME)
    with pytest.raises(
        InputError, match="3 members cannot play in groups of the 2 roles wolf, hare"
    ):
        game.make([game.params(roles=ROLES)] * 3, 2, together=1, device="cpu")


def test_different_spaces_without_roles_are_refused_with_the_flag() -> None:
    game = get_game(NAME)
    with pytest.raises(InputError, match="--roles 'wolf=wolf_0,wolf_1;hare=hare_0'"):
        game.make([game.params()], 2, together=1, device="cpu")


def test_restored_groups_begin_new_episodes_the_same_ones_each_time() -> None:
    env = made(3, groups=2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        env.step(random_actions(env, generator))
    states = [env.get_member(member) for member in range(2)]
    seen = []
    for first in (2, 0):  # another group, then the same one
        other = made(3, groups=2)
        for member, state in enumerate(states):
            other.set_member(first + member, state)
            assert other.restarted(first + member)
        rows = other.observe()[first * 6 :][:12]
        assert not torch.equal(rows, env.observe()[:12])
        seen.append(rows)
    assert torch.equal(*seen)
