"""The entry point of the `sweepd` command."""

from __future__ import annotations

from sweepd.envs.support.huge_pages import request_huge_pages
from sweepd.envs.support.loading import begin_loading
from sweepd.envs.support.mkl import request_mode
from sweepd.envs.support.openblas import request_one_thread


def main() -> None:
    """Run the command line `sys.argv`.

    Until a command begins, Ctrl-C ends the process at once, without a message. Therefore this
    module imports nothing that takes time.
    """
    begin_loading()
    # `import sweepd` does not request them in a program of a study, which may be this command.
    request_mode()
    request_one_thread()
    request_huge_pages()
    from sweepd.commands import run

    run()
