"""Commands about a slot that pages and the terminal print; each one runs as printed."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from sweepd.deploy.registry.bundle_files import UNTRADED, Kind
from sweepd.deploy.trading.live.records import Trader
from sweepd.envs.support.invocation import program

RECORDED = "recorded"  # the feed of recorded bars


@dataclass(frozen=True)
class SlotCommands:
    """Commands about a slot.

    where: the registry's flags, each after a space (see `registry_flags`).
    feed, broker: of its trader; "" for the default.
    """

    slot: str
    where: str = ""
    feed: str = ""
    broker: str = ""

    @classmethod
    def of(
        cls, slot: str, trader: Trader | None = None, *, where: str = "", synthetic: bool = False
    ) -> SlotCommands:
        """Return the commands of a slot.

        Args:
            slot: the slot.
            trader: its trader, whose feed and broker are named again.
            where: the registry's flags.
            synthetic: no venue has the tickers of a synthetic market, so its bars are recorded.
        """
        if trader is not None:
            return cls(slot, where, trader.feed, trader.broker)
        return cls(slot, where, RECORDED if synthetic else "")

    @property
    def trade(self) -> str:
        """Start its trader."""
        words = [*(["--feed", self.feed] if self.feed else [])]
        words += ["--broker", self.broker] if self.broker not in ("", "sim") else []
        return self._about("trade", *words)

    @property
    def replay(self) -> str:
        """Replay its champion."""
        return self._about("trade", "--replay")

    @property
    def resume(self) -> str:
        """Resume its trader."""
        return self._about("trader resume")

    @property
    def halt(self) -> str:
        """Halt its trader."""
        return self._about("trader halt")

    @property
    def parity(self) -> str:
        """Compare its account with the simulator."""
        return self._about("trader parity")

    @property
    def rollback(self) -> str:
        """Bring its previous champion back."""
        return self._about("rollback")

    @property
    def show(self) -> str:
        """Show its bundles and history."""
        return self._about("registry show")

    def _about(self, command: str, *words: str) -> str:
        more = "".join(f" {shlex.quote(word)}" for word in words)
        return f"{program()} {command} {shlex.quote(self.slot)}{more}{self.where}"


def show_untraded(slot: str, kind: Kind, where: str = "") -> str:
    """Return the command that shows a slot whose bundles trade nothing."""
    command = UNTRADED[kind][1].removeprefix("sweepd ")
    return f"{program()} {command} {shlex.quote(slot)}{where}"
