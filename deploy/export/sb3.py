"""A trial as a script for Stable-Baselines3, and as an entry of its model zoo."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from sweepd.deploy.export.sb3_terms import CLASSES, SB3, Code, Schedule
from sweepd.deploy.export.source import GYM, Source
from sweepd.envs.support.errors import InputError
from sweepd.optimize.study.record.configurations import first_value

# Functions that a script needs for some values, by name.
_FUNCTIONS = {
    "linear": '''def linear(first):
    """Fall from `first` to 0; `left` is the remaining share of the steps."""
    return lambda left: first * left''',
    "cosine": '''def cosine(first):
    """Fall from `first` to 0 along a cosine; `left` is the remaining share of the steps."""
    return lambda left: first * 0.5 * (1.0 - math.cos(math.pi * left))''',
}
_FLATTEN = "gymnasium.wrappers.FlattenObservation"


def check_algorithm(source: Source, library: str) -> None:
    """Raise InputError if another library has no counterpart of the trial's algorithm."""
    if source.algorithm not in SB3:
        raise InputError(
            f"{source.name}: {source.algorithm} has no counterpart in {library}; {', '.join(SB3)} "
            "have, and --to json takes every trial"
        )


def notes_of(source: Source) -> list[str]:
    """Return a sentence for everything that is lost or only similar in Stable-Baselines3."""
    return [*about_trial(source), *SB3[source.algorithm].notes(source.values)]


def about_trial(source: Source) -> list[str]:
    """Return a sentence for what no parameter tells: of which environment, and of which time."""
    found = []
    if not str(source.spec.environment).startswith(GYM):
        found.append(
            f"environment {source.spec.environment} is not one of gymnasium.make: register it "
            "there, or give another"
        )
    if source.wrappers:
        found.append(
            f"the environment is wrapped in {', '.join(source.wrappers)}: wrap it there, too "
            "(sweepd.wrappers)"
        )
    if source.changed_with:
        found.append(
            f"the parameters changed during training ({source.changed_with}): these are the last ones"
        )
    return found


def script(source: Source) -> str:
    """Return a program that trains with the trial's parameters.

    Raises:
        InputError: Stable-Baselines3 does not have the trial's algorithm.
    """
    check_algorithm(source, "Stable-Baselines3")
    kind = CLASSES[source.algorithm]
    groups = _grouped(SB3[source.algorithm].given(source.values))
    normalize = _normalisation(groups, source)
    envs = {"env_id": source.environment_id, **groups["make_vec_env"]}
    wrapper = _wrapper(envs.pop("wrapper_class", 1.0), flat=_is_flat(source, normalize))
    if wrapper:
        envs["wrapper_class"] = Code("wrapped")
    if source.arguments:
        envs["env_kwargs"] = source.arguments
    parameters = {**groups[""], "policy_kwargs": groups["policy_kwargs"]}
    constants = [
        f"ENVIRONMENTS = {_code(envs)}",
        *([f"NORMALIZE = {_code(normalize)}"] if normalize else []),
        f"PARAMETERS = {_code(parameters)}",
        f"TOTAL_TIMESTEPS = {groups['learn']['total_timesteps']:_}",
    ]
    needed = [text for name, text in _FUNCTIONS.items() if f"{name}(" in "\n".join(constants)]
    needed += wrapper
    head = [*_comments(source, kind), "", *_imports(kind, [*constants, *needed], bool(normalize))]
    top = "\n\n".join(["\n".join(head), *([] if needed else ["\n".join(constants)])])
    rest = [*needed, "\n".join(constants)] if needed else []
    main = _main(source, kind, bool(normalize))
    return "\n\n\n".join([top, *rest, main, 'if __name__ == "__main__":\n    main()\n'])


def _wrapper(reward_scale: float, *, flat: bool) -> list[str]:
    """Return the function that wraps an environment; [] if nothing needs one.

    Args:
        reward_scale: factor on rewards.
        flat: whether observations become rows of numbers: choices as flags, a Dict as one row.
    """
    lines = ["    env = FlattenObservation(env)"] if flat else []
    if reward_scale != 1.0:
        lines.append(f"    env = TransformReward(env, lambda reward: {reward_scale!r} * reward)")
    return ["\n".join(["def wrapped(env):", *lines, "    return env"])] if lines else []


def _main(source: Source, kind: str, normalised: bool) -> str:
    """Return the function of a script that trains."""
    made = "make_vec_env(**ENVIRONMENTS)"
    made = f"VecNormalize({made}, **NORMALIZE)" if normalised else made
    file = f"{source.study}-{source.trial.number}"
    lines = [
        "def main():",
        f"    envs = {made}",
        f'    model = {kind}("{_policy(source)}", envs, **PARAMETERS)',
        "    model.learn(TOTAL_TIMESTEPS)",
        f"    model.save({json.dumps(file)})",
    ]
    if normalised:
        lines.append(f"    envs.save({json.dumps(f'{file}-normalize.pkl')})")
    return "\n".join(lines)


