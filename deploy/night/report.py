"""The report of a night in words and one picture: facts in, sections out."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from sweepd.deploy.night.facts import SPANS, STUDIES, AccountLine, NightFacts, SeatFact
from sweepd.deploy.promotion.promotion import MOST_STEPS, Step
from sweepd.deploy.promotion.sections import (
    Cell,
    Report,
    ReportPicture,
    ReportTable,
    ReportTerms,
    Section,
    Styled,
    sentence,
    short,
)
from sweepd.envs.support.formatting import MISSING, counted, duration, megabytes, minute, percent
from sweepd.envs.support.invocation import program

SILENT = 300.0  # seconds without a heartbeat after which a trader is looked after
FAR = 1_000  # nights, beyond which no date is told
SOON = 14  # nights before the limit of the disk from which on it is told
OUTCOMES: Final = {"done": "pass", "late": "defer", "refused": "fail", "failed": "fail"}
MEASURED: Final = {"deflated-sharpe": "deflated Sharpe ratio", "pbo": "PBO"}
READING = ReportTerms(
    "How to read it",
    [
        (
            "E",
            "what a bet against the champion has made of 1. Where the challenger is no better, E "
            "ever reaches the number in column needed with a probability of at most 2.5% for all "
            "challengers of a champion together, whenever one looks",
        ),
        ("days left", "at the pace of its record so far, which may be luck"),
        ("trial 0", "has the champion's parameters, on the same bars and folds as the others"),
        (
            "deflated Sharpe ratio, PBO",
            "probability that the best trial is better than the luckiest "
            "of that many; that it is worse than the median elsewhere",
        ),
    ],
)
_COLOURS: Final = {"account": "#1f5fa8", "shadow": "#7fa8d4", "equal weight": "#8a8a8a"}
_SEATS: Final = ("#2a9d5c", "#c0392b", "#8f5a06", "#6a4fa3", "#0b8a94", "#b0558f")
DRAWN: Final = (math.log(1e-3), math.log(1e9))  # log of the lowest and the highest E in the picture


@dataclass(frozen=True)
class Need:
    """What a person should look at. step: the command that leads on, if there is one."""

    what: str
    step: Step | None = None


def night_report(facts: NightFacts) -> Report:
    """Return the report."""
    headline, style = _headline(facts)
    found = needs(facts)
    terms: list[tuple[str, Cell]] = [
        ("needs you", Styled("; ".join(one.what for one in found), "fail") if found else "nothing"),
        ("champion", _champion(facts)),
    ]
    sections = [_ran(facts), _found(facts), _changed(facts), _arena(facts), _accounts(facts)]
    sections.append(_disk(facts))
    return Report(
        title="sweepd",
        headline=f"Night {facts.night} of {facts.slot}: {headline}",
        style=style,
        verdict=ReportTerms("", terms),
        steps=[one.step for one in found if one.step is not None][:MOST_STEPS],
        lines=(),
        sections=[one for one in sections if one is not None],
        picture=_picture(facts),
        reading=READING,
        footer="Paper trading only. Past results do not predict future ones.",
    )


def _headline(facts: NightFacts) -> tuple[str, str]:
    """Return the headline and its style."""
    kinds = {event.kind for event in facts.changes}
    if facts.broken:
        return f"{facts.broken[0].name} {facts.broken[0].outcome}", "fail"
    if facts.outcome == "late":
        return "closed before its end", "defer"
    if "rolled-back" in kinds:
        return "the previous champion is back", "defer"
    if "promoted" in kinds:
        return "a new champion", "pass"
    if facts.study is not None and facts.study.enters:
        return "a challenger entered the arena", "pass"
    return "nothing changed", "told"


def needs(facts: NightFacts) -> list[Need]:
    """Return what a person should look at, the most urgent first."""
    found = []
    trader, name = facts.trader, shlex.quote(facts.slot)
    if trader is not None and trader.halt is not None:
        line = f"{program()} trader resume {name}{facts.where}"
        found.append(Need(f"trading is halted: {trader.halt}", Step("To trade again", line)))
    elif trader is not None and trader.silent > SILENT:
        line = f"{program()} trader status {name}{facts.where}"
        what = f"the trader has been silent for {duration(trader.silent)}"
        found.append(Need(what, Step("What it did last", line)))
    for one in facts.broken:
        what = f"step {one.name} {one.outcome}" + (f": {one.said}" if one.said else "")
        found.append(Need(what, _mend(facts, one.name)))
    if facts.outcome == "late" and not facts.broken:
        found.append(Need("the night was closed before its end"))
    left = None if facts.disk is None else facts.disk.nights_left
    if left is not None and left < SOON:
        line = f"{program()} studies list{_where_studies(facts.config)}"
        what = f"the studies reach [disk] gb in about {counted(math.floor(left), 'night')}"
        found.append(Need(what, Step("The studies", line)))
    return found


def _mend(facts: NightFacts, step: str) -> Step | None:
    """Return the command that shows what is wrong with a step."""
    bars, where = facts.config.get("bars"), _where_studies(facts.config)
    if step in ("bars", "check") and bars is not None:
        words = ["--data-dir", bars["dir"], "--timeframe", bars["timeframe"]]
        words += ["--tickers", ",".join(bars["tickers"])]
        return Step("What is wrong with the bars", f"{program()} data check {shlex.join(words)}")
    if step == "begin":
        return Step("The studies", f"{program()} studies list{where}")
    if facts.study is None:
        return None
    name = shlex.quote(facts.study.name)
    if step == "study":
        line = f"{program()} status --study-name {name}{where}"
        return Step("The state of the study", line)
    if step in ("stage", "admit"):
        line = f"{program()} promote --study-name {name} --slot {shlex.quote(facts.slot)}"
        return Step("To judge it again", f"{line} --first-stage{where}{facts.where}")
    return None


def _where_studies(config: Mapping[str, Any]) -> str:
    """Return the flags that name the studies' database, each after a space."""
    study = config.get("study") or {}
    flags = {"--storage": study.get("storage"), "--runs-dir": study.get("runs_dir")}
    words = [word for flag, value in flags.items() if value for word in (flag, str(value))]
    return "".join(f" {shlex.quote(word)}" for word in words)


