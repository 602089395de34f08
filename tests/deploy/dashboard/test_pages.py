"""Addresses, paging and choices of the dashboard's pages."""

from __future__ import annotations

import pytest

pytest.importorskip("plotly")
from werkzeug.exceptions import BadRequest
from werkzeug.test import EnvironBuilder
from werkzeug.wrappers import Request

from sweepd.deploy.dashboard.pages import Address, Paging, chosen


def request(query: str) -> Request:
    return Request(EnvironBuilder("/orders", query_string=query).get_environ())


def test_addresses_keep_and_change_their_query() -> None:
    address = Address.of(request("slot=a%20b&side=buy&other=1&account="), "slot", "side", "account")
    assert address.to() == "/orders?slot=a+b&side=buy"
    assert address.to(page=2, side=None) == "/orders?slot=a+b&page=2"
    assert address.to("/orders.csv", slot="", side="") == "/orders.csv"


@pytest.mark.parametrize(
    ("query", "total", "expected"),
    [
        ("", 120, (1, 0, 50, 3)),
        ("page=3", 120, (3, 100, 120, 3)),
        ("page=9", 120, (3, 100, 120, 3)),
        ("page=1", 0, (1, 0, 0, 1)),
        ("page=2", 100, (2, 50, 100, 2)),
    ],
)
def test_a_page_behind_the_end_is_the_last_one(
    query: str, total: int, expected: tuple[int, ...]
) -> None:
    page = Paging.of(request(query), total)
    assert (page.number, page.start, page.stop, page.last) == expected


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "²", "9" * 30])
def test_wrong_page_numbers_are_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="give a whole number from 1"):
        Paging.of(request(f"page={text}"), 10)


def test_choices_are_checked() -> None:
    assert chosen(request("side=buy"), "side", ("buy", "sell")) == "buy"
    assert chosen(request(""), "side", ("buy", "sell"), "sell") == "sell"
    with pytest.raises(BadRequest, match="side=hold: choose one of buy, sell"):
        chosen(request("side=hold"), "side", ("buy", "sell"))
