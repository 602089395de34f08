"""A recurrent player that is seated in a game in turns: a state per row and seat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sweepd.agents.policy.frozen import FrozenPolicy
from sweepd.agents.policy.members import actor_of
from sweepd.deploy.games.player import Network
from sweepd.envs.games.opponents import Scripted
from sweepd.envs.games.tensor_game import NoParams
from tests.agents.policy.test_turns import recurrent
from tests.envs.games.toys import NIM_PLAYERS, Nim

GAMES = 10


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("opponents", [False, True])
def test_a_seated_player_acts_as_one_policy_per_row_and_seat(kind: str, opponents: bool) -> None:
    """At both seats, or at its own while scripted players have the other one."""
    actor = actor_of(recurrent(kind), 1)
    env = Nim([NoParams()], GAMES, opponents=Scripted(NIM_PLAYERS, 1) if opponents else None)
    env.reset(3)
    act: Any = Network(FrozenPolicy([actor])).seated(env, 0)
    alone = [[FrozenPolicy([actor]) for _ in range(2)] for _ in range(GAMES)]
    made, forgetful = 0, 0
    for _ in range(30):
        obs = env.observe()
        action = act(obs)
        for row in range(GAMES):
            if opponents and not bool(env.present()[row]):
                continue
            seat = 0 if opponents else int(env.to_move()[row])

            def legal(chosen: Any, row: int = row) -> Any:
                return env.action_mask(chosen.expand(GAMES, -1))[row : row + 1]

            seen = obs[row].numpy().astype(np.float32)
            wanted = alone[row][seat].act(seen, legal).astype(int).tolist()
            assert action[row].tolist() == wanted
            made += 1
            forgetful += wanted != FrozenPolicy([actor]).act(seen, legal).astype(int).tolist()
        over = env.step(action).terminated
        act.ended(over)
        for row in torch.nonzero(over).flatten().tolist():
            for policy in alone[row]:
                policy.reset()
    assert made > 60
    assert forgetful > 2  # decisions that depend on the states
