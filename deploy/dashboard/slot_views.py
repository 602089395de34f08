"""The views of a slot, and the links between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from werkzeug.wrappers import Request

from sweepd.deploy.dashboard.health import Health
from sweepd.deploy.dashboard.pages import Address
from sweepd.deploy.dashboard.source import PaperSource
from sweepd.envs.support.errors import InputError, RunError

VIEWS = {
    "/": "Overview",
    "/chart": "Chart",
    "/trades": "Round trips",
    "/days": "Days",
    "/orders": "Orders",
    "/events": "Events",
    "/parity": "Parity",
}


def known_slots(paper: PaperSource) -> dict[str, Health]:
    """Return the slots for a page that reports a problem: none if they are part of it."""
    try:
        return paper.slots()
    except (InputError, RunError):
        return {}


def slot_links(slots: Mapping[str, Health], slot: str | None, request: Request) -> dict[str, Any]:
    """Return what the template of a slot's pages needs: the slots, and the slot's views.

    The template begins each page with name and state of the slot, by default the first one.
    """
    slot = slot or next(iter(slots), None)
    address = Address.of(request, "account", "asset")
    return {
        "slots": slots,
        "slot": slot,
        "path": request.path,
        "views": [(address.to(path, slot=slot), label) for path, label in VIEWS.items()],
        "shown": VIEWS[request.path],
    }
