"""Small bundles, markets and finished studies for the tests of deploy."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from agents.policy import save_members
from deploy.bundle import (
    Bundle,
    DataPart,
    Manifest,
    OriginPart,
    PolicyPart,
    default_symbols,
    describe_members,
    format_time,
    make_bundle,
    recipe_part,
)
from envs.crypto.features import get_recipe
from envs.crypto.params import EnvParams, Instruments

START = 1_577_836_800
HIDDEN = (8, 8)


def random_actor(state_dim: int, action_dim: int, seed: int, *, gain: float = 1.0) -> dict[str, Tensor]:
    """An actor that trades: random weights, and a normaliser that is not the identity."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (state_dim, *HIDDEN, action_dim)
    member: dict[str, Tensor] = {}
    for layer, (inputs, outputs) in enumerate(zip(sizes[:-1], sizes[1:], strict=True)):
        scale = gain * (2.0 / inputs) ** 0.5
        member[f"net.{2 * layer}.weight"] = scale * torch.randn(outputs, inputs, generator=generator)
        member[f"net.{2 * layer}.bias"] = 0.1 * torch.randn(outputs, generator=generator)
    member["action_std_log"] = torch.full((1, action_dim), -1.0)
    member["state_avg"] = 0.1 * torch.randn(state_dim, generator=generator)
    member["state_std"] = 0.5 + torch.rand(state_dim, generator=generator)
    return member


def members_bytes(actors: list[dict[str, Tensor]]) -> bytes:
    """The content of a members file."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "members.safetensors"
        save_members(path, actors)
        return path.read_bytes()


def small_bundle(
    seed: int = 0, *, tickers: tuple[str, ...] = ("BTC/USDT", "ETH/USDT"), timeframe: str = "1h", params: EnvParams | None = None,
    instruments: Instruments | None = None, max_lookback: int | None = None, last_seen: int = START, members: int = 2,
    gain: float = 1.0, **changes: Any,
) -> Bundle:
    """A bundle of random members. changes: other fields of the manifest."""
    params = params or EnvParams()
    instruments = instruments or Instruments.unrestricted(len(tickers))
    recipe = get_recipe("default")
    lags = max_lookback or params.lookback
    state_dim = 1 + 3 * len(tickers) + lags * recipe.width(len(tickers))
    content = members_bytes([random_actor(state_dim, len(tickers), 100 * seed + index, gain=gain) for index in range(members)])
    fields: dict[str, Any] = {
        "tickers": tickers,
        "symbols": default_symbols(tickers, synthetic=False),
        "timeframe": timeframe,
        "recipe": recipe_part(recipe),
        "env_params": dataclasses.asdict(params),
        "minimum_order": instruments.minimum_order,
        "increment": instruments.increment,
        "policy": PolicyPart(
            algorithm="ppo", members=members, state_dim=state_dim, action_dim=len(tickers), max_lookback=lags, hidden=HIDDEN
        ),
        "origin": OriginPart(
            study="small", study_uid="0" * 32, trial=seed, seed=7, objective="excess-sharpe", objective_value=1.5,
            parameters={"learning_rate": 1e-3, "lr_schedule": "constant"}, ppo_params={"clip": 0.2},
        ),
        "data": DataPart(fingerprint="f" * 64, first=format_time(START), last=format_time(last_seen), synthetic=False),
        "last_seen_bar": format_time(last_seen),
        "metrics": {"describes": "the members, in cross-validation", "paths": []},
        "gate": {},
        "code_version": "0.1.0",
        "torch_version": "2.13.0",
        "files": describe_members(content),
    }
    return make_bundle(Manifest(**(fields | changes)), content)
