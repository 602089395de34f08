"""Search spaces as Python objects: ranges, choices, and functions of an Optuna trial.

Each becomes the text of `--search-space` (JSON), so that a study keeps it like one from a file. This
module imports only the standard library: a training function's process uses it, too.
"""

from __future__ import annotations

import json
import operator
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sweepd.envs.support.errors import InputError

Entry = dict[str, Any]  # of one parameter, as in a TOML file
# Keys of an entry.
ENTRY_KEYS = frozenset({"low", "high", "log", "step", "off", "start", "choices", "value"})
# Before FILE MODULE:NAME, as arguments of `sweepd.function`: write what the function suggests.
SPACE = "--space"
_LOOKS = 16  # random runs of a function, which show whether its suggestions depend on values
_KINDS = (
    'sweepd.log_float(1e-5, 1e-2), (low, high), (low, high, "log"), a list of choices, or a number '
    "or text for every trial"
)


def uniform_float(low: float, high: float, *, step: float | None = None, **more: float) -> Entry:
    """Return a range of numbers, both ends included.

    Args:
        low: lower end.
        high: upper end.
        step: if given, only low plus multiples of it are drawn.
        **more: `start`, the value of the first trial, and `off`, the value of the parameter where it
            is switched off.
    """
    return _range(float(low), float(high), step=None if step is None else float(step), **more)


def log_float(low: float, high: float, **more: float) -> Entry:
    """Return a range of numbers above 0 on a logarithmic scale; see `uniform_float`."""
    return _range(float(low), float(high), log=True, **more)


def uniform_int(low: int, high: int, *, step: int | None = None, **more: float) -> Entry:
    """Return a range of whole numbers; see `uniform_float`."""
    return _range(_whole(low), _whole(high), step=None if step is None else _whole(step), **more)


def log_int(low: int, high: int, **more: float) -> Entry:
    """Return a range of whole numbers above 0 on a logarithmic scale; see `uniform_float`."""
    return _range(_whole(low), _whole(high), log=True, **more)


def choice(
    choices: Sequence[bool | float | str], *, start: bool | float | str | None = None
) -> Entry:
    """Return a list of numbers, texts or booleans, of which one is drawn.

    Args:
        choices: the values.
        start: if given, the value of the first trial.
    """
    return {"choices": list(choices)} | ({} if start is None else {"start": start})


def _range(low: float, high: float, **more: Any) -> Entry:
    unknown = next((name for name in more if name not in ("step", "log", "start", "off")), None)
    if unknown is not None:
        raise InputError(f"a range has no {unknown}; it has low, high, step, start and off")
    given = {
        name: value for name, value in more.items() if value is not None and value is not False
    }
    return {"low": low, "high": high, **given}


def _whole(number: Any) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise InputError(
            f"{number!r} is no whole number; sweepd.uniform_float and sweepd.log_float take others"
        ) from None


def space_text(space: Mapping[str, Any] | Callable[[Any], object]) -> str:
    """Return a search space as the text of `--search-space`.

    Args:
        space: entries by the names of the parameters, or by table and name as in a TOML file; or a
            function that takes an Optuna trial and calls its `suggest_…` methods.

    Raises:
        InputError: an entry is of no known kind, or the suggestions depend on each other.
    """
    entries = _entries(space) if isinstance(space, Mapping) else function_entries(space)
    try:
        return json.dumps(entries, default=_plain)
    except TypeError as error:
        raise InputError(f"search_space: {error}") from None


def _plain(value: Any) -> Any:
    """Return a scalar of NumPy as one of Python."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{value!r} is neither a number nor text, true or false")


def _entries(given: Mapping[str, Any]) -> dict[str, Any]:
    if any(isinstance(one, Mapping) and not _is_entry(one) for one in given.values()):
        # As in a file: beside its tables it has a name, defaults of flags and phases.
        return {
            name: _entries(one) if isinstance(one, Mapping) and name != "study" else one
            for name, one in given.items()
        }
    return {str(name): _entry(str(name), one) for name, one in given.items()}


def _is_entry(given: Mapping[str, Any]) -> bool:
    return set(given) <= ENTRY_KEYS


def _entry(name: str, given: Any) -> Any:
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, list | range):
        return choice(list(given))
    if isinstance(given, tuple):
        low, high, *scale = (*given, None, None)[: max(2, len(given))]
        numbers = all(isinstance(end, int | float) for end in (low, high))
        if numbers and scale in ([], ["log"]):
            return _range(low, high, log=bool(scale))
    elif hasattr(given, "_asdict") and hasattr(given, "to_internal_repr"):
        return _of_distribution(given)
    elif isinstance(given, bool | int | float | str) or hasattr(given, "item"):
        return {"value": given}
    raise InputError(f"search_space: {name} = {given!r} is not a parameter; give {_KINDS}")


def _of_distribution(given: Any) -> Entry:
    """Return the entry of one of Optuna's distributions."""
    if hasattr(given, "choices"):
        return choice(given.choices)
    return _suggested(given.low, given.high, given.step, log=given.log)


