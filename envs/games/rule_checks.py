"""Checks of how a game is made, of what it declares, and of the shapes that its rules return."""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.games.opponents import Opponents
from sweepd.envs.games.rules import GameRules, State
from sweepd.envs.support.errors import InputError


def check_seats(rules: GameRules, opponents: Opponents | None, *, outcome_rewards: bool) -> None:
    """Check that a game can be made with these opponents, and with its numbers of rows.

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
    several = not opponents and not rules.in_turns  # rows per game
    if several and rules.envs_per_member % rules.seats:
        raise InputError(
            f"{name} has {rules.seats} seats, and {rules.envs_per_member} envs are not a multiple "
            "of them"
        )


def check_declaration(rules: GameRules) -> None:
    """Check the attributes of a game.

    Raises:
        InputError: They do not fit together.
    """
    name = rules.env_name
    if rules.in_turns and rules.seats != 2:
        raise InputError(f"{name} is in turns with {rules.seats} seats; games in turns have two")
    strict = rules.in_turns or rules.masked or bool(rules.action_dims)
    if strict and not rules.if_discrete:
        raise InputError(
            f"{name} has masks, several choices or turns, and its actions are numbers; set "
            "if_discrete = True"
        )
    if strict and type(rules).decode is not GameRules.decode:
        raise InputError(
            f"{name} overrides decode, which games with masks, several choices or turns cannot: "
            "their rules get actions as they are"
        )
    if rules.obs_dtype not in {torch.float32, torch.uint8}:
        raise InputError(f"{name}.obs_dtype is {rules.obs_dtype}; it must be float32 or uint8")
    if rules.privileged_dim and rules.obs_dtype != torch.float32:
        raise InputError(f"{name} has privileged_dim, which needs obs_dtype torch.float32")
    items = rules.items
    if items is not None and (rules.obs_dtype, rules.state_dim) != (torch.uint8, items.columns):
        raise InputError(
            f"{name}.items has {items.columns} columns, which needs obs_dtype torch.uint8 and a "
            f"state_dim of {items.columns}; they are {rules.obs_dtype} and {rules.state_dim}"
        )
    column = rules.seat_column
    if column is not None and not (rules.in_turns and 0 <= column < rules.state_dim):
        raise InputError(
            f"{name}.seat_column is {column!r}; it must be a column of the observations of a game "
            "in turns"
        )
    if column is not None and items is not None and items.scales()[column] != 1.0:
        raise InputError(
            f"{name}.seat_column is {column}, which items scale by {items.scales()[column]:g}; it "
            "must be a plain column of scale 1"
        )


def check_rules(rules: GameRules, begun: State, games: int) -> None:
    """Check shapes in a state in which episodes begin.

    Raises:
        InputError: `start`, `mover`, `see` or `mask` returns another shape or type.
    """
    name = rules.env_name
    for part, tensor in begun.items():
        if not tensor.shape or tensor.shape[0] != games:
            raise InputError(
                f"{name}.start: {part!r} has the shape {tuple(tensor.shape)}; its "
                f"first dimension must be the games, {games} here"
            )
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
    if rules.privileged_dim:
        known = rules.privileged(begun, *of_seat)
        _check_columns(rules, axes, "privileged", known, "privileged_dim")
    if rules.obs_dtype == torch.uint8 and seen.dtype != torch.uint8:
        raise InputError(f"{name}.see returns {seen.dtype}, and its obs_dtype is torch.uint8")
    if rules.masked:
        for choice, size in enumerate(rules.action_dims or (rules.action_dim,)):
            mask = rules.mask(
                begun, torch.zeros(*axes, choice, dtype=torch.int64, device=seen.device)
            )
            if mask.shape != (*axes, size) or mask.dtype != torch.bool:
                raise InputError(
                    f"{name}.mask returns the shape {tuple(mask.shape)} of {mask.dtype} for choice "
                    f"{choice} (from 0); it must be {(*axes, size)} of torch.bool here"
                )


def _check_seat_column(rules: GameRules, begun: State, mover: Tensor) -> None:
    column = rules.seat_column
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
    wanted = (*axes, getattr(rules, size))
    if found.shape != wanted:
        raise InputError(
            f"{rules.env_name}.{function} returns the shape {tuple(found.shape)}; it must be "
            f"{wanted} here: (games, {'seats, ' if len(axes) > 1 else ''}{size})"
        )