# ---- the sections ----


def _champion(facts: NightFacts) -> str:
    if facts.champion is None:
        return "none"
    reign = facts.reign
    since = "" if reign is None else f" since {minute(reign.at)} UTC: {reign.why}"
    return f"{short(facts.champion)}{since}"


def _ran(facts: NightFacts) -> ReportTerms:
    """What ran and cost: the steps that are done in one row, the others with their reasons."""
    done = [one for one in facts.steps if one.outcome == "done"]
    rows: list[tuple[str, Cell]] = []
    if done:
        rows.append(("done", ", ".join(f"{one.name} {duration(one.seconds)}" for one in done)))
    for one in facts.steps:
        if one.outcome != "done":
            said = f"{one.name} {duration(one.seconds)}" + (f": {one.said}" if one.said else "")
            style = OUTCOMES.get(one.outcome)
            rows.append((one.outcome, said if style is None else Styled(said, style)))
    title = f"What ran: {counted(len(facts.steps), 'step')} in {duration(facts.seconds)}"
    return ReportTerms(title, rows)


def _found(facts: NightFacts) -> ReportTerms | None:
    study = facts.study
    if study is None:
        return None
    rows: list[tuple[str, Cell]] = [
        ("study", f"{study.name}: {study.finished} of {counted(study.total, 'trial')} finished")
    ]
    if study.trial is not None and study.objective is not None:
        beside = "" if study.control is None else f"; trial 0: {study.control:+.4f}"
        rows.append(("best", f"trial {study.trial}: {study.objective:+.4f}{beside}"))
    measured = [
        f"{words} {value:.3f}"
        for name, words in MEASURED.items()
        if (value := (study.findings or {}).get(name)) is not None
    ]
    if study.passes is not None:
        said = Styled("met", "pass") if study.passes else Styled("not met", "fail")
        rows.append(("first stage", said))
    if measured:
        rows.append(("measured", ", ".join(measured)))
    return ReportTerms("What was found", rows)


def _changed(facts: NightFacts) -> Section:
    rows: list[Sequence[Cell]] = [
        [minute(event.at), event.kind, short(event.bundle), event.reason] for event in facts.changes
    ]
    study = facts.study
    why = "" if study is None or study.enters or not study.why else sentence(study.why)
    if not rows:
        return ReportTerms("What changed", [("nothing", why or "nothing was judged")])
    head = ("UTC", "what", "bundle", "why")
    return ReportTable("What changed", head, rows, why, texts=range(4))


def _arena(facts: NightFacts) -> ReportTable | None:
    if not facts.seats:
        return None
    rows = [_seat(one) for one in facts.seats]
    head = ("entry", "bundle", "days", "ahead of the champion", "E", "needed", "days left")
    return ReportTable("Arena", head, rows, texts=(0, 1))


def _seat(seat: SeatFact) -> Sequence[Cell]:
    ahead = percent(math.expm1(seat.relative)) if len(seat.day) else MISSING
    reached = seat.needed is not None and seat.latest >= seat.needed
    made = _power(seat.latest)
    return [
        f"{seat.number}, {seat.kind}" if seat.number else seat.kind,
        short(seat.bundle),
        str(len(seat.day)),
        ahead,
        Styled(made, "pass") if reached else made,
        MISSING if seat.needed is None else _power(seat.needed),
        _days(seat.expected),
    ]


