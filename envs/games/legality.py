"""Checks of actions; strict ones in games with several choices, masks or turns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.core.faults import ChoiceLatch, FaultLatch
from sweepd.envs.core.vec_env import Legal
from sweepd.envs.games.rules import GameRules
from sweepd.envs.support.errors import RunError


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


def keep_first(mask: Legal) -> Legal:
    """Return the same masks, where that of the first choice is computed once."""
    first: list[Tensor] = []

    def legal(chosen: Tensor) -> Tensor:
        if chosen.shape[-1]:
            return mask(chosen)
        if not first:
            first.append(mask(chosen))
        return first[0]

    return legal


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


class ChoiceRows(ChoiceLatch):
    """Checks the actions of rows that make one choice, all options of which are legal."""

    def legal(self, action: Tensor) -> Tensor:
        """Record actions, (rows,) int64, and return legal ones in their place."""
        self.record(action)
        return action.clamp(0, self._choices[0] - 1)


class NumberRows(FaultLatch):
    """Checks the actions of rows that are numbers from -1 to 1."""

    def legal(self, action: Tensor) -> Tensor:
        """Record actions, (rows, components), and return legal ones in their place, float64."""
        self.record(action.t().double())
        # NaN becomes 0: the row is faulty, and its numbers must stay finite until `check`.
        return action.double().nan_to_num(0.0).clamp(-1.0, 1.0)


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

    def legal(self, action: Tensor) -> Tensor:
        """Return actions of rows as they are: they are checked with those of the opponents."""
        return action

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


Latch = ChoiceRows | NumberRows | ActionLatch


def make_latch(rules: GameRules, games: int, explain: Callable[[Fault], str]) -> Latch:
    """Return the check of a game's actions; see `ActionLatch`."""
    rows, own, device = rules.num_envs, rules.envs_per_member, rules.device
    if rules.spec.masked or rules.spec.action_dims or rules.in_turns:
        acting = 1 if rules.in_turns else rules.seats
        return ActionLatch(games, acting * max(1, len(rules.action_dims)), explain, device)
    if rules.if_discrete:
        return ChoiceRows(rows, own, rules.action_dim, device)
    components = [str(component) for component in range(rules.action_dim)]
    return NumberRows(rows, own, components, device)


def masks_at(
    fault: Fault, sizes: Sequence[int], mask: Legal | None, games: Tensor, *, several: bool
) -> list[list[list[bool]]]:
    """Return, for every seat that acted, the masks of its choices, each given the earlier ones.

    Args:
        fault: The fault. Numbers that are no option count as the nearest one.
        sizes: The number of options of each choice.
        mask: See `legal_action`; None: all options are legal.
        games: Any tensor with one row per game, for all of which `mask` is computed.
        several: Whether `mask` takes the choices of several seats per game.
    """
    count = len(sizes)
    options = [
        min(max(0, option), sizes[index % count] - 1) for index, option in enumerate(fault.action)
    ]
    chosen = torch.tensor(options, device=games.device).view(-1, count)
    found: list[list[list[bool]]] = [[] for _ in chosen]
    for choice, size in enumerate(sizes):
        of_seats = [[True] * size] * len(chosen)
        if mask is not None:
            made = chosen[:, :choice].expand(len(games), -1, -1)
            rows = mask(made if several else made[:, 0])[fault.game].view(-1, size)
            of_seats = rows.tolist()
        for own, of_seat in zip(found, of_seats, strict=True):
            own.append(of_seat)
    return found


def fault_message(
    place: str,
    fault: Fault,
    sizes: Sequence[int],
    names: Sequence[str],
    masks: Sequence[Sequence[list[bool]]],
    position: str,
) -> str:
    """Return what a fault's error says.

    Args:
        place: The row, its member and its env.
        fault: The fault.
        sizes: The number of options of each choice.
        names: Of the seats; those beyond the masks did not act.
        masks: See `masks_at`.
        position: The game's position before the action.
    """
    for index, (seat, of_seat) in enumerate(zip(names, masks, strict=False)):
        action = fault.action[index * len(sizes) : (index + 1) * len(sizes)]
        for choice, (option, size, mask) in enumerate(zip(action, sizes, of_seat, strict=True)):
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
