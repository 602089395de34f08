"""The crypto market as a vectorized environment: one code for training, evaluation and single runs, whatever the
rows' number.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from envs.core.faults import FaultLatch
from envs.core.vec_env import Step, VecEnv
from envs.crypto.episodes import Episodes, Window
from envs.crypto.ledger import Ledger, Rules, filled
from envs.crypto.market import Market
from envs.crypto.netting import Netted, Venue
from envs.crypto.params import EnvParams, resolve_episode_bars
from envs.crypto.portfolio import Portfolio, to_portfolio
from envs.crypto.reward import Reward
from envs.crypto.timeframe import bars_per_week
from envs.support.errors import InputError


class Account(NamedTuple):
    """The bar just closed, before any autoreset, or many of them: (…, R) float64 each.

    value, equal_weight: V and E at its close, in quote units. fees, notional: of the orders filled in it, in quote
    units. trades: orders filled. exposure: 1 - cash/V. dropped: orders under the minimum. unfilled: orders whose fill
    bar was a hole.
    """

    value: Tensor
    equal_weight: Tensor
    fees: Tensor
    notional: Tensor
    trades: Tensor
    exposure: Tensor
    dropped: Tensor
    unfilled: Tensor


class CryptoEnv(VecEnv):
    """`envs_per_member` rows per member, each trading the market from flat cash for one episode after the other.

    Observation (state_dim = 1 + 3N + max_lookback·M, float32): cash share, N weights, N unrealised returns, N clocks
    min(1, bars held / held_scale), then the features of the last `lookback` bars, newest first, zeros beyond a row's
    own lookback. With `privileged_age` one more column for critics: age / episode_bars where the reward depends on
    age, else 0.

    Action (N): parts of `action_scale`, in [-1, 1]; decided at a bar's close, filled at the next bar's open, rewarded
    at its close.

    record: (8, R) float64, what `Ledger.record` notes of the last step, kept by evaluation environments (and with
    `accounts`); `account_of` reads it. venue: where set, all rows are sub-accounts of one account, and their orders are
    netted; netted: at the last decision.
    """

    env_name = "sweepd/Crypto-v0"
    if_discrete = False

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
        device: torch.device | str = "cpu",
        debug: bool = False,
    ) -> None:
        """For training: episodes start at random bars. Call `reset` before the first step.

        params: one per member, or one for a single member. windows: training windows (first, last), the same for all
        members or a list of them per member. max_lookback: the lookback that observations are padded to (default: the
        largest there is). stagger: shorten the first episodes by even steps, so that a member's rows don't all end at
        once. accounts: keep `account`. debug: check for faults after every step. Raises InputError where a window is
        too early, too late or empty.
        """
        every = [params] if isinstance(params, EnvParams) else list(params)
        if windows and isinstance(windows[0][0], int):
            grounds = [cast("Sequence[Window]", windows)] * len(every)
        else:
            grounds = list(cast("Sequence[Sequence[Window]]", windows))
        self._set_up(
            market,
            every,
            grounds,
            envs_per_member,
            max_lookback,
            torch.device(device),
            fixed=False,
            privileged_age=privileged_age,
            stagger=stagger,
            accounts=accounts,
            debug=debug,
        )

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
    ) -> CryptoEnv:
        """For evaluation: row j of member m trades exactly `windows[m][j]`, from its first bar to its last; nothing is
        random.

        All members need equally many windows. Rows whose window has ended trade it again until somebody stops.
        """
        env = cls.__new__(cls)
        every = [params] * len(windows) if isinstance(params, EnvParams) else list(params)
        rows = len(windows[0]) if windows else 0
        if not rows or any(len(own) != rows for own in windows):
            raise InputError(
                "evaluation needs at least one window per member, and equally many for each"
            )
        env._set_up(
            market,
            every,
            list(windows),
            rows,
            max_lookback,
            torch.device(device),
            fixed=True,
            privileged_age=False,
            stagger=False,
            accounts=True,
            debug=debug,
        )
        return env

    def _set_up(
        self,
        market: Market,
        params: list[EnvParams],
        windows: list[Sequence[Window]],
        envs_per_member: int,
        max_lookback: int | None,
        device: torch.device,
        *,
        fixed: bool,
        privileged_age: bool,
        stagger: bool,
        accounts: bool,
        debug: bool,
    ) -> None:
        if len(windows) != len(params) or not params:
            raise InputError(
                f"parameters are given for {len(params)} members, but windows for {len(windows)}"
            )
        if envs_per_member < 1:
            raise InputError(f"envs per member is {envs_per_member}; it must be at least 1")
        self.market = market
        self.device = device
        self.debug = debug
        self.num_members, self.envs_per_member = len(params), envs_per_member
        self.num_envs = rows = self.num_members * envs_per_member
        self.action_dim = assets = market.assets
        self.max_lookback = max_lookback or max(p.lookback for p in params)
        self.privileged_dim = int(privileged_age)
        self._portfolio_dim = 1 + 3 * assets
        self.state_dim = self._portfolio_dim + self.max_lookback * market.feature_count
        self._tables = market.tables(device)
        self._params = list(params)

        def per_row(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(*shape, rows, dtype=dtype, device=device)

        self._ledger = Ledger(rows, assets, device)
        self._total = per_row(2)  # E and V at the last close
        self._value = self._total[1]
        self._growth = per_row(2)
        # Opens and closes of the last closed bar, and in markets with holes 1.0 for assets that could be traded in it.
        self._prices = per_row(len(self._tables.prices))
        self._open, self._close = self._prices[:assets], self._prices[assets : 2 * assets]
        has_holes = self._tables.next_fill is not None
        self._tradable = self._prices[2 * assets :] if has_holes else None
        self._place = per_row(dtype=torch.int64)  # of the last closed bar in the tables
        self._place_by_price = self._place.expand(len(self._prices), -1)
        self._start = per_row(dtype=torch.int64)  # the place of the bar where the episode began
        self._initial_cash = per_row()
        self._inverse_held_scale = per_row()
        self._age_scale = per_row()  # 1 / episode_bars where the reward depends on age, else 0
        # The place of the bar in which equal weight buys each asset; only markets with holes need it.
        self._buys_at = per_row(assets) if has_holes else None
        self._bought = per_row(assets)
        self._waiting = per_row(
            assets
        )  # what equal weight has for assets that it hasn't bought yet
        # Runs of rows with the same lookback: first row, how many, their places, their lagged features.
        self._lookbacks: list[tuple[int, int, Tensor, Tensor]] = []
        self._no_rows = per_row(dtype=torch.bool)
        self._final = torch.zeros(rows, self.state_dim + self.privileged_dim, device=device)
        self._rules = Rules(rows, market.instruments, device)
        self._reward = Reward(rows, device)
        self._faults = FaultLatch(rows, envs_per_member, market.tickers, device)
        self._episodes = Episodes(
            self.num_members, envs_per_member, device, fixed=fixed, stagger=stagger
        )
        self.record = per_row(8)
        self._recorded = False
        self.venue: Venue | None = None
        self.netted: Netted | None = None
        self._accounts = accounts
        for member, (own, ground) in enumerate(zip(params, windows, strict=True)):
            self.configure_member(member, own, ground)

    def configure_member(self, member: int, params: EnvParams, windows: Sequence[Window]) -> None:
        """Give a slot to another member; follow it with `reset_member` or `set_member`.

        Raises InputError where the lookback exceeds the padding, or a window starts before features exist, is empty,
        or ends after the last bar.
        """
        if params.lookback > self.max_lookback:
            raise InputError(
                f"lookback is {params.lookback}, but the observations here hold no more than {self.max_lookback}"
            )
        if not windows:
            raise InputError("a member has no window to trade in; give at least one (first, last)")
        earliest, latest = self.market.first_bar(self.max_lookback), self.market.length - 1
        for first, last in windows:
            if not earliest <= first < last <= latest:
                raise InputError(
                    f"window ({first}, {last}) doesn't fit: the first decision is possible at bar {earliest}, "
                    f"and the last valuation at bar {latest}"
                )
        week = bars_per_week(self.market.bars.timeframe)
        length = resolve_episode_bars(params, windows, week)
        self._params[member] = params
        self._episodes.configure(member, windows, length)
        rows = self._episodes.rows(member)
        self._initial_cash[rows] = params.initial_cash
        self._waiting[:, rows] = params.initial_cash / self.action_dim
        self._inverse_held_scale[rows] = 1.0 / (params.held_scale or float(week))
        self._age_scale[rows] = 1.0 / length if params.time_decay_floor < 1 else 0.0
        self._rules.set_rows(rows.start, rows.stop, params)
        self._reward.set_rows(rows.start, rows.stop, params, length)
        self._lookbacks = self._runs_of_lookback()
        self.max_step = int(self._episodes.lengths.max())
        self.bootstrap_interval = int(self._episodes.lengths.min())

    def _runs_of_lookback(self) -> list[tuple[int, int, Tensor, Tensor]]:
        """Neighbouring members with the same lookback (the folds of a trial) are observed in one go."""
        runs, first = [], 0
        for lookback, group in groupby(self._params, key=lambda params: params.lookback):
            rows = len(list(group)) * self.envs_per_member
            runs.append(
                (first, rows, self._place.narrow(0, first, rows), self._tables.lagged(lookback))
            )
            first += rows
        return runs

    def member_params(self, member: int) -> EnvParams:
        """The parameters that a slot was configured with."""
        return self._params[member]

    @property
    def row_lengths(self) -> np.ndarray:
        """(R,) int64: the bars of each row's episodes (`EnvParams.episode_bars` resolved, or the row's window)."""
        return self._episodes.lengths

    def bars(self) -> Tensor:
        """(R,) int64: the last closed bar of each row."""
        return self.market.length - 1 - self._place

    def values(self) -> Tensor:
        """(2, R) float64: what the portfolio and equal weight are worth at the last close."""
        return self._total.flip(0)

    def portfolio(self) -> Portfolio:
        """A copy of the rows' portfolios."""
        return to_portfolio(self._ledger)

    def seeded(self, member: int) -> bool:
        """See `VecEnv.seeded`."""
        return self._episodes.seeded(member)

    def reset_member(self, member: int, seed: int | None = None) -> None:
        """Start that member's rows anew, its stream too where a seed is given; the others go on undisturbed."""
        if seed is not None:
            self._episodes.seed(member, seed)
        self._begin(self._episodes.start(member))
        self._faults.clear(self._episodes.rows(member))

    def draw(self, horizon: int) -> None:
        """See `VecEnv.draw`: the bars where the episodes start that begin within `horizon` steps."""
        self._episodes.draw(horizon)

    def step(self, action: Tensor, out: Tensor | None = None) -> Step:
        """See `VecEnv.step`. `terminated` is always false. Read both masks, don't write them."""
        if not self._episodes.started:
            raise RuntimeError("step was called before reset")
        if action.shape != (
            self.num_envs,
            self.action_dim,
        ):  # torch would broadcast it, or complain in its own words
            raise ValueError(
                f"actions have the shape {tuple(action.shape)}, not {(self.num_envs, self.action_dim)}"
            )
        reward = self._trade(action)
        truncated = self._no_rows
        if self._episodes.tick():  # known to the host, whatever is on the device
            truncated = self._episodes.restart_ended()
            torch.where(truncated.unsqueeze(1), self.observe(), self._final, out=self._final)
            self._begin(truncated)
        if self.debug:
            self.check()
        return Step(self.observe(out), reward, self._no_rows, truncated)

    def _begin(self, mask: Tensor) -> None:
        """Begin an episode in the rows of `mask` (R,): flat, with the initial cash, at the next of their starting
        bars.
        """
        tables, ledger, assets = self._tables, self._ledger, self.action_dim
        torch.where(
            mask, self.market.length - 1 - self._episodes.next_bars(), self._place, out=self._place
        )
        torch.where(mask, self._place, self._start, out=self._start)
        self._episodes.take_turn(mask)
        for money in (ledger.cash, self._total):
            torch.where(mask, self._initial_cash, money, out=money)
        for state in (ledger.holdings, ledger.worths, ledger.held, ledger.high):
            state.masked_fill_(mask, 0.0)
        self._reward.start(self._initial_cash, mask)

        # Equal weight is bought like any order, each asset at the open of its first bar from the next one on that is no
        # hole.
        fill = (self._place - 1).clamp_min(0).expand(assets, -1)
        units = (self._initial_cash / assets * self._rules.buy_rate) / tables.next_open.gather(
            1, fill
        )
        torch.where(mask, units, ledger.equal_units, out=ledger.equal_units)
        if self._buys_at is not None and tables.next_fill is not None:
            torch.where(mask, tables.next_fill.gather(1, fill), self._buys_at, out=self._buys_at)

    def _trade(self, action: Tensor) -> Tensor:
        """One bar in every row; returns the reward (R,)."""
        ledger, rules = self._ledger, self._rules
        ledger.wish.copy_(action.t())
        self._faults.record(ledger.wish, ledger.scratch)
        plan = ledger.plan(self._value, self._close, rules, count=self._accounts)
        if self.venue is not None:
            self.netted = self.venue.net(ledger, self._close)

        self._place -= 1
        torch.gather(self._tables.prices, 1, self._place_by_price, out=self._prices)
        ledger.fill(plan, self._open, self._tradable, rules, count=self._accounts)
        ledger.mark(self._close)
        if rules.stops:
            ledger.raise_highs(self._close)
        if self._buys_at is not None:
            bought = torch.ge(self._buys_at, self._place, out=self._bought)
            torch.lerp(self._waiting, ledger.equal_worth, bought, out=ledger.equal_worth)
        total = ledger.settle(rules)
        growth = torch.div(total, self._total, out=self._growth).log_()
        self._total.copy_(total)
        if self._accounts:
            ledger.record(self.record)
            self._recorded = True
        return self._reward.of(growth, self._value, ledger.worth, ledger.cash, self._age_before)

    def _age_before(self) -> Tensor:
        return self._start - self._place - 1

    @property
    def account(self) -> Account | None:
        """The last step's; None before the first, and where no accounts are kept."""
        return self.account_of(self.record.clone()) if self._recorded else None

    def account_of(self, record: Tensor) -> Account:
        """What records (…, 8, R) say."""
        spent, sold, equal_weight, value, cash, dropped, trades, unfilled = record.unbind(-2)
        orders = filled(spent, sold, trades, unfilled, self._rules)
        return Account(
            value,
            equal_weight,
            orders.fees,
            orders.notional,
            trades,
            1.0 - cash / value,
            dropped,
            unfilled,
        )

    def observe(self, out: Tensor | None = None) -> Tensor:
        """(num_envs, state_dim + privileged_dim) float32: what every row sees now. Changes nothing."""
        obs = torch.empty_like(self._final) if out is None else out
        obs.narrow(1, 0, self._portfolio_dim).copy_(
            self._ledger.observe(self._value, self._inverse_held_scale).t()
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

    def faults(self) -> Tensor:
        """See `VecEnv.faults`."""
        return self._faults.latched()

    def check(self) -> None:
        """See `VecEnv.check`."""
        self._faults.check()

    def _state(self) -> dict[str, Tensor]:
        """All tensors that change from step to step; their last dimension is the rows'."""
        ledger = self._ledger
        ledger, reward = self._ledger, self._reward
        state = {
            "cash": ledger.cash,
            "holdings": ledger.holdings,
            "held": ledger.held,
            "high": ledger.high,
            "worths": ledger.worths,
            "total": self._total,
            "prices": self._prices,
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
        own = {name: tensor[..., rows] for name, tensor in self._state().items()}
        own |= self._faults.state(rows) | self._episodes.state(member)
        return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in own.items()}

    def set_member(self, member: int, state: dict[str, Tensor]) -> None:
        """See `VecEnv.set_member`. The slot must be configured with the member's parameters and windows."""
        rows = self._episodes.rows(member)
        for name, tensor in self._state().items():
            tensor[..., rows] = state[name].to(self.device)
        self._faults.set_state(rows, state)
        self._episodes.set_state(member, state)
