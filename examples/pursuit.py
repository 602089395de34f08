"""Define a game of two players as batched tensors: a chaser and a faster runner in a square.

Search it with: PYTHONPATH=examples sweepd train --env pursuit:PURSUIT --phases examples/pursuit.toml
"""

import torch

from envs.games.tensor_game import NoParams, TensorGame


class Straight:
    """A scripted player: it chases along the straight line, or flees in a drawn direction."""

    uniforms, memory = 1, 1

    def start(self, uniforms):
        """Return its memory at the start of an episode, (games, 1): the direction."""
        return 6.2832 * uniforms

    def act(self, obs, memory, uniforms):  # noqa: ARG002
        """Return its actions, (games, 2), and its memory."""
        away = torch.cat((memory.cos(), memory.sin()), 1).to(obs.dtype)
        return torch.where(obs[:, 4:] > 0, obs[:, :2].sign(), away), memory


class Pursuit(TensorGame):
    """The first seat wins by catching the second within 100 steps. Actions are velocities."""

    seats, state_dim, action_dim, if_discrete = 2, 5, 2, False
    max_step, uniforms_per_start = 100, 4

    def start(self, uniforms):
        """Return the positions, (games, seats, 2), in the square from -1 to 1."""
        at = 2.0 * uniforms.view(-1, 2, 2) - 1.0
        return {"at": at, "caught": torch.zeros_like(at[:, 0, 0], dtype=torch.bool)}

    def move(self, state, action, uniforms):  # noqa: ARG002
        """Return the next state, both rewards, and whether the episode is over."""
        pace = torch.tensor([[0.04], [0.05]], dtype=action.dtype, device=action.device)
        at = (state["at"] + pace * action).clamp(-1.0, 1.0)
        gap = at[:, 0] - at[:, 1]
        caught = torch.hypot(gap[:, 0], gap[:, 1]) < 0.1
        # The chaser is paid for catching, and both for what brings them there.
        reward = caught.double() - 0.01 * gap.abs().sum(1)
        return {"at": at, "caught": caught}, torch.stack((reward, -reward), 1), caught

    def see(self, state):
        """Return (games, seats, 5): the other's position from here, one's own, and one's role."""
        at = state["at"]
        role = torch.tensor([1.0, -1.0], dtype=at.dtype, device=at.device)
        return torch.cat((at.flip(1) - at, at, role.expand(len(at), 2).unsqueeze(2)), 2)

    def outcome(self, state, returns):  # noqa: ARG002
        """Return who won, (games, 2): the second seat if it was not caught."""
        first = state["caught"].double()
        return torch.stack((first, 1.0 - first), 1)


PURSUIT = Pursuit.game(scripted=lambda _: {"straight": Straight()})


def main() -> None:
    """Play 1,000 games at once, with scripted players at both seats."""
    env, player = Pursuit([NoParams()], envs_per_member=2 * 1000), Straight()
    obs, memory = env.reset(1), player.start(torch.rand(2 * 1000, 1))
    caught = torch.zeros(2 * 1000, dtype=torch.bool)
    for _ in range(env.max_step):
        made = env.step(player.act(obs, memory, None)[0])
        obs, caught = made.obs, caught | made.terminated
    print(f"the chaser catches {caught.float().mean():.0%} of the runners that flee straight on")


if __name__ == "__main__":
    main()
