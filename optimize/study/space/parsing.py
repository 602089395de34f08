"""Read search spaces: TOML files that a user can copy and edit, presets, and stored spaces.

A space has three tables: `[shape]`, one named after the algorithm (`[ppo]`), and `[env]`. Each key
is one parameter, described by one of

    { low = 1e-4, high = 2e-3, log = true }   a range (of integers if both ends are integers),
                                              optionally with `step`
    { low = 0.02, high = 0.3, off = 0.0 }     a range that can be switched off; a boolean
                                              `<name>_on` is sampled too
    { choices = [64, 128, 256] }              one of these values
    { value = 2 }                             this value in every trial

With `start` next to a range or choices, trial 0 has that value; the sampler draws its other
parameters. `[timeframe.<name>.<table>]` replaces single entries for studies on bars of that length.
The space of a program has one table, `[params]`, with any names; `name` and `version` may be left
out. A space for a game of two seats may have `[[phases]]` (`sweepd.envs.games.phase_files`). A space for
a game or a program may have a table `[study]`, with the defaults of flags: budget = 10_000_000, …
(`StudyDefaults`). A parameter that is not named keeps its default.

A space may also be given as JSON, `{"learning_rate": {"low": 1e-4, "high": 2e-3, "log": true}}`, with
the tables of a file or, without tables, the names of parameters of any of them.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

from pydantic import Field, create_model

from sweepd.envs.crypto.data.timeframe import SECONDS, bar_length
from sweepd.envs.games.phase_files import parse_curriculum
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.files import read_toml
from sweepd.envs.support.validation import StrictModel, checked
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.settings.setting import declared
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.space.dimension import Dimension
from sweepd.optimize.study.space.objects import ENTRY_KEYS
from sweepd.optimize.study.space.search_space import SearchSpace
from sweepd.optimize.study.space.subject import MARKET_PPO, Scalar, Subject, subject_of

NARROW = "narrow:"  # of `--search-space`: the space around a trial of another study
INLINE = "{"  # of `--search-space`: JSON in place of a file
FLAG = "--search-space"
HEAD_KEYS = frozenset({"name", "version", "description"})  # besides the tables
Count = Annotated[int, Field(ge=1)]


def _study_defaults() -> type[StrictModel]:
    """Return the model of `[study]`: settings whose defaults it may set."""
    hints = get_type_hints(StudySettings)
    entries: dict[str, Any] = {}
    for name, one in declared(StudySettings).items():
        if one.in_space:
            numbers = int in (hints[name], *get_args(hints[name]))
            entries[name] = (Count | None if numbers else hints[name], None)
    return create_model("StudyDefaults", __base__=StrictModel, **entries)


StudyDefaults = _study_defaults()


def load_space(
    name: str, subject: Subject = MARKET_PPO, timeframe: str | None = None
) -> SearchSpace:
    """Return a space by the name of a preset or the path of a TOML file.

    `sweepd.optimize.worker.freeze.resolve_space` handles `narrow:…`, which needs a study.

    Args:
        name: preset, path, or the space itself as JSON.
        subject: environment and algorithm.
        timeframe: length of the bars, for the entries that depend on it.

    Raises:
        InputError: there is no such preset or file, or an entry of it is invalid.
    """
    if name.startswith(INLINE):
        return parse_space(_inline(name, subject), subject, timeframe, FLAG)
    if name in subject.presets:
        described = tomllib.loads(preset_text(name, subject))
        if subject.learner.space:
            described = {"name": subject.learner_table, "version": 1, **described}
        return parse_space(described, subject, timeframe, f"preset {name}")
    presets = ", ".join(subject.presets)
    if not name.endswith(".toml") and not Path(name).exists():
        raise InputError(
            f"--search-space {name!r} is neither a preset "
            f"({', '.join([*subject.presets, 'narrow:STUDY[#TRIAL]'])}) nor a TOML file"
        )
    source = f"--search-space {name}"
    expected = f"a preset ({presets}) or a TOML file" if presets else "a TOML file"
    described = read_toml(Path(name), source, expected)
    if subject.free:
        described = {"name": subject.learner_table, "version": 1, **described}
    return parse_space(described, subject, timeframe, name)


def fixes_minibatch(name: str, space: SearchSpace) -> bool:
    """Return whether the user wrote the minibatches of the space of this name: they are not changed."""
    own = name.endswith(".toml") or name.startswith(INLINE)
    return own and "minibatch" in space.tables.get("shape", {})


def space_source(name: str) -> str:
    """Return the space of this name in messages."""
    return FLAG if name.startswith(INLINE) else f"{FLAG} {name}"


def _inline(text: str, subject: Subject) -> dict[str, Any]:
    """Return the tables of a space that is given as JSON."""
    try:
        given: dict[str, Any] = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(
            f'{FLAG} {text:.60}: this is no JSON ({error}); write it like {{"learning_rate": '
            '{"low": 1e-5, "high": 1e-2, "log": true}}'
        ) from None
    head: dict[str, Any] = {"name": subject.learner_table, "version": 1}
    if set(given) & set(subject.tables):
        return head | given
    tables: dict[str, dict[str, Any]] = {}
    names = {} if subject.free else {table: subject.names(table) for table in subject.tables}
    for name, entry in given.items():
        table = subject.learner_table if subject.free else _table_of(name, names)
        tables.setdefault(table, {})[name] = entry
    return head | tables


def _table_of(name: str, names: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table that has a parameter of this name."""
    found = next((table for table, own in names.items() if name in own), None)
    if found is not None:
        return found
    known = sorted(one for own in names.values() for one in own)
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(known)}"
    raise InputError(f"{FLAG}: {name} is not a parameter; {hint}")


