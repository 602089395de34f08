"""Digests of the trained weights of small programs (`digests.json`).

Native kernels, which train all of them, give the same digests on all processors.

A digest changes when the numerics of training change, intended or not, or with another version of
torch. After an intended change, write the digests again from the repository's root:

    python -m tests.agents.digests --write

Without --write, it prints this processor's digests. If a digest changed, --write removes all others,
since they belong to the earlier numerics. (Without native kernels, digests are those of a kind of
processor; none are stored.)
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sweepd.agents.algorithms.identity import processor_kind, products_by_slot
from sweepd.agents.algorithms.ppo import PPO, Shape
from sweepd.agents.native.choice import chosen
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.games.cartpole import CartPole, CartPoleParams
from tests.agents import helpers, off_policy_helpers
from tests.agents.toy_env import AbsentChoicesEnv, ChoiceEnv, ImageEnv, ItemsEnv, MaskedEnv, ToyEnv

DIGESTS = Path(__file__).with_name("digests.json")
SLOTS = 5
MEMBER = 2  # whose weights are looked at; its parameters and seeds follow from the number
ALONE, CROWD = {1: MEMBER}, {0: 5, 1: 6, 2: 7, 3: MEMBER, 4: 8}


def kind() -> str:
    """Return for what digests are kept, and torch's version.

    That is native kernels, on all processors; without them, the kind of processor.
    """
    kernels = chosen("ppo", "fp32", torch.device("cpu"), recurrent=False, images=False)
    where = "native kernels" if kernels.startswith("native") else processor_kind()
    return f"{where}, torch {torch.__version__.partition('+')[0]}"


def crypto(assets: int) -> VecEnv:
    """Return a planted market. It imports its modules here: slow on an emulated processor."""
    from sweepd.envs.crypto.data.demo_market import make_planted_market
    from sweepd.envs.crypto.env import CryptoEnv
    from sweepd.envs.crypto.market import make_market, observation_normaliser
    from sweepd.envs.crypto.params import EnvParams

    market = make_market(make_planted_market(3, assets=assets, bars=1_500))
    window = [(market.first_bar(1), market.first_bar(1) + 600)]
    env = CryptoEnv(market, [EnvParams(episode_bars=13)] * SLOTS, [window] * SLOTS, 8)
    env.state_avg, env.state_std = observation_normaliser(market, window, 1, 1)
    return env


def cartpole(envs: int) -> VecEnv:
    env = CartPole([CartPoleParams()] * SLOTS, envs)
    env.state_avg, env.state_std = torch.zeros(4), torch.tensor([2.4, 2.0, 0.2, 2.0])
    return env


@dataclass(frozen=True)
class Program:
    """A program that trains for a moment. make: its environment. sizes: fields of its shape."""

    make: Callable[[], VecEnv]
    sizes: dict[str, Any]
    rollouts: int = 3
    off_policy: bool = False
    exports: tuple[str, ...] = field(default=("actor", "critic"))

    def train(self, members: dict[int, int], threads: int) -> dict[str, Tensor]:
        """The exported weights of `MEMBER`, trained in its slot of `members` (slot to member)."""
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        try:
            env: Any = self.make()
            if self.off_policy:
                program, _ = off_policy_helpers.started(env, members, **self.sizes)
            else:
                program = self._started(env, members)
            program.train(env, self.rollouts)
            slot = next(slot for slot, member in members.items() if member == MEMBER)
            return {
                f"{part}.{name}": tensor
                for part, weights in zip(self.exports, program.export_member(slot), strict=True)
                for name, tensor in weights.items()
            }
        finally:
            torch.set_num_threads(before)

    def _started(self, env: Any, members: dict[int, int]) -> Any:
        sizes = helpers.SMALL | self.sizes
        ppo = PPO(Shape.for_env(env, autoregressive=env.spec.masked, **sizes))
        for slot, member in members.items():
            ppo.add_member(
                slot, helpers.member_params(member), 100 + member, 8, env.state_avg, env.state_std
            )
        ppo.begin(
            env.reset([200 + members[slot] if slot in members else None for slot in range(SLOTS)])
        )
        return ppo


def toy(kind: type[ToyEnv], envs: int = 8, **settings: Any) -> Callable[[], VecEnv]:
    return lambda: kind(SLOTS, envs, **settings)


# `wide` is large enough for torch to split its operations between threads.
PROGRAMS: dict[str, Program] = {
    "ppo, 5 assets": Program(lambda: crypto(5), {"net_width": 64, "minibatch": 33}),
    "ppo, 7 assets": Program(lambda: crypto(7), {"net_width": 33, "minibatch": 24}),
    "ppo, cartpole": Program(lambda: cartpole(16), {"net_width": 64, "minibatch": 48}),
    "ppo, wide": Program(
        toy(ToyEnv, 64, action_dim=10), {"net_width": 128, "horizon": 32, "minibatch": 700}, 2
    ),
    "sac, 5 actions": Program(
        toy(ToyEnv, action_dim=5), {"net_width": 33, "minibatch": 17}, 3, off_policy=True
    ),
    "sac, wide": Program(
        toy(ToyEnv, 32), {"net_width": 128, "minibatch": 300, "updates": 8}, 3, off_policy=True
    ),
    "d3qn, 7 choices": Program(
        toy(ChoiceEnv, choices=7), {"net_width": 64, "minibatch": 33}, 3, off_policy=True
    ),
    "ppo, gru": Program(
        toy(ToyEnv, action_dim=5), {"recurrent": "gru", "bptt": 4, "net_width": 33}
    ),
    "ppo, lstm": Program(
        toy(ChoiceEnv, choices=10), {"recurrent": "lstm", "bptt": 4, "net_width": 24}
    ),
    "ppo, masked choices": Program(toy(MaskedEnv), {"net_width": 17}),
    "ppo, absent agents": Program(toy(AbsentChoicesEnv), {"net_width": 64}),
    "ppo, images": Program(toy(ImageEnv), {"net_width": 33}, 2),
    "ppo, items": Program(toy(ItemsEnv), {"net_width": 33}),
    # So many items that torch splits its operations between threads.
    "ppo, many items": Program(
        toy(ItemsEnv, 64), {"net_width": 64, "horizon": 64, "minibatch": 4096}, 1
    ),
}


def digest(weights: dict[str, Tensor]) -> str:
    """16 hexadecimal digits of a SHA-256 over names, sizes and bytes."""
    total = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        total.update(
            f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode()
            + tensor.contiguous().numpy().tobytes()
        )
    return total.hexdigest()[:16]


def known() -> dict[str, dict[str, str]]:
    """Return the stored digests by kind of processor and program."""
    kept: dict[str, dict[str, str]] = (
        json.loads(DIGESTS.read_text(encoding="utf-8")) if DIGESTS.exists() else {}
    )
    return kept


def write(found: dict[str, dict[str, str]]) -> None:
    """Store digests by kind of processor and program; earlier ones stay if none of them changed."""
    kept = known()
    changed = any(
        kept.get(kind, {}).get(name, value) != value
        for kind in found
        for name, value in found[kind].items()
    )
    merged = {} if changed else kept
    for name, digests in found.items():
        merged[name] = merged.get(name, {}) | digests
    DIGESTS.write_text(json.dumps(merged, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def main() -> None:
    """Train all programs in three ways; print the digests, or keep them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="keep them in digests.json")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument(
        "--products", action="store_true", help="with --json: small batched products as well"
    )
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    found: dict[str, str] = {}
    wrong: list[str] = []
    seconds: dict[str, float] = {}
    for name in args.only:
        began = time.perf_counter()
        program = PROGRAMS[name]
        found[name] = digest(program.train(ALONE, 1))
        for part, members, threads in (
            ("slot and company", CROWD, 1),
            ("threads", ALONE, args.threads),
        ):
            if digest(program.train(members, threads)) != found[name]:
                wrong.append(f"{name}: depends on {part}")
        seconds[name] = round(time.perf_counter() - began, 2)
        if not args.json:
            print(f"{name:22} {found[name]}  {seconds[name]:5.2f} s")
    if args.json:
        total, by_slot = products_by_slot() if args.products else (0, [])
        products = {"products": [total, len(by_slot)]} if args.products else {}
        print(
            json.dumps(
                {
                    "kind": processor_kind(),
                    "digests": {kind(): found},
                    "wrong": wrong,
                    "seconds": seconds,
                }
                | products
            )
        )
    else:
        print(f"kind of processor: {processor_kind()}", *wrong, sep="\n")
    if args.write:
        write({kind(): found})


if __name__ == "__main__":
    main()
