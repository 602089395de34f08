"""Rules of other packages, which a user adds to a gate (`sweepd promote --rule`)."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from sweepd.deploy.promotion.rules import COMPARISONS, GateRule, Measured
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.plugins import Plugin, construct, described, resolve


def own_rules(
    texts: Sequence[str], stages: Sequence[str], built_in: Sequence[GateRule[Any]]
) -> tuple[GateRule[Any], ...]:
    """Return the rules that `--rule` names, each with its source.

    Args:
        texts: values of `--rule`.
        stages: names of the gate's stages.
        built_in: the gate's own rules, whose names are taken.

    Raises:
        InputError: one is no `GateRule`, or does not fit the gate.
    """
    found: list[GateRule[Any]] = []
    for text in texts:
        plugin = resolve("rule", text)
        rule = _made(plugin, text)
        _check(rule, text, stages, [one.name for one in (*built_in, *found)])
        source = described({**plugin.identity(), "name": plugin.place})
        measure = _guarded(rule.measure, text, source)
        found.append(dataclasses.replace(rule, source=source, measure=measure))
    return tuple(found)


def _made(plugin: Plugin, text: str) -> GateRule[Any]:
    """Return the rule: the object that is named, or what the function that is named returns."""
    made = plugin.made
    if inspect.isfunction(made):
        made = construct("rule", plugin)
    elif plugin.arguments:
        raise InputError(f"--rule {text}: only a function takes arguments")
    if not isinstance(made, GateRule):
        raise InputError(
            f"--rule {text}: {made!r} is not a GateRule (sweepd.deploy.promotion.rules)"
        )
    return made


def _check(rule: GateRule[Any], text: str, stages: Sequence[str], taken: Sequence[str]) -> None:
    if rule.name in taken:
        raise InputError(f"--rule {text}: the gate has a rule called {rule.name!r}; rename yours")
    for field, allowed in (("stage", stages), ("comparison", tuple(COMPARISONS))):
        if getattr(rule, field) not in allowed:
            raise InputError(
                f"--rule {text}: its {field} is {getattr(rule, field)!r}; it must be one of "
                f"{', '.join(allowed)}"
            )


def _guarded(
    measure: Callable[[Any], Measured | None], text: str, source: str
) -> Callable[[Any], Measured | None]:
    """Return a measurement that says its source, and refuses the candidate where it fails."""

    def guarded(evidence: Any) -> Measured | None:
        try:
            measured: Any = measure(evidence)
        except Exception as error:  # a user's function may raise anything
            return Measured(None, f"--rule {text} fails: {type(error).__name__}: {error}")
        if measured is None:
            return None
        if isinstance(measured, Measured):
            said = f"{measured.explanation} (a rule of {source})"
            return dataclasses.replace(measured, explanation=said)
        return Measured(None, f"--rule {text} returned {measured!r} instead of a Measured or None")

    return guarded
