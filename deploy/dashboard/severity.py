"""How serious each kind of event is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

BAD, WARNING, INFO = "bad", "warning", "none"
LEVELS: Mapping[str, str] = {BAD: "alert", WARNING: "warning", INFO: "information"}
# Events of traders and of the registry; all others are information.
_KINDS: Mapping[str, str] = {
    **dict.fromkeys(("alert", "halted", "stale", "untradable", "rolled back", "swap refused"), BAD),
    **dict.fromkeys(
        ("risk", "trouble", "caught up", "transfer", "cost", "adjusted", "clock"), WARNING
    ),
    **dict.fromkeys(("rolled-back", "swap-refused"), BAD),
    **dict.fromkeys(("refused", "withdrawn", "removed"), WARNING),
}


def level_of(kind: str) -> str:
    """Return how serious an event of that kind is."""
    return _KINDS.get(kind, INFO)


def kinds_of(level: str, known: Sequence[str]) -> list[str]:
    """Return which of the known kinds have that level."""
    return [kind for kind in known if level_of(kind) == level]
