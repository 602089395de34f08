"""One network of PPO made of torch's own modules, for comparison; `state_dict` is a member's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from sweepd.agents.networks.recurrence import Memory
from sweepd.agents.networks.spec import NetSpec
from sweepd.envs.core.entities import Entities
from tests.agents.networks.plain_items import item_columns

ACTIVATED = {"relu": nn.ReLU, "tanh": nn.Tanh, "silu": nn.SiLU, "elu": nn.ELU}
CELLS = {"gru": nn.GRUCell, "lstm": nn.LSTMCell}


class Plain(nn.Module):
    """An `ActorPPO`, `ActorDiscretePPO` or `CriticPPO` with any further layers."""

    def __init__(self, spec: NetSpec) -> None:
        super().__init__()
        self.spec, inputs = spec, spec.columns
        for name, size in spec.normalisers.items():
            self.register_buffer(name, torch.zeros(size))
        if spec.image is not None:
            self.conv, channels = nn.ModuleList(), spec.image[0]
            for own in spec.filters:
                self.conv.append(nn.Conv2d(channels, own.channels, own.kernel, own.stride))
                channels = own.channels
            inputs = self._convolved(torch.zeros(1, spec.columns)).shape[1]
        if spec.items is not None:
            known = spec.items.fact_count + len(spec.items.features)
            self.items: nn.Module = nn.Linear(known, spec.item_width) if known else nn.Module()
            if not known:
                self.items.bias = nn.Parameter(torch.zeros(spec.item_width))
            table = torch.zeros(spec.items.vocabulary, spec.item_width)
            self.items.embedding = nn.Parameter(table)
            vectors = spec.items.places + len(spec.items.groups)
            inputs = vectors * spec.item_width + len(spec.items.plain)
        if spec.entities is not None:
            self.entities = nn.Linear(spec.entities.width, spec.entity_width)
            saved = spec.entities.width - spec.entity_width
            inputs = spec.columns - spec.entities.count * saved
        outputs = 1 if spec.kind == "CriticPPO" else spec.actions
        layers = [nn.Linear(*sizes) for sizes in pairwise((inputs, *spec.hidden, outputs))]
        between = ACTIVATED[spec.activation]
        self.net = nn.Sequential(*[part for layer in layers for part in (layer, between())][:-1])
        if spec.cell:
            self.rnn = CELLS[spec.cell](spec.hidden[-1], spec.hidden[-1])
        if spec.kind == "ActorPPO":
            self.action_std_log = nn.Parameter(torch.zeros(1, spec.actions))
        if spec.autoregressive:
            self.chain = nn.ModuleDict()
            for choice, size in enumerate(spec.choices[1:], 1):
                earlier = sum(spec.choices[:choice])
                self.chain[str(choice)] = nn.Linear(earlier, size, bias=False)
        if spec.seat_column is not None:
            self.seat1 = Plain(replace(spec, seat_column=None))
            for name in spec.normalisers:  # those of the first seat
                delattr(self.seat1, name)

    @classmethod
    def of(cls, spec: NetSpec, tensors: Mapping[str, Tensor]) -> Plain:
        """Return a member's network."""
        network = cls(spec)
        network.load_state_dict(tensors)
        return network

    def normalised(self, obs: Tensor) -> Tensor:
        x = (obs - self.state_avg) / self.state_std
        return x if self.spec.clip is None else x.clamp(-self.spec.clip, self.spec.clip)

    def forward(self, x: Tensor, memory: Memory | None = None) -> tuple[Tensor, Tensor | None]:
        """Return the outputs (rows, outputs), and the recurrent state after them.

        x: (rows, columns), normalised. memory: of this network alone, without a first dimension.
        """
        spec = self.spec
        if spec.seat_column is not None:
            own, other = self._outputs(x, memory), self.seat1(x, memory)
            second = x[:, spec.seat_column, None] > 0.5
            return torch.where(second, other[0], own[0]), None
        return self._outputs(x, memory)

    def _outputs(self, x: Tensor, memory: Memory | None) -> tuple[Tensor, Tensor | None]:
        spec, state = self.spec, None
        if spec.image is not None:
            x = self._convolved(x)
        elif spec.items is not None:
            names = {f"items.{name}": part for name, part in self.items.named_parameters()}
            x = item_columns(spec.items, names, x)
        elif spec.entities is not None:
            x = self._read(spec.entities, x)
        x = self.net[:-1](x[:, : self.net[0].in_features])
        if spec.cell:
            assert memory is not None
            x, state = self._unrolled(x, memory)
        return self.net[-1](x), state

    def _read(self, entities: Entities, x: Tensor) -> Tensor:
        columns = [
            [first + entity * width + k for first, width in entities.blocks for k in range(width)]
            for entity in range(entities.count)
        ]
        others = sorted(set(range(self.spec.columns)).difference(*columns))
        vectors = [self.entities(x[:, own]).relu() for own in columns]
        return torch.cat([*vectors, x[:, others]], 1)

    def _convolved(self, x: Tensor) -> Tensor:
        assert self.spec.image is not None
        x = x.view(-1, *self.spec.image)
        for layer in self.conv:
            x = layer(x).relu()
        return x.flatten(1)

    def _unrolled(self, x: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        state, shown = memory.state, []
        for step, own in enumerate(x.split(len(memory.state))):
            if memory.starts is not None:
                state = torch.where(memory.starts[step].unsqueeze(1), 0.0, state)
            if self.spec.cell == "gru":
                after = self.rnn(own, state)
            else:
                after = torch.cat(self.rnn(own, state.chunk(2, 1)), 1)
            if memory.live is not None:
                after = torch.where(memory.live[step].unsqueeze(1), after, state)
            state = after
            shown.append(state[:, : self.spec.hidden[-1]])
        return torch.cat(shown), state
