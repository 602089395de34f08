"""The command line: flags, config files, wrong input, and what the small commands print."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import re
import shlex
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner

import sweepd.agents.algorithms.identity
from sweepd.envs.core.sizing import Measurement
from sweepd.envs.crypto.data.bars import load_bars, write_bars
from sweepd.envs.native import build
from sweepd.envs.native.use import NativeLibrary
from sweepd.envs.support.errors import InputError
from sweepd.envs.support.formatting import counted, duration
from sweepd.optimize.cli import train as train_command
from sweepd.optimize.cli.demo import SMOKE, apply_preset, make_demo_data
from sweepd.optimize.cli.doctor import examine
from sweepd.optimize.cli.launch import choose_device
from sweepd.optimize.cli.study_request import make_request
from sweepd.optimize.objectives.members.measure import Bench, measure_threads
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.record.keys import TOTAL_KEY
from sweepd.optimize.study.record.specs import StudySpec
from sweepd.optimize.study.settings.study import StudySettings
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.freeze import draft_spec, reproducing_flags, resolve_space
from sweepd.optimize.worker.telemetry import Telemetry
from sweepd.optimize.worker.worker import WorkerOptions
from tests.optimize.conftest import TRAIN, search_app

Refuse = Callable[..., str]


@pytest.fixture
def refuse(market: Path, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Run a command that must be refused with one sentence; returns the sentence."""
    monkeypatch.chdir(market)

    def run(*words: object) -> str:
        result = CliRunner().invoke(search_app(), [str(w) for w in words])
        assert isinstance(result.exception, InputError), result.output
        sentence = str(result.exception)
        assert "\n" not in sentence
        return sentence

    return run


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--data-dir", "none"), "none"),
        (("--data-dir", "empty"), "empty"),
        (("--tickers", "NOPE/USDT"), "NOPE"),
        (("--tickers", ","), "--tickers is empty"),
        (("--timeframe", "7m"), "7m"),
        (("--timeframe", "4h"), "4h"),
        (("--groups", "100", "--holdout", "0.8"), "too few"),
        (
            ("--groups", "400"),
            "400 folds: every trial would train 400 members, 76,800 steps in all; at most 128",
        ),
        (("--cv", "cpcv", "--groups", "40"), "780 folds"),
        (
            ("--cv", "cpcv", "--groups", "400", "--test-groups", "200"),
            "--groups 5 to 10 with --test-groups 2",
        ),
        (("--cv", "magic"), "choose one of"),
        (("--env", "chess"), "--env 'chess'"),
        (("--sampler", "x"), "--sampler 'x'"),
        (("--pruner", "x"), "--pruner 'x'"),
        (("--objective", "x"), "--objective 'x'"),
        (("--search-space", "x"), "--search-space 'x'"),
        (("--search-space", "narrow:none"), "--study-name 'none'"),
        (("--n-envs", "many"), "--n-envs 'many'"),
        (("--n-envs", "0"), "--n-envs '0'"),
        (("--n-trials", "0"), "--n-trials 0"),
        (("--budget", "0"), "--budget 0"),
        (("--holdout", "1.5"), "--holdout 1.5"),
        (("--seed", "-1"), "--seed -1"),
        (("--fee", "2"), "fee"),
        (("--recipe", "none"), "recipe"),
        (("--gpu", "7000"), "--gpu 7000"),
        (("--gpu", "x"), "--gpu 'x'"),
        (("--gpu", "mps"), "GPUs of Macs are not supported"),
        (("--storage", "mysql://h/d"), "--storage"),
        (("--storage", "bars/file/s.db"), "--storage"),
        (("--study-name", "a/b"), "--study-name 'a/b'"),
        (("--demo", "--smoke"), "--demo and --smoke"),
        (("--horizon", "0"), "--horizon 0 must be at least 1"),
        (("--slots", "1"), "--slots 1 must be at least 2"),
        (("--threads", "10000"), "--threads 10000 is more than sweepd can use here"),
        (("--threads", "0"), "--threads 0 must be at least 1"),
        (("--slots", "1000000000"), "--slots 1000000000 is more than sweepd can use"),
        (("--trials-per-batch", "1000000000"), "--trials-per-batch 1000000000"),
        (("--budget", "1" + 23 * "0"), "give at most 1,000,000,000,000"),
        (("--n-trials", "1" + 23 * "0"), "give at most 1,000,000"),
        (("--test-groups", "0"), "--test-groups 0 must be at least 1"),
        (("--max-memory", "inf"), "--max-memory inf"),
        (("--minimum-order", "1e9"), "no order would ever be placed"),
        (("--n-envs", "²"), "--n-envs '²'"),
        (("--gpu", "²"), "--gpu '²'"),
    ],
)
def test_wrong_input_is_refused_with_a_sentence_and_leaves_no_study(
    refuse: Refuse, market: Path, words: tuple[str, ...], message: str
) -> None:
    (market / "empty").mkdir()
    (market / "bars" / "file").write_text("")
    assert message in refuse("train", *TRAIN, *words)
    database = market / "runs" / "sweepd.db"
    if database.exists():
        with sqlite3.connect(database) as connection:
            assert connection.execute("SELECT count(*) FROM studies").fetchone() == (0,)


