"""Define a game of two players as batched tensors: rock-paper-scissors, seven rounds.

Search it with: PYTHONPATH=examples sweepd train --env two_player_game:DUEL --n-trials 8
"""

from dataclasses import dataclass

import torch

from sweepd.parts import TensorGame


@dataclass(frozen=True)
class Rounds:
    """The game's parameters; the members of a batch may have different values."""

    rounds: int = 7


class Imitator:
    """A scripted player: it begins with rock and then repeats the other's last hand."""

    uniforms, memory = 0, 0

    def start(self, uniforms):
        """Return its memory at the start of an episode: nothing."""
        return uniforms

    def act(self, obs, memory, uniforms):  # noqa: ARG002
        """Return its hands, and its memory."""
        return obs[:, 3:6].argmax(1), memory


class Duel(TensorGame):
    """Both show rock (0), paper (1) or scissors (2) at the same time. The winner gets 1 point."""

    seats, state_dim, action_dim, if_discrete = 2, 6, 3, True

    def step_limit(self, params):
        """Return the number of rounds."""
        return params.rounds

    def start(self, uniforms):
        """Return the last hands of both players: none. Tensors of seats are (games, seats)."""
        return {"hands": torch.full((len(uniforms), 2), -1, device=uniforms.device)}

    def move(self, state, action, uniforms):  # noqa: ARG002
        """Return the next state, both rewards, and whether the episode is over."""
        # 1 where the first hand wins, 2 where the second one does.
        lead = (action[:, 0] - action[:, 1]).remainder(3)
        first = (lead == 1).double() - (lead == 2).double()
        return {"hands": action}, torch.stack((first, -first), 1), torch.zeros_like(lead).bool()

    def see(self, state):
        """Return (games, seats, 6): the last hands of oneself and of the other, one-hot."""
        hand = torch.arange(3, device=state["hands"].device)
        shown = (state["hands"].unsqueeze(2) == hand).float()
        return torch.cat((shown, shown.flip(1)), 2)


DUEL = Duel.game(Rounds, scripted=lambda _: {"imitator": Imitator()})


def main() -> None:
    """Play 1,000 games at once: the hand that beats one's own last one beats the imitator."""
    env = Duel([Rounds()], envs_per_member=2 * 1000)
    obs, total = env.reset(1), torch.zeros(2)
    for _ in range(7):
        own, other = obs[0::2], obs[1::2]
        hand = (own[:, :3].argmax(1) + 1) % 3
        repeated, _ = Imitator().act(other, None, None)
        made = env.step(torch.stack((hand, repeated), 1).flatten())
        obs, total = made.obs, total + made.reward.view(-1, 2).mean(0)
    print(f"points of both players after 7 rounds: {total[0]:.0f} and {total[1]:.0f}")


if __name__ == "__main__":
    main()