def zoo_entry(source: Source) -> str:
    """Return the trial as an entry of the zoo's `hyperparams/ALGORITHM.yml`.

    Raises:
        InputError: Stable-Baselines3 does not have the trial's algorithm.
    """
    check_algorithm(source, "the model zoo")
    groups = _grouped(SB3[source.algorithm].given(source.values))
    normalize = _normalisation(groups, source)
    entry: dict[str, Any] = {
        "n_envs": groups["make_vec_env"]["n_envs"],
        "n_timesteps": groups["learn"]["total_timesteps"],
        "policy": _policy(source),
        **({"normalize": _call(normalize)} if normalize else {}),
        **({"env_wrapper": _FLATTEN} if _is_flat(source, normalize) else {}),
        **groups[""],
        "policy_kwargs": _call(groups["policy_kwargs"]),
    }
    lines = [
        f"# {_title(source)}",
        *(line for note in zoo_notes(source) for line in _wrapped(note, "# - ")),
    ]
    lines.append(f"{_yaml(source.environment_id)}:")
    lines += [f"  {name}: {_yaml(value)}" for name, value in entry.items()]
    return "\n".join(lines) + "\n"


def zoo_notes(source: Source) -> list[str]:
    """Return `notes_of`, and what only a script can have."""
    values, found = source.values, notes_of(source)
    if values["lr_schedule"] == "cosine":
        found.append("lr_schedule = cosine became lin_, a linear decay: the zoo has no other")
    if values.get("reward_scale", 1) != 1:
        found.append(
            f"reward_scale = {values['reward_scale']:g} has no counterpart: give an env_wrapper that "
            "multiplies rewards"
        )
    if source.arguments:
        words = " ".join(f"{name}:{value!r}" for name, value in source.arguments.items())
        found.append(f"arguments of the environment are a flag: --env-kwargs {words}")
    return found


def _title(source: Source) -> str:
    value = first_value(source.trial)
    reached = "" if value is None else f", value {value:.6g}"
    return (
        f"Trial {source.trial.number} of study {source.study}: {source.algorithm} on "
        f"{source.spec.environment}{reached}."
    )


def _comments(source: Source, kind: str) -> list[str]:
    """Return the head of a script, with everything that is not the same there."""
    notes = [*notes_of(source), *SB3[source.algorithm].differs(source.values)]
    return [
        f"# {_title(source)}",
        f"# Exported by sweepd for {kind} of Stable-Baselines3, where these differ:",
        *(line for note in notes for line in _wrapped(note, "# - ")),
    ]


def _wrapped(text: str, start: str) -> list[str]:
    return textwrap.wrap(text, 98, initial_indent=start, subsequent_indent="#   ")


def _imports(kind: str, used: Sequence[str], normalised: bool) -> list[str]:
    code = "\n".join(used)
    lines = ["import math", ""] if "math." in code else []
    wrappers = [name for name in ("FlattenObservation", "TransformReward") if name in code]
    lines += [f"from gymnasium.wrappers import {', '.join(wrappers)}"] if wrappers else []
    lines += [
        f"from stable_baselines3 import {kind}",
        "from stable_baselines3.common.env_util import make_vec_env",
    ]
    if normalised:
        lines.append("from stable_baselines3.common.vec_env import VecNormalize")
    names = [name for name in ("nn", "optim") if f" {name}." in code]
    return [*lines, f"from torch import {', '.join(names)}"]


def _grouped(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return parameters by what takes them; "" is the algorithm's class."""
    names = ("", "policy_kwargs", "VecNormalize", "make_vec_env", "learn")
    groups: dict[str, dict[str, Any]] = {name: {} for name in names}
    for theirs, value in given.items():
        group, _, name = theirs.rpartition(".")
        groups[group][name] = value
    return groups


def _normalisation(groups: Mapping[str, dict[str, Any]], source: Source) -> dict[str, Any]:
    """Return the arguments of `VecNormalize`; {} if it has nothing to do."""
    given = {"norm_obs": False, "norm_reward": False, **groups["VecNormalize"]}
    return {**given, "gamma": source.values["gamma"]} if any(given.values()) else {}


def _policy(source: Source) -> str:
    """Return the name of the policy's class."""
    return "CnnPolicy" if source.network is not None and source.network.image else "MlpPolicy"


def _is_flat(source: Source, normalize: Mapping[str, Any]) -> bool:
    """Return whether observations are made rows of numbers, the only ones that are normalised."""
    return bool(normalize.get("norm_obs")) and _policy(source) == "MlpPolicy"


def _code(value: Any, indent: int = 0) -> str:
    """Return a value as Python code. indent: of the line that it begins on."""
    if isinstance(value, Code):
        return str(value)
    if isinstance(value, Schedule):
        return f"{value.kind}({value.first!r})"
    if isinstance(value, str):
        return json.dumps(value)
    if not isinstance(value, Mapping):
        return repr(value)
    space = " " * (indent + 4)
    lines = [f"{space}{json.dumps(name)}: {_code(v, indent + 4)}," for name, v in value.items()]
    return "\n".join(["{", *lines, " " * indent + "}"])


def _call(value: Any) -> str:
    """Return a value as Python code of one line, as the zoo evaluates it."""
    if isinstance(value, Mapping):
        return f"dict({', '.join(f'{name}={_call(own)}' for name, own in value.items())})"
    return f"th.{value}" if isinstance(value, Code) else repr(value)


def _yaml(value: Any) -> str:
    """Return a value as YAML, as the zoo reads it."""
    if isinstance(value, Schedule):
        return f"lin_{value.first!r}"
    if isinstance(value, float):
        text = repr(value)
        # YAML 1.1 reads 1e-05 as text.
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    return json.dumps(value)  # YAML has JSON's texts, numbers and flags
