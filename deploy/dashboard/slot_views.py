"""The views of a slot, and the links between them."""

from __future__ import annotations

from typing import Any

from werkzeug.wrappers import Request

from deploy.dashboard.pages import Address
from deploy.dashboard.source import PaperSource
from envs.support.errors import InputError, RunError

VIEWS = {
    "/": "Overview",
    "/chart": "Chart",
    "/trades": "Round trips",
    "/days": "Days",
    "/orders": "Orders",
    "/events": "Events",
    "/parity": "Parity",
}


def slot_links(paper: PaperSource, slot: str | None, request: Request) -> dict[str, Any]:
    """Return what the template of a slot's pages needs: the slots, and the slot's views."""
    try:
        slots = paper.slots()
    except (InputError, RunError):
        slots = {}
    address = Address.of(request, "account", "asset")
    return {
        "slots": slots,
        "slot": slot,
        "path": request.path,
        "views": [(address.to(path, slot=slot), label) for path, label in VIEWS.items()],
        "shown": VIEWS[request.path],
    }
