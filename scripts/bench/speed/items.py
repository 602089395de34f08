"""What items that are looked up by id cost: forward and backward pass of a minibatch of PPO.

46 items in 7 groups with 4 features each, 40 plain columns, 25 ids with 8 facts, 16 numbers per
item, hidden layers of 128 x 128 (about 266,000 weights per member), on one thread. It is compared
with the same MLP on as many float columns, which has no use for the gradient of its inputs, and
that gradient's product is timed apart: it is the price of any encoder below the first layer.

Times are the thread's own, the best of several repetitions.

    python -m scripts.bench run items [--save scripts/bench/results/items.json]
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from scripts.bench.harness import benchmark_parser, print_machine, save_results
from sweepd.agents.engine.population import Population
from sweepd.agents.networks.items import Lookup
from sweepd.agents.networks.mlp import Activations, Backward, forward
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.weights import new_gradients
from sweepd.envs.core.items import ItemGroup, Items

CPU = torch.device("cpu")
MEMBERS, ROWS = 2, 512
FEATURES = ("cost", "attack", "health", "tapped")
PLACES = {"hand": 10, "front": 4, "back": 4, "enemy front": 4, "enemy back": 4}
PLACES |= {"discard": 10, "enemy discard": 10}
ITEMS = Items(
    vocabulary=25,
    groups=tuple(ItemGroup(name, count, FEATURES) for name, count in PLACES.items()),
    features=tuple((name, 10.0) for name in FEATURES),
    plain=(10.0,) * 40,
    facts=tuple(tuple(card * fact % 7 / 7 for fact in range(8)) for card in range(25)),
)


def best(run: Callable[[], object], repetitions: int) -> float:
    """Return the shortest time of a run in milliseconds, after two without a clock."""
    times = []
    for repetition in range(repetitions + 2):
        began = time.thread_time()
        run()
        if repetition > 1:
            times.append(time.thread_time() - began)
    return 1e3 * min(times)


def observations() -> Tensor:
    """Return (MEMBERS, ROWS, columns) uint8 with a third of the places empty."""
    generator = torch.Generator().manual_seed(0)
    size = MEMBERS, ROWS, ITEMS.columns
    obs = torch.randint(0, 20, size, generator=generator, dtype=torch.uint8)
    ids = ITEMS.id_columns()
    obs[..., ids] = (
        torch.randint(-12, 25, (*size[:2], len(ids)), generator=generator, dtype=torch.int16)
        .clamp_(min=0)
        .to(torch.uint8)
    )
    return obs


def minibatch(shape: Shape, obs: Tensor) -> tuple[Callable[[], None], Population]:
    """Return a function that runs forward and backward pass, and the networks."""
    population = Population(shape, CPU)
    scales = torch.tensor(ITEMS.scales()) if shape.items else torch.ones(shape.state_dim)
    for slot in range(MEMBERS):
        population.new_member(slot, slot, 0.0, torch.zeros(len(scales)), scales)
    acts, backward = Activations(shape, ROWS, CPU), Backward(shape, ROWS, CPU)
    grads = new_gradients(shape, CPU)
    d_output, d_value = torch.randn(MEMBERS, ROWS, shape.action_dim), torch.randn(MEMBERS, ROWS, 1)

    def run() -> None:
        inputs = population.inputs(obs)
        forward(population.weights, inputs, acts)
        backward(population.weights, inputs, acts, d_output, d_value, grads)

    return run, population


def parts(population: Population, obs: Tensor, repetitions: int) -> dict[str, float]:
    """Return the milliseconds of each part of the layers over items, of actors and critics."""
    shape, weights = population.shape, population.weights
    lookup, inputs = Lookup(ITEMS, torch.float32, CPU), population.inputs(obs)
    read, leaves = lookup.read(inputs), [leaf[:MEMBERS] for leaf in weights.items]
    vectors = torch.empty(MEMBERS, ROWS, ITEMS.places * shape.item_width)
    lookup.vectors(read, leaves, vectors)
    d_items = torch.randn(MEMBERS, ROWS * ITEMS.places, shape.item_width)
    into = [torch.empty_like(leaf) for leaf in leaves]
    delta = torch.randn(MEMBERS, ROWS, shape.net_width)
    matrix = weights.actor_in[:, : vectors.shape[2]].contiguous()
    gradient = torch.empty_like(vectors)
    runs: dict[str, tuple[int, Callable[[], object]]] = {
        "normalise and read": (1, lambda: lookup.read(population.inputs(obs))),
        "item vectors": (2, lambda: lookup.vectors(read, leaves, vectors)),
        "gradient of the vectors": (2, lambda: torch.bmm(delta, matrix.mT, out=gradient)),
        "gradient of the layer": (2, lambda: lookup.backward(read, d_items, into)),
    }
    return {name: times * best(run, repetitions) for name, (times, run) in runs.items()}


def main(argv: list[str]) -> None:
    parser = benchmark_parser(__doc__ or "")
    parser.add_argument("--repetitions", type=int, default=30)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    machine = print_machine()
    obs = observations()
    shape = Shape(
        state_dim=ITEMS.columns,
        action_dim=31,
        discrete=True,
        action_dims=(11, 10, 10),
        byte_obs=True,
        items=ITEMS,
        slots=MEMBERS,
        net_width=128,
        minibatch=ROWS,
    )
    plain = replace(shape, state_dim=shape.inputs[0], items=None, byte_obs=False)
    with_items, population = minibatch(shape, obs)
    without, _ = minibatch(plain, torch.randn(MEMBERS, ROWS, plain.state_dim))
    found = {
        "with items": best(with_items, args.repetitions),
        "MLP alone": best(without, args.repetitions),
        **parts(population, obs, args.repetitions),
    }
    for name, took in found.items():
        print(f"{name:24} {took:7.2f} ms   {MEMBERS * ROWS / took * 1e3:12,.0f} rows/s")
    save_results(args.save, {"machine": machine, "milliseconds": found, "rows": MEMBERS * ROWS})
