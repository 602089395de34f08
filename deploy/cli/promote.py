"""`sweepd promote`: evaluate a study's candidates, and make one of them champion of a slot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy.exc import SQLAlchemyError

from sweepd.deploy.gates import gate_of
from sweepd.deploy.promotion.commands import on_study
from sweepd.deploy.promotion.flags import PromoteFlags
from sweepd.deploy.promotion.promoter import Promoter
from sweepd.deploy.promotion.promotion import Promotion, Step
from sweepd.deploy.promotion.studies import attach, find_study
from sweepd.deploy.promotion.terminal import print_steps, report_view
from sweepd.deploy.promotion.verdict_file import GATE, write_verdict
from sweepd.deploy.registry.flags import RegistryFlags, registry_flags
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.replay_view import replay_champion
from sweepd.envs.support.database_url import STORAGE_VARIABLE
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.supervisor import Supervisor
from sweepd.envs.support.terminal import Terminal
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.reader import StudyReader


@takes_flags
def promote_command(flags: PromoteFlags, where: RegistryFlags) -> None:
    """Evaluate a study's best trial, and make it champion of a slot if it meets every rule.

    A market's trial is scored on the hold-out, a game's player plays a panel of new games, and the
    selected parameters of a program are judged by fresh seeds. The exit code is 0 also if no
    candidate passes.
    """
    # Before the input is checked: systemd reports an exit before this as a protocol error,
    # which would hide the message.
    Supervisor().ready("judging the candidates")
    found = find_study(flags.study_name, storage_url(flags.storage), flags.runs_dir)
    task = PromotionTask(found, where.open(create=True), Terminal(), flags)
    promotion = task.run(flags.trial)
    if flags.as_json:
        typer.echo(json.dumps(promotion.to_dict(), indent=1))
        return
    task.print(promotion)
    if not (flags.without_looks or flags.dry_run):
        task.publish(promotion)
    print_steps(task.console, promotion.steps)


@takes_flags
def after_study_command(
    where: RegistryFlags,
    study_name: Annotated[str, typer.Option("--study-name")],
    storage: Annotated[str | None, typer.Option(envvar=STORAGE_VARIABLE)] = None,
    runs_dir: Annotated[Path | None, typer.Option("--runs-dir")] = None,
) -> None:
    """Promote after a study; a worker runs this command in a separate process."""
    found = find_study(study_name, storage_url(storage), runs_dir)
    promote_after_study(found, where.open(create=True), Terminal())


def promote_after_study(
    found: StudyReader, registry: Registry, console: Terminal
) -> Promotion[Any]:
    """Promote a finished study's best candidate if it meets every rule.

    Verdict, report, a replay of a market's champion and the next commands are printed.
    """
    task = PromotionTask(found, registry, console)
    promotion = task.run()
    task.print(promotion)
    task.publish(promotion)
    if task.gate.trades:
        replay_champion(
            registry, promotion.slot, promotion.champion, Path(task.gate.data_dir), console
        )
    print_steps(console, [*promotion.steps, *task.on_study])
    return promotion


class PromotionTask:
    """A promotion with its output.

    Args:
        study: the study.
        registry: where the slot is.
        console: what is printed goes there.
        flags: the options.

    Raises:
        InputError: an option is for another kind of study, or has a wrong value.
    """

    def __init__(
        self,
        study: StudyReader,
        registry: Registry,
        console: Terminal,
        flags: PromoteFlags = PromoteFlags(),  # noqa: B008 (frozen)
    ) -> None:
        self.study, self.registry, self.console = study, registry, console
        kind = gate_of(study.spec.environment)
        self.gate = kind.open(study, registry, flags, _progress(console, flags))
        self._promoter = Promoter(self.gate)

    def run(self, trial: int | None = None) -> Promotion[Any]:
        """Judge the candidates, see `Promoter.run`."""
        return self._promoter.run(trial)

    def print(self, promotion: Promotion[Any]) -> None:
        """Print the report."""
        self.console.print(report_view(self.gate.report(promotion)))

    def publish(self, promotion: Promotion[Any]) -> None:
        """Write the verdict and the report, and attach the report to the study.

        Errors are printed and do not change the decision.
        """
        from sweepd.deploy.promotion.documents import write_report  # imports matplotlib

        paths: list[Path] = []
        try:
            report = self.gate.report(promotion)
            write_verdict(report, self.study.run_dir)
            paths += write_report(report, self.study.run_dir / GATE)
            attach(self.study, paths)
            paths += self.gate.publish(promotion)
        except (OSError, InputError, RunError, SQLAlchemyError) as error:
            # With paths, the report is written: attaching it to the study or a game's replay failed.
            what = "The report is incomplete" if paths else "The report could not be written"
            self.console.print_line(f"{what}: {error}", "yellow")
        if paths:
            self.console.print_line("report: " + ", ".join(map(str, paths)))

    @property
    def on_study(self) -> list[Step]:
        """Commands that show more of the study, for users who have not given any so far."""
        where = registry_flags(self.registry)
        return [
            Step("list the trials and the best parameters", on_study("status", self.study)),
            Step("show the study in a browser", f"{on_study('dashboard', self.study)}{where}"),
        ]


def _progress(console: Terminal, flags: PromoteFlags) -> Callable[[str], None]:
    """Return a function that prints a step; with --json, only the result is printed."""
    if flags.as_json:
        return lambda _text: None
    return lambda text: console.print_line(text, "dim")
