"""A layer with memory on top of the networks of all members: GRU (Cho et al., 2014) or LSTM (Hochreiter & Schmidhuber,
1997) cells as torch's `GRUCell` and `LSTMCell` have them, and their gradients through time, written by hand.

Rows are sequences side by side, step by step: row t * B + b is step t of sequence b. What a sequence remembers is its
state: (B, width) of a GRU, and (B, 2 * width) of an LSTM, its output and then its cell.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# Gates per unit of width, and numbers remembered, by the name of the kind of cell.
GATES = {"gru": 3, "lstm": 4}
STATE_SIZE = {"gru": 1, "lstm": 2}


class _Moment(NamedTuple):
    """What a step's gradient needs: the state before it, and what the gates became."""

    before: Tensor
    gates: tuple[Tensor, ...]


class Cells:
    """The cells of 2 G networks (first G actors, then G critics) over `steps` steps of rows / steps sequences.

    state (2G, B, remembered): what they remember, before `forward` and then after it. starts (G, steps, B) bool: where
    an episode starts, and with it an empty memory; None: nowhere. live (G, steps, B) bool: where there is anything to
    be remembered; None: everywhere.
    """

    def __init__(
        self, kind: str, slots: int, width: int, rows: int, steps: int, device: torch.device
    ) -> None:
        self._kind, self._slots, self._width, self._size = (
            kind,
            slots,
            width,
            (steps, rows // steps),
        )
        self.state = torch.zeros(2 * slots, rows // steps, width * STATE_SIZE[kind], device=device)
        self.starts: Tensor | None = None
        self.live: Tensor | None = None
        self.output = torch.empty(2 * slots, rows, width, device=device)
        self._moments: list[_Moment] = []
        self._ones = torch.ones(2 * slots, 1, rows, device=device)

    def forward(self, leaves: list[Tensor], inputs: Tensor, networks: slice) -> None:
        """From inputs (2G, rows, width) to `output`, of some networks; leaves: weights and biases as `Leaves.cell`."""
        (steps, sequences), width = self._size, self._width
        w_in, w_state, b_in, b_state = (leaf[networks] for leaf in leaves)
        from_input = torch.baddbmm(b_in, inputs[networks], w_in).view(
            -1, steps, sequences, w_in.shape[-1]
        )
        output = self.output[networks].view(-1, steps, sequences, width)
        state = self.state[networks].clone()
        self._moments.clear()
        for step in range(steps):
            state = self._cleared(state, step)
            from_state = torch.baddbmm(b_state, state[..., :width], w_state)
            after, gates = self._after(state, from_input[:, step], from_state)
            self._moments.append(_Moment(state, gates))
            state = self._where_live(step, after, state)
            output[:, step] = state[..., :width]
        self.state[networks] = state

    def backward(
        self, leaves: list[Tensor], inputs: Tensor, d_output: Tensor, into: list[Tensor]
    ) -> Tensor:
        """The gradient for inputs, from d_output (2G, rows, width) of what `forward` returned last for all networks;
        writes those of the leaves.
        """
        (steps, sequences), width = self._size, self._width
        w_in, w_state = leaves[:2]
        d_outputs = d_output.view(-1, steps, sequences, width)
        size = (len(d_output), steps, sequences, w_in.shape[-1])
        d_inputs, d_states = (
            d_output.new_empty(size),
            d_output.new_empty(size),
        )  # of the sums that go into the gates
        d_state = torch.zeros_like(self.state)
        for step in range(steps - 1, -1, -1):
            d_state[..., :width] += d_outputs[:, step]
            d_after = self._where_live(step, d_state, torch.zeros_like(d_state))
            d_passed = self._where_live(step, torch.zeros_like(d_state), d_state)
            d_before = self._before(
                self._moments[step], d_after, d_inputs[:, step], d_states[:, step]
            )
            d_before[..., :width] += torch.bmm(d_states[:, step], w_state.mT)
            d_state = self._cleared(d_before if self.live is None else d_before + d_passed, step)
        before = torch.stack([moment.before[..., :width] for moment in self._moments], 1)
        d_inputs, d_states = d_inputs.flatten(1, 2), d_states.flatten(1, 2)
        torch.bmm(inputs.mT, d_inputs, out=into[0])
        torch.bmm(before.flatten(1, 2).mT, d_states, out=into[1])
        torch.bmm(self._ones, d_inputs, out=into[2])
        torch.bmm(self._ones, d_states, out=into[3])
        return torch.bmm(d_inputs, w_in.mT)

    def _after(
        self, state: Tensor, from_input: Tensor, from_state: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The state after a step, and what its gradient needs."""
        if self._kind == "gru":
            in_reset, in_update, in_new = from_input.chunk(3, -1)
            own_reset, own_update, own_new = from_state.chunk(3, -1)
            reset, update = _sigmoid(in_reset + own_reset), _sigmoid(in_update + own_update)
            new = torch.tanh(torch.addcmul(in_new, reset, own_new))
            return torch.lerp(new, state, update), (reset, update, new, own_new)
        in_gate, forget, new, out_gate = (from_input + from_state).chunk(4, -1)
        in_gate, forget, out_gate = _sigmoid(in_gate), _sigmoid(forget), _sigmoid(out_gate)
        new = torch.tanh(new)
        cell = torch.addcmul(forget * state[..., self._width :], in_gate, new)
        shown = torch.tanh(cell)
        return torch.cat((out_gate * shown, cell), -1), (in_gate, forget, new, out_gate, shown)

    def _before(self, moment: _Moment, d_after: Tensor, d_input: Tensor, d_state: Tensor) -> Tensor:
        """The gradient for the state before a step, but for what goes through d_state; writes those for what came from
        input and state.
        """
        width = self._width
        if self._kind == "gru":
            reset, update, new, own_new = moment.gates
            d_new = d_after * (1.0 - update) * (1.0 - new * new)
            d_reset = d_new * own_new * reset * (1.0 - reset)
            d_update = d_after * (moment.before - new) * update * (1.0 - update)
            torch.cat((d_reset, d_update, d_new), -1, out=d_input)
            torch.cat((d_reset, d_update, d_new * reset), -1, out=d_state)
            return d_after * update
        in_gate, forget, new, out_gate, shown = moment.gates
        d_shown, d_cell = d_after[..., :width], d_after[..., width:]
        d_cell = d_cell + d_shown * out_gate * (1.0 - shown * shown)
        d_in_gate = d_cell * new * in_gate * (1.0 - in_gate)
        d_forget = d_cell * moment.before[..., width:] * forget * (1.0 - forget)
        d_new = d_cell * in_gate * (1.0 - new * new)
        d_out_gate = d_shown * shown * out_gate * (1.0 - out_gate)
        torch.cat((d_in_gate, d_forget, d_new, d_out_gate), -1, out=d_input)
        d_state.copy_(d_input)
        return torch.cat((torch.zeros_like(d_shown), d_cell * forget), -1)

    def _cleared(self, state: Tensor, step: int) -> Tensor:
        return (
            state
            if self.starts is None
            else torch.where(self._of(self.starts, step, state), 0.0, state)
        )

    def _where_live(self, step: int, yes: Tensor, no: Tensor) -> Tensor:
        return yes if self.live is None else torch.where(self._of(self.live, step, yes), yes, no)

    def _of(self, flags: Tensor, step: int, state: Tensor) -> Tensor:
        """(G, steps, B) flags of one step, for every network in a state (k * G, B, …)."""
        return flags[:, step].repeat(len(state) // self._slots, 1).unsqueeze(-1)


def _sigmoid(x: Tensor) -> Tensor:
    """In place. By tanh, since torch's own differs in the last bit between numbers in the middle of a tensor and those
    at its end (measured, 2.13 on CPUs), and a member's numbers must be the same in every slot.
    """
    return x.mul_(0.5).tanh_().mul_(0.5).add_(0.5)