def _power(log: float) -> str:
    """Format exp(log): with two decimals below 1,000, as a power of ten above."""
    if log == -math.inf:
        return "0"
    return f"{math.exp(log):,.2f}" if log < math.log(1000.0) else f"10^{log / math.log(10.0):.1f}"


def _days(days: float | None) -> str:
    if days is None:
        return MISSING
    return f"{math.ceil(days):,}" if math.isfinite(days) else "none ahead"


def _accounts(facts: NightFacts) -> ReportTable | None:
    if not facts.accounts:
        return None
    rows = [
        [
            one.name,
            f"{one.value:,.2f}",
            *(percent(one.over(days)) for days in SPANS.values()),
            percent(one.over(None)),
        ]
        for one in facts.accounts
    ]
    return ReportTable("Accounts", ("account", "value", *SPANS, "since start"), rows)


def _disk(facts: NightFacts) -> ReportTable | None:
    disk = facts.disk
    if disk is None:
        return None
    left, used = disk.nights_left, disk.kinds.get(STUDIES, 0)
    pace = ""
    if left is not None:
        when = f"more than {FAR:,} nights" if left > FAR else counted(math.floor(left), "night")
        pace = f"; full in {when} at this pace"
    caption = f"Studies: {megabytes(used)} of {megabytes(disk.limit)}{pace}."
    cells = [megabytes(size) for size in (*disk.kinds.values(), disk.free)]
    return ReportTable("Disk", (*disk.kinds, "free"), [cells], caption, texts=())


# ---- the picture ----


def _picture(facts: NightFacts) -> ReportPicture | None:
    seats = [one for one in facts.seats if len(one.day)]
    if not facts.accounts and not seats:
        return None
    words = "Left: growth of the accounts. Right: E of the seats, and what they need, dashed."
    return ReportPicture(words, lambda: draw(facts.accounts, seats))


def draw(accounts: Sequence[AccountLine], seats: Sequence[SeatFact]) -> Figure:
    """Draw the accounts' growth, and E of the seats with their thresholds."""
    figure = Figure(figsize=(11.0, 2.8))
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.06, right=0.985, top=0.9, bottom=0.17, wspace=0.16)
    left.set_title("Accounts, start = 1", fontsize=9, loc="left")
    for account in accounts:
        colour = _COLOURS.get(account.kind) or _COLOURS.get(account.name, "#bbbbbb")
        # With one point, a line would not be seen.
        left.plot(
            _dates(account.time),
            account.growth,
            label=account.name,
            color=colour,
            marker="." if len(account.time) == 1 else None,
            linewidth=1.3,
        )
    right.set_title("Arena: E against the champion", fontsize=9, loc="left")
    right.set_yscale("log")
    right.axhline(1.0, color="#666666", linewidth=0.8)
    for place, seat in enumerate(seats):
        colour = _SEATS[place % len(_SEATS)]
        right.plot(
            _dates(seat.day),
            np.exp(np.clip(seat.log_e, *DRAWN)),
            label=f"{seat.number or seat.kind}: {short(seat.bundle)[:8]}",
            color=colour,
            marker=".",
            linewidth=1.3,
        )
        if seat.needed is not None:
            right.axhline(math.exp(seat.needed), color=colour, linestyle="--", linewidth=0.9)
    right.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if _narrow(right) else (1.0,)))
    right.yaxis.set_major_formatter(lambda made, _: f"{made:,.4g}")
    right.yaxis.set_minor_formatter(NullFormatter())
    for axes, shown in ((left, accounts), (right, seats)):
        _finish(axes, empty=not shown)
    return figure


def _narrow(axes: Axes) -> bool:
    """Whether the logarithmic axis spans less than two decades."""
    low, high = axes.get_ylim()
    return high / low < 100.0


def _dates(time: Any) -> Any:
    return np.asarray(time, dtype="datetime64[s]")


def _finish(axes: Axes, *, empty: bool) -> None:
    axes.grid(visible=True, color="#dddddd", linewidth=0.6)
    axes.tick_params(labelsize=7)
    if empty:
        axes.set_xticks([])
        axes.text(0.5, 0.5, "nothing yet", transform=axes.transAxes, ha="center", fontsize=9)
        return
    axes.xaxis.set_major_locator(AutoDateLocator(maxticks=6))  # type: ignore[no-untyped-call]
    axes.legend(loc="best", fontsize=7)