def preset_text(name: str, subject: Subject = MARKET_PPO) -> str:
    """Return the TOML text of a preset, to copy and edit."""
    if not subject.presets[name]:
        return subject.learner.space
    file = resources.files("sweepd.optimize").joinpath(f"spaces/{subject.presets[name]}")
    return file.read_text(encoding="utf-8")


def study_space(spec: StudySpec) -> SearchSpace:
    """Return the search space of a study."""
    return parse_space(spec.space, subject_of(spec.environment, spec.algorithm))


def parse_space(
    described: Mapping[str, Any],
    subject: Subject = MARKET_PPO,
    timeframe: str | None = None,
    source: str = "search space",
) -> SearchSpace:
    """Build a space and check it.

    Args:
        described: the tables of a TOML file, or the result of `SearchSpace.to_dict`.
        subject: environment and algorithm.
        timeframe: length of the bars, for the entries that depend on it.
        source: name of the space in messages.

    Raises:
        InputError: an entry is invalid.
    """
    name, version = _parse_head(described, subject, source)
    entries = {
        table: dict(_table(f"{source}: [{table}]", described.get(table, {})))
        for table in subject.tables
    }
    for table, replaced in _timeframe_entries(described, subject, timeframe, source):
        entries[table] |= replaced
    tables = {
        table: {
            name: _parse_dimension(f"{source}: [{table}] {name}", subject, table, name, entry)
            for name, entry in entries[table].items()
        }
        for table in subject.tables
    }
    curriculum = parse_curriculum(described, source) if "phases" in described else None
    # Whether its values fit a study is checked like flags.
    study = checked(StudyDefaults, described.get("study", {}), f"{source}: [study] ")
    space = SearchSpace(
        name, version, tables, subject, curriculum, study.model_dump(exclude_unset=True)
    )
    (_check_names if subject.free else _check_tables)(space, source)
    _check_values(space, source)
    return space


