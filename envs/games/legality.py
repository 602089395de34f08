"""The strict check of actions, in games with several choices, masks or turns."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sweepd.envs.core.faults import Fault
from sweepd.envs.core.vec_env import Legal


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


def masks_at(
    fault: Fault, sizes: Sequence[int], mask: Legal | None, games: Tensor, *, several: bool
) -> list[list[list[bool]]]:
    """Return, for every seat that acted, the masks of its choices, each given the earlier ones.

    Args:
        fault: The fault; its values are the options of all seats' choices, one after the other, as
            they were given. Numbers that are no option count as the nearest one.
        sizes: The number of options of each choice.
        mask: See `legal_action`; None: all options are legal.
        games: Any tensor with one row per game, for all of which `mask` is computed.
        several: Whether `mask` takes the choices of several seats per game.
    """
    count = len(sizes)
    options = [
        min(max(0, int(option)), sizes[index % count] - 1)
        for index, option in enumerate(fault.values)
    ]
    chosen = torch.tensor(options, device=games.device).view(-1, count)
    found: list[list[list[bool]]] = [[] for _ in chosen]
    for choice, size in enumerate(sizes):
        of_seats = [[True] * size] * len(chosen)
        if mask is not None:
            made = chosen[:, :choice].expand(len(games), -1, -1)
            rows = mask(made if several else made[:, 0])[fault.row].view(-1, size)
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
        fault: See `masks_at`.
        sizes: The number of options of each choice.
        names: Of the seats; those beyond the masks did not act.
        masks: See `masks_at`.
        position: The game's position before the action.
    """
    given = [int(option) for option in fault.values]
    for index, (seat, of_seat) in enumerate(zip(names, masks, strict=False)):
        action = given[index * len(sizes) : (index + 1) * len(sizes)]
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
        f"{place} got an illegal action in step {fault.step}: {given}. The position before "
        f"it: {position}"
    )
