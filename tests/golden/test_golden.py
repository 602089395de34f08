"""What the commands print, store and serve, compared with golden files to the byte.

    scripts/test.sh -n 0 tests/golden                    compare
    scripts/test.sh -n 0 tests/golden --renew-golden     write the files, after a change that is meant

Each case runs commands from fixed seeds in an empty folder. `normaliser.py` lists what is replaced
by names before the comparison, and `contents.py` says how binary files are compared.
"""

from __future__ import annotations

import datetime as dt
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.testing import CliRunner

import sweepd
from sweepd.commands import CommandTable, build_app
from tests.golden import recorder as recorder_module
from tests.golden.normaliser import Normaliser
from tests.golden.recorder import Recorder

SPACE = """
name = "golden"
version = 1
[shape]
net_width = { choices = [8, 16] }
net_depth = { value = 1 }
minibatch = { value = 64 }
epochs = { value = 2 }
[ppo]
learning_rate = { low = 1e-4, high = 2e-3, log = true }
lr_schedule = { choices = ["constant", "linear"] }
[env]
action_scale = { low = 0.1, high = 0.3 }
lookback = { low = 1, high = 2 }
"""
TRAIN = """
data-dir = "data"
timeframe = "1h"
recipe = "short"
cv = "cpcv"
groups = 4
test-groups = 2
search-space = "space.toml"
n-trials = 4
budget = 1024
rungs = 2
n-envs = "4"
horizon = 32
slots = 4
trials-per-batch = 2
threads = 1
gpu = "cpu"
seed = 1
study-name = "market"
auto-deploy = false
"""
RUN = """
[data]
dir = "data"
[cv]
scheme = "kfold"
groups = 3
[train]
budget = 512
rungs = 2
horizon = 32
num_envs = 4
slots = 4
seed = 3
threads = 1
recipe = "short"
[shape]
net_width = 8
net_depth = 1
minibatch = 32
epochs = 2
[ppo]
learning_rate = 1e-3
[env]
lookback = 2
"""
GAME = (
    *("--n-trials", 3, "--budget", 2048, "--rungs", 2, "--n-envs", 8, "--horizon", 64),
    *("--episodes", 8, "--slots", 4, "--look-steps", 64, "--threads", 1, "--gpu", "cpu"),
    *("--seed", 1, "--no-auto-deploy"),
)
# Limits that every candidate meets, so that there is a bundle.
ANY = (
    *("deflated-sharpe=0", "pbo=1", "constant-policy=2", "holdout-excess=9", "max-drawdown=1"),
    "beats-champion=9",
)
ANY_GAME = ("beats-baselines=-1e9", "ahead-of-baselines=-1", "solved=-1e9")
# Wrong input, from a folder without bars and studies.
REFUSED = (
    "train",
    "train --env nothing",
    "train --env cartpole --algo nothing",
    "train --env cartpole --n-trials 0",
    "train --env cartpole --budget many",
    "train --env cartpole --sampler nothing",
    "train --env cartpole --pruner nothing",
    "train --env cartpole --objective sharpe",
    "train --env cartpole --groups 4",
    "train --env cartpole --tickers BTC",
    "train --env cartpole --search-space nothing.toml",
    "train --env cartpole --env-param nothing=1",
    "train --env cartpole --env-param max_steps=many",
    "train --env cartpole --opponents random=1",
    "train --env kuhn --fresh-seeds 5",
    "train --env kuhn --opponents nothing=1",
    "train --env bucket-brigade --search pbt",
    "train --env kuhn --search pbt --opponents league",
    "fork nothing#0@1",
    "train --env bucket-brigade --scenario nothing",
    "train --data-dir nothing --timeframe 1h",
    "train --env cartpole --gpu nothing",
    "train --env cartpole --demo",
    "train --demo --smoke",
    "train --config nothing.toml",
    "run",
    "run nothing.toml",
    "run --trial nothing#0",
    "run nothing.toml --trial nothing#0",
    "status --study-name nothing",
    "studies export nothing --out trials.csv",
    "enqueue nothing clip=0.2",
    "promote",
    "trade",
    "trade --replay --bundle nothing",
    "play nothing",
    "registry show nothing",
    "registry verify nothing",
    "reproduce nothing",
    "doctor --gpu",
    "rollback nothing",
    "trader status nothing",
    "dashboard nothing --once",
    "watch nothing",
    "dashboard --training --once",
    "data check --data-dir nothing",
    "service install nothing",
)
# Settings that differ from those of a study, by kind; most of them cannot change.
CHANGED_MARKET = (
    *("--budget 2048", "--groups 5", "--cv kfold", "--fee 0.001", "--recipe default"),
    *("--holdout 0.2", "--objective sharpe", "--seed 2", "--search-space demo", "--env cartpole"),
    *("--slots 8", "--horizon 64", "--n-envs 8", "--sampler random", "--pruner none"),
    *("--initial-cash 5000", "--allow-short", "--tickers DEMO1", "--precision bf16"),
)
CHANGED_PLAYER = (
    *("--budget 4096", "--rungs 4", "--seeds 5", "--episodes 16", "--algo d3qn", "--look-steps 32"),
    *(
        "--play sampled",
        "--own-episodes",
        "--search pbt",
        "--n-envs 16",
        "--seed 2",
        "--search-space x",
    ),
    *("--trials-per-batch 1", "--threads 2", "--sampler tpe", "--data-dir data"),
)
CHANGED_DUEL = (
    "--play deterministic",
    "--opponents random=1",
    "--past-size 2",
    "--objective return",
)
CHANGED_TEAM = ("--scenario hard", "--env-param num_agents=2", "--fresh-seeds 1")


