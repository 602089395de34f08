"""Small bundles, markets and finished studies for the tests of deploy."""

from __future__ import annotations

import dataclasses
import itertools
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pandas as pd
import torch
from optuna.trial import TrialState
from torch import Tensor

from sweepd.agents.networks.activation import RELU
from sweepd.agents.networks.spec import NetSpec
from sweepd.agents.policy.members import Member, save_members
from sweepd.deploy.market.bundle import Bundle, default_symbols, recipe_part
from sweepd.deploy.market.manifest import (
    DataPart,
    EnsembleManifest,
    Manifest,
    OriginPart,
    PolicyPart,
    TrialPart,
    trial_file,
)
from sweepd.deploy.promotion.flags import PromoteFlags
from sweepd.deploy.promotion.gate import Gate
from sweepd.deploy.promotion.promoter import Promoter
from sweepd.deploy.promotion.rules import GateRule
from sweepd.deploy.promotion.studies import GateStudy
from sweepd.deploy.registry.bundle_files import MEMBERS_FILE, describe_files, new_bundle, sha256
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.core.entities import Entities
from sweepd.envs.crypto.data.bars import Bars, load_bars, write_bars
from sweepd.envs.crypto.data.timeframe import format_time, grid_from
from sweepd.envs.crypto.features import get_recipe
from sweepd.envs.crypto.params import EnvParams, Instruments
from sweepd.envs.crypto.splits import CrossValidation, make_splits
from sweepd.optimize.study.record.data_spec import DataSpec
from sweepd.optimize.study.record.folder import recorded_folder
from sweepd.optimize.study.record.keys import FLAGS_KEY, FOLDER_KEY, SPEC_KEY, UID_KEY
from sweepd.optimize.study.record.specs import CryptoSpec

START = 1_577_836_800
HIDDEN = (8, 8)


def random_actor(
    state_dim: int,
    action_dim: int,
    seed: int,
    *,
    gain: float = 1.0,
    activation: str = RELU,
    entities: Entities | None = None,
) -> Member:
    """An actor that trades: random weights, and a normaliser that is not the identity."""
    spec = NetSpec(
        kind="ActorPPO",
        columns=state_dim,
        actions=action_dim,
        hidden=HIDDEN,
        activation=activation,
        entities=entities,
        entity_width=16 if entities else 0,
    )
    generator = torch.Generator().manual_seed(seed)
    sizes = (spec.inputs, *HIDDEN, action_dim)
    member: dict[str, Tensor] = {}
    if entities is not None:
        size = spec.entity_width, entities.width
        member["entities.weight"] = torch.randn(size, generator=generator) / size[1] ** 0.5
        member["entities.bias"] = 0.1 * torch.randn(size[0], generator=generator)
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        scale = gain * (2.0 / inputs) ** 0.5
        member[f"net.{2 * layer}.weight"] = scale * torch.randn(
            outputs, inputs, generator=generator
        )
        member[f"net.{2 * layer}.bias"] = 0.1 * torch.randn(outputs, generator=generator)
    member["action_std_log"] = torch.full((1, action_dim), -1.0)
    member["state_avg"] = 0.1 * torch.randn(state_dim, generator=generator)
    member["state_std"] = 0.5 + torch.rand(state_dim, generator=generator)
    return Member(spec, member)


