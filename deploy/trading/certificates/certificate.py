"""Certificates: what a day of an account was, in a form that a stranger can check.

A certificate is a JSON object. It names the bundles that decided and hashes of everything that the
trader saw, and says whether the simulator, over the same bars, decides and earns the same. Its hash
is the SHA-256 of its canonical text; each certificate contains the hash of the one before it, so
none can be changed, added or taken out later.

Everything here is a function of what it is given. `certificate_file` has the files that strangers
get.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

from pydantic import model_validator

from sweepd.deploy.registry.bundle_files import canonical_json, sha256
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.validation import StrictModel

FORMAT: Final = "sweepd-certificate"
TOLERANCE: Final = 1e-6  # of an action, and of a bar's return
EQUAL: Final = 1e-9  # of a day's return: differences below it are rounding

Verdict = Literal["equal", "explained", "differs", "impossible"]
Cause = Literal["price", "fee", "refusal", "decisions", "unexplained"]
Record = Mapping[str, Any]  # of JSON's types
CAUSES: tuple[Cause, ...] = get_args(Cause)


# ---- what a certificate says ----


class Digest(StrictModel):
    """Records of one kind: their number, and the SHA-256 of their text."""

    count: int
    sha256: str


class Decisions(StrictModel):
    """Recomputed decisions.

    Attributes:
        count: their number.
        worst: largest difference of an action from the recorded one, 0 to 2.
        at: open of the bar of that difference, seconds since the epoch; None without decisions.
    """

    count: int
    worst: float
    at: int | None


class Returns(StrictModel):
    """Returns of the day.

    Attributes:
        account: as recorded.
        again: recomputed from the recorded fills.
        simulator: of the simulator.
    """

    account: float
    again: float
    simulator: float


class Content(StrictModel):
    """A certificate, without its hash.

    Attributes:
        slot: the slot.
        day: start of the UTC day, seconds since the epoch.
        number: of the slot's certificate, from 0. A day may have several; the newest counts.
        previous: hash of the certificate before it; "" for the first.
        code_version: the version that recomputed the day.
        bundles: hashes of the bundles that decided, in their order.
        history: bars before the day that decisions need.
        bars: the day's bars, as they were seen.
        start: the start of the process before the day; none if the day begins with one.
        inputs: events that the trader saw in the day.
        adjustments: changes of units before the day, which the history follows.
        orders: those of the account; `inputs` has their results.
        lines: the account's, from the last one before the day on.
        before: SHA-256 of the trader's state before the day.
        after: likewise after the day, as stored.
        decisions: see there; None if it could not be recomputed, like the next two.
        returns: see there.
        causes: parts of the difference of account and simulator, see `causes_of`.
        events: what happened that may explain a difference, such as late or revised bars.
        verdict: "equal"; "explained" (the simulator differs for known causes); "differs" (decisions,
            state or returns do not follow from the records); "impossible" (it could not be
            recomputed, `events` says why).
    """

    format: Literal["sweepd-certificate"] = FORMAT
    format_version: Literal[1] = 1
    slot: str
    day: int
    number: int
    previous: str
    code_version: str
    bundles: tuple[str, ...]
    history: Digest
    bars: Digest
    adjustments: Digest
    start: Digest
    inputs: Digest
    orders: Digest
    lines: Digest
    before: str
    after: str
    decisions: Decisions | None
    returns: Returns | None
    causes: dict[Cause, float] | None
    events: tuple[str, ...]
    verdict: Verdict

    @model_validator(mode="after")
    def _complete(self) -> Content:
        known = {one is not None for one in (self.decisions, self.returns, self.causes)}
        if known != {self.verdict != "impossible"}:
            raise ValueError("exactly days that were recomputed have decisions, returns and causes")
        return self

    @property
    def hash(self) -> str:
        """SHA-256 of the canonical text."""
        return sha256(canonical_json(self.model_dump(mode="json")).encode())

    @property
    def text(self) -> str:
        """The certificate as a file: the canonical text, with the hash as a further field."""
        return canonical_json(self.model_dump(mode="json") | {"hash": self.hash})


def records_text(records: Sequence[Record]) -> str:
    """Return records of one kind as a file, canonical JSON."""
    return canonical_json({"records": list(records)})


def digest_of(records: Sequence[Record]) -> Digest:
    """Return the number of records, and the hash of `records_text`."""
    return Digest(count=len(records), sha256=sha256(records_text(records).encode()))


def state_hash(state: Record) -> str:
    """Return the SHA-256 of a trader's state."""
    return sha256(canonical_json(state).encode())


# ---- causes ----


