"""Generalised advantage estimation (GAE; Schulman et al., 2016, arXiv:1506.02438).

For a row's transitions t = 0 … T - 1 with reward r_t, value V(s_t), and end of episode d_t:

    δ_t = r_t + γ V'_t - V(s_t),   V'_t = V(s_{t+1}), or where the episode ends the value of its end
    A_t = δ_t + γ λ A_{t+1},       with the second term 0 where the episode ends
    R_t = A_t + V(s_t)

The value of an episode's end is 0 where it terminated, and V of its last observation where it was
truncated (Pardo et al., 2018, arXiv:1712.00378).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Experience(NamedTuple):
    """What a rollout recorded, on rows (G, T or T + 1, num_envs).

    Attributes:
        rewards: (G, T, num_envs).
        values: (G, T + 1, num_envs), V(s_t), the last of the observation after the rollout.
        final_values: (G, T, num_envs), values of the ends of truncated episodes, else 0.
        done: (G, T, num_envs) bool, where an episode ends with the step.
        present: (G, T + 1, num_envs) bool, rows with an agent; not read by `estimate`.
    """

    rewards: Tensor
    values: Tensor
    final_values: Tensor
    done: Tensor
    present: Tensor


def estimate(exp: Experience, gamma: Tensor, gae_lambda: Tensor, advantages: Tensor) -> None:
    """Compute A_t for environments whose agents are always present.

    Args:
        exp: the rollout.
        gamma: (G, 1, 1), γ.
        gae_lambda: (G, 1, 1), λ.
        advantages: (G, T + 1, num_envs), written; its last step must be 0.
    """
    steps = exp.rewards.shape[1]
    # V'_t: at an episode's end, `values[:, 1:]` would be the first value of the next episode.
    following = torch.where(exp.done, exp.final_values, exp.values[:, 1:])
    errors = exp.rewards + gamma * following - exp.values[:, :steps]  # δ_t
    # The sum over future errors δ stops at an episode's end.
    decay = torch.where(exp.done, 0.0, gamma * gae_lambda)
    # Backward in time, for all rows at once: the recursion is sequential in t only.
    for step in range(steps - 1, -1, -1):
        # A_t = δ_t + γ λ A_{t+1}
        torch.addcmul(
            errors[:, step], decay[:, step], advantages[:, step + 1], out=advantages[:, step]
        )


def estimate_with_absent_agents(
    exp: Experience, gamma: Tensor, gae_lambda: Tensor, advantages: Tensor, valid: Tensor
) -> None:
    """Compute A_t where agents come and go.

    Time counts an agent's own actions: an action leads to the agent's next action in the same
    episode, or to the episode's end. Its reward is the undiscounted sum of all rewards of the row
    until then, as PettingZoo's AEC environments accumulate them. Rewards before an agent's first
    action in an episode (or in the rollout) belong to no action and are dropped. An action is
    invalid if neither the next action nor the end is in the rollout, since its outcome is unknown.

    Args:
        exp: the rollout.
        gamma: (G, 1, 1), γ.
        gae_lambda: (G, 1, 1), λ.
        advantages: (G, T + 1, num_envs), written.
        valid: (G, T + 1, num_envs) bool, written: transitions to learn from.
    """
    # Backward in time, these hold for the agent's next action (or the end of the episode): its
    # value, its advantage, the rewards up to it, and whether it is in the rollout.
    value, known = exp.values[:, -1], exp.present[:, -1]
    ahead = torch.zeros_like(value)
    reward = torch.zeros_like(value)
    for step in range(exp.rewards.shape[1] - 1, -1, -1):
        here, end = exp.present[:, step], exp.done[:, step]
        # An episode's end replaces whatever follows in the next episode.
        value = torch.where(end, exp.final_values[:, step], value)
        ahead = torch.where(end, 0.0, ahead)
        known = end | known
        reward = torch.where(end, 0.0, reward) + exp.rewards[:, step]
        # One action is one step of discounting, however many steps of the environment it took.
        error = reward + gamma[:, 0] * value - exp.values[:, step]
        advantage = torch.where(known, error + gamma[:, 0] * gae_lambda[:, 0] * ahead, 0.0)
        valid[:, step] = here & known
        advantages[:, step] = torch.where(here, advantage, 0.0)
        # Rows without an agent pass on what holds for the agent's next action.
        value = torch.where(here, exp.values[:, step], value)
        ahead = torch.where(here, advantage, ahead)
        reward, known = torch.where(here, 0.0, reward), here | known


def estimate_in_turns(
    exp: Experience, gamma: Tensor, gae_lambda: Tensor, advantages: Tensor, valid: Tensor
) -> None:
    """Compute A_t where several players act in turns in every row.

    Time counts a player's own decisions, and rewards are those that the player got since its last
    one, as in `estimate_with_absent_agents`: a player is absent where another one is to move.

    Args:
        exp: the rollout, with rewards (G, T, num_envs, players), and `present` (G, T + 1,
            num_envs, players), which player is to move.
        gamma: (G, 1, 1), γ.
        gae_lambda: (G, 1, 1), λ.
        advantages: (G, T + 1, num_envs), written.
        valid: (G, T + 1, num_envs) bool, written: transitions to learn from.
    """
    players = exp.present.shape[-1]

    def lanes(tensor: Tensor) -> Tensor:
        # Every player of a row is a row of its own, of which it sees its own decisions only.
        return tensor.unsqueeze(-1).expand(*tensor.shape, players).flatten(2)

    own = Experience(
        exp.rewards.flatten(2),
        lanes(exp.values),
        lanes(exp.final_values),
        lanes(exp.done),
        exp.present.flatten(2),
    )
    every, learned = torch.zeros_like(own.values), torch.zeros_like(own.present)
    estimate_with_absent_agents(own, gamma, gae_lambda, every, learned)
    # Of a row's players, one has a decision in each step; the others' advantages there are 0.
    advantages.copy_(every.view(exp.present.shape).sum(-1))
    valid.copy_(learned.view(exp.present.shape).any(-1))


def masked_mean(numbers: Tensor, valid: Tensor) -> Tensor:
    """Return (G, 1), the mean of the valid ones of (G, n) numbers; 0 where there are none."""
    count = valid.sum(1, keepdim=True).clamp_min_(1)
    return torch.where(valid, numbers, 0.0).sum(1, keepdim=True) / count


def moments(numbers: Tensor, valid: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return mean and unbiased variance of (G, n) numbers, (G, 1) each.

    Args:
        numbers: which.
        valid: (G, n) bool, those that count; None: all. Where none does, the mean is 0; where
            fewer than two do, the variance is 0. Sums go over all numbers with zeros in place of
            the others, so that no tensor's shape depends on how many are valid.
    """
    if valid is None:
        first = numbers[:, :1]
        away = numbers - first  # the variance of equal numbers is 0, however sums are rounded
        shift = away.mean(1, keepdim=True)
        squares = (away - shift).square_()
        return first + shift, squares.sum(1, keepdim=True) / (numbers.shape[1] - 1)
    mean = masked_mean(numbers, valid)
    squares = torch.where(valid, (numbers - mean).square(), 0.0)
    return mean, squares.sum(1, keepdim=True) / (valid.sum(1, keepdim=True) - 1).clamp_min_(1)
