"""Checks of how a game is made, of what it declares, and of the shapes that its rules return."""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.core.env_spec import BYTES
from sweepd.envs.games.batched_rules import State
from sweepd.envs.games.opponents import Opponents
from sweepd.envs.games.rules import GameRules
from sweepd.envs.support.errors import InputError


def check_seats(rules: GameRules, opponents: Opponents | None, *, outcome_rewards: bool) -> None:
    """Check that a game can be made with these opponents.

    Raises:
        InputError: It cannot.
    """
    name = rules.env_name
    if rules.seats != 2 and (opponents or outcome_rewards):
        raise InputError(
            f"{name} has {rules.seats} seats; only games of two have opponents and outcomes"
        )
    if opponents and len(opponents.shares) != rules.num_members:
        raise InputError(
            f"the opponents are for {len(opponents.shares)} members, not {rules.num_members}"
        )


def check_declaration(rules: GameRules) -> None:
    """Check the attributes of a game.

    Raises:
        InputError: They do not fit together.
    """
    name, spec = rules.env_name, rules.spec
    if rules.in_turns and rules.seats != 2:
        raise InputError(f"{name} is in turns with {rules.seats} seats; games in turns have two")
    if rules.in_turns and not spec.if_discrete:
        raise InputError(f"{name} is in turns, and its actions are numbers; set if_discrete = True")
    strict = rules.in_turns or spec.masked or bool(spec.action_dims)
    if strict and type(rules).decode is not GameRules.decode:
        raise InputError(
            f"{name} overrides decode, which games with masks, several choices or turns cannot: "
            "their rules get actions as they are"
        )
    if spec.seat_column is not None and not rules.in_turns:
        raise InputError(f"{name} has a seat_column, which only games in turns have")


def check_rules(rules: GameRules, begun: State) -> None:
    """Check the shapes of what rules return for a state in which episodes begin.

    Raises:
        InputError: `mover`, `see` or `mask` returns another shape or type.
    """
    name, spec, games = rules.env_name, rules.spec, rules.num_games
    axes = (games,) if rules.seats == 1 or rules.in_turns else (games, rules.seats)
    of_seat: tuple[Tensor, ...] = ()
    if rules.in_turns:
        mover = rules.mover(begun)
        if mover.shape != (games,) or mover.dtype != torch.int64:
            raise InputError(
                f"{name}.mover returns the shape {tuple(mover.shape)} of {mover.dtype}; it must be "
                f"({games},) of torch.int64 here: the seat to move in each game"
            )
        of_seat = (mover,)
        _check_seat_column(rules, begun, mover)
    seen = rules.see(begun, *of_seat)
    _check_columns(rules, axes, "see", seen, "state_dim")
    if spec.privileged_dim:
        known = rules.privileged(begun, *of_seat)
        _check_columns(rules, axes, "privileged", known, "privileged_dim")
    if spec.obs_dtype == BYTES and seen.dtype != torch.uint8:
        raise InputError(f"{name}.see returns {seen.dtype}, and its obs_dtype is {BYTES!r}")
    if spec.masked:
        for choice, size in enumerate(spec.choices):
            mask = rules.mask(
                begun, torch.zeros(*axes, choice, dtype=torch.int64, device=seen.device)
            )
            if mask.shape != (*axes, size) or mask.dtype != torch.bool:
                raise InputError(
                    f"{name}.mask returns the shape {tuple(mask.shape)} of {mask.dtype} for choice "
                    f"{choice} (from 0); it must be {(*axes, size)} of torch.bool here"
                )


def _check_seat_column(rules: GameRules, begun: State, mover: Tensor) -> None:
    column = rules.spec.seat_column
    if column is None:
        return
    first, second = (
        rules.see(begun, torch.full_like(mover, seat))[:, column].double() for seat in (0, 1)
    )
    if not bool((((first == 0) | (first == 1)) & (first + second == 1)).all()):
        raise InputError(
            f"{rules.env_name}.see: in every game, column {column} (seat_column) must be 0 for one "
            "seat and 1 for the other"
        )


def _check_columns(
    rules: GameRules, axes: tuple[int, ...], function: str, found: Tensor, size: str
) -> None:
    wanted = (*axes, getattr(rules.spec, size))
    if found.shape != wanted:
        raise InputError(
            f"{rules.env_name}.{function} returns the shape {tuple(found.shape)}; it must be "
            f"{wanted} here: (games, {'seats, ' if len(axes) > 1 else ''}{size})"
        )