@dataclass(frozen=True)
class Runs:
    """Returns of the day's bars, as fractions: of the account, and of five recomputations.

    Each recomputation starts from the account's state before the day and changes one thing more
    than the one before it.

    Attributes:
        account: as recorded.
        recorded: recomputed with the recorded fills.
        prices: with the simulator's prices.
        fees: and its fees.
        filled: and every order filled.
        free: the simulator, whose decisions follow from its own positions.
    """

    account: tuple[float, ...]
    recorded: tuple[float, ...]
    prices: tuple[float, ...]
    fees: tuple[float, ...]
    filled: tuple[float, ...]
    free: tuple[float, ...]

    def __post_init__(self) -> None:
        if len({len(own) for own in dataclasses.astuple(self)}) != 1:
            raise ValueError("the runs have different numbers of bars")

    @property
    def returns(self) -> Returns:
        """The day's returns."""
        return Returns(
            account=compounded(self.account),
            again=compounded(self.recorded),
            simulator=compounded(self.free),
        )

    @property
    def worst(self) -> float:
        """Largest difference of a bar's return that the recorded fills do not explain."""
        pairs = zip(self.account, self.recorded, strict=True)
        return max((abs(own - again) for own, again in pairs), default=0.0)


def compounded(growth: Iterable[float]) -> float:
    """Return the return of all bars together."""
    return math.prod(1.0 + one for one in growth) - 1.0


def causes_of(runs: Runs) -> dict[Cause, float]:
    """Divide the account's return of the day minus the simulator's among its causes.

    The parts are differences of successive runs, so they sum to the whole. Where two changes act
    together, their joint part is counted for the first one.
    """
    order = (runs.recorded, runs.prices, runs.fees, runs.filled, runs.free)
    price, fee, refusal, decisions = (
        compounded(one) - compounded(other) for one, other in itertools.pairwise(order)
    )
    unexplained = compounded(runs.account) - compounded(runs.recorded)
    parts = (price, fee, refusal, decisions, unexplained)
    return dict(zip(CAUSES, parts, strict=True))


def verdict_of(runs: Runs, decisions: Decisions, *, same_state: bool) -> Verdict:
    """Judge a day that was recomputed.

    Args:
        runs: its returns.
        decisions: its decisions.
        same_state: whether the recomputed state after the day is the stored one.
    """
    if not same_state or decisions.worst > TOLERANCE or runs.worst > TOLERANCE:
        return "differs"
    known = (part for cause, part in causes_of(runs).items() if cause != "unexplained")
    return "equal" if all(abs(part) <= EQUAL for part in known) else "explained"


@dataclass(frozen=True)
class Recomputed:
    """A day, computed again.

    Attributes:
        runs: returns of its bars.
        decisions: compared with the recorded ones.
        after: SHA-256 of the state after it.
        bundles, events: as in `Content`.
    """

    runs: Runs
    decisions: Decisions
    after: str
    bundles: tuple[str, ...] = ()
    events: tuple[str, ...] = ()


def difference(content: Content, found: Recomputed, *, same_processor: bool = True) -> str | None:
    """Return the first statement of a certificate that does not hold, None if all do.

    Args:
        content: the certificate.
        found: the day, computed again.
        same_processor: whether states are compared, too: the last bits of a state may differ on
            another kind of processor.
    """
    if content.returns is None or content.causes is None or content.decisions is None:
        return "it says that the day could not be recomputed"
    decisions, stated = found.decisions, content.decisions
    if decisions.count != stated.count:
        return f"it states {stated.count} decisions, and there are {decisions.count}"
    if abs(decisions.worst - stated.worst) > TOLERANCE:
        return f"decisions differ by up to {decisions.worst:g}, not {stated.worst:g}"
    pairs = [
        *((f"the return ({name})", value, getattr(found.runs.returns, name))
          for name, value in content.returns),
        *((f"the part ({name})", value, causes_of(found.runs)[name])
          for name, value in content.causes.items()),
    ]  # fmt: skip
    for what, value, again in pairs:
        if not abs(again - value) <= TOLERANCE:
            return f"{what} is {again:.9g}, not {value:.9g}"
    if found.bundles != content.bundles:
        return f"the bundles that decided are {', '.join(found.bundles) or 'none'}"
    if found.events != content.events:
        return "the events are other ones"
    # A day whose state differs has the verdict that says so.
    if same_processor and found.after != content.after and content.verdict != "differs":
        return "the state after the day is another one"
    return None


# ---- the chain ----


def after(previous: Content | None) -> tuple[int, str]:
    """Return number and `previous` of the certificate after this one; None: of the first."""
    return (0, "") if previous is None else (previous.number + 1, previous.hash)


def check_link(content: Content, previous: Content | None) -> None:
    """Raise InputError if `content` is not the certificate after `previous`.

    Args:
        content: a certificate.
        previous: the one before it; None if it is the first.
    """
    number, hash_ = after(previous)
    name = f"certificate {content.number} of slot {content.slot}"
    if previous is not None and previous.slot != content.slot:
        raise InputError(f"{name} follows one of slot {previous.slot}")
    if content.number != number:
        before = "none" if previous is None else str(previous.number)
        raise InputError(f"{name} follows certificate {before}: one was taken out, or added")
    if content.previous != hash_:
        raise InputError(
            f"{name} names {content.previous or 'nothing'} as the hash of the certificate before it, "
            f"which is {hash_ or 'nothing'}: one of them has been changed"
        )


def check_chain(contents: Sequence[Content]) -> None:
    """Raise InputError if these are not all certificates of a slot, from the first one on.

    Args:
        contents: by number.
    """
    for previous, content in zip((None, *contents), contents, strict=False):
        check_link(content, previous)