def _parse_head(described: Mapping[str, Any], subject: Subject, source: str) -> tuple[str, int]:
    """Check the top-level keys and return name and version."""
    known = {*HEAD_KEYS, *subject.tables, *subject.sections}
    known |= set() if subject.free else {"timeframe"}
    unknown = set(described) - known
    if unknown:
        tables = ", ".join(f"[{table}]" for table in subject.tables)
        more = "; for a game also [study], and of two seats [[phases]]" if subject.sections else ""
        others = " and [study]" if subject.free else f" and [timeframe]{more}"
        raise InputError(
            f"{source}: unknown key {sorted(unknown)[0]!r}; a space has name, version, "
            f"{tables}{others}"
        )
    phases = subject.sections - {"study"}
    if "phases" not in described and phases & set(described):
        key = sorted(phases & set(described))[0]
        raise InputError(f"{source}: {key} is for the opponents of [[phases]], which it has not")
    name, version = described.get("name"), described.get("version")
    if not isinstance(name, str) or not isinstance(version, int):
        raise InputError(
            f"{source}: name (text) and version (a whole number) are needed at the top"
        )
    return name, version


def _timeframe_entries(
    described: Mapping[str, Any], subject: Subject, timeframe: str | None, source: str
) -> list[tuple[str, dict[str, Any]]]:
    """Check `[timeframe]`, and return (table, entries) of this timeframe."""
    overrides = _table(f"{source}: [timeframe]", described.get("timeframe", {}))
    for frame, replaced in overrides.items():
        if frame not in SECONDS:
            raise InputError(
                f"{source}: [timeframe.{frame}] is not a timeframe; choose one of "
                f"{', '.join(SECONDS)}"
            )
        where = f"{source}: [timeframe.{frame}"
        unknown = set(_table(f"{where}]", replaced)) - set(subject.tables)
        if unknown:
            raise InputError(
                f"{where}.{sorted(unknown)[0]}] should be one of {', '.join(subject.tables)}"
            )
        for table, entries in replaced.items():
            _table(f"{where}.{table}]", entries)
    return list(overrides.get(timeframe and bar_length(timeframe), {}).items())


def _table(where: str, entries: Any) -> Mapping[Any, Any]:
    if not isinstance(entries, Mapping):
        raise InputError(f"{where} = {entries!r} should be a table")
    return entries


def _parse_dimension(where: str, subject: Subject, table: str, name: str, entry: Any) -> Dimension:
    """Return the dimension that an entry describes.

    Args:
        where: source, table and name, for messages.
        subject: decides about the names that the table may have.
        table: name of the table.
        name: name of the parameter.
        entry: value of the key in the TOML file.
    """
    names = {} if subject.free else subject.names(table)
    if name not in names and not subject.free:
        raise InputError(f"{where} is not a parameter; choose one of {', '.join(sorted(names))}")
    if not isinstance(entry, Mapping):
        raise InputError(
            f"{where} = {entry!r} should be a table: {{ low, high }}, {{ choices }} or {{ value }}"
        )
    unknown = set(entry) - ENTRY_KEYS
    if unknown:
        raise InputError(
            f"{where} has the unknown key {sorted(unknown)[0]!r}; use low, high, log, step, off, "
            "start, choices or value"
        )
    kinds = [kind for kind in ("low", "choices", "value") if kind in entry]
    if len(kinds) != 1:
        raise InputError(f"{where} needs exactly one of low and high, choices, or value")
    if kinds == ["value"]:
        value, start = entry["value"], entry.get("start")
        if start is not None and start != value:
            raise InputError(
                f"{where} start = {start!r} differs from its only value {value!r}; leave it out"
            )
        return Dimension(name, value=value)
    return (_parse_choices if kinds == ["choices"] else _parse_range)(where, name, entry)


def _parse_choices(where: str, name: str, entry: Mapping[str, Any]) -> Dimension:
    choices, start = entry["choices"], entry.get("start")
    scalars = isinstance(choices, list) and all(isinstance(c, Scalar) for c in choices)
    if not choices or not scalars:
        raise InputError(f"{where} choices = {choices!r} should be a list of values")
    if start is not None and start not in choices:
        raise InputError(f"{where} start = {start!r} is not one of its choices")
    if len(choices) == 1:  # Optuna would store a parameter that cannot vary
        return Dimension(name, value=choices[0])
    return Dimension(name, choices=tuple(choices), start=start)


