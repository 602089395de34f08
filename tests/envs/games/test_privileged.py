"""Columns that only critics read: what a seat does not see."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from sweepd.agents.algorithms.ppo import PPO, PPOParams, Shape
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.games.opponents import Scripted
from sweepd.envs.games.poker.kuhn import Kuhn
from sweepd.envs.games.poker.leduc import Leduc
from sweepd.envs.games.tensor_game import NoParams, State, TensorGame
from sweepd.envs.support.errors import InputError
from tests.envs.games.toys import Showdown


class Folder:
    """Always takes the first option."""

    uniforms = 0
    memory = 0

    def start(self, uniforms: Tensor) -> Tensor:
        return uniforms

    def act(
        self, obs: Tensor, memory: Tensor, uniforms: Tensor, legal: Legal | None = None
    ) -> tuple[Tensor, Tensor]:
        del uniforms, legal
        return torch.zeros(len(obs), dtype=torch.int64, device=obs.device), memory


class OpenShowdown(Showdown):
    """Critics know the other seat's card."""

    privileged_dim = 3

    def privileged(self, state: State) -> Tensor:  # type: ignore[override]
        return torch.nn.functional.one_hot(state["cards"].flip(1), 3)


def random_step(env: TensorGame, generator: torch.Generator) -> Tensor:
    legal = env.action_mask(torch.zeros(env.num_envs, 0, dtype=torch.int64))
    action = torch.rand(legal.shape, generator=generator).masked_fill(~legal, -1.0).argmax(1)
    return env.step(action).obs


@pytest.mark.parametrize("game", [Kuhn, Leduc])
def test_critics_of_the_player_to_move_see_the_hidden_cards(game: type[TensorGame]) -> None:
    env = game([NoParams()] * 2, 50)
    obs, generator = env.reset(3), torch.Generator().manual_seed(1)
    deck = {Kuhn: 3, Leduc: 6}[game]
    for _ in range(12):
        assert obs.shape == (100, env.spec.obs_dim)
        state = env.state
        for row, seat in enumerate(env.to_move().tolist()):
            own, other = (int(state["cards"][row, place]) for place in (seat, 1 - seat))
            seen, known = obs[row, : env.state_dim], obs[row, env.state_dim :]
            assert seen[2 : 2 + deck].argmax() == own
            assert known[:deck].argmax() == other
            assert known[:deck].sum() == 1
            if game is Leduc:
                assert known[deck:].argmax() == state["cards"][row, 2]
        obs = random_step(env, generator)


def test_rows_without_an_agent_show_critics_nothing() -> None:
    env = Kuhn([NoParams()], 64, opponents=Scripted({"folder": Folder()}, 1))
    env.reset(0)
    absent = ~env.present()
    assert absent.any()
    assert not env.observe()[absent].any()


def test_seats_that_act_at_once_and_final_observations_have_their_own_columns() -> None:
    env = OpenShowdown([NoParams()], 8)
    obs = env.reset(0)
    assert obs.shape == (8, 6)
    assert torch.equal(obs[0::2, :3], obs[1::2, 3:])
    assert torch.equal(obs[1::2, :3], obs[0::2, 3:])
    env.step(torch.zeros(8, dtype=torch.int64))
    assert torch.equal(env.final_obs(), obs)


def test_policies_do_not_read_them_and_critics_do() -> None:
    env = Kuhn([NoParams()], 256)
    shape = Shape.for_env(env, net_width=16, horizon=8, epochs=1, minibatch=512)
    ppo = PPO(shape)
    ppo.add_member(0, PPOParams(), 1, 2, torch.zeros(14), torch.ones(14))
    obs = env.reset(1)
    ppo.begin(obs)
    other = obs.clone()
    other[:, 11:] = 1 - other[:, 11:]
    act = ppo.act_fn()
    assert torch.equal(act(obs, env.action_mask), act(other, env.action_mask))
    actor, critic = ppo.export_member(0)
    assert actor["net.0.weight"].shape[1] == 11
    assert critic["net.0.weight"].shape[1] == 14
    ppo.train(env, 2)


class WrongColumns(OpenShowdown):
    privileged_dim = 4


class Bytes(OpenShowdown):
    obs_dtype = "uint8"


class Missing(Showdown):
    privileged_dim = 1


@pytest.mark.parametrize(
    ("game", "error", "message"),
    [
        (WrongColumns, InputError, "privileged returns the shape"),
        (Bytes, InputError, "privileged_dim must be 0 where obs_dtype is 'uint8'"),
        (Missing, NotImplementedError, "has privileged_dim, and no privileged"),
    ],
)
def test_a_wrong_declaration_is_refused(game: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        game([NoParams()], 4)
