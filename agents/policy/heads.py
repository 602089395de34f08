"""What the outputs of actors mean, for frozen policies and for opponents.

In both, rows are computed by several networks. `network` says of which one a row's outputs are: an
index (…, rows), or (N, 1) where there are outputs of all N networks in order.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sweepd.agents.algorithms.sac import LOG_STD
from sweepd.agents.networks.spec import MEANS, NetSpec

Weights = Mapping[str, Tensor]


def gaussian(
    spec: NetSpec, weights: Weights, output: Tensor, network: Tensor
) -> tuple[Tensor, Tensor]:
    """Return means before tanh and log deviations, (…, rows or 1, numbers), from the outputs."""
    if spec.gives == MEANS:
        return output, weights["action_std_log"][network, 0]
    mean, log_std = output.chunk(2, -1)
    return mean, log_std.clamp(*LOG_STD)


def logits_of(
    spec: NetSpec, weights: Weights, output: Tensor, network: Tensor, chosen: Tensor
) -> Tensor:
    """Return the logits (or values) of a choice given the earlier ones.

    Args:
        spec: of the networks.
        weights: theirs by name.
        output: (…, rows, options of all choices).
        network: see above.
        chosen: (…, rows, choice) int64, the earlier choices.

    Returns:
        (…, rows, options).
    """
    choice = chosen.shape[-1]
    logits = torch.split(output, list(spec.sizes), -1)[choice]
    if spec.autoregressive and choice:
        # The chain's rows are the options of the earlier choices, one choice after the other.
        chain, first = weights[f"chain.{choice}.weight"], 0
        for index in range(choice):
            logits = logits + chain[network, first + chosen[..., index]]
            first += spec.choices[index]
    return logits
