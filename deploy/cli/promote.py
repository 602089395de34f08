"""`sweepd promote`: evaluate a study's candidates, and make one of them champion of a slot."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from sqlalchemy.exc import SQLAlchemyError

from sweepd.deploy.cli.next_commands import next_commands, print_next
from sweepd.deploy.cli.promote_flags import PromoteFlags
from sweepd.deploy.games.candidates import GameStudy
from sweepd.deploy.games.promote import GamePromoter, GamePromotion, default_rules
from sweepd.deploy.games.report import game_report
from sweepd.deploy.market import gate as market_gate
from sweepd.deploy.market.bundle import Bundle
from sweepd.deploy.market.candidates import MarketStudy
from sweepd.deploy.market.promote import MarketPromoter, MarketPromotion
from sweepd.deploy.market.report import market_report
from sweepd.deploy.market.scoring import bars_of
from sweepd.deploy.promotion.promotion import Promotion
from sweepd.deploy.promotion.rules import parse_limits, with_limits
from sweepd.deploy.promotion.sections import Report, short
from sweepd.deploy.promotion.studies import attach, find_study
from sweepd.deploy.promotion.terminal import report_view
from sweepd.deploy.registry.flags import RegistryFlags
from sweepd.deploy.registry.registry import Registry
from sweepd.deploy.trading.replay import write_replay
from sweepd.deploy.trading.replay_view import print_replay, replay_folder, replay_window, run_replay
from sweepd.envs.support.database_url import STORAGE_VARIABLE
from sweepd.envs.support.errors import InputError, RunError
from sweepd.envs.support.flags import takes_flags
from sweepd.envs.support.supervisor import Supervisor
from sweepd.envs.support.terminal import Terminal
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.reader import StudyReader
from sweepd.optimize.study.record.stored import CRYPTO


@takes_flags
def promote_command(flags: PromoteFlags, where: RegistryFlags) -> None:
    """Evaluate a study's best trial, and make it champion of a slot if it meets every rule.

    A market's trial is scored on the hold-out; a game's player plays a panel of new games. The
    exit code is 0 also if no candidate passes.
    """
    # Before the input is checked: systemd reports an exit before this as a protocol error,
    # which would hide the message.
    Supervisor().ready("judging the candidates")
    found = find_study(flags.study_name, storage_url(flags.storage), flags.runs_dir)
    task = promotion_task(found, where.open(create=True), Terminal(), flags)
    promotion = task.promoter.run(flags.trial)
    if flags.as_json:
        typer.echo(json.dumps(promotion.to_dict(), indent=1))
        return
    task.print(promotion)
    if not (flags.first_stage or flags.dry_run):
        task.publish(promotion)
    # A user who ran this command knows the others; a worker prints all of them.
    if promotion.outcome in ("promoted", "champion already"):
        task.print_next(promotion, most=1)


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
    task = promotion_task(found, registry, console, PromoteFlags())
    promotion = task.promoter.run()
    task.print(promotion)
    task.publish(promotion)
    task.replay(promotion)
    task.print_next(promotion)
    return promotion


class PromotionTask(ABC):
    """A promotion with its output, on a market or a game.

    Attributes:
        promoter: judges the candidates.
    """

    promoter: MarketPromoter | GamePromoter

    def __init__(self, study: StudyReader, registry: Registry, console: Terminal) -> None:
        self.study, self.registry, self.console = study, registry, console

    @abstractmethod
    def _report(self, promotion: Any) -> Report:
        """Return the report on a promotion."""

    def _record(self, promotion: Any, paths: list[Path]) -> None:  # noqa: B027 (a game's player)
        """Record what the candidate does, and append the file's path."""

    @abstractmethod
    def _champion_commands(self, promotion: Any) -> Sequence[tuple[str, str]]:
        """Return commands on the champion's slot, and what they do."""

    def print(self, promotion: Promotion[Any]) -> None:
        """Print the report."""
        self.console.print(report_view(self._report(promotion)))

    def publish(self, promotion: Promotion[Any]) -> None:
        """Write the report, and attach it to the study.

        Errors are printed and do not change the decision.
        """
        from sweepd.deploy.promotion.documents import write_report  # imports matplotlib

        paths: list[Path] = []
        try:
            paths += write_report(self._report(promotion), self.study.run_dir / "gate")
            attach(self.study, paths)
            self._record(promotion, paths)
        except (OSError, InputError, RunError, SQLAlchemyError) as error:
            # With paths, the report is written: attaching it to the study or a game's replay failed.
            what = "The report is incomplete" if paths else "The report could not be written"
            self.console.print_line(f"{what}: {error}", "yellow")
        if paths:
            self.console.print_line("report: " + ", ".join(map(str, paths)))

    def replay(self, promotion: Any) -> None:  # noqa: B027 (nothing to do for a game)
        """Replay the champion after a study; `publish` has recorded a game's player."""

    def print_next(self, promotion: Promotion[Any], most: int | None = None) -> None:
        """Print the commands that a user may want next, at most `most` of them."""
        champion = self._champion_commands(promotion)
        print_next(
            self.console, next_commands(promotion, self.study, self.registry, champion)[:most]
        )