def members_bytes(actors: list[Member]) -> bytes:
    """The content of a members file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "members.safetensors"
        save_members(path, actors)
        return path.read_bytes()


def small_bundle(
    seed: int = 0,
    *,
    tickers: tuple[str, ...] = ("BTC/USDT", "ETH/USDT"),
    timeframe: str = "1h",
    params: EnvParams | None = None,
    instruments: Instruments | None = None,
    max_lookback: int | None = None,
    last_seen: int = START,
    members: int = 2,
    gain: float = 1.0,
    activation: str = RELU,
    entities: Entities | None = None,
    **changes: Any,
) -> Bundle:
    """A bundle of random members. changes: other fields of the manifest."""
    params = params or EnvParams()
    instruments = instruments or Instruments.unrestricted(len(tickers))
    recipe = get_recipe("default")
    lags = max_lookback or params.lookback
    state_dim = 1 + 3 * len(tickers) + lags * recipe.width(len(tickers))
    content = members_bytes(
        [
            random_actor(
                state_dim,
                len(tickers),
                100 * seed + index,
                gain=gain,
                activation=activation,
                entities=entities,
            )
            for index in range(members)
        ]
    )
    fields: dict[str, Any] = {
        "tickers": tickers,
        "symbols": default_symbols(tickers, timeframe, synthetic=False),
        "timeframe": timeframe,
        "recipe": recipe_part(recipe),
        "env_params": dataclasses.asdict(params),
        "minimum_order": instruments.minimum_order,
        "increment": instruments.increment,
        "policy": PolicyPart(
            algorithm="ppo",
            members=members,
            state_dim=state_dim,
            action_dim=len(tickers),
            max_lookback=lags,
            hidden=HIDDEN,
        ),
        "origin": OriginPart(
            study="small",
            study_uid="0" * 32,
            trial=seed,
            seed=7,
            objective="information-ratio",
            objective_value=1.5,
            parameters={"learning_rate": 1e-3, "lr_schedule": "constant"},
            ppo_params={"clip": 0.2},
        ),
        "data": DataPart(
            fingerprint="f" * 64,
            first=format_time(START),
            last=format_time(last_seen),
            synthetic=False,
        ),
        "last_seen_bar": format_time(last_seen),
        "metrics": {"describes": "the members, in cross-validation", "over_paths": {}, "paths": []},
        "gate": {},
        "code_version": "0.1.0",
        "torch_version": "2.13.0",
        "files": describe_files({MEMBERS_FILE: content}),
    }
    return new_bundle(Bundle, Manifest(**(fields | changes)), {MEMBERS_FILE: content})


def ensemble_of(
    bundles: Sequence[Bundle], shares: Sequence[float] | None = None, **changes: Any
) -> Bundle:
    """Return an ensemble of the bundles' trials. shares: of the capital, by default equal ones."""
    shares = shares or [1.0 / len(bundles)] * len(bundles)
    files, parts = {}, []
    for number, (bundle, share) in enumerate(zip(bundles, shares, strict=True)):
        assert isinstance(bundle.manifest, Manifest)
        files[trial_file(number)] = bundle.files[MEMBERS_FILE]
        (part,) = bundle.manifest.trials
        parts.append(TrialPart(**(dict(part) | {"share": share, "file": trial_file(number)})))
    own = ("format_version", "env_params", "policy", "origin")
    fields = {name: value for name, value in dict(bundles[0].manifest).items() if name not in own}
    fields |= {"weights": "equal", "trials": tuple(parts), "files": describe_files(files)}
    return new_bundle(Bundle, EnsembleManifest(**(fields | changes)), files)


def reverting_market(
    seed: int, *, assets: int = 3, bars: int = 1900, timeframe: str = "1h"
) -> Bars:
    """A mean-reverting market: selling what has risen beats equal weight on it."""
    rng = np.random.default_rng(seed)
    swing = np.zeros((bars, assets))
    kicks = 0.08 * math.sqrt(1.0 - 0.9**2) * rng.standard_normal((bars, assets))
    for t in range(1, bars):
        swing[t] = 0.9 * swing[t - 1] + kicks[t]
    close = 100.0 * np.exp(np.cumsum(0.002 * rng.standard_normal((bars, assets)), axis=0) + swing)
    opened = np.concatenate([close[:1], close[:-1]])
    return Bars(
        tickers=tuple(f"TEST{number}/USDT" for number in range(assets)),
        timeframe=timeframe,
        time=grid_from(timeframe, START, bars),
        open=opened,
        high=np.maximum(opened, close) * 1.001,
        low=np.minimum(opened, close) * 0.999,
        close=close,
        volume=rng.uniform(100.0, 200.0, (bars, assets)),
        hole=np.zeros((bars, assets), dtype=bool),
        synthetic=True,
    )


