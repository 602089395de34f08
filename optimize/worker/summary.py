"""The summary of a study that a worker prints at its end."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from optuna.trial import TrialState
from rich.console import Console
from rich.table import Column, Table

from sweepd.envs.crypto.scoring.figures import TITLE, figures_table
from sweepd.envs.external.roles import KEY as ROLES
from sweepd.envs.external.roles import parse_roles
from sweepd.envs.support.formatting import counted, duration, hourly, value_text
from sweepd.envs.support.intervals import few_scores, solved_seeds
from sweepd.optimize.objectives.games.evaluation import mean_interval
from sweepd.optimize.objectives.games.roles import role_metric
from sweepd.optimize.objectives.outlook import sentence, study_outlook
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.insight.axes import study_axes
from sweepd.optimize.study.insight.importance import importances
from sweepd.optimize.study.insight.parameters import frontier, racing
from sweepd.optimize.study.population import schedule_lines
from sweepd.optimize.study.record.configurations import (
    Configuration,
    first_value,
    latest,
    value_words,
)
from sweepd.optimize.study.record.fresh import fresh_seeds
from sweepd.optimize.study.record.frontier import frontier_lines, frontier_of
from sweepd.optimize.study.record.keys import REASON_KEY
from sweepd.optimize.study.record.rows import FINISHED
from sweepd.optimize.study.record.specs import GameSpec, StudySpec
from sweepd.optimize.study.record.trials import TrialRecord
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.frontier_picture import write_frontier
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.timing import Phases


def print_summary(
    handle: StudyHandle,
    console: Console,
    telemetry: Telemetry,
    batches: Sequence[int],
    phases: Phases,
) -> None:
    """Print the trials by state with reasons, the best parameters and the best trial's metrics.

    Args:
        handle: the study.
        console: where to print.
        telemetry: figures of this worker.
        batches: sizes of this worker's batches.
        phases: where this worker's time was spent.
    """
    # Reasons and parameters may contain brackets, which rich would take for markup.
    say = functools.partial(console.print, highlight=False, markup=False, soft_wrap=True)
    console.rule(f"study {handle.name}")
    if handle.spec.synthetic:
        console.print(
            "The market is SYNTHETIC: a demonstration, no evidence about any real market.",
            style="bold yellow",
        )
    _print_trials(handle, say)
    if telemetry.steps_done:
        _print_worker(telemetry, batches, phases, say)
    found = frontier_of(handle)
    if found is not None:
        for line in frontier_lines(found):
            say(line)
        if (path := write_frontier(handle, found)) is not None:
            say(f"picture of the frontier: {path}")
    selected = handle.best()
    if selected is None:
        none = (
            "complete" if not handle.counts()["COMPLETE"] else "complete and meets the constraints"
        )
        say(f"No trial is {none}, so there is no best trial.")
        if (ahead := handle.leading()) is not None:
            say(
                f"leading: trial {ahead.number}, {latest(ahead):+.4f} at rung "
                f"{max(ahead.intermediate_values)} of {handle.spec.rungs}"
            )
        return
    best = selected.best_trial
    if handle.spec.selection.racing:
        _print_selected(selected, handle.spec, say)
    objective = f"objective ({handle.spec.objective_text})"
    what = "selected" if handle.spec.several else "best"
    say(f"{what} trial: {best.number}, {objective} {first_value(best):+.4f}")
    record = TrialRecord.from_attributes(best.user_attrs)
    parameters = {**(record.shape or {}), **best.params}
    say("  " + "  ".join(f"{name}={value_text(value)}" for name, value in parameters.items()))
    if handle.spec.evolves:
        for line in schedule_lines(handle, best.number):
            say(f"  {line}")
    if (
        objective_of(handle.spec.environment).one_player(handle.spec.env, handle.spec.algorithm)
        and handle.origin is None
    ):
        _print_fresh(handle, selected, say)
    if record.warning is not None:
        say(f"warning: trial {best.number}: {record.warning}")
    gate = study_outlook(handle, sum(handle.counts()[state] for state in FINISHED))
    if isinstance(handle.spec, GameSpec):
        console.print(_game_table(record, handle.spec))
    if gate is not None:
        console.print(figures_table(record.metrics or {}, TITLE))
        say(f"gate: {sentence(gate)}")
    for line in search_lines(handle):
        say(line)


def _print_selected(selected: Configuration, spec: StudySpec, say: Callable[[str], None]) -> None:
    numbers = ", ".join(str(number) for number in sorted(t.number for t in selected.trials))
    count = len(selected.trials)
    described = selected.to_dict(spec.solved)
    second = described["second"]
    seeds = counted(len(selected.scores), "seed")
    say(
        f"best configuration: mean of {seeds} {value_words(described)}, "
        f"trial{'' if count == 1 else 's'} {numbers}; it was selected by this mean minus its standard error"
    )
    if second is not None:
        others = ", ".join(map(str, second["trials"]))
        mean = f"mean of {counted(len(second['scores']), 'seed')}"
        say(f"  difference to the second best, {mean} (trials {others}): {second['between']}")


def _print_fresh(handle: StudyHandle, selected: Configuration, say: Callable[[str], None]) -> None:
    what = "best configuration" if handle.spec.selection.racing else "best trial's configuration"
    fresh = fresh_seeds(handle, selected)
    if fresh is None:
        trial = selected.best_trial.number
        say(f"{what} on fresh seeds: not measured; sweepd run --trial {handle.name}#{trial}")
        return
    say(
        f"{what} on {counted(fresh.seeds, 'fresh seed')}, which the selection has not seen: "
        f"{fresh.average} {value_words(fresh.to_dict())}, study {fresh.study}"
    )
    if fresh.warning is not None:
        say(f"warning: study {fresh.study}: {fresh.warning}")


def _print_trials(handle: StudyHandle, say: Callable[[str], None]) -> None:
    counts = handle.counts()
    say(
        f"trials: {counts['COMPLETE']} complete, {counts['PRUNED']} pruned, {counts['FAIL']} failed"
    )
    for trial in handle.trials():
        if trial.state == TrialState.FAIL:
            reason = trial.user_attrs.get(REASON_KEY) or "no reason recorded"
            say(f"  trial {trial.number} failed: {reason}")


def _print_worker(
    telemetry: Telemetry, batches: Sequence[int], phases: Phases, say: Callable[[str], None]
) -> None:
    say(
        f"this worker: {telemetry.steps_done:,} steps in "
        f"{duration(telemetry.elapsed)} ({telemetry.steps_done / telemetry.elapsed:,.0f} "
        f"steps/s, {hourly(telemetry.trials_per_hour)} trials/hour, "
        f"{sum(batches) / len(batches):.1f} trials per batch)"
    )
    shares = phases.shares(telemetry.elapsed)
    say("time spent: " + ", ".join(f"{name} {share:.1%}" for name, _, share in shares))


def _game_table(record: TrialRecord, spec: GameSpec) -> Table:
    metrics: Mapping[str, Any] = record.metrics or {}
    sampled = ", sampled play" if spec.play == "sampled" else ""
    episodes = "other ones for every seed" if spec.own_episodes else "the same for all trials"
    table = Table(
        "",
        Column("policy", justify="right"),
        title=f"evaluation episodes, {episodes}{sampled}",
        title_justify="left",
        show_edge=False,
    )
    opponents = [name.removeprefix("points_") for name in metrics if name.startswith("points_")]
    what = "points" if opponents else "return"
    scores = record.scores or ()
    table.add_row(f"{what}, mean over seeds", f"{metrics['mean']:+.4f}")
    found = mean_interval(metrics, record.resampled or "", record.interval or "")
    if found.trusted(len(scores)):
        method = f" ({found.method})" if found.known else ""
        table.add_row(f"95% over {found.resampled}{method}", found.bounds())
    if few := few_scores(scores):
        table.add_row("seeds", few)
    if spec.solved is not None and len(scores) > 1:
        say_solved, _, share = solved_seeds(scores, spec.solved).partition(" solved ")
        table.add_row("seeds that solve the game", f"{say_solved} {share}")
    for name in opponents:
        won, drawn = metrics[f"won_{name}"], metrics[f"drawn_{name}"]
        table.add_row(
            f"against {name}: won, drawn, lost", f"{won:.0%}, {drawn:.0%}, {1 - won - drawn:.0%}"
        )
    if "nash_conv" in metrics:
        exact = f"{metrics['nash_conv']:.3g}, {metrics['nash_conv_least']:.3g}"
        table.add_row("exact NashConv: mean over seeds, least", exact)
    if not opponents:
        table.add_row("deviation of an episode's return", f"{metrics['deviation']:.4f}")
        table.add_row("worst episode", f"{metrics['worst']:+.4f}")
    else:
        by_seat = f"{metrics['won_first_seat']:.0%}, {metrics['won_second_seat']:.0%}"
        table.add_row("won at the first seat, at the second", by_seat)
    for role in parse_roles(spec.env[ROLES]) if ROLES in spec.env else ():
        own = f"{metrics[role_metric(role)]:+.4f}"
        table.add_row(f"return of {role}, where all roles play as trained", own)
    table.add_row("mean episode length", f"{metrics['length']:,.1f}")
    if metrics.get("at_limit"):
        table.add_row("episodes that ended by the limit of steps", f"{metrics['at_limit']:.0%}")
    return table


SHOWN_PARAMETERS, SHOWN_FRONT, SHOWN_GROUPS = 5, 4, 6


def search_lines(handle: StudyHandle) -> list[str]:
    """Return importances, the frontier of objective against cost, and the training received.

    Lines that would have no figure are left out.
    """
    rows = handle.rows.read()
    lines = []
    shares = importances(rows, study_axes(handle.space))
    if shares and any(shares.values()):
        first = list(shares.items())[:SHOWN_PARAMETERS]
        named = ", ".join(f"{name} {share:.0%}" for name, share in first)
        lines.append(f"importances (PED-ANOVA, what the best tenth of the trials share): {named}")
    front = frontier(rows)["front"][-SHOWN_FRONT:]
    if front:
        points = ", ".join(
            f"{one['value']:+.4f} after {duration(one['seconds'])} (trial {one['trial']})"
            for one in front
        )
        lines.append(f"objective against training time: {points}")
    received = racing(rows, handle.spec)
    if received:
        groups = [_group(one, handle) for one in received[:SHOWN_GROUPS]]
        more = ["…"] if len(received) > SHOWN_GROUPS else []
        lines.append("training received: " + "; ".join([*groups, *more]))
        lines.append(
            f"learning curves and parallel coordinates: sweepd dashboard --study-name {handle.name}"
        )
    return lines


def _group(one: dict[str, Any], handle: StudyHandle) -> str:
    members = counted(one["members"], handle.spec.member)
    rungs = f"{one['rungs']} of {handle.spec.rungs} rungs"
    return f"{counted(one['configurations'], 'configuration')} with {members}, {rungs}"
