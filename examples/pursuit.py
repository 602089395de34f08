"""Define a game of two players as batched tensors: a chaser and a runner, equally fast.

Search it with: PYTHONPATH=examples sweepd train --env pursuit:PURSUIT --phases examples/pursuit.toml
"""

import torch

from sweepd.parts import NoParams, TensorGame


class Straight:
    """A scripted player: it chases along the straight line, or flees in a drawn direction."""

    uniforms, memory = 1, 1

    def start(self, uniforms):
        """Return its memory at the start of an episode, (games, 1): the direction."""
        return 6.2832 * uniforms

    def act(self, obs, memory, uniforms):  # noqa: ARG002
        """Return its actions, (games, 2), and its memory."""
        gap, role = obs[:, :2], obs[:, 2:]
        chase = gap / gap.abs().amax(1, keepdim=True).clamp_min(1e-6)
        flee = torch.cat((memory.cos(), memory.sin()), 1).to(obs.dtype)
        return torch.where(role > 0, chase, flee), memory


class Pursuit(TensorGame):
    """The first seat wins by catching the second within 60 steps, on a square without borders."""

    seats, state_dim, action_dim, if_discrete = 2, 3, 2, False
    max_step, uniforms_per_start = 60, 2

    def start(self, uniforms):
        """Return the position of the runner seen from the chaser, (games, 2), in [-1, 1)."""
        return {"gap": 2.0 * uniforms - 1.0}

    def move(self, state, action, uniforms):  # noqa: ARG002
        """Return the next state, both rewards, and whether the episode is over."""
        gap = state["gap"] + 0.05 * (action[:, 1] - action[:, 0])
        gap = (gap + 1.0).remainder(2.0) - 1.0
        caught = gap.abs().amax(1) < 0.1
        # Besides catching, the distance is rewarded: it tells early which way is right.
        reward = caught.double() - 0.02 * gap.abs().amax(1)
        return {"gap": gap}, torch.stack((reward, -reward), 1), caught

    def see(self, state):
        """Return (games, seats, 3): the other's position seen from here, and one's role."""
        seen = torch.nn.functional.pad(state["gap"], (0, 1), value=1.0)
        return torch.stack((seen, -seen), 1)

    def outcome(self, state, returns):  # noqa: ARG002
        """Return who won, (games, 2): the runner if it was not caught."""
        first = (state["gap"].abs().amax(1) < 0.1).double()
        return torch.stack((first, 1.0 - first), 1)


PURSUIT = Pursuit.game(scripted=lambda _: {"straight": Straight()})


def main() -> None:
    """Play 1,000 games at once, with the scripted player at both seats."""
    env, player = Pursuit([NoParams()], envs_per_member=2 * 1000), Straight()
    obs, memory = env.reset(1), player.start(torch.rand(2 * 1000, 1))
    caught = torch.zeros(2 * 1000, dtype=torch.bool)
    for _ in range(env.max_step):
        made = env.step(player.act(obs, memory, None)[0])
        obs, caught = made.obs, caught | made.terminated
    print(f"the chaser catches {caught.float().mean():.0%} of the runners")


if __name__ == "__main__":
    main()