def limits(rules: Sequence[str]) -> list[str]:
    return [word for rule in rules for word in ("--limit", rule)]


def market(recorder: Recorder) -> None:
    """A market: bars, a study, a run, the gate, two bundles, a trader and a replay."""
    (recorder.folder / "space.toml").write_text(SPACE)
    (recorder.folder / "train.toml").write_text(TRAIN)
    (recorder.folder / "run.toml").write_text(RUN)
    run = recorder.run
    run("data-demo.txt", "data", "demo", "--data-dir", "data", "--assets", 2, "--bars", 1500)
    run("data-check.txt", "data", "check", "--data-dir", "data", "--groups", 4, "--recipe", "short")
    run("train.txt", "train", "--config", "train.toml")
    recorder.study("market")
    recorder.run_files("market")
    join = "train --study-name market --no-auto-deploy"
    recorder.answers("refused.txt", [f"{join} {words}" for words in CHANGED_MARKET])
    run("run.txt", "run", "run.toml", "--out", "run", "--gpu", "cpu")
    run(
        "run-trial.txt", "run", "--trial", "market#0", "--seeds", 2, "--budget", 512, "--gpu", "cpu"
    )
    run("status.txt", "status")
    run("status.json", "status", "--json")
    run("studies.txt", "studies", "list")
    run("studies.json", "studies", "list", "--json")
    run("studies-compare.txt", "studies", "compare", "market", "market-run0")
    run("studies-compare.json", "studies", "compare", "market", "market-run0", "--json")
    run("promote-dry.json", "promote", "--study-name", "market", "--dry-run", "--json")
    run("promote.txt", "promote", "--study-name", "market", *limits(ANY))
    run("registry-verify.json", "registry", "verify", "--json")
    run("trade.txt", "trade", "--feed", "recorded", "--risk", "drawdown=0.5")
    run("promote-ensemble.txt", "promote", "--study-name", "market", "--ensemble", 2, *limits(ANY))
    run("registry-rollback.txt", "rollback", "--reason", "golden")
    run("replay.json", "trade", "--replay", "--json", "--out", "replay")
    run("status-trader.json", "trader", "status", "demo-1h", "--json")
    run("parity.json", "trader", "parity", "demo-1h", "--json")
    run("registry-list.json", "registry", "list", "--json")
    run("registry-list-slot.json", "registry", "list", "demo-1h", "--json")
    run("registry-show.json", "registry", "show", "--json")
    run("dashboard.txt", "dashboard", "--once")
    run("dashboard.json", "dashboard", "--json")
    run("watch.txt", "watch", "market", "--once")
    run("studies-export.txt", "studies", "export", "market", "--out", "trials.csv")
    recorder.run_files("run-run")
    recorder.files("trials.csv", "replay")
    recorder.bundles()
    recorder.keep("gate.html", recorder.gate("market"))
    slot, study = "?slot=demo-1h", "?study=market"
    recorder.pages(
        {
            "page-slot.html": f"/{slot}",
            "page-alerts.html": "/alerts",
            "page-chart.html": f"/chart{slot}",
            "page-trades.html": f"/trades{slot}",
            "page-days.html": f"/days{slot}",
            "page-orders.html": f"/orders{slot}&asset=DEMO2/USDT",
            "page-events.html": f"/events{slot}",
            "page-parity.html": f"/parity{slot}",
            "trades.csv": f"/trades.csv{slot}",
            "days.json": f"/days.json{slot}",
            "orders.csv": f"/orders.csv{slot}&asset=DEMO2/USDT",
            "events.json": f"/events.json{slot}",
            "parity.csv": f"/parity.csv{slot}",
            "page-training.html": f"/training{study}",
            "page-parameters.html": f"/training/parameters{study}",
            "page-trials.html": f"/training/trials{study}",
            "page-trial.html": f"/training/trial{study}&trial=0",
            "page-compare.html": f"/training/compare{study}&with=market-run0",
            "page-actions.html": "/actions",
            "page-halt.html": f"/actions/slot/halt{slot}",
        }
    )