@pytest.mark.parametrize(
    ("flag", "number"), [("--seeds", 0), ("--seeds", 10**9), ("--episodes", 10**9)]
)
def test_numbers_that_no_game_can_have_are_refused(refuse: Refuse, flag: str, number: int) -> None:
    assert f"{flag} {number}" in refuse(
        "train", "--env", "cartpole", "--study-name", "c", flag, number
    )


@pytest.fixture
def joined(market: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The --n-trials of each worker that would be started in the market's folder."""
    monkeypatch.chdir(market)
    totals: list[int] = []

    def work(handle: StudyHandle, _experiment: object, options: WorkerOptions, *_: object) -> bool:
        totals.append(options.total)
        handle.storage.set_study_user_attr(handle.study_id, TOTAL_KEY, options.total)
        return True

    monkeypatch.setattr(train_command, "work", work)
    return totals


def test_joining_a_study_needs_only_its_name(joined: list[int]) -> None:
    words = [
        "--budget",
        "192",
        "--rungs",
        "3",
        "--horizon",
        "16",
        "--n-envs",
        "2",
        "--threads",
        "1",
        "--gpu",
        "cpu",
    ]
    for more in (["--env", "cartpole", "--algo", "d3qn", *words], ["--n-trials", "80"], []):
        CliRunner().invoke(
            search_app(), ["train", "--study-name", "c", *more], catch_exceptions=False
        )
    assert joined == [40, 80, 80]
    other = CliRunner().invoke(
        search_app(), ["train", "--study-name", "c", "--env", "crypto", "--data-dir", "bars"]
    )
    assert isinstance(other.exception, InputError)
    misplaced = CliRunner().invoke(search_app(), ["train", "--study-name", "c", "--fee", "0.1"])
    assert "--fee is for --env crypto, and --env is cartpole" in str(misplaced.exception)


def test_a_study_joined_by_its_default_name_keeps_its_number_of_trials(joined: list[int]) -> None:
    words = [
        "--env",
        "cartpole",
        "--budget",
        "192",
        "--rungs",
        "3",
        "--horizon",
        "16",
        "--n-envs",
        "2",
    ]
    words += ["--threads", "1", "--gpu", "cpu"]
    for more in (["--n-trials", "8"], [], ["--n-trials", "9"], ["--algo", "d3qn"], []):
        CliRunner().invoke(search_app(), ["train", *words, *more], catch_exceptions=False)
    assert joined == [8, 8, 9, 40, 9]  # another algorithm is another study


def test_joining_is_said_and_other_tickers_are_checked_before_they_are_refused(
    joined: list[int], market: Path
) -> None:
    """A mistyped ticker is named as at creation; a valid one gives a free name for a new study."""

    def train(*words: str) -> Result:
        return CliRunner().invoke(search_app(), ["train", *TRAIN, "--n-trials", "12", *words])

    first, *others = sorted(load_bars(market / "bars", "1h").tickers)
    assert "joining study" not in train("--tickers", first).output
    assert "joining study s: 0 of 12 trials are finished" in train("--tickers", first).output
    assert joined == [12, 12]
    mistyped = str(train("--tickers", f"{first},XYZ").exception)
    assert mistyped == str(train("--study-name", "t", "--tickers", f"{first},XYZ").exception)
    assert "--tickers 'XYZ': not in bars; there are" in mistyped
    other = str(train("--tickers", ",".join([first, *others])).exception)
    assert "study 's' was created with data.tickers" in other
    assert other.endswith("make a study of its own with --study-name s-2")
    train("--study-name", "s-2")
    assert str(train("--seed", "1").exception).endswith("--study-name s-3")
    assert str(train("--study-name", "s-2", "--seed", "1").exception).endswith("--study-name s-3")
    train("--study-name", "t-2")  # there is no study t
    assert str(train("--study-name", "t-2", "--seed", "1").exception).endswith("t-2-2")


def test_newer_bars_are_reported_with_flags_that_make_a_study_of_all_bars(
    market: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(market)

    def train(*words: str) -> str:
        words = ("train", *TRAIN, "--pruner", "none", "--n-trials", "4", *words)
        return CliRunner().invoke(search_app(), words, catch_exceptions=False).output

    bars = load_bars(market / "bars", "1h")
    last = bars.time_of(-25).strftime("%Y-%m-%dT%H:%M:%SZ")
    write_bars(bars.slice(0, len(bars) - 24), market / "bars")
    assert "newer bar" not in train()
    assert "newer bar" not in train()  # joined, the same bars
    write_bars(bars, market / "bars")
    said = train()
    assert "joining study s: 4 of 4 trials are finished" in said
    [line] = [line for line in said.splitlines() if "newer bar" in line]
    flags = "--study-name s-2 --sampler race --prior s"
    assert line.endswith(
        f"bars has 24 newer bars to {bars.time_of(-1):%Y-%m-%dT%H:%M:%SZ}; this study is frozen to "
        f"{last}; for a study of all bars, change the flags of this one: {flags}"
    )
    made = train(*flags.split())
    assert "prior s: 4 of 4 configurations are used" in made
    assert "trials: 4 complete" in made
    write_bars(bars.slice(0, len(bars) - 24), market / "bars")
    train("--study-name", "few", "--n-trials", "1")
    write_bars(bars, market / "bars")
    assert train("--study-name", "few", "--n-trials", "1").count("--study-name few-2\n") == 1


def test_without_data_a_new_study_is_refused(refuse: Refuse) -> None:
    assert "--data-dir is missing" in refuse("train", "--study-name", "new")


def test_a_locked_database_is_refused(
    refuse: Refuse, market: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        train_command, "open_storage", functools.partial(open_storage, busy_timeout=0.2)
    )
    holder = sqlite3.connect(market / "s.db", isolation_level=None)
    holder.execute("CREATE TABLE t (x)")
    holder.execute("BEGIN EXCLUSIVE")
    assert "locked" in refuse("train", *TRAIN, "--storage", "s.db")
    holder.close()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_missing_gpus_are_refused(refuse: Refuse) -> None:
    for gpu in ("3", "all"):
        assert "no GPU that torch can use" in refuse("train", *TRAIN, "--gpu", gpu)


def test_unknown_flags_and_values_of_a_wrong_type_exit_with_2(
    market: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(market)
    for words in (("--bogus",), ("--n-trials", "x"), ("--holdout", "x")):
        result = CliRunner().invoke(search_app(), ["train", *TRAIN, *words])
        assert result.exit_code == 2
        assert words[0] in re.sub(r"\x1b\[[0-9;]*m", "", result.output)


@pytest.fixture
def flags_of(
    market: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[StudySettings, frozenset[str]]]:
    """Return the arguments that `train` would be called with."""
    monkeypatch.chdir(market)
    seen: list[tuple[StudySettings, frozenset[str]]] = []
    monkeypatch.setattr(train_command, "train", lambda flags, given, _: seen.append((flags, given)))

    def run(*words: object) -> tuple[StudySettings, frozenset[str]]:
        result = CliRunner().invoke(
            search_app(), ["train", *map(str, words)], catch_exceptions=False
        )
        assert result.exit_code == 0, result.output
        return seen[-1]

    return run


def test_config_files_may_set_every_flag_and_the_command_line_wins(
    market: Path, flags_of: Callable[..., tuple[StudySettings, frozenset[str]]]
) -> None:
    defaults, _ = flags_of()
    other = {
        bool: lambda v: not v,
        int: lambda v: v + 1,
        float: lambda v: v / 2 + 0.01,
        str: lambda v: v + "x",
        type(None): lambda _: None,
    }
    special = {
        "n_envs": 8,
        "data_dir": "bars",
        "runs_dir": "elsewhere",
        "storage": "s.db",
        "study_name": "t",
        "tickers": ["A/B", "C/D"],
        "gpu": 1,
        "threads": 2,
        "slots": 3,
        "trials_per_batch": 4,
        "log_file": "w.log",
        "metrics_port": 9100,
        "track": ["mlflow"],
        "prior": ["earlier"],
        "try_first": ["earlier#0"],
        "max_memory": 3.5,
        "search_space": "large",
        "objective": "sharpe",
        "horizon": 32,
        "scenario": "easy",
        "roles": "a=x;b=y",
        "env_param": ["a=1", "b=2"],
        "opponents": "self=1",
        "phases": "p.toml",
        "past_interval": 5,
        "past_size": 6,
        "play": "sampled",
        "recipe": "short",
        "jobs": 2,
        "also": ["minimize:max_drawdown"],
        "constraint": ["max_drawdown<=0.3"],
        "choose": "first",
        "wrappers": ["flatten"],
    }
    wanted = {
        n: special[n] if n in special else other[type(v)](v) for n, v in vars(defaults).items()
    }
    lines = [f"{name.replace('_', '-')} = {json.dumps(value)}" for name, value in wanted.items()]
    (market / "c.toml").write_text("\n".join(lines))
    flags, given = flags_of("--config", "c.toml")
    assert given >= set(vars(defaults))
    got = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(flags).items()
    }
    assert got == {**wanted, "gpu": "1", "tickers": "A/B,C/D"}
    flags, given = flags_of("--config", "c.toml", "--n-trials", 7, "--auto-deploy")
    assert flags.n_trials == 7
    assert flags.auto_deploy is True
    flags, given = flags_of("--n-trials", 7)
    assert given == {"n_trials"}


@pytest.mark.parametrize(
    "words",
    [
        (
            *TRAIN,
            "--seed",
            3,
            "--fee",
            0.001,
            "--embargo",
            0.02,
            "--sampler",
            "random",
            "--objective",
            "sharpe",
        ),
        (
            "--env",
            "bucket-brigade",
            "--scenario",
            "rest_trap",
            "--env-param",
            "max_nights=12",
            "--env-param",
            "semantics=persistent",
            "--seeds",
            2,
            "--episodes",
            8,
            "--pruner",
            "median",
            "--threads",
            1,
        ),
        ("--env", "hockey"),
        ("--env", "hockey", "--opponents", "none", "--seeds", 3),
        ("--env", "hockey", "--opponents", "weak=0.5,past=0.5", "--past-size", 3),
    ],
    ids=["market", "game", "phases of the space", "no opponents", "opponents"],
)
def test_printed_flags_reproduce_the_study(
    words: tuple[object, ...],
    flags_of: Callable[..., tuple[StudySettings, frozenset[str]]],
    market: Path,
) -> None:
    def drafted(*words: object) -> tuple[StudySpec, Request]:
        request = make_request(*flags_of(*words))
        bars = objective_of(request.env).load_bars(request)
        storage = open_storage(storage_url(None, market / "runs"))
        space = resolve_space(storage, request.search_space, request.subject, request.timeframe)
        request = objective_of(request.env).completed(request, space)
        return draft_spec(request, space, bars, torch.device("cpu")), request

    spec, request = drafted(*words)
    assert drafted(*shlex.split(reproducing_flags(spec, request)))[0] == spec


def test_a_space_may_set_defaults_of_flags(
    flags_of: Callable[..., tuple[StudySettings, frozenset[str]]], tmp_path: Path
) -> None:
    space = tmp_path / "space.toml"
    space.write_text('name = "x"\nversion = 1\n[study]\nbudget = 7000\nn_envs = 4\nseeds = 3\n')
    words = ("--env", "hockey", "--search-space", space)
    own = make_request(*flags_of(*words, "--seeds", 5))
    assert (own.budget, own.n_envs, own.seeds, own.horizon) == (7000, 4, 5, 64)
    assert make_request(*flags_of(*words, "--n-envs", "auto")).n_envs is None
    included = make_request(*flags_of("--env", "hockey"))
    assert (included.horizon, included.seeds) == (32, 2)
    assert {make_request(*flags_of("--env", name)).play for name in ("kuhn", "leduc")} == {
        "sampled"
    }
    assert make_request(*flags_of("--env", "kuhn", "--play", "deterministic")).play != "sampled"
    assert make_request(*flags_of("--env", "hockey")).play == "deterministic"
    assert make_request(*flags_of("--env", "cartpole")).budget == StudySettings.budget


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("study = 3", r"\[study\] = 3 should be a table"),
        ("[study]\nslots = 3", r"\[study\] slots is not known; choose one of budget, episodes,"),
        ("[study]\nbudget = 1.5", "budget = 1.5 should be a whole number"),
        ("[study]\nbudget = true", "budget = True should be a whole number"),
        ("[study]\nplay = 'random'", "play = 'random' should be 'deterministic' or 'sampled'"),
    ],
)
def test_wrong_defaults_of_a_space_are_refused(
    entry: str,
    message: str,
    flags_of: Callable[..., tuple[StudySettings, frozenset[str]]],
    tmp_path: Path,
) -> None:
    space = tmp_path / "space.toml"
    space.write_text(f'name = "x"\nversion = 1\n{entry}\n')
    with pytest.raises(InputError, match=message):
        make_request(*flags_of("--env", "hockey", "--search-space", space))
    with pytest.raises(InputError, match="unknown key 'study'"):
        make_request(*flags_of("--search-space", space))  # a market


