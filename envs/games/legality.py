"""Strict checks of actions in games with several choices, masks or turns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from envs.core.vec_env import Legal
from envs.support.errors import RunError


def legal_action(action: Tensor, sizes: Sequence[int], mask: Legal | None) -> tuple[Tensor, Tensor]:
    """Return actions in which illegal options are replaced, and which actions were legal.

    An illegal option is replaced by the first legal one, so that rules get legal actions only, and
    no index is out of range. Without any legal option, it is 0.

    Args:
        action: (..., choices) int64, of any values.
        sizes: The number of options of each choice.
        mask: Maps the first k choices, (..., k) int64, to the legal options of the next one,
            (..., options) bool. None: all options are legal.

    Returns:
        (..., choices) int64, and (...) bool.
    """
    made = action[..., :0]
    legal = torch.ones_like(action[..., 0], dtype=torch.bool)
    for choice, size in enumerate(sizes):
        given = action[..., choice : choice + 1]
        option = given.clamp(0, size - 1)
        right = option == given
        if mask is not None:
            options = mask(made)
            right &= options.gather(-1, option)
            # argmax of bytes, as bool has none.
            option = torch.where(right, option, options.byte().argmax(-1, keepdim=True))
        legal &= right.squeeze(-1)
        made = torch.cat((made, option), -1)
    return made, legal


class Fault(NamedTuple):
    """The first illegal action of a game.

    Attributes:
        game: Its index.
        step: The number of the step, from 1.
        action: The options of all seats' choices, one after the other, as they were given.
    """

    game: int
    step: int
    action: list[int]


class ActionLatch:
    """Latches, per game, the first step with an illegal action, and that action.

    Recorded on the device, and read by the host in `check` only. A game that is latched must stay
    as it was before the illegal action, so that its position can be printed.

    Args:
        games: Number of games.
        columns: Numbers of an action, of all seats.
        explain: Describes a fault.
        device: Device of the actions.
    """

    def __init__(
        self, games: int, columns: int, explain: Callable[[Fault], str], device: torch.device
    ) -> None:
        self._explain = explain
        self._steps = 0  # counted on the host, which needs no synchronization
        self._first = torch.full((games,), torch.inf, dtype=torch.float64, device=device)
        self._action = torch.zeros(games, columns, dtype=torch.int64, device=device)

    def record(self, legal: Tensor, action: Tensor) -> Tensor:
        """Record one step, and return the games that are latched, (games,) bool.

        Args:
            legal: (games,) bool.
            action: (games, columns) int64.
        """
        self._steps += 1
        found = (~legal).logical_and_(self._first.isinf())
        self._first.masked_fill_(found, float(self._steps))
        torch.where(found.unsqueeze(1), action, self._action, out=self._action)
        return self._first.isfinite()

    def clear(self, games: slice) -> None:
        """Clear the faults of these games."""
        self._first[games], self._action[games] = torch.inf, 0

    def latched(self) -> Tensor:
        """Return which games have a fault: (games,) bool."""
        return self._first.isfinite()

    def check(self) -> None:
        """Raise RunError for the earliest fault, and print it. Synchronizes with the device."""
        step, game = self._first.min(0)
        if bool(step.isinf()):
            return
        fault = Fault(int(game), int(step), self._action[game].tolist())
        message = self._explain(fault)
        # Flushed now: the process may not live to report the exception.
        print(message, file=sys.stderr, flush=True)
        raise RunError(message)

    def state(self, games: slice) -> dict[str, Tensor]:
        """Return these games' faults as a flat dict of tensors."""
        return {
            "fault_age": self._steps - self._first[games],
            "fault_action": self._action[games].clone(),
        }

    def set_state(self, games: slice, state: Mapping[str, Tensor]) -> None:
        """Restore what `state` returned."""
        device = self._first.device
        self._first[games] = self._steps - state["fault_age"].to(device)
        self._action[games] = state["fault_action"].to(device)


def fault_message(
    place: str,
    fault: Fault,
    sizes: Sequence[int],
    seats: Sequence[tuple[str, Sequence[list[bool]]]],
    position: str,
) -> str:
    """Return what a fault's error says.

    Args:
        place: The row, its member and its env.
        fault: The fault.
        sizes: The number of options of each choice.
        seats: For each seat whose action counted: its name, and the mask of each choice given the
            seat's earlier choices.
        position: The game's position before the action.
    """
    for index, (seat, masks) in enumerate(seats):
        action = fault.action[index * len(sizes) : (index + 1) * len(sizes)]
        for choice, (option, size, mask) in enumerate(zip(action, sizes, masks, strict=True)):
            if 0 <= option < size and mask[option]:
                continue
            legal = [str(own) for own, allowed in enumerate(mask) if allowed]
            what = f"legal are {', '.join(legal)}" if legal else "no option is legal"
            return (
                f"{place} got an illegal action in step {fault.step}: {seat} gave {action}, and "
                f"{option} is not legal for choice {choice} (from 0): {what}. The position before "
                f"it: {position}"
            )
    # The masks have changed since: the rules depend on more than the state.
    return (
        f"{place} got an illegal action in step {fault.step}: {fault.action}. The position before "
        f"it: {position}"
    )