SEARCH: dict[str, Any] = {  # fields of a spec that promotion does not read
    "env": {},
    "budget": 1000,
    "rungs": 1,
    "num_envs": 1,
    "horizon": 1,
    "slots": 2,
    "trials_per_batch": 1,
    "sampler": "tpe",
    "pruner": "none",
    "seed": 0,
    "space": {},
    "threads": 1,
    "processor": "",
    "kernels": "torch 4",
}


class FakeStudy:
    """A finished study as `sweepd train` leaves it, with members that were not trained.

    Args:
        folder: gets `data/` (a mean-reverting market), `runs/` (trial files) and `studies.db`.
        changes: fields of the spec.
    """

    def __init__(
        self,
        folder: Path,
        *,
        name: str = "fake",
        bars: int = 1900,
        holdout: float = 0.1,
        seed: int = 0,
        assets: int = 3,
        timeframe: str = "1h",
        **changes: Any,
    ) -> None:
        self.folder = folder
        self.name = name
        self.storage = f"sqlite:///{folder / 'studies.db'}"
        self.run_dir = folder / "runs" / f"{name}-00000000"
        self.data_dir = folder / "data"
        if not self.data_dir.exists():
            made = reverting_market(seed, assets=assets, bars=bars, timeframe=timeframe)
            write_bars(made, self.data_dir)
        self.bars = load_bars(self.data_dir, timeframe)
        recipe = get_recipe("default")
        cv = {"scheme": "single", "groups": 3, "test_groups": 1, "embargo_share": 0.01}
        self.first_bar = recipe.memory - 1
        self.splits = make_splits(
            len(self.bars.time),
            timeframe,
            CrossValidation(**cv),
            first_bar=self.first_bar,
            holdout=holdout,
            lookback=1,
            memory=recipe.memory,
        )
        spec = CryptoSpec(
            environment="crypto",
            algorithm="ppo",
            data=DataSpec(
                dir=str(self.data_dir),
                tickers=self.bars.tickers,
                timeframe=timeframe,
                fingerprint=self.bars.fingerprint,
                first=self.bars.time_of(0).isoformat(),
                last=self.bars.time_of(-1).isoformat(),
                bars=len(self.bars.time),
                synthetic=True,
            ),
            recipe={"name": recipe.name, "version": recipe.version, "memory": recipe.memory},
            cv=cv,
            holdout=holdout,
            first_bar=self.first_bar,
            max_lookback=1,
            objective="information-ratio",
            code_version="0.1.0",
            torch_version="2.13.0",
            **SEARCH | changes,
        )
        self.study = optuna.create_study(
            study_name=name,
            storage=self.storage,
            directions=[value.direction for value in spec.values],
        )
        self.study.set_user_attr(SPEC_KEY, spec.to_json())
        self.study.set_user_attr(FLAGS_KEY, {"given": ["rungs"], "rungs": 1})
        self.study.set_user_attr(UID_KEY, f"{name:0<32}")
        self.study.set_user_attr(FOLDER_KEY, recorded_folder(self.storage, self.run_dir))

    @property
    def state_dim(self) -> int:
        count = len(self.bars.tickers)
        return 1 + 3 * count + get_recipe("default").width(count)

    def add(
        self,
        value: float,
        actors: list[Member],
        *,
        params: EnvParams | None = None,
        state: TrialState = TrialState.COMPLETE,
        edge: float | None = None,
        trades: float = 1.0,
        further: Sequence[float] = (),
        violations: Mapping[str, float] | None = None,
        **changes: Any,
    ) -> int:
        """Add a trial with these members and return its number.

        Args:
            value: its first value.
            actors: its members.
            params: of its environment.
            state: its state.
            edge: mean excess return per bar in cross-validation; None: one that fits the value.
            trades: per bar.
            further: its other values.
            violations: by constraint.
            changes: its attributes.
        """
        edge = 5e-4 * value if edge is None else edge
        number = len(self.study.get_trials(deepcopy=False))
        folder = self.run_dir / f"trial-{number:05d}"
        save_members(folder / "members.safetensors", actors)
        rng = np.random.default_rng(number)
        time = self.bars.time[self.splits.path_bars]
        equal = np.random.default_rng(99).normal(0.0, 0.01, (1, len(time)))
        ones = np.ones_like(equal)
        columns = {
            "returns": equal + rng.normal(edge, 3e-3, equal.shape),
            "equal_weight": equal,
            "trades": trades * ones,
            "fees": 1e-4 * ones,
            "notional": 0.1 * ones,
            "exposure": 0.5 * ones,
        }
        table = pd.DataFrame(
            {"path": 0, "date": pd.to_datetime(time, unit="s", utc=True)}
            | {key: item[0] for key, item in columns.items()}
        )
        table.to_parquet(folder / "paths.parquet", index=False)
        attributes = {
            "sweepd:members": {
                "path": f"{folder.name}/members.safetensors",
                "sha256": sha256((folder / "members.safetensors").read_bytes()),
            },
            "sweepd:env_params": dataclasses.asdict(params or EnvParams()),
            "sweepd:ppo_params": {"clip": 0.2},
            "sweepd:seed": 2**62 + number,
            "sweepd:shape": {"net_width": 8},
        } | changes
        self.study.add_trial(
            optuna.trial.create_trial(
                state=state,
                values=[value, *further] if state == TrialState.COMPLETE else None,
                constraints=dict(violations or {}),
                params={"learning_rate": 1e-3},
                distributions={
                    "learning_rate": optuna.distributions.FloatDistribution(1e-5, 1e-2, log=True)
                },
                user_attrs=attributes,
            )
        )
        return number

    def idle(self) -> list[Member]:
        """Two members that never trade."""
        return [constant_actor(self.state_dim, len(self.bars.tickers), 0.0)] * 2

    def follower(self) -> list[Member]:
        """Two members that buy what has risen: they trade, and lose on the demo market."""
        return self.contrarian(-1.0)

    def contrarian(self, strength: float = 1.0) -> list[Member]:
        """Two members that trade against 12- and 48-bar returns, which pays on the demo market."""
        return [contrarian_actor(self.bars, strength * (1.0 + 0.1 * index)) for index in range(2)]