def player(recorder: Recorder) -> None:
    """A game of one player."""
    recorder.run("train.txt", "train", "--env", "cartpole", "--fresh-seeds", 2, *GAME)
    recorder.study("cartpole")
    recorder.run_files("cartpole")
    game(recorder, "cartpole", CHANGED_PLAYER)
    run = recorder.run
    run("enqueue.txt", "enqueue", "cartpole", "clip=0.2", "epochs=4")
    run("pause.txt", "pause", "cartpole")
    run("status-paused.json", "status", "--study-name", "cartpole", "--json")
    run("resume.txt", "resume", "cartpole")
    settings = {"env": "cartpole", "n_trials": 2, "budget": 4096, "rungs": 2, "n_envs": "8"}
    fixed = {"horizon": 64, "episodes": 4, "look_steps": 32, "threads": 1, "gpu": "cpu"}
    sweepd.create_study("python", **settings, **fixed)
    recorder.study("python")


def duel(recorder: Recorder) -> None:
    """A game of two players."""
    recorder.run("train.txt", "train", "--env", "kuhn", "--seeds", 2, *GAME)
    recorder.study("kuhn")
    recorder.run_files("kuhn")
    game(recorder, "kuhn", CHANGED_DUEL, (*ANY_GAME[:2], "points=0"))


def team(recorder: Recorder) -> None:
    """A game of several players, whose members play together."""
    env = ("--env", "bucket-brigade", "--scenario", "easy", "--study-name", "team")
    recorder.run("train.txt", "train", *env, "--seeds", 2, *GAME)
    recorder.study("team")
    recorder.run_files("team")
    game(recorder, "team", CHANGED_TEAM)


def game(
    recorder: Recorder, study: str, changed: Sequence[str], rules: Sequence[str] = ANY_GAME
) -> None:
    """The commands and pages of a study of a game. changed: settings that it cannot change."""
    run = recorder.run
    join = f"train --study-name {study} --no-auto-deploy"
    recorder.answers("refused.txt", [f"{join} {words}" for words in changed])
    run("status.txt", "status")
    run("status.json", "status", "--json")
    promote = ("promote", "--study-name", study, "--games", 20)
    run("promote-dry.json", *promote, "--dry-run", "--json")
    run("promote.txt", *promote, *limits(rules))
    run("registry-list.json", "registry", "list", "--json")
    run("registry-show.txt", "registry", "show")
    run("registry-show.json", "registry", "show", "--json")
    run("registry-verify.json", "registry", "verify", "--json")
    recorder.keep("gate.html", recorder.gate(study))
    recorder.bundles()
    query = f"?study={study}"
    recorder.pages(
        {"page-training.html": f"/training{query}", "page-trials.html": f"/training/trials{query}"}
    )


