"""The registry's tables (SQLAlchemy 2). Moments are UTC text, bar times are seconds since the epoch.

Rows of `bundles`, `versions`, `events`, `looks`, `lane_bars` and `trader_events` are never changed or deleted: triggers
refuse it. What moves is `slots`, `challengers`, and a trader's state: `traders`, `lanes`, `orders`. The tables are made
by `deploy.registry.migrations`, never from here.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import JSON, BigInteger, Double, ForeignKey, MetaData, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

# Where the database remembers its revision. Not Alembic's usual name: a study's database, which Optuna migrates, may be
# the same one.
VERSION_TABLE = "sweepd_registry_version"
APPEND_ONLY = ("bundles", "versions", "events", "looks", "lane_bars", "trader_events")
ACCOUNT: Final = "account"  # the name of the lane that trades with the broker
STOPPED: Final = "stopped"  # the status of a trader whose process ended by itself


class Base(DeclarativeBase):
    """Constraint names are fixed, so that migrations can name them on every database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class BundleRow(Base):
    """A bundle that is, or was, in some slot or asked to be."""

    __tablename__ = "bundles"
    hash: Mapped[str] = mapped_column(Text, primary_key=True)
    members_sha256: Mapped[str] = mapped_column(Text, index=True)
    environment: Mapped[str] = mapped_column(Text)
    timeframe: Mapped[str] = mapped_column(Text)
    tickers: Mapped[list[str]] = mapped_column(JSON)
    study: Mapped[str] = mapped_column(Text)
    study_uid: Mapped[str] = mapped_column(Text)
    trial: Mapped[int]
    last_seen: Mapped[int] = mapped_column(BigInteger)
    data_dir: Mapped[str] = mapped_column(Text)
    at: Mapped[str] = mapped_column(Text)


class SlotRow(Base):
    """A named place that trades one champion. `revision` counts its moves."""

    __tablename__ = "slots"
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    champion: Mapped[str | None] = mapped_column(ForeignKey("bundles.hash"))
    previous: Mapped[str | None] = mapped_column(ForeignKey("bundles.hash"))
    revision: Mapped[int]


class ChallengerRow(Base):
    """A bundle that asks for a slot, and could not be compared with its champion yet."""

    __tablename__ = "challengers"
    slot: Mapped[str] = mapped_column(Text, primary_key=True)
    bundle: Mapped[str] = mapped_column(ForeignKey("bundles.hash"), primary_key=True)
    at: Mapped[str] = mapped_column(Text)


