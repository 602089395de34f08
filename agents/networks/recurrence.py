"""A recurrent layer on top of all members' networks, with backpropagation through time by hand.

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

from typing import NamedTuple

import torch
from torch import Tensor

# By kind of cell: gates, and size of the recurrent state, in units of the width.
GATES = {"gru": 3, "lstm": 4}
STATE_SIZE = {"gru": 1, "lstm": 2}


class _Moment(NamedTuple):
    """What the gradient of one step needs: the state before it, and the values of the gates."""

    before: Tensor
    gates: tuple[Tensor, ...]


class Cells:
    """The cells of 2G networks (G actors, then G critics) over S = rows / steps sequences.

    Attributes:
        state: (2G, S, state size), before `forward`, and then after it.
        starts: (G, steps, S) bool, where an episode starts and the state is zeroed; None: nowhere.
        live: (G, steps, S) bool, where the state advances; None: everywhere.
        output: (2G, rows, width), h' of each step.
    """

    def __init__(
        self, kind: str, slots: int, width: int, rows: int, steps: int, device: torch.device
    ) -> None:
        self._kind, self._slots, self._width = kind, slots, width
        self._size = (steps, rows // steps)
        self.state = torch.zeros(2 * slots, rows // steps, width * STATE_SIZE[kind], device=device)
        self.starts: Tensor | None = None
        self.live: Tensor | None = None
        self.output = torch.empty(2 * slots, rows, width, device=device)
        self._moments: list[_Moment] = []
        self._ones = torch.ones(2 * slots, 1, rows, device=device)

    def forward(self, leaves: list[Tensor], inputs: Tensor, networks: slice) -> None:
        """Compute `output` for the networks in `networks`.

        Args:
            leaves: weights and biases as in `Leaves.cell`.
            inputs: (2G, rows, width).
            networks: which of the 2G.
        """
        (steps, sequences), width = self._size, self._width
        w_in, w_state, b_in, b_state = (leaf[networks] for leaf in leaves)
        # The inputs' part of all steps is one product; only the state's part is sequential.
        from_input = torch.baddbmm(b_in, inputs[networks], w_in).view(
            -1, steps, sequences, w_in.shape[-1]
        )
        output = self.output[networks].view(-1, steps, sequences, width)
        state = self.state[networks].clone()
        self._moments.clear()
        for step in range(steps):
            state = self._cleared(state, step)  # episodes start from zeros
            from_state = torch.baddbmm(b_state, state[..., :width], w_state)
            after, gates = self._after(state, from_input[:, step], from_state)
            self._moments.append(_Moment(state, gates))
            state = self._where_live(step, after, state)
            output[:, step] = state[..., :width]
        self.state[networks] = state

    def backward(
        self, leaves: list[Tensor], inputs: Tensor, d_output: Tensor, into: list[Tensor]
    ) -> Tensor:
        """Run backpropagation through time after `forward` over all networks.

        Args:
            leaves: as in `forward`.
            inputs: as in `forward`.
            d_output: (2G, rows, width), dL/d(output).
            into: written, gradients of the leaves.

        Returns:
            (2G, rows, width), dL/d(inputs).
        """
        (steps, sequences), width = self._size, self._width
        w_in, w_state = leaves[:2]
        d_outputs = d_output.view(-1, steps, sequences, width)
        size = (len(d_output), steps, sequences, w_in.shape[-1])
        # Gradients of the gates' sums: the input's part and the state's part.
        d_inputs, d_states = d_output.new_empty(size), d_output.new_empty(size)
        d_state = torch.zeros_like(self.state)
        for step in range(steps - 1, -1, -1):
            # dL/dh' of this step: through later steps, plus through this step's output.
            d_state[..., :width] += d_outputs[:, step]
            # Where the state does not advance, its gradient passes the cell unchanged.
            d_after = self._where_live(step, d_state, torch.zeros_like(d_state))
            d_passed = self._where_live(step, torch.zeros_like(d_state), d_state)
            d_before = self._before(
                self._moments[step], d_after, d_inputs[:, step], d_states[:, step]
            )
            # Through the state's weights: dL/dh = d_gates Uᵀ.
            d_before[..., :width] += torch.bmm(d_states[:, step], w_state.mT)
            d_state = self._cleared(d_before if self.live is None else d_before + d_passed, step)
        # Gradients of the weights sum over steps and sequences: one product each.
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
        """Return the state after a step, and the gates that its gradient needs."""
        if self._kind == "gru":
            in_reset, in_update, in_new = from_input.chunk(3, -1)
            own_reset, own_update, own_new = from_state.chunk(3, -1)
            reset, update = _sigmoid(in_reset + own_reset), _sigmoid(in_update + own_update)
            # The reset gate acts on U_n h + b, as in torch, so `own_new` is needed for its gradient.
            new = torch.tanh(torch.addcmul(in_new, reset, own_new))
            # h' = n + z (h - n)
            return torch.lerp(new, state, update), (reset, update, new, own_new)
        in_gate, forget, new, out_gate = (from_input + from_state).chunk(4, -1)
        in_gate, forget, out_gate = _sigmoid(in_gate), _sigmoid(forget), _sigmoid(out_gate)
        new = torch.tanh(new)
        cell = torch.addcmul(forget * state[..., self._width :], in_gate, new)
        shown = torch.tanh(cell)
        return torch.cat((out_gate * shown, cell), -1), (in_gate, forget, new, out_gate, shown)

    def _before(self, moment: _Moment, d_after: Tensor, d_input: Tensor, d_state: Tensor) -> Tensor:
        """Return dL/d(state before a step), without the part through the state's weights.

        Also writes the gradients of the gates' sums: d_input of the input's part, d_state of the
        state's.
        """
        width = self._width
        if self._kind == "gru":
            reset, update, new, own_new = moment.gates
            # h' = (1 - z) n + z h; tanh' = 1 - tanh², sigmoid' = s (1 - s).
            d_new = d_after * (1.0 - update) * (1.0 - new * new)
            d_reset = d_new * own_new * reset * (1.0 - reset)
            d_update = d_after * (moment.before - new) * update * (1.0 - update)
            torch.cat((d_reset, d_update, d_new), -1, out=d_input)
            torch.cat((d_reset, d_update, d_new * reset), -1, out=d_state)
            return d_after * update
        in_gate, forget, new, out_gate, shown = moment.gates
        # h' = o tanh(c'), c' = f c + i g.
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
        """Return one step's flags (G, steps, S) for every network of a state (k * G, S, …)."""
        return flags[:, step].repeat(len(state) // self._slots, 1).unsqueeze(-1)


def _sigmoid(x: Tensor) -> Tensor:
    """Compute the sigmoid in place, as (1 + tanh(x / 2)) / 2.

    torch's own sigmoid differs in the last bit between the middle and the end of a tensor (measured
    with torch 2.13 on CPUs), so a member's numbers would depend on its slot.
    """
    return x.mul_(0.5).tanh_().mul_(0.5).add_(0.5)