@pytest.mark.parametrize(
    ("words", "n_envs"),
    [
        (("--demo",), 16),
        (("--smoke",), 16),
        (("--demo", "--n-envs", "auto"), None),
        (("--demo", "--n-envs", 8), 8),
        ((), None),
    ],
)
def test_demo_and_smoke_do_not_measure_the_number_of_envs(
    words: tuple[object, ...],
    n_envs: int | None,
    flags_of: Callable[..., tuple[StudySettings, frozenset[str]]],
) -> None:
    """A measured number depends on the machine and its load, and so would the demo's verdict."""
    flags, given = flags_of(*words)
    assert make_request(apply_preset(flags, given), given).n_envs == n_envs


def test_smoke_of_a_game_is_small_whatever_its_space_says(
    flags_of: Callable[..., tuple[StudySettings, frozenset[str]]],
) -> None:
    flags, given = flags_of("--smoke", "--env", "kuhn", "--seeds", 3)
    flags = apply_preset(flags, given)
    request = make_request(flags, given)
    small = (request.budget, request.n_envs, request.seeds, request.episodes, flags.study_name)
    assert small == (4_096, 16, 3, 8, "smoke-kuhn")
    flags, given = flags_of("--env", "kuhn")
    assert make_request(flags, given).budget > 1_000_000


