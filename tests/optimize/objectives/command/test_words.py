"""The words of a command, and the names in it."""

from __future__ import annotations

import pytest

from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.command.words import check_names, check_program, filled_in


def test_names_in_braces_get_values_and_no_shell_sees_them() -> None:
    values = {"lr": 1e-05, "layers": 2, "name": 'a "b" $HOME; c', "flag": True, "seed": 7}
    words = filled_in("run --lr={lr} -n {layers} '{name} x' {flag} ${HOME} '{}' {seed}", values)
    assert words == [
        *("run", "--lr=1e-05", "-n", "2", 'a "b" $HOME; c x', "true", "${HOME}", "{}", "7")
    ]


@pytest.mark.parametrize(
    ("command", "params", "message"),
    [
        ("run {learning_rat}", ["learning_rate"], "did you mean {learning_rate}?"),
        ("run {zzz} {a}", ["a"], "there are a, seed, budget, trial, study, out, checkpoint_dir"),
        ("run {a}", ["a", "b"], r"\[params\] b has no effect"),
        ("run", ["seed"], r"\[params\] seed is a name that sweepd sets"),
    ],
)
def test_names_that_do_not_fit_the_space_are_refused(
    command: str, params: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        check_names(command, params, "s.toml")


def test_a_command_names_all_parameters_or_none() -> None:
    check_names("run {a} {b} {seed}", ["a", "b"], "s")
    check_names("run {seed}", ["a", "b"], "s")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("", "names no program"),
        ("run 'a", "No closing quotation"),
        ("no-such-program-here x", "no program 'no-such-program-here'"),
    ],
)
def test_a_program_that_cannot_be_started_is_refused(command: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_program(command)
