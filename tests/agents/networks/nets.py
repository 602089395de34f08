"""Networks of every description that the tests go through, with random weights and inputs."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sweepd.agents.networks.activation import ACTIVATIONS
from sweepd.agents.networks.convolution import filters_for
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.recurrence import Memory
from sweepd.agents.networks.spec import KINDS, NetSpec
from sweepd.envs.core.entities import Entities
from sweepd.envs.core.items import ItemGroup, Items

CPU = torch.device("cpu")
STEPS, SEQUENCES = 4, 3
ROWS = STEPS * SEQUENCES
BOARD = Items(
    vocabulary=9,
    groups=(
        ItemGroup("hand", 4, ("cost",)),
        ItemGroup("front", 2, ("attack", "health")),
        ItemGroup("back", 3, ("cost", "health")),
        ItemGroup("enemy", 1, ("cost", "attack", "health")),
        ItemGroup("discard", 2),
    ),
    features=(("cost", 8.0), ("attack", 4.0), ("health", 5.0)),
    plain=(20.0, 8.0, 300.0),
    facts=tuple((0.1 * card, float(card % 2)) for card in range(9)),
)
LAYOUTS = {
    "items": BOARD,
    "items without facts": replace(BOARD, facts=()),
    "items without features": Items(
        5, (ItemGroup("hand", 3), ItemGroup("row", 1)), plain=(2.0,), facts=((1.0,),) * 5
    ),
    "items, ids only": Items(256, (ItemGroup("hand", 6),)),
}
ASSETS = Entities(2, ((4, 1), (0, 2)))
IMAGES = ((2, 9, 10), (1, 26, 30), (2, 50, 48))


def spec(kind: str = "ActorDiscretePPO", **changes: object) -> NetSpec:
    sizes = {"kind": kind, "columns": 5, "actions": 4, "hidden": (8, 7)}
    return NetSpec(**{**sizes, **changes})  # type: ignore[arg-type]


def _image(image: tuple[int, int, int]) -> dict[str, object]:
    channels, height, width = image
    return {"columns": channels * height * width, "image": image, "filters": filters_for(image)}


PLAIN = {
    f"{kind}, {activation}, {hidden}": spec(kind, activation=activation, hidden=hidden)
    for kind in KINDS
    for activation, hidden in [(own, (8, 7)) for own in ACTIVATIONS] + [("relu", (6,))]
} | {"four layers": spec("ActorPPO", hidden=(8, 7, 9, 6)), "clip": spec("ActorPPO", clip=0.5)}
FURTHER = {
    **{f"image {image}": spec(**_image(image)) for image in IMAGES},
    **{
        name: spec(columns=items.columns, items=items, item_width=5)
        for name, items in LAYOUTS.items()
    },
    "entities": spec("ActorPPO", columns=9, entities=ASSETS, entity_width=16),
    "seats of entities": spec(columns=8, entities=ASSETS, entity_width=16, seat_column=7),
    "gru": spec("ActorPPO", cell="gru"),
    "lstm": spec(cell="lstm", activation="tanh", hidden=(7,)),
    "gru of images": spec("CriticPPO", **_image((1, 6, 7)), cell="gru"),
    "lstm of items": spec(columns=BOARD.columns, items=BOARD, item_width=3, cell="lstm"),
    "choices": spec(actions=5, choices=(2, 3)),
    "chain": spec(actions=9, choices=(2, 3, 4), autoregressive=True),
    "seats": spec(seat_column=2),
    "seats, a critic": spec("CriticPPO", seat_column=0, hidden=(6,)),
    "seats of items": spec(
        columns=BOARD.columns, items=BOARD, item_width=4, seat_column=BOARD.columns - 1
    ),
}
EVERY = PLAIN | FURTHER


def random_net(spec: NetSpec, members: int, *, learns: bool = True, seed: int = 0) -> Net:
    """Return networks with random weights and normalisers, of torch's default type."""
    generator = torch.Generator().manual_seed(seed)

    def numbers(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(
            torch.get_default_dtype()
        )

    net = Net.zeros(spec, members, torch.device("cpu"))
    with torch.no_grad():
        for name, weight in net.weights.items():
            looked_up = name == "items.embedding"
            weight += numbers(*weight.shape) * (1 if looked_up else weight.shape[1] ** -0.5)
    for name, part in net.normalisers.items():
        if spec.items is None or not name.startswith("state"):
            part.copy_(numbers(*part.shape).abs() + 0.5)
        elif name == "state_std":
            part.copy_(torch.tensor(spec.items.scales()))
    if spec.seat_column is not None:
        net.normalisers["state_avg"][..., spec.seat_column] = 0.0
        net.normalisers["state_std"][..., spec.seat_column] = 1.0
    for weight in net.weights.values():
        weight.requires_grad_(learns)
    return net


def random_obs(spec: NetSpec, members: int, seed: int = 1) -> Tensor:
    """Return (members, ROWS, columns); images and items as bytes."""
    generator = torch.Generator().manual_seed(seed)
    size = members, ROWS, spec.columns
    obs = torch.randn(size, generator=generator, dtype=torch.float64)
    obs = obs.to(torch.get_default_dtype())
    if spec.image is not None or spec.items is not None:
        obs = torch.randint(0, 9, size, generator=generator, dtype=torch.uint8)
    if spec.items is not None:
        ids = spec.items.id_columns()
        known = spec.items.vocabulary
        size = *size[:2], len(ids)
        obs[..., ids] = torch.randint(0, known, size, generator=generator, dtype=torch.uint8)
        # A third of the places are empty, with features all the same.
        obs[..., ids] *= torch.rand(size, generator=generator) > 1 / 3
    if spec.seat_column is not None:
        obs[..., spec.seat_column] = (torch.arange(ROWS) % 3 == 1).to(obs.dtype)
    return obs


def random_memory(spec: NetSpec, members: int, seed: int = 2) -> Memory | None:
    """Return states before the first step, episode starts and absent agents; None without cells."""
    if not spec.cell:
        return None
    generator = torch.Generator().manual_seed(seed)
    state = torch.randn(members, SEQUENCES, spec.memory, generator=generator)
    chances = torch.rand(2, members, STEPS, SEQUENCES, generator=generator)
    return Memory(state.to(torch.get_default_dtype()), chances[0] < 0.3, chances[1] < 0.7)
