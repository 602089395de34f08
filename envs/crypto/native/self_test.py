"""A test of the compiled step at its first use: it must give the bits that it should.

Three small batches, with no rule, with every rule, and with every rule and shorts, are stepped from
numbers that are the same on every machine. The digests of their results are stored here, since they
do not depend on the processor; kernels on GPUs have the same. Logarithms are compared with torch's,
whose last bits may change with its version (they are lost in rewards, which are rounded to float32).
`tests/envs/crypto/test_native_step.py` compares the step with torch's.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from sweepd.envs.core.streams import NextNumbers
from sweepd.envs.crypto.native.step import SOURCE, Kernels, Library, NativeStep
from sweepd.envs.native.build import library
from sweepd.envs.native.gpu import GpuKernels
from sweepd.envs.native.memory import per_row, stride_of
from sweepd.envs.native.use import scattered

# After an intended change of the numerics: python -m sweepd.envs.crypto.native.self_test
DIGEST = "379b315c-b1b3c064-0bd0819a"

_ROWS, _ASSETS, _BARS, _FEATURES, _LOOKBACK, _STEPS = 67, 3, 40, 5, 2, 6
_COLUMNS = 1 + 3 * _ASSETS + _LOOKBACK * _FEATURES + 1
_RULES = ("holes", "stops", "holding_rule", "decays", "penalises_drawdown", "penalises_state")
_CASH = 1000.0
_BATCHES = ((False, False), (True, False), (True, True))  # whether there are rules, and shorts


def digest(code: Library | Kernels) -> str:
    """Return hashes of everything that the step computes, 8 hexadecimal digits for each batch."""
    return "-".join(_digest(code, *batch) for batch in _BATCHES)


def kernels_agree(kernels: GpuKernels, device: torch.device, *, shorts: bool) -> bool:
    """Whether kernels, which are compiled with or without shorts, give the step's bits."""
    code = Kernels(kernels, device)
    return all(
        _digest(code, *batch) == expected
        for batch, expected in zip(_BATCHES, DIGEST.split("-"), strict=True)
        if batch[1] == shorts
    )


def _digest(code: Library | Kernels, rules: bool, shorts: bool) -> str:
    hashed = hashlib.sha256()
    for tensor in _results(code, rules, shorts=shorts):
        hashed.update(tensor.cpu().contiguous().numpy().tobytes())
    return hashed.hexdigest()[:8]


