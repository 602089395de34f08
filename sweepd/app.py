"""The entry point of the `sweepd` command."""

from __future__ import annotations

from sweepd.envs.support.loading import end_at_interrupts


def main() -> None:
    """Run the command line `sys.argv`.

    Until a command begins, Ctrl-C ends the process at once, without a message. Therefore this
    module imports nothing that takes time.
    """
    end_at_interrupts()
    from sweepd.commands import run

    run()