def _suggested(low: Any, high: Any, step: Any, *, log: bool) -> Entry:
    """Return the entry of a range as Optuna describes it: a step of 1 is that of all integers."""
    if low == high:
        return {"value": low}
    own = None if isinstance(low, int) and step == 1 else step
    return _range(low, high, step=own, log=log)


class Suggesting(ABC):
    """The `suggest_…` methods of an Optuna trial, by entries of a search space."""

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """See `optuna.Trial.suggest_float`."""
        return float(self.suggest(name, _suggested(float(low), float(high), step, log=log)))

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """See `optuna.Trial.suggest_int`."""
        return int(self.suggest(name, _suggested(_whole(low), _whole(high), step, log=log)))

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """See `optuna.Trial.suggest_categorical`."""
        return self.suggest(name, choice(choices))

    @abstractmethod
    def suggest(self, name: str, entry: Entry) -> Any:
        """Return the value of a parameter, the same one for every call of a name."""


class RecordingTrial(Suggesting):
    """Records what a function suggests.

    Args:
        draw: returns a value of an entry.

    Attributes:
        entries: by name, in the order of the suggestions.
        params: values by name.
    """

    def __init__(self, draw: Callable[[Entry], Any]) -> None:
        self._draw = draw
        self.params: dict[str, Any] = {}
        self.entries: dict[str, Entry] = {}

    def suggest(self, name: str, entry: Entry) -> Any:
        if self.entries.setdefault(name, entry) != entry:
            raise InputError(f"{name!r} is suggested twice, as {self.entries[name]} and as {entry}")
        if name not in self.params:
            self.params[name] = self._draw(entry)
        return self.params[name]

    def __getattr__(self, name: str) -> Any:
        raise InputError(f"a search space has only trial.suggest_…; it used trial.{name}")


def first_value(entry: Entry) -> Any:
    """Return the value, the first choice, or the lower end of an entry."""
    return entry.get("value", entry["choices"][0] if "choices" in entry else entry.get("low"))


def random_value(numbers: random.Random, entry: Entry) -> Any:
    """Return a value of an entry."""
    if "low" not in entry:
        return numbers.choice(entry.get("choices", [entry.get("value")]))
    low, high, step = entry["low"], entry["high"], entry.get("step")
    if isinstance(low, int):
        return numbers.randrange(low, high + 1, step or 1)
    return (
        low + step * numbers.randint(0, int((high - low) / step))
        if step
        else numbers.uniform(low, high)
    )


def function_entries(space: Callable[[Any], object]) -> dict[str, Entry]:
    """Return what a function suggests to a trial.

    The function is called several times, with other values.

    Raises:
        InputError: it raises, suggests nothing, or its suggestions depend on each other.
    """
    numbers = random.Random(0)
    draws = [first_value, *[lambda entry: random_value(numbers, entry)] * _LOOKS]
    found: dict[str, Entry] | None = None
    for draw in draws:
        trial = RecordingTrial(draw)
        try:
            space(trial)
        except InputError as error:
            raise InputError(f"search_space: {error}") from None
        except Exception as error:  # the function may raise anything
            raise InputError(
                f"search_space: the function raises {type(error).__name__}: {error}"
            ) from error
        found = trial.entries if found is None else found
        check_unconditional("search_space", found, trial.entries)
    if not found:
        raise InputError(
            "search_space: the function suggests nothing; it takes a trial and calls, for example, "
            'trial.suggest_float("learning_rate", 1e-5, 1e-2, log=True)'
        )
    return found


def check_unconditional(
    source: str, entries: Mapping[str, Entry], other: Mapping[str, Entry]
) -> None:
    """Raise InputError if two runs of a function suggest different parameters."""
    for name in [*entries, *other]:
        if entries.get(name) != other.get(name):
            raise InputError(
                f"{source}: what is suggested for {name!r} depends on other parameters, and sweepd's "
                "search spaces have no conditions: suggest it in every trial with the same range, and "
                "use it only where it applies"
            )