def test_demo_of_a_game_is_refused(refuse: Refuse) -> None:
    assert "--demo is for --env crypto" in refuse("train", "--demo", "--env", "kuhn")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("n-trails = 3", "did you mean n_trials"),
        ("n-trials = ", "not valid TOML"),
        ("[train]\nn = 1", "'train' is not a flag"),
        ("config = 'x'", "'config' is not a flag"),
    ],
)
def test_a_config_file_with_a_mistake_is_refused(
    refuse: Refuse, market: Path, text: str, message: str
) -> None:
    (market / "c.toml").write_text(text)
    assert message in refuse("train", "--config", "c.toml")


def test_a_boolean_in_a_config_file_is_one(market: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(market)
    for wrong in ('auto-deploy = "maybe"', "n-trials = 2.5", 'n-trials = "x"'):
        (market / "c.toml").write_text(wrong)
        assert CliRunner().invoke(search_app(), ["train", "--config", "c.toml"]).exit_code == 2


def test_n_envs_auto_is_measured_printed_and_frozen(
    market: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Joining the study uses the choice without measuring again."""
    monkeypatch.chdir(market)
    words = [*TRAIN, "--n-envs", "auto", "--budget", "6400", "--n-trials", "0"]
    words[words.index("--n-trials") + 1] = "1"
    monkeypatch.setattr(train_command, "work", lambda *_: None)
    first = CliRunner().invoke(search_app(), ["train", *words], catch_exceptions=False)
    handle = StudyHandle(open_storage(storage_url(None, Path("runs"))), "s")
    spec = handle.spec
    assert (
        2 <= spec.num_envs <= 4
    )  # the space's largest minibatch (32) fits; at most 6,400 / (100 x 16)
    assert "at most 4 envs" in first.output
    assert "steps/s" in first.output
    assert f"--n-envs {spec.num_envs} " in first.output
    assert any("chosen" in line for line in handle.flags["measured"])
    monkeypatch.setattr(
        "sweepd.optimize.objectives.members.measure.choose_num_envs",
        lambda *_, **__: pytest.fail("measured again"),
    )
    CliRunner().invoke(search_app(), ["train", *words], catch_exceptions=False)
    CliRunner().invoke(search_app(), ["train", "--study-name", "s"], catch_exceptions=False)
    wider = CliRunner().invoke(search_app(), ["train", "--study-name", "s", "--fee", "0.1"])
    assert "env.fee" in str(wider.exception)
    assert dataclasses.replace(spec) == spec


def test_threads_are_measured_and_the_fewest_of_equals_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fake(Bench):
        def __init__(self, speeds: dict[int, float]) -> None:
            self.speeds = speeds

        def __str__(self) -> str:
            return "something"

        def measure(self, num_envs: int) -> Measurement:
            return Measurement(self.speeds[torch.get_num_threads()] * num_envs)

    monkeypatch.setattr("sweepd.optimize.objectives.members.measure.cpu_count", lambda: 6)
    for speeds, chosen in (
        ({1: 10.0, 2: 20.0, 4: 39.0, 6: 41.0}, 4),
        ({1: 10.0, 2: 1.0}, 1),
        ({1: 10.0, 2: 10.5, 4: 10.9, 6: 8.0}, 1),
    ):
        said: list[str] = []
        assert measure_threads(Fake(speeds), 3, said.append)[0] == chosen
        assert torch.get_num_threads() == chosen
        assert (
            f"{counted(chosen, 'thread')}: {3 * speeds[chosen]:,.0f} steps/s <- chosen"
            in said[-len(speeds) :][list(speeds).index(chosen)]
        )


def test_changed_bars_are_refused_and_more_bars_are_not(
    market: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sweepd.envs.crypto.data.bars import write_bars
    from sweepd.envs.crypto.data.demo_market import make_planted_market

    monkeypatch.chdir(market)
    monkeypatch.setattr(train_command, "work", lambda *_: None)
    CliRunner().invoke(search_app(), ["train", *TRAIN], catch_exceptions=False)
    bars = load_bars(Path("bars"), "1h")
    write_bars(
        dataclasses.replace(bars, close=bars.close * 1.000001, high=bars.high * 1.1), Path("bars")
    )
    assert "not those of the study" in str(
        CliRunner().invoke(search_app(), ["train", *TRAIN]).exception
    )
    longer = make_planted_market(3, assets=2, bars=700)
    write_bars(longer.slice(0, 699), Path("bars"))
    assert "not those of the study" in str(
        CliRunner().invoke(search_app(), ["train", *TRAIN]).exception
    )
    write_bars(longer, Path("bars"))
    CliRunner().invoke(search_app(), ["train", *TRAIN], catch_exceptions=False)


def test_demo_market_is_created_once_and_overwrites_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    make_demo_data(tmp_path / "d", "1h", 600, said.append)
    before = {p: p.read_bytes() for p in (tmp_path / "d").iterdir()}
    make_demo_data(tmp_path / "d", "1h", 600, said.append)
    assert len(said) == 1
    assert {p: p.read_bytes() for p in (tmp_path / "d").iterdir()} == before
    with pytest.raises(InputError, match="something else"):
        make_demo_data(tmp_path / "d", "1h", 700, said.append)
    assert SMOKE["data_dir"] != Path("data/demo")


def test_doctor_prints_ok_or_advice(tmp_path: Path) -> None:
    noise = tmp_path / "noise.db"
    noise.write_bytes(b"nonsense" * 1000)
    findings = {f.subject: f for f in examine(storage_url(str(noise), tmp_path), tmp_path)}
    assert {
        "python",
        "torch",
        "GPU",
        "cores",
        "memory",
        "disk",
        "database",
        "optuna",
        "TA-Lib",
    } <= set(findings)
    assert not findings["database"].ok
    assert findings["torch"].ok
    assert torch.__version__ in findings["torch"].found
    result = CliRunner().invoke(
        search_app(), ["doctor", "--storage", str(noise), "--runs-dir", str(tmp_path)]
    )
    assert result.exit_code == 1
    assert "fix" in result.output


def test_doctor_checks_reproducibility(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    findings = {f.subject: f for f in examine("sqlite:///none.db", tmp_path)}
    parts = [
        findings[f"numbers: {part}"]
        for part in ("products", "convolutions", "slots and other members", "threads")
    ]
    assert all(part.ok for part in parts)
    assert torch.get_num_threads() == threads
    assert "MKL_CBWR=" in findings["numbers"].found
    for name in (
        "training",
        *(
            f"the {one} step"
            for one in ("crypto", "cartpole", "card duel", "hockey", "bucket brigade")
        ),
    ):
        found = findings[f"native code: {name}"].found
        assert re.fullmatch(r"native .*, tested|not used: .*|turned off by .*", found)
    monkeypatch.setattr(
        sweepd.agents.algorithms.identity,
        "products_by_slot",
        lambda: (88, ["rows times matrix (2 x 17 x 33)"]),
    )
    wrong = next(
        f for f in examine("sqlite:///none.db", tmp_path) if f.subject == "numbers: products"
    )
    assert not wrong.ok
    assert (
        "1 of 88 small batched products depend on the slot: rows times matrix (2 x 17 x 33)"
        in wrong.found
    )
    assert "MKL_CBWR=AVX2,STRICT" in wrong.advice


def test_doctor_compiles_the_native_code_for_all_processors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    try:
        kinds = [*build.processor_kinds()] if build.compiler() and build.vector_flags() else []
    except build.BuildError as error:
        pytest.skip(f"no native code: {error}")
    monkeypatch.setenv("SWEEPD_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "src").mkdir()
    source = tmp_path / "src" / "one.cpp"
    source.write_text("int one;")
    for expected, code in (("right", 0), ("other", 1)):
        made = NativeLibrary("tests", source, str, lambda _: "right", expected)
        monkeypatch.setattr("sweepd.optimize.cli.doctor.NATIVE", [made])
        result = CliRunner().invoke(search_app(), ["doctor", "--compile"])
        assert result.exit_code == code, result.output
        for kind in kinds:
            assert f"native code: tests, for {kind} processors: " in result.output
        assert (", tested" in result.output) == (not code)
        assert ("fails its self-test" in result.output) == bool(code)
    assert len([*(tmp_path / "cache" / "native").iterdir()]) == len(kinds)
    result = CliRunner().invoke(search_app(), ["doctor", "--compile", "--env", "cartpole"])
    assert result.exit_code != 0


@pytest.mark.parametrize(
    ("gpu", "index"), [(None, 0), ("0", 0), ("1", 1), ("all", 0), ("cpu", None)]
)
def test_the_chosen_gpu_is_the_current_one(
    gpu: str | None, index: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with two GPUs. Graphs and compiled kernels are launched on the current one."""
    current: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    device = choose_device(gpu)
    assert device == torch.device("cpu" if index is None else f"cuda:{index}")
    assert current == ([] if index is None else [device])


def test_doctor_checks_settings_of_miopen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.2")
    monkeypatch.delenv("MIOPEN_FIND_MODE", raising=False)
    findings = {f.subject: f for f in examine("sqlite:///none.db", tmp_path)}
    assert not findings["MIOpen"].ok
    assert "MIOPEN_FIND_MODE=FAST" in findings["MIOpen"].advice


def test_telemetry_is_a_panel_on_a_terminal_and_lines_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = io.StringIO()
    telemetry = Telemetry(Console(file=plain, width=200), "s", torch.device("cpu"))
    telemetry.total, telemetry.steps_per_trial = 4, 1000
    telemetry.counts = {"COMPLETE": 1, "PRUNED": 1, "FAIL": 0}
    telemetry.best = (0.5, 3)
    with telemetry:
        monkeypatch.setattr("sweepd.optimize.worker.telemetry.LOG_EVERY", 0.0)
        time.sleep(0.01)
        telemetry.steps(500)
        telemetry.finished(2)
        telemetry.steps(500)
    last = plain.getvalue().splitlines()[-1]
    assert "trials 2/4 (1 pruned, 0 failed)" in last
    assert "steps/s" in last
    assert "ETA" in last
    assert "best +0.5000 (trial 3)" in last
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", last)
    screen = io.StringIO()
    live = Telemetry(Console(file=screen, force_terminal=True, width=100), "s", torch.device("cpu"))
    live.total = 4
    with live:
        live.steps(10)
        time.sleep(0.4)
    assert "trials/hour" in screen.getvalue()
    assert duration(3725) == "1:02:05"
    assert duration(float("nan")) == duration(None) == "–"


def test_a_narrow_space_of_a_trial_has_no_shapes_left(
    market: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(market)
    for words in (("--study-name", "s"), ("--study-name", "n", "--search-space", "narrow:s#0")):
        done = CliRunner().invoke(
            search_app(),
            ["train", *TRAIN, *words, "--n-trials", "1", "--trials-per-batch", "1"],
            catch_exceptions=False,
        )
        assert done.exit_code == 0
    narrowed = StudyHandle(open_storage(storage_url(None, Path("runs"))), "n")
    assert narrowed.space.shape_names == ()
    assert narrowed.space.name == "narrow:tiny"
    assert narrowed.chosen_from == 1  # the gate counts the trial of s
