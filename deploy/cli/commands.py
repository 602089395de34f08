"""Commands of deployment: promote, rollback, trade, trader, play, registry."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from deploy.cli.games_commands import (
    play_command,
    promote_game,
    promote_game_after_study,
    refuse_market_flags,
)
from deploy.cli.next_commands import next_commands, print_next
from deploy.cli.options import DEPLOYMENTS, AsJson, Deployments, RegistryUrl, chosen_registry
from deploy.cli.registry_commands import registry_app, rollback_command
from deploy.cli.trade_commands import trade_command
from deploy.cli.trader_commands import trader_app
from deploy.market.bundle import Bundle
from deploy.market.candidates import FinishedStudy, market_study
from deploy.market.gate import DEFAULT_RULES
from deploy.market.manifest import Weights
from deploy.market.promote import MarketPromoter, MarketPromotion
from deploy.market.scoring import bars_of
from deploy.market.view import print_promotion
from deploy.promotion.findings import short
from deploy.promotion.rules import parse_limits, with_limits
from deploy.promotion.studies import attach, find_study, storage_url
from deploy.registry.registry import Registry
from deploy.trading.replay import write_replay
from deploy.trading.replay_view import print_replay, replay_folder, replay_window, run_replay
from envs.support.database_url import STORAGE_VARIABLE, warn_of_password
from envs.support.errors import InputError, RunError
from envs.support.study_record import CRYPTO
from envs.support.supervisor import Supervisor
from envs.support.terminal import Terminal


def deploy_commands(app: typer.Typer) -> None:
    """Add promote, rollback, trade, trader, play and registry to a command-line program."""
    app.command("promote")(promote_command)
    app.command("promote-after-study", hidden=True)(after_study_command)
    app.command("rollback")(rollback_command)
    app.command("trade")(trade_command)
    app.command("play")(play_command)
    app.add_typer(trader_app, name="trader")
    app.add_typer(registry_app, name="registry")


def promote_command(
    study_name: Annotated[
        str | None,
        typer.Option("--study-name", help="Study. Default: the only one in the storage."),
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            envvar=STORAGE_VARIABLE,
            callback=warn_of_password,
            help="Database of the study: SQLite file or URL. Default: runs/sweepd.db.",
        ),
    ] = None,
    runs_dir: Annotated[
        Path | None,
        typer.Option(
            "--runs-dir", help="Folder of studies' files. Default: found from the study's database."
        ),
    ] = None,
    slot: Annotated[
        str | None,
        typer.Option(
            "--slot",
            help="Slot whose champion may change. Default: crypto-TIMEFRAME (demo-TIMEFRAME for "
            "synthetic bars) or the game.",
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", help="Folder of the study's bars. Default: where they were."),
    ] = None,
    trial: Annotated[
        int | None,
        typer.Option(
            "--trial", help="Evaluate this trial only. Default: all, in order of objective."
        ),
    ] = None,
    looks: Annotated[
        int,
        typer.Option(
            "--looks",
            min=1,
            help="Maximum number of candidates evaluated on the hold-out. Each evaluation makes "
            "the rules for the next one stricter.",
        ),
    ] = 1,
    ensemble: Annotated[
        int,
        typer.Option(
            "--ensemble",
            min=1,
            help="Number of best trials to promote together: each trades a share of the capital, "
            "and orders are netted.",
        ),
    ] = 1,
    weights: Annotated[
        Weights,
        typer.Option(
            "--weights",
            help="Shares of an ensemble's capital: equal, or by the trials' shrunken fold scores.",
        ),
    ] = "equal",
    limit: Annotated[
        list[str] | None,
        typer.Option("--limit", help="Change a rule's limit: NAME=NUMBER. May be repeated."),
    ] = None,
    first_stage: Annotated[
        bool,
        typer.Option(
            "--first-stage",
            help="Apply only the rules that need no hold-out evaluation, to the best trial.",
        ),
    ] = False,
    games: Annotated[
        int | None,
        typer.Option(
            "--games", min=2, help="For games: number of games per player in the panel (100)."
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the verdict and change nothing, except that the hold-out evaluation is "
            "counted in the registry.",
        ),
    ] = False,
    as_json: AsJson = False,
    deployments: Deployments = DEPLOYMENTS,
    registry: RegistryUrl = None,
) -> None:
    """Evaluate a study's best trial, and make it champion of a slot if it meets every rule.

    A market's trial is scored on the hold-out; a game's player plays a panel of new games. "No
    candidate passes" is a normal result, which is explained; the exit code is 0.
    """
    console = Terminal()
    Supervisor().ready("judging the candidates")
    found = find_study(study_name, storage_url(storage), runs_dir)
    opened = Registry(deployments, registry)
    if found.environment != CRYPTO:
        refuse_market_flags(
            found, data_dir=data_dir, ensemble=ensemble, weights=weights, first_stage=first_stage
        )
        promote_game(
            found,
            opened,
            slot=slot,
            trial=trial,
            looks=looks,
            games=games,
            limit=limit,
            dry_run=dry_run,
            as_json=as_json,
        )
        return
    if games is not None:
        raise InputError(
            f"--games is for games, but study {found.name!r} is on {found.environment}"
        )
    study = market_study(found)
    promoter = MarketPromoter(
        study,
        opened,
        slot=slot,
        data_dir=data_dir,
        dry_run=dry_run,
        looks=0 if first_stage else looks,
        ensemble=ensemble,
        weights=weights,
        rules=with_limits(DEFAULT_RULES, parse_limits(limit or [], "max-drawdown=0.2")),
        progress=(lambda _text: None) if as_json else lambda text: console.print(text, style="dim"),
    )
    promotion = promoter.run(trial)
    if as_json:
        typer.echo(json.dumps(promotion.to_dict(), indent=1))
        return
    print_promotion(console, promotion)
    if not (first_stage or dry_run):
        _report(console, study, promotion, promoter)
    if promotion.outcome in ("promoted", "champion already"):
        print_next(
            console,
            next_commands(promotion, study, opened, [("trade --replay", "replay the champion")])[
                :1
            ],
        )


def after_study_command(
    study_name: Annotated[str, typer.Option("--study-name")],
    storage: Annotated[str | None, typer.Option("--storage", envvar=STORAGE_VARIABLE)] = None,
    runs_dir: Annotated[Path | None, typer.Option("--runs-dir")] = None,
    deployments: Deployments = DEPLOYMENTS,
    registry: RegistryUrl = None,
) -> None:
    """Promote after a study; a worker runs this command in a process of its own.

    See `promote_after_study` and `deploy.cli.games_commands.promote_game_after_study`.
    """
    found, opened = (
        find_study(study_name, storage_url(storage), runs_dir),
        Registry(deployments, registry),
    )
    if found.environment != CRYPTO:
        promote_game_after_study(found, opened, console=Terminal())
    else:
        promote_after_study(market_study(found), opened, console=Terminal())


def count_looks(
    tickers: Sequence[str],
    first: int,
    last: int,
    *,
    registry: tuple[Path, str | None] | None = None,
) -> int:
    """Return the hold-out evaluations so far of these assets between opens `first` and `last`.

    Args:
        tickers: the assets.
        first: open of the first bar, seconds since the epoch.
        last: open of the last bar.
        registry: deployments folder and URL; by default those of the environment. A registry that
            does not exist yet counts 0 evaluations, and is not created.
    """
    return Registry(*(registry or chosen_registry())).evaluations.count_holdout(
        tickers, first, last
    )


def promote_after_study(
    study: FinishedStudy,
    registry: Registry,
    *,
    console: Console,
    data_dir: Path | None = None,
    slot: str | None = None,
) -> MarketPromotion:
    """Promote a finished study's best trial if it meets every rule.

    The slot's champion is then replayed over the hold-out by the paper trader, and result and next
    commands are printed. Problems with the replay are printed and do not undo the promotion.
    """
    promoter = MarketPromoter(
        study,
        registry,
        slot=slot,
        data_dir=data_dir,
        progress=lambda text: console.print(text, style="dim", highlight=False),
    )
    promotion = promoter.run()
    print_promotion(console, promotion)
    _report(console, study, promotion, promoter)
    if promotion.champion is None:
        console.print(
            f"Nothing to replay: slot {promotion.slot} has no champion yet.", highlight=False
        )
    else:
        try:
            _replay_champion(console, registry, promotion, data_dir or Path(study.spec.data.dir))
        except (InputError, RunError, OSError) as error:
            console.print(
                f"The champion {short(promotion.champion)} could not be replayed: {error}",
                style="yellow",
            )
    champion = [("trade --replay", "replay the champion")]
    if not promotion.slot.startswith("demo-"):  # no venue sells what the demo market trades
        champion.append(("trade", "trade it live, on paper"))
    print_next(console, next_commands(promotion, study, registry, champion))
    return promotion


def _report(
    console: Console, study: FinishedStudy, promotion: MarketPromotion, promoter: MarketPromoter
) -> None:
    """Write the report with plots, and attach it to the study.

    Errors are printed and do not change the decision.
    """
    from deploy.market.report import write_report

    try:
        paths = write_report(study, promotion, promoter.registry, promoter.data_dir)
        attach(study, paths)
    except (OSError, RunError, SQLAlchemyError) as error:
        console.print(
            f"The report could not be written: {error}",
            style="yellow",
            highlight=False,
            soft_wrap=True,
        )
        return
    if paths:
        console.print(
            "report: " + ", ".join(str(path) for path in paths), highlight=False, soft_wrap=True
        )


def _replay_champion(
    console: Console, registry: Registry, promotion: MarketPromotion, data_dir: Path
) -> None:
    """Replay the slot's champion over the bars after its training data; write the result."""
    assert promotion.champion is not None
    bundle = registry.bundle(promotion.champion, Bundle)
    bars = bars_of(bundle, data_dir)
    window = replay_window(bundle, bars, None, None)
    result = run_replay(bundle, bars, window, console=console, slot=promotion.slot)
    paths = write_replay(result, replay_folder(registry.folder, promotion.slot, result))
    print_replay(console, result, paths)
