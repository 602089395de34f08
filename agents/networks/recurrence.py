"""A recurrent layer of all members' networks, under autograd.

GRU (Cho et al., 2014) or LSTM (Hochreiter & Schmidhuber, 1997) cells with the equations of torch's
`GRUCell` and `LSTMCell`. With input x, state h and σ the sigmoid:

    GRU     r = σ(W_r x + U_r h),  z = σ(W_z x + U_z h),  n = tanh(W_n x + r ⊙ U_n h)
            h' = (1 - z) ⊙ n + z ⊙ h
    LSTM    i, f, o = σ(W x + U h),  g = tanh(W_g x + U_g h)
            c' = f ⊙ c + i ⊙ g,  h' = o ⊙ tanh(c')

(Biases are left out here.) Rows are sequences side by side, step by step: row t * S + s is step t
of sequence s. The recurrent state of a sequence is (width,) for a GRU and (2 * width,) for an LSTM:
h, then c.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sweepd.agents.networks.layers import affine
from sweepd.agents.networks.part import Part

# By kind of cell: gates, and size of the recurrent state, in units of the width.
GATES = {"gru": 3, "lstm": 4}
STATE_SIZE = {"gru": 1, "lstm": 2}


class Memory(NamedTuple):
    """The recurrent states of N networks over sequences of several steps.

    Attributes:
        state: (N, S, state size), before the first step.
        starts: (N or fewer, steps, S) bool, where an episode starts and the state is zeroed; None:
            nowhere, and there is one step. With fewer, networks g, g + fewer, … share them.
        live: likewise, where the state advances; None: everywhere.
    """

    state: Tensor
    starts: Tensor | None = None
    live: Tensor | None = None


def parts(cell: str, width: int) -> list[Part]:
    """Return the weights of a cell; none for ""."""
    if not cell:
        return []
    gates = GATES[cell] * width
    return [
        *(Part(f"rnn.{name}", width, gates, "cell") for name in ("weight_ih", "weight_hh")),
        *(Part(f"rnn.{name}", 1, gates, "cell") for name in ("bias_ih", "bias_hh")),
    ]


def unrolled(
    cell: str, weights: Mapping[str, Tensor], x: Tensor, memory: Memory
) -> tuple[Tensor, Tensor]:
    """Return h' of each step, (N, rows, width), and the state after the last, (N, S, state size).

    Args:
        cell: "gru" or "lstm".
        weights: by name.
        x: (N, rows, width).
        memory: with S = rows / steps sequences.
    """
    count, _, width = x.shape
    sequences = memory.state.shape[1]
    # The inputs' part of all steps is one product; only the state's part is sequential.
    from_input = affine(x, weights["rnn.weight_ih"], weights["rnn.bias_ih"])
    step_of = _gru if cell == "gru" else _lstm
    state, shown = memory.state, []
    for step, own in enumerate(
        from_input.view(count, -1, sequences, from_input.shape[-1]).unbind(1)
    ):
        if memory.starts is not None:
            state = torch.where(memory.starts[:, step].unsqueeze(-1), 0.0, state)
        from_state = affine(state[..., :width], weights["rnn.weight_hh"], weights["rnn.bias_hh"])
        after = step_of(state, own, from_state)
        if memory.live is not None:
            after = torch.where(memory.live[:, step].unsqueeze(-1), after, state)
        state = after
        shown.append(state[..., :width])
    return torch.stack(shown, 1).view(x.shape), state


def _gru(state: Tensor, from_input: Tensor, from_state: Tensor) -> Tensor:
    width = state.shape[-1]
    gates = sigmoid(from_input[..., : 2 * width] + from_state[..., : 2 * width])
    reset, update = gates.chunk(2, -1)
    # The reset gate acts on U_n h + b, as in torch.
    new = torch.tanh(
        torch.addcmul(from_input[..., 2 * width :], reset, from_state[..., 2 * width :])
    )
    return torch.lerp(new, state, update)  # n + z (h - n)


def _lstm(state: Tensor, from_input: Tensor, from_state: Tensor) -> Tensor:
    width = state.shape[-1] // 2
    sums = from_input + from_state
    in_gate, forget = sigmoid(sums[..., : 2 * width]).chunk(2, -1)
    new, out_gate = torch.tanh(sums[..., 2 * width : 3 * width]), sigmoid(sums[..., 3 * width :])
    cell = torch.addcmul(forget * state[..., width:], in_gate, new)
    return torch.cat((out_gate * torch.tanh(cell), cell), -1)


def sigmoid(x: Tensor) -> Tensor:
    """Return the sigmoid, as (1 + tanh(x / 2)) / 2.

    torch's own sigmoid differs in the last bit between the middle and the end of a tensor (measured
    with torch 2.13 on CPUs), so a member's numbers would depend on its slot.
    """
    result: Tensor = _Sigmoid.apply(x)  # type: ignore[no-untyped-call]
    return result


class _Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        found = x.mul(0.5).tanh_().mul_(0.5).add_(0.5)
        ctx.save_for_backward(found)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        [found] = ctx.saved_tensors
        derivative: Tensor = torch.ops.aten.sigmoid_backward(grads[0], found)
        return derivative
