"""Parts of `gpu.py` about environments alone: their speed, and their kernels against torch's steps."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any

import torch

from sweepd.agents.algorithms.sample_programs import Cell, make_env, market_of, now
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.crypto.env import CryptoEnv
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.games.cartpole import CartPole, CartPoleParams
from sweepd.envs.games.registry import get_game

ENVS = ("crypto", "cartpole", "bucket-brigade", "hockey", "card-duel", "leduc")


def envs(args: argparse.Namespace) -> Any:
    """Step environments with random actions that are drawn before."""
    found = []
    for name, rows in product(ENVS, args.sizes.rows):
        env = lone_env(name, rows, args.device)
        env.reset(0)
        speed = steps_per_second(env, args)
        found.append({"env": name, "rows": env.num_envs, "steps_per_second": speed})
        print(f"{name:<15} {env.num_envs:>7,} rows {speed:>15,.0f} steps/s", flush=True)
    return found


def lone_env(name: str, rows: int, device: torch.device) -> VecEnv:
    """Return an environment of one member with about so many rows."""
    if name == "crypto":
        return make_env(Cell(members=1, num_envs=rows), device)[0]
    game = get_game(name)
    params = game.params()
    per_game = 1 if name == "leduc" else game.seats(params)
    return game.make([params], max(1, rows // per_game), together=1, device=device)


def random_actions(env: VecEnv) -> torch.Tensor:
    """Return actions of 16 steps."""
    size, device = (16, env.num_envs), env.device
    if not env.if_discrete:
        return torch.rand(*size, env.action_dim, device=device) * 2.0 - 1.0
    if not env.spec.action_dims:
        return torch.randint(env.action_dim, size, device=device)
    return torch.stack([torch.randint(n, size, device=device) for n in env.spec.action_dims], -1)


def _first_legal(env: VecEnv) -> torch.Tensor:
    """Return the first legal option of every choice."""
    chosen = torch.zeros(env.num_envs, 0, dtype=torch.int64, device=env.device)
    for _ in env.spec.choices:
        mask = env.action_mask(chosen)
        chosen = torch.cat((chosen, mask.byte().argmax(-1, keepdim=True)), 1)
    return chosen if env.spec.action_dims else chosen[:, 0]


def env_kernels(args: argparse.Namespace) -> Any:
    """Compare compiled steps with torch's, and time both."""
    found: dict[str, Any] = {}
    for name, make in ENV_KERNELS.items():
        pair = [make(64, args.device, native) for native in (True, False)]
        found[name] = {
            "compiled": is_compiled(pair[0]),
            "largest_differences": differences(pair, args.sizes.compared_steps),
            "rows": [],
        }
        print(f"{name:<15} {found[name]}", flush=True)
        for rows in args.sizes.rows:
            speeds = {}
            for kind, native in (("compiled", True), ("torch", False)):
                env = make(rows, args.device, native)
                env.reset(0)
                speeds[kind] = steps_per_second(env, args)
            found[name]["rows"].append({"rows": rows, "steps_per_second": speeds})
            shown = ", ".join(f"{kind} {speed:,.0f}/s" for kind, speed in speeds.items())
            print(f"{name:<15} {rows:>7,} rows: {shown}", flush=True)
    return found


def pole(rows: int, device: torch.device, native: bool) -> VecEnv:
    """Return CartPole, whose episodes end by falls and by their length."""
    return CartPole(CartPoleParams(max_steps=40), rows, device=device, native=native)


def market(rows: int, device: torch.device, native: bool, **rules: Any) -> VecEnv:
    """Return a market with short episodes that do not end together."""
    found, params = market_of(8_000, 0), EnvParams(episode_bars=50, lookback=2, **rules)
    window = (found.first_bar(2), found.length - 1)
    return CryptoEnv(found, params, [window], rows, stagger=True, device=device, native=native)


RULES: dict[str, Any] = {
    "trailing_stop": 0.02,
    "max_holding_bars": 9,
    "drawdown_penalty": 1.0,
    "volatility_penalty": 1.0,
    "time_decay_floor": 0.5,
}
ENV_KERNELS: dict[str, Callable[[int, torch.device, bool], VecEnv]] = {
    "cartpole": pole,
    "crypto": market,
    "crypto, rules": partial(market, **RULES),
    "crypto, shorts": partial(market, **RULES, allow_short=True),
}


def is_compiled(env: VecEnv) -> bool:
    """Whether compiled code makes an environment's steps, after its first one."""
    env.reset(0)
    env.step(random_actions(env)[0])
    code = env.native_step if isinstance(env, CartPole) else vars(env)["_native"]
    return code is not None


def differences(envs: Sequence[VecEnv], count: int) -> dict[str, float]:
    """Step environments alike. Return the largest difference of each result that differs."""
    for env in envs:
        env.reset(0)
    actions, found = random_actions(envs[0]), Counter[str]()
    for step in range(count):
        results = []
        for env in envs:
            made = env.step(actions[step % len(actions)])
            results.append(made._asdict() | {"final_obs": env.final_obs(), "faults": env.faults()})
        for name, one in results[0].items():
            apart = float((one.double() - results[1][name].double()).abs().max())
            if apart:
                found[name] = max(found[name], apart)
    return dict(found)


def steps_per_second(env: VecEnv, args: argparse.Namespace) -> float:
    """Step an environment with random actions that are drawn before."""
    actions = random_actions(env)
    legal = _first_legal if env.spec.masked else None

    def run(count: int) -> None:
        env.draw(count)
        for step in range(count):
            env.step(actions[step % len(actions)] if legal is None else legal(env))

    run(8)
    done, start = 0, now(args.device)
    while now(args.device) - start < args.seconds:
        run(32)
        done += 32
    return done * env.num_envs / (now(args.device) - start)
