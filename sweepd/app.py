"""The entry point of the `sweepd` command."""

from __future__ import annotations

from sweepd.envs.support.loading import begin_loading


def main() -> None:
    """Run the command line `sys.argv`.

    Until a command begins, Ctrl-C ends the process at once, without a message. Therefore this
    module imports nothing that takes time.
    """
    begin_loading()
    from sweepd.commands import run

    run()