def _parse_range(where: str, name: str, entry: Mapping[str, Any]) -> Dimension:
    low, high, log = entry["low"], entry.get("high"), bool(entry.get("log", False))
    # In Python a bool is an int, so `low = true` would pass as a number.
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (low, high))
    if not numbers or not low < high or (log and low <= 0):
        raise InputError(
            f"{where} low = {low!r}, high = {high!r} should be numbers with low < high (and low > "
            "0 on a log scale)"
        )
    step, off, start = (entry.get(key) for key in ("step", "off", "start"))
    dimension = Dimension(name, low=low, high=high, log=log, step=step, off=off, start=start)
    _check_step(where, dimension)
    if start is not None and start != off:
        _check_start(where, dimension)
    return dimension


def _check_step(where: str, dimension: Dimension) -> None:
    """Raise InputError if a range cannot be drawn in its `step`."""
    step: Any = dimension.step
    if step is None:
        return
    kind = int if dimension.whole else int | float
    if not isinstance(step, kind) or isinstance(step, bool) or step <= 0:
        number = "a whole number" if dimension.whole else "a number"
        raise InputError(f"{where} step = {step!r} should be {number} above 0")
    if dimension.log and not (dimension.whole and step == 1):
        raise InputError(f"{where} has step and log; leave one of them out")


def _check_start(where: str, dimension: Dimension) -> None:
    """Raise InputError if a range does not contain its `start`."""
    start, (low, high) = dimension.start, dimension.ends
    if isinstance(start, bool | str) or not isinstance(start, float | int):
        raise InputError(f"{where} start = {start!r} should be a number")
    if not low <= start <= high:
        raise InputError(f"{where} start = {start!r} lies outside {low} … {high}")
    step = dimension.step or (1 if dimension.whole else None)
    if step is not None:
        steps = (start - low) / step
        # 0.1 + 2 * 0.1 is not 0.3 in binary, so an exact comparison would refuse valid values.
        if abs(steps - round(steps)) > 1e-8:
            raise InputError(
                f"{where} start = {start!r} is not {low} plus a multiple of its step {step}"
            )


def _check_names(space: SearchSpace, source: str) -> None:
    """Raise InputError for the name of a program's parameter that cannot be used."""
    names = {dimension.name for dimension in space.dimensions}
    where = f"{source}: [{space.subject.learner_table}]"
    if not names:
        raise InputError(
            f"{where} is missing or empty; name the parameters, for example\n"
            "    learning_rate = { low = 1e-5, high = 1e-2, log = true }"
        )
    for dimension in space.dimensions:
        if not dimension.name.isidentifier():
            raise InputError(f"{where} {dimension.name!r} must be letters, digits and _")
        if dimension.off is not None and dimension.switch in names:
            raise InputError(
                f"{where} {dimension.switch} is the switch of {dimension.name}, which has off; "
                "give it another name"
            )


def _check_tables(space: SearchSpace, source: str) -> None:
    """Raise InputError if entries do not fit the study's use of them."""
    shape, learner, env = (space.tables[table] for table in space.subject.tables)
    if "minibatch" in shape and shape["minibatch"].low is not None:
        raise InputError(
            f"{source}: [shape] minibatch must be choices or a value, since it must divide a "
            "rollout"
        )
    switched = next((name for name, own in shape.items() if own.off is not None), None)
    if switched is not None:
        raise InputError(
            f"{source}: [shape] {switched} cannot have off: use choices, since a batch has one shape"
        )
    if {"gamma", "one_minus_gamma"} <= set(learner):
        table = space.subject.learner.table
        raise InputError(f"{source}: [{table}] has both gamma and one_minus_gamma; keep one")
    lookback = env.get("lookback")
    if lookback is not None and lookback.low is not None and not lookback.whole:
        raise InputError(f"{source}: [env] lookback must be whole numbers")


def _check_values(space: SearchSpace, source: str) -> None:
    """Raise InputError if the engine refuses an end of a range or a choice."""
    for table in space.subject.tables:
        for name, dimension in space.tables[table].items():
            for value in dimension.values:
                try:
                    space.subject.check(table, name, value)
                except (InputError, TypeError, ValueError) as error:
                    raise InputError(f"{source}: [{table}] {name} = {value!r}: {error}") from None