def constant_actor(state_dim: int, action_dim: int, action: float) -> Member:
    """An actor whose every action is `action`."""
    member = random_actor(state_dim, action_dim, 0)
    member.tensors["net.4.weight"].zero_()
    member.tensors["net.4.bias"].fill_(math.atanh(action))
    return member


def contrarian_actor(bars: Bars, strength: float) -> Member:
    """Return an actor that trades against the 12- and 48-bar returns of each asset.

    Its hidden layers hold the negative parts of these returns.
    """
    recipe, count = get_recipe("default"), len(bars.tickers)
    columns = list(recipe.columns(bars.tickers))
    width, offset = 2 * count, 1 + 3 * count
    state_dim = offset + recipe.width(count)
    first = torch.zeros(width, state_dim)
    last = torch.zeros(count, width)
    for asset, ticker in enumerate(bars.tickers):
        used = [
            index
            for index, name in enumerate(columns)
            if name.startswith(f"{ticker} ") and ("12" in name or "48" in name)
        ]
        assert len(used) == 2, columns
        for index in used:
            first[2 * asset, offset + index], first[2 * asset + 1, offset + index] = 1.0, -1.0
        last[asset, 2 * asset], last[asset, 2 * asset + 1] = -strength, strength
    return Member.of_tensors(
        {
            "net.0.weight": first,
            "net.0.bias": torch.zeros(width),
            "net.2.weight": torch.eye(width),
            "net.2.bias": torch.zeros(width),
            "net.4.weight": last,
            "net.4.bias": torch.zeros(count),
            "action_std_log": torch.full((1, count), -1.0),
            "state_avg": torch.zeros(state_dim),
            "state_std": torch.ones(state_dim),
        }
    )


def promoter_of(
    kind: type[Gate[Any, Any, Any, Any]],
    study: GateStudy,
    registry: Registry,
    rules: Sequence[GateRule[Any]] | None = None,
    progress: Callable[[str], None] = lambda _text: None,
    **flags: Any,
) -> Promoter[Any, Any, Any, Any]:
    """The promoter of a study with these options. rules: instead of the gate's own."""
    gate = kind(study, registry, PromoteFlags(**flags), progress)
    if rules is not None:
        gate.rules = tuple(rules)
    return Promoter(gate)
