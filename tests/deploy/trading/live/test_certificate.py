"""Certificates: causes that sum up, verdicts, and the chain."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sweepd.deploy.trading.certificates.certificate import (
    CAUSES,
    Content,
    Decisions,
    Digest,
    Runs,
    after,
    causes_of,
    check_chain,
    digest_of,
    verdict_of,
)
from sweepd.envs.support.errors import InputError

DAY = 86_400
NONE = Decisions(count=0, worst=0.0, at=None)


def runs_of(*changes: float, bars: int = 3) -> Runs:
    """Return runs of which each differs from the next by a bar's return."""
    rates = [0.001]
    for change in reversed(changes):
        rates.append(rates[-1] + change)
    return Runs(*([rate] + [0.0] * (bars - 1) for rate in reversed(rates)))


def content_of(number: int, previous: Content | None, **changes: Any) -> Content:
    place, hash_ = after(previous)
    runs = runs_of(0.0, 0.0, 0.0, 0.0, 0.0)
    nothing = Digest(count=0, sha256="0" * 64)
    fields: dict[str, Any] = {
        "slot": "crypto-1h", "day": number * DAY, "number": place, "previous": hash_,
        "code_version": "0.1.0", "bundles": ("a" * 64,), "history": nothing, "bars": nothing,
        "adjustments": nothing, "start": nothing, "inputs": nothing, "orders": nothing, "lines": nothing,
        "before": "b" * 64,
        "after": "c" * 64, "decisions": NONE, "returns": runs.returns, "causes": causes_of(runs),
        "events": (), "verdict": "equal",
    }  # fmt: skip
    return Content(**fields | changes)


def chain_of(count: int) -> list[Content]:
    found: list[Content] = []
    for number in range(count):
        found.append(content_of(number, found[-1] if found else None))
    return found


growth = st.lists(st.floats(-0.5, 0.5), min_size=4, max_size=4).map(tuple)


@given(st.tuples(growth, growth, growth, growth, growth, growth))
def test_causes_sum_to_the_difference(six: tuple[tuple[float, ...], ...]) -> None:
    runs = Runs(*six)
    whole = runs.returns.account - runs.returns.simulator
    assert math.fsum(causes_of(runs).values()) == pytest.approx(whole, abs=1e-12)


def test_each_cause_is_the_difference_of_its_own_two_runs() -> None:
    names = ("unexplained", "price", "fee", "refusal", "decisions")
    for place, name in enumerate(names):
        changes = [0.0] * 5
        changes[place] = 0.01
        causes = causes_of(runs_of(*changes))
        assert causes[name] == pytest.approx(0.01, abs=1e-15)
        assert {cause for cause in CAUSES if causes[cause] == 0.0} == set(CAUSES) - {name}


@pytest.mark.parametrize(
    ("changes", "worst", "same_state", "verdict"),
    [
        ((0.0, 0.0, 0.0, 0.0, 0.0), 0.0, True, "equal"),
        ((0.0, 1e-12, 0.0, 0.0, 0.0), 1e-6, True, "equal"),
        ((0.0, -0.001, 0.0, 0.0, 0.0), 0.0, True, "explained"),
        ((0.0, 0.001, -0.001, 0.0, 0.0), 0.0, True, "explained"),
        ((0.0, 0.0, 0.0, 0.0, 0.002), 0.0, True, "explained"),
        ((2e-6, 0.0, 0.0, 0.0, 0.0), 0.0, True, "differs"),
        ((0.0, 0.0, 0.0, 0.0, 0.0), 2e-6, True, "differs"),
        ((0.0, 0.0, 0.0, 0.0, 0.0), 0.0, False, "differs"),
    ],
)
def test_verdicts(changes: tuple[float, ...], worst: float, same_state: bool, verdict: str) -> None:
    decisions = Decisions(count=3, worst=worst, at=DAY)
    assert verdict_of(runs_of(*changes), decisions, same_state=same_state) == verdict


def test_differences_of_bars_that_cancel_out_are_found() -> None:
    flat = (0.0, 0.0)
    runs = Runs((0.01, 1.0 / 1.01 - 1.0), flat, flat, flat, flat, flat)
    assert causes_of(runs)["unexplained"] == pytest.approx(0.0, abs=1e-15)
    assert verdict_of(runs, NONE, same_state=True) == "differs"


def test_runs_have_the_same_bars() -> None:
    with pytest.raises(ValueError, match="different numbers of bars"):
        Runs((0.0,), (0.0,), (0.0,), (0.0,), (0.0,), ())


def test_a_chain_and_what_breaks_it() -> None:
    chain = chain_of(4)
    check_chain(chain)
    check_chain([])
    with pytest.raises(InputError, match=r"certificate 2 .* follows certificate 0: one was taken"):
        check_chain([chain[0], *chain[2:]])
    with pytest.raises(InputError, match=r"certificate 1 .* follows certificate none"):
        check_chain(chain[1:])
    forged = chain[1].model_copy(update={"verdict": "explained"})
    with pytest.raises(InputError, match="one of them has been changed"):
        check_chain([chain[0], forged, *chain[2:]])
    other = content_of(1, chain[0], slot="other-1h")
    with pytest.raises(InputError, match="follows one of slot crypto-1h"):
        check_chain([chain[0], other])


def test_every_field_is_in_the_hash() -> None:
    one, other = content_of(3, None), runs_of(0.0, 0.01, 0.0, 0.0, 0.0)
    changes: dict[str, Any] = {
        name: f"{value}x" if isinstance(value, str) else Digest(count=1, sha256="1" * 64)
        for name, value in one
    }
    changes |= {"format_version": 2, "day": 1, "number": 1, "bundles": (), "events": ("late bar",)}
    changes |= {"decisions": Decisions(count=1, worst=0.0, at=DAY)}
    changes |= {"returns": other.returns, "causes": causes_of(other)}
    for name, value in changes.items():
        assert one.model_copy(update={name: value}).hash != one.hash, name


def test_content_is_read_back_exactly() -> None:
    one = content_of(3, None, events=("late bar at 13:00",))
    again = Content.model_validate_json(one.model_dump_json())
    assert again == one
    assert again.hash == one.hash


def test_digests_depend_on_order_and_content() -> None:
    records = [{"time": 1, "price": 0.1}, {"time": 2, "price": 0.2}]
    assert digest_of(records).count == 2
    assert digest_of(records) == digest_of([dict(reversed(one.items())) for one in records])
    assert digest_of(records) != digest_of(records[::-1])
    assert digest_of([]) != digest_of([{}])
