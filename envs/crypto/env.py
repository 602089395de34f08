"""The crypto market as a vectorized environment, for training, evaluation and single runs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from sweepd.envs.core.entities import Entities
from sweepd.envs.core.faults import Fault, FaultLatch, WithFaults, illegal_number
from sweepd.envs.core.rows import put_rows, take_rows
from sweepd.envs.core.vec_env import Step, VecEnv, on_cpu
from sweepd.envs.crypto.account import RECORD_ROWS, RECORD_ROWS_WITH_SHORTS, Account, record_of
from sweepd.envs.crypto.data.timeframe import bars_per_week, bars_per_year
from sweepd.envs.crypto.episodes import Episodes, windows_per_member
from sweepd.envs.crypto.market import Market
from sweepd.envs.crypto.native.choice import code_for
from sweepd.envs.crypto.native.step import NativeStep
from sweepd.envs.crypto.netting import Netted, Venue
from sweepd.envs.crypto.params import EnvParams
from sweepd.envs.crypto.portfolio import (
    Portfolio,
    Valued,
    asset_parts,
    charge,
    fill,
    mark,
    observe,
    plan,
    sum_parts,
)
from sweepd.envs.crypto.reward import Reward
from sweepd.envs.crypto.rules import Rules
from sweepd.envs.crypto.splits import Window
from sweepd.envs.native.memory import per_row, stride_of, takes_floats
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.upload import upload


class CryptoEnv(WithFaults, VecEnv):
    """`envs_per_member` rows per member. Each row trades episodes that start without positions.

    Observation (state_dim = 1 + 3N + max_lookback · M, float32): cash fraction, N weights,
    N unrealised returns, N clocks min(1, bars held / held_scale), then the M features of each of
    the last `lookback` bars, newest first, with zeros beyond a row's own lookback. With
    `privileged_age`, one more column for critics: age / episode_bars if the reward depends on age,
    else 0.

    Action (N,): multiples of `action_scale`, in [-1, 1]. It is decided at a bar's close, filled at
    the next bar's open and rewarded at that bar's close.

    Where shorts are allowed, an action below 0 sells a flat asset short. A row that goes bankrupt
    terminates; in training it continues at the same bar as a new account, until the episode's end.
    In evaluation it keeps what is left, and nothing terminates.

    Attributes:
        record: float64, figures of the last step (`record_of`), if accounts are kept (always in
            evaluation). `account_of` interprets it.
        venue: if set, all rows are sub-accounts of one account whose orders are netted.
        netted: result of netting at the last decision.
    """

    env_name = "sweepd/Crypto-v0"
    if_discrete = False
    _faults: FaultLatch

    def __init__(
        self,
        market: Market,
        params: EnvParams | Sequence[EnvParams],
        windows: Sequence[Window] | Sequence[Sequence[Window]],
        envs_per_member: int,
        *,
        max_lookback: int | None = None,
        privileged_age: bool = False,
        stagger: bool = False,
        accounts: bool = False,
        fixed: bool = False,
        device: torch.device | str = "cpu",
        debug: bool = False,
        native: bool = True,
    ) -> None:
        """Make an environment. Call `reset` first.

        Args:
            market: the market to trade.
            params: one per member, or one for a single member.
            windows: training windows (first, last), for all members or a list per member.
            envs_per_member: rows per member.
            max_lookback: lookback to which observations are padded; by default the largest one.
            privileged_age: whether critics see the episode's age.
            stagger: shorten the first episodes by even steps, so that a member's rows do not all
                end at once.
            accounts: whether to keep `account`.
            fixed: whether episodes are whole windows, as in `for_windows`. Otherwise they have a
                fixed length and start at random bars.
            device: device of all tensors.
            debug: check for faults after every step.
            native: whether to use the native step where it can be used. Results are the same.

        Raises:
            InputError: a window is empty or outside the usable bars.
        """
        members = [params] if isinstance(params, EnvParams) else list(params)
        member_windows = windows_per_member(windows, len(members))
        if envs_per_member < 1:
            raise InputError(f"envs per member is {envs_per_member}; it must be at least 1")
        self.market = market
        self.device = torch.device(device)
        self.debug = debug
        self.num_members, self.envs_per_member = len(members), envs_per_member
        self.num_envs = rows = self.num_members * envs_per_member
        self.action_dim = market.assets
        self.max_lookback = max_lookback or max(p.lookback for p in members)
        self.privileged_dim = int(privileged_age)
        self._portfolio_dim = 1 + 3 * market.assets
        self.state_dim = self._portfolio_dim + self.max_lookback * market.feature_count
        # Portfolio columns, then each lag's features of all assets, then those that are shared.
        lags = range(self._portfolio_dim, self.state_dim, market.feature_count)
        blocks = [(1 + k * market.assets, 1) for k in range(3)]
        blocks += [(lag, market.asset_features) for lag in lags]
        self.entities = Entities(market.assets, tuple(blocks))
        self._params = members
        # Without shorts, not even their rules are computed.
        self.shorts = any(p.allow_short for p in members)
        year = bars_per_year(market.bars.timeframe) if self.shorts else None
        self._rules = Rules(rows, market.instruments, self.device, bars_per_year=year)
        self._reward = Reward(rows, self.device)
        self._faults = FaultLatch(rows, market.assets, self._explain, self.device)
        self._episodes = Episodes(
            self.num_members, envs_per_member, self.device, fixed=fixed, stagger=stagger
        )
        self._allocate()
        self.venue: Venue | None = None
        self.netted: Netted | None = None
        self._accounts = accounts
        self._code = code_for(market.assets, self.device, shorts=self.shorts) if native else None
        self._native: NativeStep | None = None  # made at the next step
        self.native = self._code is not None and self.device.type == "cpu"
        self.replayable = not debug and not accounts and not self.native
        for member, (own, ground) in enumerate(zip(members, member_windows, strict=True)):
            self.configure_member(member, own, ground)

    @classmethod
    def for_windows(
        cls,
        market: Market,
        params: EnvParams | Sequence[EnvParams],
        windows: Sequence[Sequence[Window]],
        *,
        max_lookback: int | None = None,
        device: torch.device | str = "cpu",
        debug: bool = False,
        native: bool = True,
    ) -> CryptoEnv:
        """Make an evaluation environment: row j of member m trades exactly `windows[m][j]`.

        Nothing is random. A row that reaches the end of its window starts it again. Arguments as
        in the constructor, except that one `params` applies to all members.

        Raises:
            InputError: members have different numbers of windows, or none.
        """
        rows = len(windows[0]) if windows else 0
        if not rows or any(len(own) != rows for own in windows):
            raise InputError(
                "evaluation needs at least one window per member, and equally many for each"
            )
        return cls(
            market,
            [params] * len(windows) if isinstance(params, EnvParams) else params,
            windows,
            rows,
            max_lookback=max_lookback,
            accounts=True,
            fixed=True,
            device=device,
            debug=debug,
            native=native,
        )

    def _allocate(self) -> None:
        """Create the tensors of all rows. `configure_member` and `reset_member` fill them."""
        rows, assets = self.num_envs, self.action_dim

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return per_row(*shape, rows=rows, dtype=dtype, device=self.device)

        self._tables = self.market.tables(self.device)
        # The portfolios and their benchmark, asset-first: the memory that the native step changes.
        # `_portfolio` has views of it.
        self._cashes = zeros(2)  # 0 and cash: what is added to the worths below
        self._cash, self._held, self._high = self._cashes[1], zeros(assets), zeros(assets)
        self._holdings = zeros(3, assets)  # units of the benchmark, units, cost of the latter
        self._worths = zeros(2, assets)  # of the benchmark's units and of the units, at the close
        self._equal_units, units, paid = (part.t() for part in self._holdings)
        self._portfolio = Portfolio(
            self._cash.unsqueeze(1), units, paid, self._high.t(), self._held.t()
        )
        self._bankrupt = zeros()  # with shorts, 1.0 where the account went bankrupt in the step
        self._bankrupt_by_row = self._bankrupt.unsqueeze(1)
        self._wish = zeros(assets)
        self._wish_by_row = self._wish.t()
        self._total = zeros(2)  # E and V at the last close
        self._value = self._total[1]
        self._growth = zeros(2)
        # Opens and closes of the last closed bar and, in markets with holes, 1.0 for assets that
        # were tradable in it.
        self._prices = torch.zeros(
            len(self._tables.prices), rows, dtype=torch.float64, device=self.device
        )
        by_row = self._prices.t()
        self._open, self._close = by_row[:, :assets], by_row[:, assets : 2 * assets]
        # Views of the step, made once: of benchmark and portfolio, with one row per row.
        self._valuables, self._close_by_asset = self._holdings[:2], self._close.t()
        self._worth_parts = asset_parts(self._worths.mT)
        self._cashes_by_row = self._cashes.unsqueeze(2)
        self._total_by_row, self._growth_by_row = (
            self._total.unsqueeze(2),
            self._growth.unsqueeze(2),
        )
        self._worth = self._worths[1]
        has_holes = self._tables.next_fill is not None
        self._tradable = by_row[:, 2 * assets :] if has_holes else None
        self._valued = Valued(self._close, self._worths[1].t(), self._value.unsqueeze(1))
        self._prices_known = False  # whether they are those of the last closed bar
        self._place = zeros(dtype=torch.int64)  # of the last closed bar in the tables
        self._place_by_price = self._place.expand(len(self._prices), -1)
        self._start = zeros(dtype=torch.int64)  # place of the episode's first bar
        self._initial_cash = zeros()
        self._invested = zeros()  # quote units of each asset that the benchmark buys, times price
        self._inverse_held_scale = zeros()
        self._inverse_held_by_row = self._inverse_held_scale.unsqueeze(1)
        self._age_scale = zeros()  # 1 / episode_bars if the reward depends on age, else 0
        # Place of the bar in which the benchmark buys each asset; needed only with holes.
        self._buys_at = zeros(assets) if has_holes else None
        self._waiting = zeros(assets)  # the benchmark's cash for assets not bought yet
        # Runs of rows with the same lookback: first row, number of rows, their places, their
        # lagged features.
        self._lookbacks: list[tuple[int, int, Tensor, Tensor]] = []
        self._no_rows = zeros(dtype=torch.bool)
        # Of the planned step: whether episodes end with it, and in which rows.
        self._ends, self._ended = False, zeros(dtype=torch.bool)
        self._configured = 0  # calls of `configure_member`
        self._final = torch.zeros(rows, self.state_dim + self.privileged_dim, device=self.device)
        self.record = zeros(RECORD_ROWS_WITH_SHORTS if self.shorts else RECORD_ROWS)
        self._terminates = self.shorts and not self._episodes.fixed
        self._recorded = False

    def configure_member(self, member: int, params: EnvParams, windows: Sequence[Window]) -> None:
        """Assign a slot to another member. Follow it with `reset_member` or `set_member`.

        Raises:
            InputError: the lookback exceeds the padding, or a window is empty or outside the bars
                with features.
        """
        if params.lookback > self.max_lookback:
            raise InputError(
                f"lookback is {params.lookback}, but the observations here hold no more than "
                f"{self.max_lookback}"
            )
        if not windows:
            raise InputError("a member has no window to trade in; give at least one (first, last)")
        # The bound follows from the padded lookback, not from the member's own, so that trials with
        # different lookbacks trade the same windows.
        earliest, latest = self.market.first_bar(self.max_lookback), self.market.length - 1
        for first, last in windows:
            if not earliest <= first < last <= latest:
                raise InputError(
                    f"window ({first}, {last}) does not fit: the first decision is possible at bar "
                    f"{earliest}, and the last valuation at bar {latest}"
                )
        if params.allow_short and not self.shorts:
            raise InputError(
                "allow_short is true, but this environment was made for members without shorts"
            )
        week = bars_per_week(self.market.bars.timeframe)
        # Every episode must fit into any of the member's windows.
        length = min(params.episode_bars or week, *(last - first for first, last in windows))
        self._params[member] = params
        self._configured += 1
        self._episodes.configure(member, windows, length)
        rows = self._episodes.rows(member)
        self._initial_cash[rows] = params.initial_cash
        self._waiting[:, rows] = params.initial_cash / self.action_dim
        self._inverse_held_scale[rows] = 1.0 / (params.held_scale or float(week))
        self._age_scale[rows] = 1.0 / length if params.time_decay_floor < 1 else 0.0
        self._rules.set_rows(rows.start, rows.stop, params)
        buy_rate = self._rules.buy_rate.squeeze(1)[rows]
        self._invested[rows] = self._initial_cash[rows] / self.action_dim * buy_rate
        self._reward.set_rows(rows.start, rows.stop, params, length)
        self._lookbacks = self._runs_of_lookback()
        self._native = None  # which rules are on may have changed
        self.max_step = int(self._episodes.lengths.max())
        self.bootstrap_interval = int(self._episodes.lengths.min())

    def _runs_of_lookback(self) -> list[tuple[int, int, Tensor, Tensor]]:
        """Group adjacent members with the same lookback, such as a trial's folds."""
        runs, first = [], 0
        for lookback, group in groupby(self._params, key=lambda params: params.lookback):
            rows = len(list(group)) * self.envs_per_member
            runs.append(
                (first, rows, self._place.narrow(0, first, rows), self._tables.lagged(lookback))
            )
            first += rows
        return runs

    @property
    def row_lengths(self) -> np.ndarray:
        """Return the episode length of each row in bars: (R,) int64."""
        return self._episodes.lengths

    def bars(self) -> Tensor:
        """Return the last closed bar of each row: (R,) int64."""
        return self.market.length - 1 - self._place

    def values(self) -> Tensor:
        """Return V and E at the last close: (2, R) float64."""
        return self._total.flip(0)

    def portfolio(self) -> Portfolio:
        """Return a copy of the rows' portfolios."""
        return Portfolio(*(part.clone() for part in self._portfolio))

    def seeded(self, member: int) -> bool:
        """See `VecEnv.seeded`."""
        return self._episodes.seeded(member)

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """See `VecEnv.reset_member`."""
        if seed is not None:
            self._episodes.seed(member, seed)
        self._begin_next(self._episodes.start(member))
        self._faults.clear(self._episodes.rows(member))

    def draw(self, horizon: int) -> None:
        """See `VecEnv.draw`. Draws the starting bars of episodes that begin within `horizon`."""
        self._episodes.draw(horizon)

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """See `VecEnv.step`. The returned masks are read-only.

        Without shorts, `terminated` is always false.
        """
        if not self._episodes.started:
            raise RuntimeError("step was called before reset")
        return self._planned(action, out, self.action_dim)

    def plan_step(self) -> Hashable:
        """See `VecEnv.plan_step`. Steps differ in whether episodes end with them."""
        self._faults.count()
        self._ends = self._episodes.tick()  # counted on the host, without reading the device
        if self._ends:
            self._ended.copy_(self._episodes.restart_ended())
        if self._code is not None and self._native is None:
            self._native = NativeStep(self._code, *self._native_state())
        # Parameters decide which rules are computed; starts drawn ahead may have moved.
        return self._ends, self._configured, self._episodes.address

    def planned_step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """See `VecEnv.planned_step`."""
        # Netting changes orders between `plan` and `fill`.
        native = self._native if self.venue is None else None
        if native is not None and takes_floats(out, self._final.shape, self._final.device):
            return self._native_step(native, action, out)
        return self._torch_step(action, out)

    def _native_step(self, native: NativeStep, action: Tensor, out: Tensor | None) -> Step:
        """Make a step by `sweepd.envs.crypto.native`; to the bit, it is `_torch_step`."""
        obs = torch.empty_like(self._final) if out is None else out
        reward = native.trade(action, obs)
        terminated = self._bankrupt > 0 if self._terminates else self._no_rows
        self._prices_known = False
        self._recorded = self._accounts
        truncated = self._no_rows
        if self._ends:
            truncated = native.restart(self._ended, self._episodes.starts, obs)
        return Step(obs, reward, terminated, truncated)

    def _native_state(self) -> tuple[dict[str, int], dict[str, Tensor | None]]:
        """Return what `NativeStep` needs: its sizes and tensors."""
        tables = self._tables
        sizes = {
            "rows": self.num_envs,
            "stride": stride_of(self.num_envs, self.device),
            "assets": self.action_dim,
            "bars": self.market.length,
            "features": self.market.feature_count,
            "max_lookback": self.max_lookback,
            "columns": self._final.shape[1],
            "privileged": self.privileged_dim,
            "holes": int(tables.next_fill is not None),
            "terminates": int(self._terminates),
        }
        lookbacks = [p.lookback for p in self._params for _ in range(self.envs_per_member)]
        tensors: dict[str, Tensor | None] = {
            "prices_by_bar": tables.prices_by_bar,
            "next_open": tables.next_open,
            "next_fill": tables.next_fill,
            "feature_table": tables.features,
            "lookback": upload(torch.tensor(lookbacks), self.device),
            "final_obs": self._final,
            "record": self.record if self._accounts else None,
            "bankrupt": self._bankrupt if self.shorts else None,
        }
        own = [
            *("initial_cash", "inverse_held_scale", "age_scale", "waiting", "buys_at", "total"),
            *("place", "start", "growth", "cash", "held", "high"),
        ]
        tensors |= {name: getattr(self, f"_{name}") for name in own}
        tensors |= zip(("equal_units", "units", "paid"), self._holdings, strict=True)
        tensors |= zip(("equal_worth", "worth"), self._worths, strict=True)
        tensors |= {"legal_steps": self._faults.legal_steps, "largest": self._faults.values}
        for part in (self._rules, self._reward):
            own_sizes, own_tensors = part.native_state()
            sizes |= own_sizes
            tensors |= own_tensors
        return sizes, tensors

    def _torch_step(self, action: Tensor, out: Tensor | None) -> Step:
        obs = torch.empty_like(self._final) if out is None else out
        reward = torch.empty(self.num_envs, device=self.device)
        terminated, truncated = self._no_rows, self._no_rows
        if self._terminates:
            terminated = torch.empty_like(self._no_rows)
        if self._ends:
            truncated = self._ended.clone()  # the next plan overwrites it
        # Autograd's part in an operation takes a quarter of its time. What callers get is made
        # outside, so that they can compute gradients with it.
        with torch.inference_mode():
            reward.copy_(self._trade(action))
            if self._terminates:
                torch.gt(self._bankrupt, 0.0, out=terminated)
                self._keep_last(terminated)
                self._begin(terminated, self._place)
            if self._ends:
                self._keep_last(truncated & ~terminated if self._terminates else truncated)
                self._begin_next(truncated)
            self.observe(obs)
        return Step(obs, reward, terminated, truncated)

    def _keep_last(self, mask: Tensor) -> None:
        """Keep the last observations of the rows in `mask` (R,), before `_begin` changes them."""
        torch.where(mask.unsqueeze(1), self.observe(), self._final, out=self._final)

    def _begin_next(self, mask: Tensor) -> None:
        """Start the next episode in the rows of `mask` (R,)."""
        self._begin(mask, self.market.length - 1 - self._episodes.next_bars(mask))
        if self.shorts:  # a short sale is sized by the close of the first decision
            self._gather_prices()

    def _begin(self, mask: Tensor, first: Tensor) -> None:
        """Start at the places `first` in the rows of `mask`, (R,) each: flat, with initial cash."""
        tables, assets = self._tables, self.action_dim
        torch.where(mask, first, self._place, out=self._place)
        torch.where(mask, self._place, self._start, out=self._start)
        for money in (self._cash, self._total):
            torch.where(mask, self._initial_cash, money, out=money)
        for state in (self._holdings, self._worths, self._held, self._high):
            state.masked_fill_(mask, 0.0)
        self._reward.start(self._initial_cash, mask)

        # The benchmark buys each asset like any order, at the open of the first bar from the next
        # one on that is not a hole. Rows outside the mask may be at the newest bar (place 0), for
        # which there is no next one: the clamp only keeps their unused index valid.
        fill = (self._place - 1).clamp_min(0).expand(assets, -1)
        units = self._invested / tables.next_open.gather(1, fill)
        torch.where(mask, units, self._holdings[0], out=self._holdings[0])
        if self._buys_at is not None and tables.next_fill is not None:
            torch.where(mask, tables.next_fill.gather(1, fill), self._buys_at, out=self._buys_at)

    def _trade(self, action: Tensor) -> Tensor:
        """Trade one bar in every row and return the reward (R,) float64, a buffer."""
        rules, before = self._rules, self._portfolio
        self._wish_by_row.copy_(action)
        self._faults.record_sizes(self._wish)
        if not self._prices_known:  # after a native step
            self._gather_prices()
        orders = plan(before, self._valued, self._wish_by_row, rules, count=self._accounts)
        if self.venue is not None:
            # At the close of the decision, before any order fills.
            before, orders, self.netted = self.venue.net(before, orders, self._close)

        # Places count backwards, so the next bar is one place earlier.
        self._place -= 1
        self._gather_prices()
        hole = None if self._tradable is None else self._tradable == 0
        after, filled = fill(before, orders, self._open, hole, rules, count=self._accounts)
        dropped = orders.dropped
        del orders  # frees memory that is still in the processor's cache
        after = mark(after, self._close, rules)
        charged = None
        if self.shorts:
            after, filled, charged = charge(after, filled, self._close, hole, rules)
            self._bankrupt_by_row.copy_(charged.bankrupt)
        torch._foreach_copy_(self._portfolio, after)  # in one operation
        growth = self._value_all()
        if self._accounts:
            worth = self._valued.worth
            self.record.copy_(
                record_of(self._portfolio, self._total, worth, dropped, filled, charged)
            )
            self._recorded = True
        return self._reward.of(growth, self._value, self._worth, self._cash, self._age_before)

    def _value_all(self) -> Tensor:
        """Value portfolios and benchmarks at the close; return their log growth (2, R): E and V."""
        torch.mul(self._valuables, self._close_by_asset, out=self._worths)
        if self._buys_at is not None:
            # Assets that the benchmark has not bought yet count with the cash set aside for them.
            equal, bought = self._worths[0], self._buys_at >= self._place
            torch.where(bought, equal, self._waiting, out=equal)
        total = sum_parts(*self._worth_parts).add_(self._cashes_by_row)
        # log1p of the relative growth: unlike log, it has the same bits on all x86-64 processors.
        before = self._total_by_row
        torch.sub(total, before, out=self._growth_by_row).div_(before).log1p_()
        before.copy_(total)
        return self._growth

    def _gather_prices(self) -> None:
        torch.gather(self._tables.prices, 1, self._place_by_price, out=self._prices)
        self._prices_known = True

    def _age_before(self) -> Tensor:
        """Return the steps of the episode before the current one: (R,)."""
        return self._start - self._place - 1

    @property
    def account(self) -> Account | None:
        """Return the account after the last step; None before the first, or if not kept."""
        return self.account_of(self.record.clone()) if self._recorded else None

    def account_of(self, record: Tensor) -> Account:
        """Interpret records (…, rows of `record`, R)."""
        return Account.of(record, self._rules)

    def observe(self, out: Tensor | None = None) -> Tensor:
        """Return the observation, (num_envs, state_dim + privileged_dim), or write it to `out`."""
        obs = torch.empty_like(self._final) if out is None else out
        obs[:, : self._portfolio_dim] = observe(
            self._portfolio, self._valued, self._inverse_held_by_row, shorts=self.shorts
        )
        for first, rows, places, lagged in self._lookbacks:
            own = obs if rows == self.num_envs else obs.narrow(0, first, rows)
            width = lagged.shape[1]
            torch.index_select(lagged, 0, places, out=own.narrow(1, self._portfolio_dim, width))
            if self._portfolio_dim + width < self.state_dim:
                own[:, self._portfolio_dim + width : self.state_dim] = 0.0
        if self.privileged_dim:
            obs[:, self.state_dim] = (self._start - self._place) * self._age_scale
        return obs

    def final_obs(self) -> Tensor:
        """See `VecEnv.final_obs`."""
        return self._final

    def _explain(self, fault: Fault) -> str:
        return illegal_number(fault, self.envs_per_member, self.market.tickers)

    def _state(self) -> dict[str, Tensor]:
        """Return all tensors that change from step to step. Their last dimension is the rows."""
        reward = self._reward
        state = {
            "cash": self._cash,
            "holdings": self._holdings,
            "held": self._held,
            "high": self._high,
            "worths": self._worths,
            "total": self._total,
            "place": self._place,
            "start": self._start,
            "peak": reward.peak,
            "drawdown": reward.drawdown,
            "final_obs": self._final.t(),
        }
        if self._buys_at is not None:
            state["buys_at"] = self._buys_at
        return state

    def get_member(self, member: int) -> dict[str, Tensor]:
        """See `VecEnv.get_member`."""
        rows = self._episodes.rows(member)
        own = take_rows(self._state(), rows, -1)
        own |= self._faults.state(rows) | self._episodes.state(member)
        return on_cpu(own)

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """See `VecEnv.set_member`. Configure the slot with the member's parameters first."""
        rows = self._episodes.rows(member)
        put_rows(self._state(), rows, state, -1)
        self._gather_prices()
        self._faults.set_state(rows, state)
        self._episodes.set_state(member, state)