class VersionRow(Base):
    """The bundles of a slot, numbered from 1 in the order in which they came."""

    __tablename__ = "versions"
    __table_args__ = (UniqueConstraint("slot", "bundle"),)
    slot: Mapped[str] = mapped_column(Text, primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    bundle: Mapped[str] = mapped_column(ForeignKey("bundles.hash"))
    at: Mapped[str] = mapped_column(Text)


class EventRow(Base):
    """What happened to a slot, when and why, with the gate's report where there was one."""

    __tablename__ = "events"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    slot: Mapped[str] = mapped_column(Text, index=True)
    kind: Mapped[str] = mapped_column(Text)
    at: Mapped[str] = mapped_column(Text)
    bundle: Mapped[str | None] = mapped_column(ForeignKey("bundles.hash"))
    previous: Mapped[str | None] = mapped_column(ForeignKey("bundles.hash"))
    reason: Mapped[str] = mapped_column(Text)
    report: Mapped[dict[str, Any] | None] = mapped_column(JSON)


class LookRow(Base):
    """A look at hold-out bars: bars `first` to `last` (opens) of an asset set, by one candidate's weights."""

    __tablename__ = "looks"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    asset_set: Mapped[str] = mapped_column(Text, index=True)
    timeframe: Mapped[str] = mapped_column(Text)
    first: Mapped[int] = mapped_column(BigInteger)
    last: Mapped[int] = mapped_column(BigInteger)
    number: Mapped[int]
    members_sha256: Mapped[str] = mapped_column(Text)
    study: Mapped[str] = mapped_column(Text)
    study_uid: Mapped[str] = mapped_column(Text)
    trial: Mapped[int]
    at: Mapped[str] = mapped_column(Text)


class TraderRow(Base):
    """The trader of a slot: who writes its rows now, how far it is, and what it was told.

    token: of the process that may write; whoever starts a trader puts its own there. account: the venue's name of the
    account, None for virtual money. last_bar: open of the last bar acted on. halt: why it must not trade, None where it
    may; halt_sells: whether it sells everything first. session: what the trader as a whole must remember (a JSON
    object).
    """

    __tablename__ = "traders"
    slot: Mapped[str] = mapped_column(Text, primary_key=True)
    token: Mapped[str] = mapped_column(Text)
    pid: Mapped[int]
    host: Mapped[str] = mapped_column(Text)
    broker: Mapped[str] = mapped_column(Text)
    account: Mapped[str | None] = mapped_column(Text)
    feed: Mapped[str] = mapped_column(Text)
    timeframe: Mapped[str] = mapped_column(Text)
    started: Mapped[str] = mapped_column(Text)
    beat: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(Text)
    last_bar: Mapped[int | None] = mapped_column(BigInteger)
    halt: Mapped[str | None] = mapped_column(Text)
    halt_sells: Mapped[bool]
    session: Mapped[dict[str, Any]] = mapped_column(JSON)


class LaneRow(Base):
    """Something of a slot that has an equity of its own: see `deploy.trading.live.store.Lane`."""

    __tablename__ = "lanes"
    slot: Mapped[str] = mapped_column(ForeignKey("traders.slot"), primary_key=True)
    name: Mapped[str] = mapped_column(Text, primary_key=True)
    kind: Mapped[str] = mapped_column(Text)
    bundle: Mapped[str | None] = mapped_column(ForeignKey("bundles.hash"))
    since: Mapped[int] = mapped_column(BigInteger)
    retired: Mapped[str | None] = mapped_column(Text)
    state: Mapped[dict[str, Any]] = mapped_column(JSON)


class LaneBarRow(Base):
    """A lane's line for one closed bar: see `deploy.trading.live.store.LaneBar`."""

    __tablename__ = "lane_bars"
    slot: Mapped[str] = mapped_column(Text, primary_key=True)
    lane: Mapped[str] = mapped_column(Text, primary_key=True)
    time: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    bundle: Mapped[str | None] = mapped_column(Text)
    value: Mapped[float] = mapped_column(Double)
    cash: Mapped[float] = mapped_column(Double)
    flow: Mapped[float] = mapped_column(Double, server_default="0")
    fees: Mapped[float] = mapped_column(Double)
    notional: Mapped[float] = mapped_column(Double)
    trades: Mapped[int]
    unfilled: Mapped[int]
    dropped: Mapped[int]
    crossed: Mapped[float] = mapped_column(Double)
    units: Mapped[dict[str, float]] = mapped_column(JSON)
    action: Mapped[dict[str, float] | None] = mapped_column(JSON)


class OrderRow(Base):
    """An order and what became of it: see `deploy.trading.live.store.OrderLine`."""

    __tablename__ = "orders"
    client_id: Mapped[str] = mapped_column(Text, primary_key=True)
    slot: Mapped[str] = mapped_column(Text, index=True)
    lane: Mapped[str] = mapped_column(Text)
    decided: Mapped[int] = mapped_column(BigInteger)
    ticker: Mapped[str] = mapped_column(Text)
    side: Mapped[str] = mapped_column(Text)
    units: Mapped[float] = mapped_column(Double)
    notional: Mapped[float] = mapped_column(Double)
    whole: Mapped[bool]
    restart_clock: Mapped[bool]
    status: Mapped[str] = mapped_column(Text)
    at: Mapped[int | None] = mapped_column(BigInteger)
    filled_units: Mapped[float] = mapped_column(Double)
    filled_notional: Mapped[float] = mapped_column(Double)
    fee: Mapped[float] = mapped_column(Double)
    price: Mapped[float] = mapped_column(Double)
    reason: Mapped[str] = mapped_column(Text)


class TraderEventRow(Base):
    """Something that happened to a trader: see `deploy.trading.live.store.TraderEvent`."""

    __tablename__ = "trader_events"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=True)
    slot: Mapped[str] = mapped_column(Text, index=True)
    at: Mapped[str] = mapped_column(Text)
    bar: Mapped[int | None] = mapped_column(BigInteger)
    kind: Mapped[str] = mapped_column(Text)
    text: Mapped[str] = mapped_column(Text)
