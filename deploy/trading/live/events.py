"""What a trader's machine hears, and what it answers.

Events are facts with their moments; the machine reads no clock, venue, file or database. Each event
that changed the machine is stored as JSON, without its bars, which are stored already.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, get_args, get_type_hints

from pydantic import TypeAdapter

from sweepd.deploy.trading.brokers.base import AccountState, Fill, Order
from sweepd.deploy.trading.closed_bar import ClosedBar
from sweepd.deploy.trading.live.hot_swap import LostBundle
from sweepd.deploy.trading.live.records import Changes
from sweepd.deploy.trading.live.revisions import Review
from sweepd.deploy.trading.live.venue import Reading
from sweepd.deploy.trading.risk_limits import RiskLimits
from sweepd.envs.crypto.data.bars import Bars

OnAlert = Literal["alert", "cash", "rollback"]
Judge = Literal["monitor", "tracking"]


@dataclass(frozen=True)
class TraderOptions:
    """How a slot is traded.

    broker, feed: names, which the database stores.
    limits: risk rules of every account.
    any_account: accept an account whose value is far from what the bundle was trained with.
    max_delay: seconds after a bar's end in which its orders may be sent; default: a quarter bar.
    arena: number of challengers that trade on virtual money.
    on_alert: reaction to an account that trades worse than scored.
    plugins: what is recorded of a broker and a feed of another package, by kind.
    """

    broker: str = "sim"
    feed: str = "alpaca"
    limits: RiskLimits = field(default_factory=RiskLimits)
    any_account: bool = False
    max_delay: float | None = None
    arena: int = 0
    on_alert: OnAlert = "alert"
    plugins: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


# ---- events ----


@dataclass(frozen=True)
class Started:
    """A process trades the slot from now on.

    bundle: hash of the one that holds the positions.
    lost: the bundle from which it takes over because that one cannot be loaded any more.
    immediate, shorts, untradable: of the broker.
    holdings: of the slot's own account, if it begins.
    challengers: hashes of those that may trade, in order.
    history: number of bars with which it starts.
    halt: why an operator stopped trading, None if nobody did.
    bars: those that the registry lacks, in the units in which it has the others.
    """

    now: float
    options: TraderOptions
    bundle: str
    lost: LostBundle | None
    immediate: bool
    shorts: bool
    untradable: Mapping[str, str]
    holdings: AccountState | None
    challengers: tuple[str, ...]
    history: int
    halt: str | None = None
    bars: Bars | None = None


@dataclass(frozen=True)
class Found:
    """The broker's answer to `Ask`: client ids of orders that never arrived."""

    missing: tuple[str, ...]


@dataclass(frozen=True)
class Filled:
    """Results that were known when orders were sent; holdings: the account after a halt's sale."""

    fills: tuple[Fill, ...]
    holdings: AccountState | None = None


@dataclass(frozen=True)
class BarClosed:
    """A bar has closed.

    newest: no later one has. reading: of the slot's own account.
    """

    now: float
    newest: bool
    reading: Reading
    bar: ClosedBar | None = None


@dataclass(frozen=True)
class Reviewed:
    """How a feed's bars differ from those that were seen.

    at_start: found at a start, whose `Started.holdings` are in the present units already.
    """

    review: Review
    at_start: bool = False


@dataclass(frozen=True)
class Halted:
    """An operator stopped trading. holdings: of the slot's own account, if it sells at once."""

    now: float
    reason: str
    sells: bool
    holdings: AccountState | None = None


@dataclass(frozen=True)
class Resumed:
    """Trading may go on."""


@dataclass(frozen=True)
class ChampionIs:
    """The slot's champion, and why it cannot be loaded, None if it can."""

    hash: str
    problem: str | None = None


@dataclass(frozen=True)
class ChallengersAre:
    """Hashes of the challengers that may trade, in order."""

    hashes: tuple[str, ...]


@dataclass(frozen=True)
class Checked:
    """The feed's and the venue's clock.

    age: seconds since the feed's newest bar was due.
    skew: seconds that the others' clock is ahead, None if it is unknown.
    """

    now: float
    age: float
    skew: float | None = None


@dataclass(frozen=True)
class Judged:
    """The answer to `Look`.

    state: the judge's new state. told: events, kind and text.
    worse: why the account trades worse than scored, None if it does not. aged: the policy does.
    """

    judge: Judge
    state: dict[str, Any]
    told: tuple[tuple[str, str], ...] = ()
    worse: str | None = None
    aged: bool = False


@dataclass(frozen=True)
class Done:
    """The registry has performed an effect.

    told: the event that reports it, kind and text. problem: why it refused, None if it did not.
    """

    effect: str
    told: tuple[str, str] | None = None
    problem: str | None = None


Event: TypeAlias = (
    Started
    | Found
    | Filled
    | BarClosed
    | Reviewed
    | Halted
    | Resumed
    | ChampionIs
    | ChallengersAre
    | Checked
    | Judged
    | Done
)
KINDS: Final[Mapping[str, type[Any]]] = {kind.__name__: kind for kind in get_args(Event)}
MARKET = ("bar", "bars")  # fields that `content` leaves out


def content(event: Event) -> dict[str, Any]:
    """Return an event as a JSON object, without its bars."""
    return {name: value for name, value in dataclasses.asdict(event).items() if name not in MARKET}


def restored_event(kind: str, content: Mapping[str, Any], **market: ClosedBar | Bars) -> Event:
    """Return the event of which `content` was taken.

    Args:
        kind: name of its class.
        content: what `content` returned.
        market: the field that it left out, if there is one.
    """
    read = {name: _adapter(kind, name).validate_python(value) for name, value in content.items()}
    found: Event = KINDS[kind](**read, **market)
    return found


@functools.cache
def _adapter(kind: str, name: str) -> TypeAdapter[Any]:
    return TypeAdapter(get_type_hints(KINDS[kind])[name])


# ---- instructions ----


@dataclass(frozen=True)
class Commit:
    """Write a transaction, and tell its events; it precedes all other instructions.

    event: what it follows from, which is stored with it.
    snapshot: the machine's before the event, to store, too: this and later events can be
        recomputed from it.
    """

    event: Event
    changes: Changes
    snapshot: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Submit:
    """Send orders of the slot's own account; `Filled` answers. read: with the account after it."""

    orders: Sequence[Order]
    read: bool = False


@dataclass(frozen=True)
class Ask:
    """Ask the broker which orders arrived; `Found` answers.

    final: those that did not are not sent again.
    """

    orders: Sequence[Order]
    final: bool


@dataclass(frozen=True)
class Look:
    """Judge the slot's own account; `Judged` answers.

    bundle: hash of what it trades.
    bars: number of bars in which it could trade freely.
    kept_out: spans of bars in which a halt or a rule prevented trading.
    """

    judge: Judge
    bundle: str
    bars: int
    kept_out: Sequence[tuple[int, int | None]]


@dataclass(frozen=True)
class Effect:
    """Change the registry; `Done` answers. It may arrive twice.

    rollback: exchange the champion `bundle` for the previous one. aged, swap-refused: append an
    event about the bundle to the slot's history, aged once in a reign.
    """

    id: str
    kind: Literal["rollback", "aged", "swap-refused"]
    bundle: str
    text: str


@dataclass(frozen=True)
class Tell:
    """Tell the operator something that is no event."""

    kind: str
    text: str


Instruction: TypeAlias = Commit | Submit | Ask | Look | Effect | Tell
