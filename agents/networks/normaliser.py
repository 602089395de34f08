"""Normalisation of observations, and checks of the normalisers that members are given."""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.agents.networks.shape import PER_SEAT, Shape
from sweepd.envs.support.errors import InputError

# Where observations have a running scale, networks read numbers from -CLIP to CLIP.
CLIP = 10.0


def clip_of(shape: Shape) -> float | None:
    """Return the largest size of a number that networks read; None with a fixed scale."""
    return CLIP if shape.running_scale else None


def neutral(name: str) -> float:
    """Return what a normaliser, `state_avg` or `value_std` and so on, has that changes nothing."""
    return float(name.endswith("std"))


def normalised(
    obs: Tensor, avg: Tensor, std: Tensor, clip: float | None, out: Tensor | None = None
) -> Tensor:
    """Return (obs - avg) / std, between -clip and clip.

    Args:
        obs: (N, rows, k); uint8, or of the normaliser's dtype.
        avg: (N, 1, k).
        std: likewise.
        clip: None: infinite.
        out: written, if given.
    """
    if obs.dtype != avg.dtype:
        # Converted first: on CPUs, a subtraction of mixed types takes up to ten times as long.
        obs = obs.to(avg.dtype)
    found = torch.sub(obs, avg, out=out).div_(std)
    return found if clip is None else found.clamp_(-clip, clip)


def checked_normaliser(shape: Shape, avg: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """Return a member's mean and standard deviation of observations, checked and completed.

    Args:
        shape: the program's shape.
        avg: (state_dim,) or (obs_dim,). Privileged columns that are missing get mean 0 and
            deviation 1, so they reach the critic unchanged.
        std: likewise.

    Returns:
        Two tensors (obs_dim,) on the CPU, of torch's default dtype.

    Raises:
        InputError: another size, a value that is not finite, or a deviation of 0 or less.
    """
    avg, std = (tensor.detach().to("cpu", torch.get_default_dtype()) for tensor in (avg, std))
    if avg.shape != std.shape or avg.shape not in {(shape.state_dim,), (shape.obs_dim,)}:
        sizes = f"{tuple(avg.shape)} and {tuple(std.shape)}"
        raise InputError(
            f"state_avg and state_std must have shape ({shape.state_dim},), not {sizes}."
        )
    missing = shape.obs_dim - avg.numel()
    avg, std = torch.cat((avg, torch.zeros(missing))), torch.cat((std, torch.ones(missing)))
    # A deviation of 0 would make every observation of that column infinite or NaN.
    valid = torch.isfinite(avg) & torch.isfinite(std) & (std > 0)
    if not bool(valid.all()):
        column = int(torch.nonzero(~valid)[0])
        raise InputError(
            "state_avg and state_std must be finite, and the deviation above zero; "
            f"column {column} has {float(avg[column])} and {float(std[column])}."
        )
    seat = shape.seat_column
    if shape.policies == PER_SEAT and (avg[seat] != 0 or std[seat] != 1):
        raise InputError(
            f"state_avg and state_std must be 0 and 1 in column {seat}, which tells the seat."
        )
    if shape.items is not None:
        ids = shape.items.id_columns()
        if bool((avg[ids] != 0).any() or (std[ids] != 1).any()):
            raise InputError(
                "state_avg and state_std must be 0 and 1 in the columns of items' ids, which are "
                "looked up as they are."
            )
    return avg, std
