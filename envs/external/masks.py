"""Which options are legal, where environments say so beside what they show ("action_mask")."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from envs.core.mask_faults import MaskLatch
from envs.external.hosted import HostedEnvs

_SHOWN = 8  # numbers of an observation that a message about a row has


class Masks:
    """The masks that lie in some buffers. latch: remembers rows in which nothing was legal, with the player and the
    first numbers of what it saw.
    """

    def __init__(self, envs: HostedEnvs, rows_per_member: int) -> None:
        self._buffers, self._observations = envs.buffers, envs.observations
        self._starts = [0, *accumulate(envs.actions.choices)]
        rows = len(self._buffers.obs)
        self._player = torch.arange(rows)[:, None] % envs.rows
        names = [
            "player",
            *(f"observation[{at}]" for at in range(min(_SHOWN, self._observations.size))),
        ]
        self.latch = MaskLatch(rows, rows_per_member, names, torch.device("cpu"))

    def options(self) -> NDArray[np.bool_]:
        """(rows, options of all choices, one choice after the other): all of them where nobody is there. Latches the
        rows in which none is legal.
        """
        options = self._observations.flags(self._buffers.obs) | ~self._buffers.present[:, None]
        some = np.logical_or.reduceat(options, self._starts[:-1], axis=1)
        if not some.all():  # environments live on the host: asking costs nothing
            raw = torch.from_numpy(self._buffers.obs.view(np.uint8).reshape(len(options), -1))
            seen = self._observations.unpack(raw)[:, :_SHOWN]
            for choice in range(some.shape[1]):
                state = torch.cat((self._player.double(), seen.double()), 1)
                self.latch.look(torch.from_numpy(some[:, choice : choice + 1]), choice, state)
        return options

    def of_choice(self, choice: int) -> Tensor:
        """(rows, options of that choice)."""
        return torch.from_numpy(self.options()[:, self._starts[choice] : self._starts[choice + 1]])


def masks_of(envs: HostedEnvs, rows_per_member: int) -> Masks | None:
    """None where they have none: everything is legal."""
    return Masks(envs, rows_per_member) if envs.observations.masked else None