def _numbers(*size: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Return numbers that look random."""
    return low + (high - low) * (scattered(*size, below=2053) / 2048)


def _results(code: Library | Kernels, rules: bool, *, shorts: bool) -> list[Tensor]:
    """Return observations, rewards and portfolios after a few steps and restarts."""
    device = code.device
    portfolios = _portfolios(shorts)
    tensors = _market(rules) | _parameters() | portfolios
    if shorts:
        tensors |= _short_parameters()
    if not rules:
        tensors |= dict.fromkeys(("next_fill", "buys_at", "increment", "record"))
    tensors = {name: None if one is None else one.to(device) for name, one in tensors.items()}
    sizes = {
        "rows": _ROWS,
        "stride": stride_of(_ROWS, device),
        "assets": _ASSETS,
        "bars": _BARS,
        "features": _FEATURES,
        "max_lookback": _LOOKBACK,
        "columns": _COLUMNS,
        "minimums": _ASSETS,
        "privileged": 1,
        "shorts": int(shorts),
        "terminates": 0,
        **dict.fromkeys(_RULES, int(rules)),
    }
    step, every = NativeStep(code, sizes, tensors), torch.arange(_ROWS, device=device)
    obs = torch.zeros(_ROWS, _COLUMNS, device=device)
    rows = torch.arange(_ROWS)
    bars = 4 + rows % 9
    starts = NextNumbers(rows=_ROWS, dtype=torch.int64, device=device)
    rewards, right = [], []
    total, growth = tensors["total"], tensors["growth"]
    assert total is not None
    assert growth is not None
    # A GPU's compiler and torch may have other versions of the logarithm.
    apart = 0.0 if device.type == "cpu" else 1e-15
    starts.put(slice(None), torch.stack((bars, bars + rows % 5)))  # each row begins twice
    step.restart(every >= 0, starts, obs)
    for at in range(_STEPS):
        action = _numbers(_STEPS, _ROWS, _ASSETS, low=-1.0)[at]
        before = total.clone()
        rewards.append(step.trade(action.float().to(device), obs))
        wanted = ((total - before) / before).log1p_()
        ended = every % 5 == at
        right.append((growth - wanted).abs() <= apart * wanted.abs())
        right[-1] &= step.restart(ended, starts, obs) == ended
    kept = [tensors[name] for name in portfolios if name != "growth"]
    return [obs, *rewards, *right, *(tensor for tensor in kept if tensor is not None)]


def _market(holes: bool) -> dict[str, Tensor | None]:
    columns = (3 if holes else 2) * _ASSETS
    prices = _numbers(_BARS, columns, low=50.0, high=60.0)
    if holes:
        prices[:, 2 * _ASSETS :] = (prices[:, 2 * _ASSETS :] > 52.0).double()
    return {
        "prices_by_bar": prices,
        "next_open": prices[:, :_ASSETS].t().contiguous(),
        "next_fill": torch.arange(_BARS).double().sub(1).clamp_min(0).repeat(_ASSETS, 1),
        "feature_table": _numbers(_BARS, _FEATURES, low=-1.0).float(),
        "increment": torch.tensor([[0.0], [0.5], [0.01]], dtype=torch.float64),
        "final_obs": torch.zeros(_ROWS, _COLUMNS),
    }


def _parameters() -> dict[str, Tensor | None]:
    """Return parameters that differ between rows."""
    sizing = _spread(4, low=0.1, high=0.5)
    sizing[1] *= -1.0
    return {
        "sizing": sizing,
        "minimum": _spread(_ASSETS, low=1.0, high=20.0),
        "buy_rate": _spread(low=0.99),
        "sell_rate": _spread(low=0.99),
        "stop_level": _spread(low=0.9),
        "max_holding_bars": _spread(low=1.0, high=5.0).floor(),
        "max_holding_fraction": _spread(low=0.2),
        "initial_cash": _spread(low=_CASH, high=2 * _CASH),
        "inverse_held_scale": _spread(low=0.1, high=0.5),
        "age_scale": _spread(low=0.01),
        "growth_weights": _spread(2, low=-100.0, high=100.0),
        "floor": _spread(),
        "inverse_length": _spread(high=0.2),
        "drawdown_penalty": _spread(high=10.0),
        "volatility_penalty": _spread(high=10.0),
        "concentration_penalty": _spread(high=10.0),
        "concentration_limit": _spread(high=0.5),
        "cash_penalty": _spread(high=10.0),
        "cash_reserve": _spread(high=0.9),
        "waiting": _spread(_ASSETS, low=_CASH, high=2 * _CASH),
        "lookback": 1 + torch.arange(_ROWS) % _LOOKBACK,
    }


def _short_parameters() -> dict[str, Tensor | None]:
    """Return parameters of shorts, with margin calls and bankruptcies in some rows."""
    return {
        "short_allowed": (_spread() > 0.2).double(),
        "cover_level": _spread(low=1.0, high=1.1),
        "leverage": _spread(low=0.2, high=3.0),
        "maintenance": _spread(low=0.1, high=2.0),
        "borrow_rate": _spread(high=0.01),
        "bankrupt_value": _spread(low=1.6 * _CASH, high=0.2 * _CASH),
    }


def _portfolios(shorts: bool) -> dict[str, Tensor | None]:
    """Return the state, which `NativeStep.restart` fills."""
    by_asset = ("equal_units", "units", "paid", "held", "high", "equal_worth", "worth", "buys_at")
    by_row = ("cash", "peak", "drawdown", "legal_steps")
    pairs = ("total", "growth")
    return {
        **{name: per_row(_ASSETS, rows=_ROWS) for name in (*by_asset, "largest")},
        **{name: per_row(rows=_ROWS) for name in by_row},
        **{name: per_row(2, rows=_ROWS) for name in pairs},
        **{name: per_row(rows=_ROWS, dtype=torch.int64) for name in ("place", "start")},
        "record": per_row(10 if shorts else 8, rows=_ROWS),
        **({"bankrupt": per_row(rows=_ROWS)} if shorts else {}),
    }


def _spread(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Return parameters (*shape, rows)."""
    spread = per_row(*shape, rows=_ROWS)
    return spread.copy_(_numbers(*shape, _ROWS, low=low, high=high))


def main() -> None:
    """Print the digest of this machine's step."""
    print(digest(Library(library(SOURCE))))


if __name__ == "__main__":
    main()
