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

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sweepd.agents.networks.layers import affine
from sweepd.agents.networks.part import Part
from sweepd.agents.networks.products import plus_product, product, rounded

# By kind of cell: gates, and size of the recurrent state, in units of the width.
GATES = {"gru": 3, "lstm": 4}
CELLS = ("", *GATES)
_STATES = {"gru": 1, "lstm": 2}
WEIGHTS = ("rnn.weight_ih", "rnn.weight_hh", "rnn.bias_ih", "rnn.bias_hh")
State = tuple[Tensor, ...]


class Memory(NamedTuple):
    """The recurrent states of N networks over sequences of several steps.

    Attributes:
        state: (N, S, state size), before the first step.
        starts: (N, steps, S) bool, where an episode starts and the state is zeroed; None: nowhere.
        live: likewise, where the state advances; None: everywhere.
    """

    state: Tensor
    starts: Tensor | None = None
    live: Tensor | None = None


def state_size(cell: str, width: int) -> int:
    """Return the numbers of a recurrent state; 0 for ""."""
    return _STATES[cell] * width if cell else 0


def joined(memories: Sequence[Memory]) -> Memory:
    """Return the memory of several kinds of networks together."""
    state, starts, live = zip(*memories, strict=True)
    return Memory(
        torch.cat(state),
        None if starts[0] is None else torch.cat(starts),
        None if live[0] is None else torch.cat(live),
    )


def parts(cell: str, width: int) -> list[Part]:
    """Return the weights of a cell; none for ""."""
    if not cell:
        return []
    gates = GATES[cell] * width
    return [Part(name, width if "weight" in name else 1, gates, "cell") for name in WEIGHTS]


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
    steps = x.shape[1] // sequences
    # The inputs' part of all steps is one product; only the state's part is sequential.
    from_input = affine(x, weights["rnn.weight_ih"], weights["rnn.bias_ih"])
    # Cut here rather than in every step, whose gradients autograd would put together again.
    sizes = [2 * width, width] if cell == "gru" else [4 * width]
    own_parts = from_input.view(count, steps, sequences, -1).split_with_sizes(sizes, -1)
    of_steps = zip(*(part.unbind(1) for part in own_parts), strict=True)
    step_of = _gru if cell == "gru" else _lstm
    weight, bias = weights["rnn.weight_hh"], weights["rnn.bias_hh"]
    before: list[Tensor] = []  # h before each step
    if torch.is_grad_enabled():
        biases = _Biases.apply(weight, bias, steps, sequences, before)  # type: ignore[no-untyped-call]
        weight = weight.detach()
    else:
        biases = [bias] * steps
    # h, or h and c. (Not side by side in the loop: autograd would copy the halves.)
    state, shown = memory.state.split_with_sizes([width] * _STATES[cell], -1), []
    for step, (own, bias) in enumerate(zip(of_steps, biases, strict=True)):
        if memory.starts is not None:
            starts = memory.starts[:, step].unsqueeze(-1)
            state = tuple(torch.where(starts, 0.0, part) for part in state)
        before.append(state[0].detach())
        after = step_of(state, own, plus_product(bias, state[0], weight))
        if memory.live is not None:
            live = memory.live[:, step].unsqueeze(-1)
            pairs = zip(after, state, strict=True)
            after = tuple(torch.where(live, new, old) for new, old in pairs)
        state = after
        shown.append(state[0])
    return torch.stack(shown, 1).view(x.shape), torch.cat(state, -1)


class _Biases(torch.autograd.Function):
    """The bias of h's product, once for each step; through it flow the gradients of its weights.

    So these are one product over all steps, instead of a sum of products.
    """

    @staticmethod
    def forward(
        ctx: Any, _weight: Tensor, bias: Tensor, steps: int, sequences: int, before: list[Tensor]
    ) -> tuple[Tensor, ...]:
        ctx.before = before  # filled by the steps
        every = bias.expand(-1, sequences, -1)
        return tuple(every.clone() for _ in range(steps))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad, before = rounded(torch.cat(grads, 1)), rounded(torch.cat(ctx.before, 1))
        ones = grad.new_ones(grad.shape[0], 1, grad.shape[1])
        return product(before.mT, grad), product(ones, grad), None, None, None


def _gru(state: State, from_input: State, from_state: Tensor) -> State:
    width = state[0].shape[-1]
    sums, in_new = from_input
    own_sums, own_new = from_state.split_with_sizes([2 * width, width], -1)
    reset, update = sigmoid(sums + own_sums).chunk(2, -1)
    # The reset gate acts on U_n h + b, as in torch.
    new = torch.tanh(torch.addcmul(in_new, reset, own_new))
    return (torch.lerp(new, state[0], update),)  # n + z (h - n)


def _lstm(state: State, from_input: State, from_state: Tensor) -> State:
    width = state[0].shape[-1]
    sums, in_new, in_out = (from_input[0] + from_state).split_with_sizes(
        [2 * width, width, width], -1
    )
    in_gate, forget = sigmoid(sums).chunk(2, -1)
    cell = torch.addcmul(forget * state[1], in_gate, torch.tanh(in_new))
    return sigmoid(in_out) * torch.tanh(cell), cell


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
