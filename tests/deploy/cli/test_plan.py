"""`sweepd plan`: its figures, its wrong input, and the commands that it prints."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sweepd.commands import build_app
from sweepd.deploy.market import power
from sweepd.envs.crypto.data.bars import write_bars
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import reverting_market
from tests.printed_commands import parses

PURE = ("--years", "4", "--tracking-error", "10%")


@pytest.fixture(autouse=True)
def few_studies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate fewer studies."""
    monkeypatch.setattr(power, "STUDIES", 100)


def plan(*words: str) -> str:
    result = CliRunner().invoke(build_app(), ["plan", *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_the_figures_of_text_and_json_are_the_same() -> None:
    text = plan(*PURE, "--edge", "16%", "--n-trials", "8")
    found = json.loads(plan(*PURE, "--edge", "0.16", "--n-trials", "8", "--json"))
    share = power.tenths(found["probability"])
    assert f"of 16% a year, after fees, is found in {share} studies of 8 trials on 4.0" in text
    assert f"in 5 of 10 such studies: {power.up(found['edge_found']['0.5'])} a year" in text
    assert (found["trials"], found["years"]) == (8, 4.0)
    assert found["holdout_years"] == pytest.approx(0.6, abs=1e-3)  # whole bars
    # Four times the years are about as good as twice the edge.
    table = {(one["edge"], one["years"]): one["probability"] for one in found["by_edge_and_years"]}
    assert table[0.16, 16.0] == pytest.approx(table[0.32, 4.0], abs=0.05)
    needed = [one["0.5"] for one in found["years_needed"]]
    assert [one["trials"] for one in found["years_needed"]] == [2, 4, 8, 16]
    assert needed[1:] == sorted(needed[1:])


def test_bars_give_years_and_tracking_error(tmp_path: Path) -> None:
    write_bars(reverting_market(0, bars=4_383), tmp_path)  # half a year of hours
    words = ("--data-dir", str(tmp_path), "--n-trials", "4")
    found = json.loads(plan(*words, "--json"))
    assert found["years"] == pytest.approx(0.5, abs=1e-3)
    assert found["tracking_error"] > 0.1
    given = json.loads(plan(*words, "--tracking-error", "20%", "--json"))
    assert given["tracking_error"] == 0.2
    [begin] = given["next"]
    assert f"--data-dir {tmp_path}" in begin
    parses(begin)


def test_half_the_tracking_error_finds_half_the_return() -> None:
    [least] = re.findall(
        r"16% would be found in 5 of 10 of them with a tracking error of (\S+)%",
        plan(*PURE, "--edge", "16%"),
    )
    words = ("--years", "4", "--edge", "16%", "--json", "--tracking-error")
    assert 0.5 <= json.loads(plan(*words, f"{least}%"))["probability"] < 0.55


def test_a_used_up_holdout_has_its_own_reason() -> None:
    text = plan(*PURE, "--looks", "13", "--n-trials", "2")
    assert "no return is found in half of such studies: no p value is as small as the level" in text


def test_the_printed_commands_run_as_printed() -> None:
    found = json.loads(plan(*PURE, "--n-trials", "4", "--holdout", "0.2", "--json"))
    download, search = found["next"]
    assert shlex.split(search)[-2:] == ["--holdout", "0.2"]
    for command in (download, search):
        parses(command)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give either --data-dir or --years, the length of the bars; neither is given"),
        (("--years", "2", "--data-dir", "x"), "both are given"),
        (("--years", "2"), "--tracking-error is missing"),
        (("--years", "0", "--tracking-error", "10%"), "--years 0 must be above 0"),
        (("--years", "nan", "--tracking-error", "10%"), "--years nan must be above 0"),
        ((*PURE, "--edge", "8"), "--edge 8 is 800% a year: write 8% for that"),
        ((*PURE, "--edge", "-3%"), "--edge '-3%' is no share above 0"),
        ((*PURE, "--edge", "much"), "--edge 'much' is no share above 0: write it like 8% or 0.08"),
        ((*PURE, "--edge", "inf"), "--edge 'inf' is no share above 0"),
        ((*PURE, "--n-trials", "0"), "--n-trials 0 must be from 1 to 1,000"),
        ((*PURE, "--correlation", "1"), "--correlation 1 must be from 0 to below 1"),
        ((*PURE, "--holdout", "0"), "without a hold-out nothing is promoted"),
        ((*PURE, "--looks", "-1"), "--looks -1 must be from 0"),
        (("--data-dir", "nowhere"), "--data-dir nowhere: no such folder"),
    ],
)
def test_wrong_input_is_one_sentence(words: tuple[str, ...], sentence: str) -> None:
    result = CliRunner().invoke(build_app(), ["plan", *words])
    assert isinstance(result.exception, InputError)
    assert sentence in str(result.exception)
    assert "\n" not in str(result.exception)
