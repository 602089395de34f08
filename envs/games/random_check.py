"""A check of an environment by random legal play: shapes, dtypes, masks and strict actions."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sweepd.envs.core.vec_env import Step, VecEnv
from sweepd.envs.games.play import random_actions
from sweepd.envs.support.errors import RunError

STEPS = 256  # steps of random play, at most
SECONDS = 3.0  # seconds of random play, at most
LEAST = 2  # steps, however long they take


@dataclass
class PlayCheck:
    """What random play found.

    Attributes:
        steps: number of steps played.
        rows: rows of the environment.
        seconds: duration.
        episodes: episodes that ended.
        truncated: those of them that were truncated.
        masks: masks that were looked at.
        fewest: fewest legal options of a choice; -1 if there was no mask.
        most: most legal options of a choice; -1 if there was no mask.
        largest_sum: largest absolute sum of the rewards of both players in a step, in turns.
        problems: the first problem by subject: "observations", "rewards", "ends", "masks",
            "actions".
    """

    steps: int = 0
    rows: int = 0
    seconds: float = 0.0
    episodes: int = 0
    truncated: int = 0
    masks: int = 0
    fewest: int = -1
    most: int = -1
    largest_sum: float = 0.0
    problems: dict[str, str] = field(default_factory=dict)

    def note(self, subject: str, problem: str) -> None:
        """Keep the first problem of a subject."""
        self.problems.setdefault(subject, f"step {self.steps + 1}: {problem}")


def check_random_play(
    env: VecEnv, seed: int = 0, *, steps: int = STEPS, seconds: float = SECONDS
) -> PlayCheck:
    """Play legal actions at random and check everything that the environment returns.

    Args:
        env: the environment; it is reset.
        seed: of the environment and of the actions.
        steps: number of steps, at most.
        seconds: stop after so many seconds.
    """
    found, generator = PlayCheck(rows=env.num_envs), torch.Generator().manual_seed(seed)
    began = time.monotonic()
    _check_observations(env, env.reset(seed), found)
    while found.steps < steps and not found.problems:
        if found.steps >= LEAST and time.monotonic() - began > seconds:
            break
        action = _legal_actions(env, generator, found)
        if found.problems:
            break
        _check_step(env, env.step(action), found)
        found.steps += 1
    found.seconds = time.monotonic() - began
    if "masks" not in found.problems:
        try:
            env.check()  # what the strict latches hold
        except RunError as error:
            found.problems.setdefault("actions", str(error))
    return found


def _legal_actions(env: VecEnv, generator: torch.Generator, found: PlayCheck) -> Tensor:
    """Return random actions for all rows, and check their masks; incomplete after a problem."""
    if not env.spec.masked:
        return random_actions(env, generator).to(env.device)
    present = env.present() if env.spec.has_absent_agents else None
    chosen = torch.zeros(env.num_envs, 0, dtype=torch.int64, device=env.device)
    for choice, size in enumerate(env.spec.choices):
        mask = env.action_mask(chosen)
        if mask.dtype != torch.bool or mask.shape != (env.num_envs, size):
            found.note(
                "masks",
                f"the mask of choice {choice} (from 0) is {_kind(mask)}, not "
                f"{(env.num_envs, size)} torch.bool",
            )
            return chosen
        counts = mask.sum(1) if present is None else mask.sum(1)[present]
        if len(counts):
            low, high = int(counts.min()), int(counts.max())
            found.masks += len(counts)
            found.fewest = low if found.fewest < 0 else min(found.fewest, low)
            found.most = max(found.most, high)
            if not low:
                empty = mask.sum(1) == 0 if present is None else (mask.sum(1) == 0) & present
                row = int(empty.byte().argmax())
                after = f" after the choices {chosen[row].tolist()}" if choice else ""
                found.note(
                    "masks", f"row {row} has no legal option for choice {choice} (from 0){after}"
                )
                return chosen
        # The largest of independent uniform numbers is equally likely to be any of the legal ones.
        uniform = torch.rand(env.num_envs, size, generator=generator).to(env.device)
        option = uniform.masked_fill_(~mask, -1.0).argmax(1, keepdim=True)
        chosen = torch.cat((chosen, option), 1)
    return chosen if env.spec.action_dims else chosen[:, 0]


def _check_observations(env: VecEnv, obs: Tensor, found: PlayCheck) -> None:
    size = (env.num_envs, env.spec.obs_dim)
    if obs.shape != size or obs.dtype != env.spec.torch_dtype:
        found.note("observations", f"they are {_kind(obs)}, not {size} {env.spec.torch_dtype}")
    elif obs.is_floating_point() and not bool(obs.isfinite().all()):
        row, column = (int(index) for index in (~obs.isfinite()).nonzero()[0])
        found.note("observations", f"column {column} of row {row} is {obs[row, column].item()}")


def _check_step(env: VecEnv, step: Step, found: PlayCheck) -> None:
    _check_observations(env, step.obs, found)
    size = (env.num_envs, env.spec.players) if env.spec.players > 1 else (env.num_envs,)
    if step.reward.shape != size or step.reward.dtype != torch.float32:
        found.note("rewards", f"they are {_kind(step.reward)}, not {size} torch.float32")
    elif not bool(step.reward.isfinite().all()):
        found.note("rewards", "they are not all finite")
    elif env.spec.players > 1:
        found.largest_sum = max(found.largest_sum, float(step.reward.sum(1).abs().max()))
    for name, ends in (("terminated", step.terminated), ("truncated", step.truncated)):
        if ends.shape != (env.num_envs,) or ends.dtype != torch.bool:
            found.note("ends", f"{name} is {_kind(ends)}, not {(env.num_envs,)} torch.bool")
            return
    if env.spec.players > 1 and bool(step.truncated.any()):
        found.note("ends", "an episode of a game in turns was truncated; it must terminate")
    found.episodes += int((step.terminated | step.truncated).sum())
    found.truncated += int((step.truncated & ~step.terminated).sum())


def _kind(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {tensor.dtype}"