class MarketTask(PromotionTask):
    """A promotion of a market's policy."""

    promoter: MarketPromoter

    def __init__(
        self, found: StudyReader, registry: Registry, console: Terminal, flags: PromoteFlags
    ) -> None:
        _refuse(flags, found, "markets", ("games", "play", "baseline"))
        study = MarketStudy(found)
        super().__init__(study, registry, console)
        self.promoter = MarketPromoter(
            study,
            registry,
            slot=flags.slot,
            data_dir=flags.data_dir,
            dry_run=flags.dry_run,
            # Without evaluations, the promoter stops after the first stage.
            looks=0 if flags.first_stage else flags.looks or 1,
            ensemble=flags.ensemble,
            weights=flags.weights,
            rules=with_limits(
                market_gate.DEFAULT_RULES, parse_limits(flags.limit or [], "max-drawdown=0.2")
            ),
            progress=_progress(console, flags),
        )

    def _report(self, promotion: MarketPromotion) -> Report:
        promoter = self.promoter
        return market_report(promoter.study, promotion, self.registry, promoter.data_dir)

    def _champion_commands(self, promotion: MarketPromotion) -> Sequence[tuple[str, str]]:
        replay = ("trade --replay", "replay the champion")
        if promotion.slot.startswith("demo-"):  # no venue sells what the demo market trades
            return (replay,)
        return (replay, ("trade", "trade it live, on paper"))

    def replay(self, promotion: MarketPromotion) -> None:
        """Replay the champion on the bars after its training data, and write the result.

        Errors are printed and do not change the decision.
        """
        if promotion.champion is None:
            self.console.print_line(
                f"Nothing to replay: slot {promotion.slot} has no champion yet."
            )
            return
        try:
            bundle = self.registry.bundle(promotion.champion, Bundle)
            bars = bars_of(bundle, self.promoter.data_dir)
            window = replay_window(bundle, bars, None, None)
            result = run_replay(bundle, bars, window, console=self.console, slot=promotion.slot)
            folder = replay_folder(self.registry.folder, promotion.slot, result)
            print_replay(self.console, result, write_replay(result, folder))
        except (InputError, RunError, OSError) as error:
            champion = short(promotion.champion)
            self.console.print_line(
                f"The champion {champion} could not be replayed: {error}", "yellow"
            )


class GameTask(PromotionTask):
    """A promotion of a game's player."""

    promoter: GamePromoter

    def __init__(
        self, found: StudyReader, registry: Registry, console: Terminal, flags: PromoteFlags
    ) -> None:
        _refuse(flags, found, "games", ("data_dir", "ensemble", "weights", "first_stage"))
        study = GameStudy(found)
        super().__init__(study, registry, console)
        self.promoter = GamePromoter(
            study,
            registry,
            slot=flags.slot,
            dry_run=flags.dry_run,
            looks=flags.looks,
            games=flags.games,
            rules=with_limits(
                default_rules(study), parse_limits(flags.limit or [], "beats-champion=5")
            ),
            play=flags.play,
            baselines=flags.baseline or (),
            progress=_progress(console, flags),
        )

    def _report(self, promotion: GamePromotion) -> Report:
        return game_report(self.promoter.study, promotion)

    def _record(self, promotion: GamePromotion, paths: list[Path]) -> None:
        from sweepd.deploy.games.show import publish_replay

        chosen = promotion.chosen
        if chosen is not None and chosen.bundle is not None:
            # A champion is called by its slot, another candidate by its trial.
            champion = chosen.bundle.hash == promotion.champion
            name = promotion.slot if champion else chosen.candidate.name
            paths.append(publish_replay(self.study, chosen.bundle, name))

    def _champion_commands(
        self,
        promotion: GamePromotion,  # noqa: ARG002
    ) -> Sequence[tuple[str, str]]:
        return (
            ("play", "watch the champion"),
            ("registry show", "show its origin and its gate report"),
        )


def promotion_task(
    found: StudyReader, registry: Registry, console: Terminal, flags: PromoteFlags
) -> PromotionTask:
    """Return the promotion of a study with these options.

    Raises:
        InputError: an option is for the other kind of study, or has a wrong value.
    """
    task = MarketTask if found.spec.environment == CRYPTO else GameTask
    return task(found, registry, console, flags)


def _refuse(flags: PromoteFlags, study: StudyReader, kind: str, names: Sequence[str]) -> None:
    """Raise InputError for the first of these options that was given."""
    for name in names:
        if getattr(flags, name) != getattr(PromoteFlags, name):
            raise InputError(
                f"--{name.replace('_', '-')} is not for {kind}, and study {study.name!r} is on "
                f"{study.spec.environment}; leave it out"
            )


def _progress(console: Terminal, flags: PromoteFlags) -> Callable[[str], None]:
    """Return a function that prints a step; with --json, only the result is printed."""
    if flags.as_json:
        return lambda _text: None
    return lambda text: console.print_line(text, "dim")
