"""The file of `sweepd loop`: what is refused, what it means by default, what a night keeps of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sweepd.deploy.night.config import NightConfig, changed, read_config
from sweepd.deploy.night.machine import steps_of
from sweepd.envs.support.errors import InputError

MARKET = """
slot = "crypto-1h"
[bars]
source = "alpaca"
dir = "data/live"
tickers = ["BTC/USD"]
timeframe = "1h"
"""
STUDY = """
[study]
n-trials = 40
hours = 6
budget = 2_000_000
env_param = ["a=1", "b=2"]
"""


def config_of(tmp_path: Path, text: str) -> NightConfig:
    path = tmp_path / "night.toml"
    path.write_text(text)
    return read_config(path)


def test_a_market_has_an_arena_and_refits_and_a_game_a_defence(tmp_path: Path) -> None:
    market = config_of(tmp_path, MARKET + STUDY)
    assert market.arena is not None
    assert market.refit is not None
    assert (market.arena.seats, market.arena.term, market.arena.spacing) == (8, 56, 7)
    assert market.defend is None
    assert market.study is not None
    assert market.study.enqueue == 0
    assert market.study.flags == {"budget": 2_000_000, "env_param": ["a=1", "b=2"]}
    game = config_of(tmp_path, 'slot = "cartpole"\n[study]\nenv = "cartpole"\n')
    assert game.defend is not None
    assert (game.arena, game.refit, game.defend.games) == (None, None, 20_000)
    alone = config_of(tmp_path, MARKET)
    assert (alone.study, alone.refit) == (None, None)


def test_the_steps_of_a_night_follow_from_its_tables(tmp_path: Path) -> None:
    before = ("begin", "study", "stage")
    assert steps_of(config_of(tmp_path, MARKET + STUDY)) == (
        *("bars", "check", *before, "admit", "arena", "certify", "disk", "report"),
    )
    assert steps_of(config_of(tmp_path, MARKET)) == (
        *("bars", "check", "arena", "certify", "disk", "report"),
    )
    folder = MARKET.replace("alpaca", "folder")
    assert steps_of(config_of(tmp_path, folder))[:2] == ("check", "arena")
    game = config_of(tmp_path, 'slot = "cartpole"\n[study]\nenv = "cartpole"\n')
    assert steps_of(game) == (*before, "admit", "defend", "disk", "report")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("slot = 3", "slot = 3 should be text"),
        ('slot = "a/b"\n[study]\n', "slot 'a/b': a slot's name"),
        ('slot = "a"', r"\[bars\] and \[study\] are missing"),
        (MARKET + "[study]\nn-trials = 0\n", "study.n_trials = 0 should be at least 1"),
        (MARKET + "[study]\nhours = 19\n", "study.hours = 19 should be at most 18"),
        (MARKET + "[study]\nn-trial = 3\nholdout = 0.1\n", r"\[study\] holdout: \[bars\] decides"),
        (MARKET + "[study]\ndata-dir = 'x'\n", r"\[study\] data_dir: \[bars\] decides"),
        (MARKET + "[study]\nstudy-name = 'x'\n", "study_name is set by the night"),
        (MARKET + "[study]\ntry-first = ['x#1']\n", "try_first is set by the night"),
        (MARKET + "[study]\nalso = false\n", "also = false is the default"),
        (MARKET + "[study.budget]\na = 1\n", "budget is a table"),
        (MARKET + "[study]\nstorage = 'postgresql://a:b@h/d'\n", "storage contains a password"),
        (MARKET + "[defend]\ngames = 5\n", r"\[defend\] is for games"),
        (MARKET + "[refit]\nweeks = 5\n", r"\[refit\] trains in the night's study"),
        ('slot = "a"\n[study]\n[arena]\n', r"\[arena\] is for markets"),
        (MARKET + "[arena]\nseat = 3\n", "arena.seat is not known; did you mean seats"),
        (MARKET + "[disk]\ngb = 0\n", "disk.gb = 0 should be above 0"),
        (MARKET + "exchange = 'okx'\n", "exchange is for source"),
        (MARKET.replace("alpaca", "folder") + "start = '2024'\n", "start has no effect"),
        (MARKET.replace('"BTC/USD"', ""), "bars.tickers"),
        ("slot =", "not valid TOML"),
    ],
)
def test_what_is_wrong_or_without_effect_is_refused(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as refused:
        config_of(tmp_path, text)
    assert str(refused.value).startswith("CONFIG ")


def test_the_record_of_a_night_is_its_settings(tmp_path: Path) -> None:
    config = config_of(tmp_path, MARKET + STUDY)
    assert NightConfig.of(config.record) == config
    assert changed(config, config) == []
    other = config_of(tmp_path, MARKET + STUDY.replace("= 40", "= 41").replace("2_000", "3_000"))
    assert changed(config, other) == ["[study] budget", "[study] n_trials"]
    assert changed(config, config_of(tmp_path, MARKET)) == ["[study]", "[refit]"]
