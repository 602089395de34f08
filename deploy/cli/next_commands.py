"""The commands that are printed after a promotion, for the user to copy.

Each line runs as printed, in any shell.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from sweepd.deploy.promotion.promotion import Promotion, ResultT
from sweepd.deploy.promotion.studies import where_flags
from sweepd.deploy.registry.flags import registry_flags
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.invocation import program
from sweepd.envs.support.terminal import Terminal
from sweepd.optimize.study.record.reader import StudyReader


def next_commands(
    promotion: Promotion[ResultT],
    study: StudyReader,
    registry: Registry,
    champion: Sequence[tuple[str, str]],
) -> list[tuple[str, str]]:
    """Return the commands that a user may want after a promotion, each with its purpose.

    Args:
        promotion: its outcome.
        study: the study whose trials were evaluated.
        registry: the registry that the promotion used.
        champion: (command that takes a slot, what it does), returned where the slot has a champion.
    """
    slot, where, of_study = (
        shlex.quote(promotion.slot),
        registry_flags(registry),
        f" {shlex.join(['--study-name', study.name, *where_flags(study)])}",
    )
    commands = []
    if promotion.champion is not None:
        commands += [(f"{command} {slot}{where}", what) for command, what in champion]
        if registry.slot(promotion.slot).previous is not None:
            commands.append((f"rollback {slot}{where}", "bring the previous champion back"))
    commands += [
        (f"promote{of_study}{where} --dry-run", "evaluate the candidates again"),
        (f"status{of_study}", "list the trials and the best parameters"),
        (f"dashboard{of_study}{where}", "show the study in a browser"),
    ]
    return [(f"{program()} {command}", what) for command, what in commands]


def print_next(console: Terminal, commands: Sequence[tuple[str, str]]) -> None:
    """Print each command on its own line, below its purpose.

    A long command is not wrapped, so that it can be copied. Nothing follows it on its line, because
    an interactive zsh takes `# comment` for arguments.
    """
    console.rule("Next", align="left")
    for command, what in commands:
        console.print_line(f"{what}:", "dim")
        console.print_line(command)
