"""What does each step of a night: `sweepd loop` performs these."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sweepd.deploy.night.delivery import report
from sweepd.deploy.night.disk import disk
from sweepd.deploy.night.records import Name
from sweepd.deploy.night.shell import Context, Result, Step
from sweepd.deploy.night.study import bars_words, begin, flag_words, judge, promote_words, train
from sweepd.deploy.trading.live.store import TraderStore
from sweepd.envs.crypto.data.bars import load_bars

# Flags of a study that `sweepd data check` takes, too.
_CHECKED = ("search_space", "accept_jumps", "recipe", "cv", "groups", "test_groups", "embargo")


def download(context: Context) -> Result:
    """Download the bars since the last stored one."""
    bars = context.config.bars
    assert bars is not None
    words = ["data", "download", "--source", bars.source, *bars_words(bars)]
    words += ["--exchange", bars.exchange] if bars.exchange else []
    words += ["--start", bars.start] if bars.start else []
    context.run("bars", words)
    return Result("done", {"folder": bars.dir})


def check(context: Context) -> Result:
    """Check that a study can be made of the bars, and record which bars these are."""
    bars, study = context.config.bars, context.config.study
    assert bars is not None
    flags = {} if study is None else {k: v for k, v in study.flags.items() if k in _CHECKED}
    words = ["data", "check", *bars_words(bars), "--holdout", "0", *flag_words(flags)]
    context.run("check", words)
    found = load_bars(Path(bars.dir), bars.timeframe, bars.tickers, accept_jumps=True)
    facts = {
        "fingerprint": found.fingerprint,
        "bars": len(found),
        "first": str(found.time_of(0)),
        "last": str(found.time_of(-1)),
    }
    return Result("done", facts)


def admit(context: Context) -> Result:
    """Let the best trial ask for a seat in the arena, and trial 0 as a refit where that is due."""
    judged = context.rows["stage"].facts
    facts: dict[str, Any] = {}
    if judged["passes"]:
        facts["challenger"] = _ask(context, "--arena")
    if context.rows["begin"].facts["refit"]:
        facts["refit"] = _ask(context, "--refit")
    entered = [one for one in facts.values() if one["bundle"] is not None]
    reason = "; ".join(one["reason"] for one in facts.values())
    return Result("done" if entered else "skipped", {**facts, "reason": reason})


def _ask(context: Context, flag: str) -> dict[str, Any]:
    """Return the bundle that became a challenger, None if none did, and the reason."""
    words = promote_words(context.config, context.rows["stage"].facts["study"], flag)
    said = context.run_json(f"admit{flag}", words)
    bundle = said["candidates"][0]["bundle"] if said["outcome"] == "challenger" else None
    return {"bundle": bundle, "reason": said["reason"]}


def judge_challengers(context: Context) -> Result:
    """Judge the arena by what the slot's trader recorded: promote, withdraw, give free seats."""
    slot, arena = context.config.slot, context.config.arena
    assert arena is not None
    if not _traded(context):
        reason = f"slot {slot!r} was never traded, so there is no record to judge"
        return Result("skipped", {"reason": reason})
    words = ["trader", "arena", slot, *flag_words(arena.model_dump()), "--json"]
    return Result("done", context.run_json("arena", words))


def defend(context: Context) -> Result:
    """Let the challengers of a game play its champion."""
    slot, part = context.config.slot, context.config.defend
    assert part is not None
    if not context.registry.slot(slot).challengers:
        return Result("skipped", {"reason": f"slot {slot!r} has no challenger"})
    words = ["defend", slot, "--games", str(part.games), "--json"]
    return Result("done", context.run_json("defend", words))


def certify(context: Context) -> Result:
    """Certify the trader's days that are over; it does so itself, unless it was stopped."""
    slot = context.config.slot
    if not _traded(context):
        reason = f"slot {slot!r} was never traded, so there is no day to certify"
        return Result("skipped", {"reason": reason})
    # Days that differ are alerts, which the command has sent.
    words = ["trader", "parity", slot, "--certify", "--json"]
    made = context.run_json("certify", words, check=True)["certificates"]
    found = [str(one["text"]) for one in made if one["alarming"]]
    facts: dict[str, Any] = {"days": len(made), "alarming": len(found)}
    return Result("done", facts | ({"reason": "; ".join(found)} if found else {}))


def _traded(context: Context) -> bool:
    trader = TraderStore(context.registry.database).trader(context.config.slot)
    return trader is not None and trader.last_bar is not None


PERFORM: Mapping[Name, Step] = {
    "bars": download,
    "check": check,
    "begin": begin,
    "study": train,
    "stage": judge,
    "admit": admit,
    "arena": judge_challengers,
    "defend": defend,
    "certify": certify,
    "disk": disk,
    "report": report,
}
