"""Define a game in turns with masks: Nim with three piles, in which the last stone wins.

Search it with: PYTHONPATH=examples sweepd train --env nim:NIM --n-trials 8
"""

import torch

from sweepd.parts import NoParams, TensorGame


class Eager:
    """A scripted player: it takes as much as it may from the first pile that is left."""

    uniforms, memory = 0, 0

    def start(self, uniforms):
        """Return its memory at the start of an episode: nothing."""
        return uniforms

    def act(self, obs, memory, uniforms, legal):  # noqa: ARG002
        """Return its decisions (games, 2), and its memory."""
        pile = (obs[:, :3] > 0).byte().argmax(1, keepdim=True)
        most = legal(pile).sum(1, keepdim=True) - 1  # the mask of the second choice
        return torch.cat((pile, most), 1), memory


class Nim(TensorGame):
    """A decision is a pile (0 to 2) and a number of its stones (0: one stone, to 2: three)."""

    seats, in_turns, masked = 2, True, True
    state_dim, action_dims, if_discrete = 3, (3, 3), True
    uniforms_per_start, max_step = 3, 15

    def start(self, uniforms):
        """Return piles of one to five stones; the first seat begins."""
        piles = 1 + (5 * uniforms).long()
        return {"piles": piles, "mover": torch.zeros_like(piles[:, 0])}

    def mover(self, state):
        """Return the seat to move, (games,)."""
        return state["mover"]

    def mask(self, state, chosen):
        """Return the legal options of the next choice, given the earlier ones (games, k)."""
        piles = state["piles"]
        if not chosen.shape[1]:
            return piles > 0
        return torch.arange(3, device=piles.device) < piles.gather(1, chosen)

    def move(self, state, action, uniforms):  # noqa: ARG002
        """Play the mover's action (games, 2); rewards are for both seats."""
        piles = state["piles"].scatter_add(1, action[:, :1], -1 - action[:, 1:])
        over = piles.sum(1) == 0
        first = (1.0 - 2.0 * state["mover"]) * over
        state = {"piles": piles, "mover": 1 - state["mover"]}
        return state, torch.stack((first, -first), 1), over

    def see(self, state, seat):  # noqa: ARG002
        """Return what `seat` (games,) sees: everything, as nothing is hidden here."""
        return state["piles"]

    def describe(self, state, game):
        """Return the position of one game, for `sweepd play` and for errors."""
        piles = " ".join("o" * stones or "-" for stones in state["piles"][game].tolist())
        return f"{piles}   seat {int(state['mover'][game])} to move"


NIM = Nim.game(scripted=lambda _: {"eager": Eager()})


def main() -> None:
    """Play 1,000 games at once, in which both seats are eager: how often the first one wins."""
    env = Nim([NoParams()], envs_per_member=1000)
    obs, won, played = env.reset(1), 0, 0
    for _ in range(40):
        made = env.step(Eager().act(obs, None, None, env.action_mask)[0])
        obs, played = made.obs, played + int(made.terminated.sum())
        won += int((made.reward[:, 0] > 0).sum())
    env.check()
    print(f"the first of two eager players wins {won / played:.0%} of {played} games")


if __name__ == "__main__":
    main()
