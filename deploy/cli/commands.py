"""Commands of deployment: promote, rollback, trade, trader, play, registry."""

from __future__ import annotations

import typer

from sweepd.deploy.cli.play import play_command
from sweepd.deploy.cli.promote import after_study_command, promote_command
from sweepd.deploy.cli.registry_commands import registry_app, rollback_command
from sweepd.deploy.cli.trade_commands import trade_command
from sweepd.deploy.cli.trader_commands import trader_app


def deploy_commands(app: typer.Typer) -> None:
    """Add promote, rollback, trade, trader, play and registry to a command-line program."""
    app.command("promote")(promote_command)
    app.command("promote-after-study", hidden=True)(after_study_command)
    app.command("rollback")(rollback_command)
    app.command("trade")(trade_command)
    app.command("play")(play_command)
    app.add_typer(trader_app, name="trader")
    app.add_typer(registry_app, name="registry")
