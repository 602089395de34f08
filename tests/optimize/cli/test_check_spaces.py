"""`sweepd doctor --env NAME`: a verdict on every part of the observations of others."""

from __future__ import annotations

import shlex
from typing import Any

from typer.testing import CliRunner

from sweepd.optimize.cli.check_spaces import examine_spaces
from sweepd.optimize.cli.findings import Finding
from tests.optimize.conftest import search_app

HERE = "tests.envs.external.shown"
WORDS = 'tokens {"key": "mission", "words": ["go", "to", "the", "key"], "length": 6}'


def findings(name: str, **params: Any) -> list[Finding]:
    return list(examine_spaces(f"{HERE}:{name}", params))


def test_a_part_that_no_network_reads_has_advice_that_runs_as_printed() -> None:
    found = findings("mission")
    assert [(own.ok, own.subject) for own in found] == [
        (True, "action space"),
        (True, "observation grid"),
        (True, "observation legs"),
        (False, "observation mission"),
    ]
    assert found[1].found == "Box(0, 255, (7, 7, 3), uint8): 147 columns"
    assert found[2].found == "Discrete(4): 4 columns, one-hot"
    flag, text = shlex.split(found[3].advice.removeprefix("add "))
    assert flag == "--wrapper"
    assert all(own.ok for own in findings("mission", wrappers=[text]))


def test_a_part_that_is_wrapped_says_so() -> None:
    found = findings("mission", wrappers=[WORDS])
    assert [own.subject for own in found if own.wrapped] == [
        "observation mission",
        "wrapped observations",
    ]
    assert all(own.ok for own in found)
    assert found[-1].found.endswith(f", by --wrapper '{WORDS}'")


def test_wrappers_that_do_not_suffice_are_followed_by_those_that_do() -> None:
    first = 'one-hot {"key": "legs"}'
    found = findings("mission", wrappers=[first])
    assert [own.subject for own in found if not own.ok] == [
        "observation mission",
        "wrapped observations",
    ]
    text = shlex.split(found[-1].advice)[2]
    assert all(own.ok for own in findings("mission", wrappers=[first, text]))


def test_a_space_that_no_wrapper_mends_has_advice_of_its_own() -> None:
    (bad,) = [own for own in findings("graph") if not own.ok]
    assert bad.subject == "observation"
    assert bad.advice == "convert it by a wrapper of your own, --wrapper MODULE:NAME"


def test_the_command_prints_a_verdict_per_line() -> None:
    arguments = ["doctor", "--env", f"{HERE}:mission", "--gpu", "cpu"]
    refused = CliRunner().invoke(search_app(), arguments)
    assert refused.exit_code == 1
    lines = refused.output.splitlines()
    assert "ok  observation legs: Discrete(4): 4 columns, one-hot" in lines
    assert any(line.startswith("fix observation mission: ") for line in lines)
    # The environment is not tried as long as its observations cannot be read.
    assert not any("environment:" in line for line in lines)
    wrapped = CliRunner().invoke(search_app(), [*arguments, "--wrapper", WORDS])
    assert wrapped.exit_code == 0, wrapped.output
    assert any(line.startswith("wrap observation mission") for line in wrapped.output.splitlines())
    assert "observations: 187 columns of float32" in wrapped.output