def commands(recorder: Recorder) -> None:
    """The help of every command, and refused input."""
    runner, app = CliRunner(), build_app()
    table = typer.main.get_group(app)
    assert isinstance(table, CommandTable)
    table.load_all()
    helps = {
        words: runner.invoke(app, [*words.split(), "--help"]).output for words in names_of(table)
    }
    for words in ("profile", "doctor"):  # which have the options of train
        own = [line for line in helps[words].splitlines() if line not in helps["train"]]
        helps[words] = "\n".join(own)
    texts = [f"$ sweepd {words} --help\n{text}" for words, text in helps.items()]
    # Without frames, and padding, which is most of it.
    recorder.keep("help.txt", re.sub("  +", "  ", re.sub("[│╭╮╰╯─]+", "", "\n".join(texts))))
    recorder.answers("refused.txt", REFUSED)
    flags = ("--study-name", "market", "--data-dir", "data", "--dry-run")
    recorder.run("service.txt", "service", "install", "worker", *flags)


def names_of(group: TyperGroup, before: str = "") -> Iterator[str]:
    """The words of all commands, also of hidden ones."""
    for name, command in group.commands.items():
        yield f"{before}{name}"
        if isinstance(command, TyperGroup):
            yield from names_of(command, f"{before}{name} ")


CASES: dict[str, Callable[[Recorder], None]] = {
    case.__name__: case for case in (market, player, duel, team, commands)
}


@pytest.mark.slow
@pytest.mark.usefixtures("warmed_up")
@pytest.mark.timeout(1200)  # a busy machine needs many times its processor time
@pytest.mark.parametrize("case", CASES)
def test_golden_files(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    folder = tmp_path / "case"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "160")
    recorder = Recorder(case, folder)
    CASES[case](recorder)
    recorder.compare(renew=request.config.getoption("--renew-golden", default=False))


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("a.json", '{"value": 1.0000000001}\n', '+{"value": 1.0000000001}'),
        ("a.json", '{"values": 1.0}\n', '+{"values": 1.0}'),
        ("page.html", "<h1>Studys</h1>\n", "+<h1>Studys</h1>"),
        ("new.txt", "new\n", "case/new.txt: no such golden file"),
        ("page.html", None, "case/page.html: was not written"),
    ],
)
def test_every_difference_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str | None, shown: str
) -> None:
    monkeypatch.setattr(recorder_module, "FILES", tmp_path / "golden")
    texts = {"a.json": '{"value": 1.0}\n', "page.html": "<h1>Studies</h1>\n"}

    def recorded(texts: Mapping[str, str | None]) -> Recorder:
        recorder = Recorder("case", tmp_path / "case")
        for one, content in texts.items():
            if content is not None:
                recorder.keep(one, content)
        return recorder

    recorded(texts).compare(renew=True)
    recorded(texts).compare(renew=False)
    with pytest.raises(pytest.fail.Exception, match="1 of 2 golden files differ") as failed:
        recorded(texts | {name: text}).compare(renew=False)
    assert shown in str(failed.value)


def test_results_are_not_normalised(tmp_path: Path) -> None:
    normalise = Normaliser(tmp_path)
    for kept in ('"value": 0.1234567890123456', "2020-02-29 10:00", "1583233200", "trials  3 of 3"):
        assert normalise(kept) == f"{kept}\n"
    now = time.time()
    for other in (f"{now}", f"{1000.0 * now}", f"{dt.datetime.now(dt.UTC).isoformat()}"):
        assert "<moment>" in normalise(other)
    assert normalise(f"{tmp_path}/runs") == "<folder>/runs\n"
