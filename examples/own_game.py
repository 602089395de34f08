"""Define a game of your own as batched tensors, and play it at random.

Search it with: PYTHONPATH=examples sweepd train --env own_game:TARGET --n-trials 8
"""

from dataclasses import dataclass

import torch

from sweepd.parts import TensorGame


@dataclass(frozen=True)
class Wind:
    """The game's parameters; the members of a batch may have different values."""

    gust: float = 0.2


class Target(TensorGame):
    """Stay near the middle of a line while the wind pushes."""

    state_dim, action_dim, if_discrete = 2, 1, False
    max_step, uniforms_per_start, uniforms_per_move = 100, 1, 1

    def start(self, uniforms):
        """Begin at a random place from -1 to 1, without speed."""
        place = 2.0 * uniforms[:, 0] - 1.0
        return {"place": place, "speed": torch.zeros_like(place)}

    def move(self, state, action, uniforms):
        """Return the next state, the reward, and whether the episode is over."""
        gust = self.numbers["gust"] * (uniforms[:, 0] - 0.5)
        speed = 0.9 * state["speed"] + 0.1 * action[:, 0] + gust
        place = state["place"] + speed
        return {"place": place, "speed": speed}, 1.0 - place.abs(), place.abs() > 3.0

    def see(self, state):
        """Return the observation."""
        return torch.stack((state["place"], state["speed"]), 1)


TARGET = Target.game(Wind)


def main() -> None:
    """Step 2 members x 512 environments; the second member plays in a stronger wind."""
    env = Target([Wind(gust=0.1), Wind(gust=0.5)], envs_per_member=512)
    env.reset([1, 2])
    env.draw(64)  # the random numbers of the next 64 steps
    total = torch.zeros(env.num_envs)
    for _ in range(64):
        total += env.step(2.0 * torch.rand(env.num_envs, 1) - 1.0).reward
    weak, strong = total.view(2, 512).mean(1).tolist()
    print(
        f"mean reward of 64 random steps: {weak:.1f} in a weak wind, {strong:.1f} in a strong one"
    )


if __name__ == "__main__":
    main()
