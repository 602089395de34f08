"""Every benchmark in `scripts/bench/` runs to its end at a tiny size and writes its results.

The figures mean nothing. The scripts run in this process, because importing torch takes longer than
most of these runs. Where a size is part of a benchmark's definition and has no option, a constant
of the script is replaced.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import io
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import optuna
import pandas as pd
import pytest
import torch

from agents.policy.frozen import save_members
from deploy.registry.registry import Registry
from envs.crypto import features
from envs.crypto.data.bars import Bars
from envs.crypto.data.demo_market import make_demo_market
from envs.support.errors import InputError

BENCH = Path(__file__).resolve().parents[1] / "scripts" / "bench"
Importer = Callable[[str], ModuleType]


def tiny_bars() -> tuple[Bars, str]:
    return make_demo_market(0, assets=2, bars=5_000), "the demo market"


@dataclass(frozen=True)
class Case:
    """A run of a script, or two.

    Attributes:
        name: of the script, and after a colon what this run is called.
        arguments: of the command line, without `--save`.
        keys: paths in the results file that documents and pictures are made from: names and
            indices, separated by dots. *: the first name.
        constants: constants to replace, as module.name.
        then: arguments of a second run, to which the results file is appended.
        pictures: whether the script has an option `--picture`.
        needs: packages without which the test is skipped.
        slow: whether the test is marked as slow.
    """

    name: str
    arguments: str
    keys: Sequence[str]
    constants: dict[str, Any] = field(default_factory=dict)
    then: str = ""
    pictures: bool = False
    needs: Sequence[str] = ()
    slow: bool = False

    @property
    def script(self) -> str:
        return self.name.partition(":")[0]


THREAD = "--threads 1 "
TINY_PEAK: dict[str, Any] = {"peak.SIZES": ((1, 8, 8, 8), (2, 8, 8, 8)), "peak.ROUNDS": 100}
QUICK = "--threads 1 --repeats 1 --seconds 0.001 "
LEAGUE = "--threads 1 --steps 8192 --generations 2 --members 2 "
SHORT = {"budget": 20_480, "n_envs": 8, "horizon": 64}
TINY_STUDY = SHORT | {"rungs": 2, "trials_per_batch": 1, "pruner": "none"}
PRUNING = "--threads 1 --trials 2 --budget 4096 --pruning "
SPEED = ("machine.processor", "goal", "speed.0.games", "parts.0.microseconds")
SB3_TASKS = {
    "cartpole": (0.001, ()),
    "pendulum": (0.01, ()),
    "pendulum-ppo": (0.001, ()),
    "hopper-ppo": (0.001, ("mujoco",)),
    "acrobot": (0.001, ()),
}
GPU_PARTS = {
    "ready": ("programs.sac.gradient_steps_recorded", "fused_kernels"),
    "bits": ("sac.in company.equal", "ppo, gru.again.equal"),
    "waits": ("d3qn.waits",),
    "kernels": ("rows.0.microseconds", "total"),
    "steps": ("rows.1.microseconds_per_gradient_step",),
    "speed": ("0.per_second.launches",),
    "off-policy": ("1.per_second.launches",),
    "envs": ("5.steps_per_second",),
    "memory": ("3.allocated",),
    "standard": ("best.hours_for_500_trials",),
    "large": ("share_of_peak", "split.env", "curves.fp32.0"),
}
CASES = [
    Case(
        "ask_time",
        "--threads 1 --trials 30 --draws 3",
        ("machine.processor", "milliseconds.race-30.median", "milliseconds.tpe-30.worst"),
    ),
    Case(
        "tracking",
        "--runs 1 --trials 1 --budget 4096 --rungs 2 --trackers wandb",
        ("ratios.wandb", "ms_per_update", "machine.processor"),
        needs=("wandb",),
    ),
    Case("batch_fill", "--trials 8", ("mean", "sizes.4", "shapes", "machine.processor")),
    Case(
        "bucket_brigade",
        QUICK + "--sizes 16 --games 8 --reference none",
        ("machine.processor", "speed.0.games_per_second", "scores.0.per_night"),
        {"bucket_brigade.PUBLISHED": {("random", "easy"): 355.1}},
    ),
    Case(
        "bucket_training:speed",
        "speed --threads 1 --members 2 --games-per-member 4 --horizon 8 --minibatch 64 "
        "--rollouts 1 --runs 1",
        ("machine_speed.processor", "episodes_per_second", "episodes_per_core_second"),
    ),
    Case(
        "bucket_training:goals",
        "goals --threads 1 --scenarios easy --members 2 --games-per-member 8 --rollouts 1 "
        "--games 32 --generations 1",
        ("machine_goals.processor", "scenarios.easy, 2 members.teams.population.lead"),
        {"bucket_training.CHOOSING": 8},
    ),
    Case(
        "card_duel",
        QUICK + "--sizes 8",
        (*SPEED, "speed.0.moves_per_second", "kinds.MULLIGAN"),
        {
            "card_duel.GOAL_GAMES": 8,
            "step_speed.GOAL_GAMES": 8,
            "card_duel.OPENING": 1,
            "card_duel.KINDS": (8, 1),
        },
    ),
    Case(
        "dashboard_pages",
        "--orders 40 --bars 60 --repeat 2",
        ("machine.processor", "orders", "pages.0.p95", "pages.0.kB"),
        needs=("plotly", "werkzeug"),
    ),
    Case(
        "duel_training",
        THREAD + "--runs 1 --members 2 --games 8 --epochs 1",
        ("machine.processor", "goal", "sizes.games", "rows.0.decisions_per_second.0"),
        {"duel_training.MINIBATCH": 128},
    ),
    Case(
        "env_steps",
        QUICK + "--sizes 1 4 --bars 1000",
        (
            *("machine.processor", "machine.native.crypto", "machine.native.cartpole"),
            *("results.1.steps_per_second", "results.1.share_of_moving_limit"),
            *("results.1.torch_steps_per_second", "results.1.over_torch", "results.3.over_torch"),
            "results.5.over_long_only",
        ),
    ),
    Case(
        "shorts",
        "--seeds 1 --members 2 --steps 2048 --bars 2500 --num-envs 8",
        ("machine.processor", "results.0.long only", "results.0.with shorts"),
    ),
    Case(
        "gate_statistics:selection",
        "--only selection --studies 2 --bars 200 --trials 10",
        ("machine.processor", "results.0.share_dsr_95", "results.0.together_median_pbo"),
        {"gate_statistics.HOURS": 200},
    ),
    Case(
        "gate_statistics:holdout",
        "--only holdout --series 5",
        ("holdout_machine.processor", "holdout.0.size", "holdout.0.power_bootstrap"),
        {"gate_statistics.HOLDOUTS": (("ar1", 0.5), ("ar2", 0.9))},
    ),
    *(
        Case(
            f"gpu:{part}",
            f"--device cpu --tiny --seconds 0.01 --steady 0.01 --curves 1 --parts {part}",
            (f"parts.{part}.machine.processor", *(f"parts.{part}.found.{key}" for key in keys)),
        )
        for part, keys in GPU_PARTS.items()
    ),
    Case(
        "gradient_steps",
        "--threads 1 --members 2 --widths 16 --minibatches 8 --updates 2 --buffer 64 --runs 1 "
        "--seconds 0.001",
        ("machine.processor", "results.1.runs.sb3.0", "results.0.ours_over_best"),
        needs=("stable_baselines3",),
    ),
    Case(
        "hockey",
        QUICK + "--sizes 8",
        (*SPEED, "speed.0.steps_per_second"),
        {"hockey.GOAL_GAMES": 8, "step_speed.GOAL_GAMES": 8},
    ),
    Case(
        "hockey_learning:curves",
        "curves --threads 1 --only past --steps 8192",
        ("variants.past.curves.0.strong.0", "variants.past.machine.processor"),
        {"hockey_learning.SEEDS": 2, "hockey_learning.PARTS": 1, "hockey_learning.GAMES": 2},
        then="draw",
    ),
    Case(
        "items",
        "--repetitions 1",
        ("machine.processor", "rows", "milliseconds.with items", "milliseconds.MLP alone"),
        {"items.ROWS": 32},
    ),
    Case(
        "league:exact",
        "kuhn --only league " + LEAGUE,
        (
            "kuhn.machine.processor",
            "kuhn.studies.0.plain.curve.0.snapshots",
            "kuhn.studies.0.league.curve.1.mixture",
        ),
        {"league.EPISODES": 2},
    ),
    Case(
        "league:games",
        "kuhn --only half --deals 2 " + LEAGUE,
        ("kuhn.studies.0.half.sampled.champion.plain.1",),
        {"league.EPISODES": 2, "league.is_enumerable": lambda *_: False},
    ),
    *(
        Case(
            f"learning:{kind}",
            f"--only {kind} --threads 1 --seeds 1 --steps 64 --num-envs 2 --horizon 32 "
            "--minibatch 64",
            ("machine.processor", "outcomes.0.excess", "outcomes.0.by_group", "outcomes.0.passed"),
            {"learning.BARS": 5_000},
        )
        for kind in ("oracle", "planted", "shuffled")
    ),
    *(
        Case(
            f"learning_vs_sb3:{task}",
            f"{task} --threads 1 --seeds 2 --peer-seeds 1 --share {share}",
            ("machine.processor", f"tasks.{task}.ours.curves.0.0.1", f"tasks.{task}.sb3.curves.0"),
            {"learning_vs_sb3.LOOKS": 1, "learning_vs_sb3.EPISODES": 1},
            pictures=True,
            needs=("stable_baselines3", *packages),
        )
        for task, (share, packages) in SB3_TASKS.items()
    ),
    # A rollout of SB3's settings takes seconds.
    Case(
        "learning_vs_sb3:lunarlander-ppo",
        "lunarlander-ppo --threads 1 --seeds 2 --share 0.001 --without-sb3",
        ("tasks.lunarlander-ppo.ours.curves.0.0.1",),
        {"learning_vs_sb3.LOOKS": 1, "learning_vs_sb3.EPISODES": 1},
        pictures=True,
        needs=("Box2D",),
    ),
    Case(
        "opponents",
        THREAD + "--runs 1 --members 2 --games 64",
        ("machine.processor", "seat_steps_per_second.both seats", "ratios.self and 2 past"),
        {"opponents.EPOCHS": 1},
    ),
    Case(
        "poker:curves",
        "curves --threads 1 --games kuhn --only both-seats past --steps 8192",
        ("games.kuhn.past.curves.0.sampled.1", "games.kuhn.both-seats.machine.processor"),
        {"poker.SEEDS": 2, "poker.PARTS": 1},
        then="draw",
    ),
    Case(
        "poker_peers",
        "run --threads 1 --games kuhn --only cfr ppo nfsp psro --steps 3000",
        (
            "games.kuhn.cfr.curves.0.nash_conv",
            "games.kuhn.ppo.machine.processor",
            "games.kuhn.psro.curves.0.decisions",
        ),
        needs=("pyspiel",),
    ),
    Case(
        "process_vec",
        "--sizes 2 --rounds 1 --seconds 0.01",
        (
            "cartpole run.machine.processor",
            "cartpole.0.ratio.best peer",
            "one_process.0.ratio.best peer",
            "uneven.1.ratio.best peer",
        ),
        {"process_vec.UNEVEN_ENVS": 4, "process_vec.UNEVEN_WORKERS": 2},
    ),
    Case(
        "reproducible_mode",
        "--pairs 1",
        ("machine.processor", "modes.1", "results.0.ratio"),
        slow=True,
    ),
    Case("peak", THREAD + "--seconds 0.01", ("machine.processor", "gflops.torch"), TINY_PEAK),
    Case(
        "roofline",
        QUICK + "--members 2 --num-envs 8 --horizon 8 --epochs 1 --widths 64 --minibatches 64",
        ("machine.processor", "setup.lookback", "results.0.share_of_peak", "results.0.split.env"),
        TINY_PEAK,
    ),
    Case(
        "scaling",
        THREAD + "--runs 1 --seconds 0.001 --largest 1 --widths 16",
        (
            "num_envs.machine.processor",
            "num_envs.rows.0.bytes",
            "slots.rows.0.over_fastest_before",
            "choice.rows.0.share",
        ),
        {"scaling.CHOICE_BUDGET": 8 * 64 * 100},
    ),
    Case(
        "soak",
        "--trials 6 --every 2",
        ("machine.processor", "mib_per_100_trials", "ask_and_tell_cpu_ms.last"),
        pictures=True,
    ),
    Case(
        "train_vs_elegantrl",
        THREAD + "--members 2 --num-envs 4 --horizon 16 --minibatch 64 --epochs 1 --width 16 "
        "--runs 1 --seconds 0.001",
        ("machine.processor", "steps_per_second.elegant 1env", "ours_over.elegant"),
    ),
    Case(
        "train_vs_peers:speed",
        "speed --threads 1 --members 2 --runs 1 --seconds 0.001 --num-envs 12 --minibatch 64 "
        "--width 16",
        ("speed.*.ours_over_best", "speed.*.machine.processor", "speed.*.runs.cleanrl.0"),
        {"train_vs_peers.TRANSITIONS": 64},
        needs=("stable_baselines3",),
    ),
    Case(
        "train_vs_peers:scores",
        "scores --threads 1 --members 2 --seeds 1",
        ("scores.*.score.0", "scores.*.trainer", "scores.*.machine.processor"),
        {
            "train_vs_peers.SCORED_STEPS": {"crypto": 64, "cartpole": 64},
            "trainers.TRAIN_SHARE": 0.99,
            "trainers.CARTPOLE_EPISODES": 2,
        },
        needs=("stable_baselines3",),
    ),
    Case(
        "train_vs_peers:pufferlib",
        "pufferlib --threads 1 --runs 1 --seconds 0.001",
        ("pufferlib.large, 10 members.steps_per_second", "pufferlib.to 475.mean_length"),
        {
            "train_vs_peers.PUFFER": dict.fromkeys(("small", "large"), (1, 1, 8, 1, 1.0)),
            "train_vs_peers.balanced_steps": lambda *_: [500.0],
        },
    ),
    Case(
        "study_pages",
        "--trials 60 --runs 1",
        ("pages.*.median_ms", "machine.processor", "importances_seconds.complete"),
        needs=("plotly", "werkzeug"),
    ),
    Case(
        "trials_per_hour",
        THREAD + "--runs 1 --part 0.05 --seconds 0.001 --history 2",
        (
            "history 2.machine.processor",
            "history 2.ours_over.elegant 1 env",
            "history 2.shares_of_worker.training",
            "history 2.host_share",
        ),
        {"trials_per_hour.standard_bars": tiny_bars, "trials_per_hour.STANDARD": TINY_STUDY},
    ),
    Case(
        "trials_per_hour:pruning",
        PRUNING + "none",
        ("pruning.0.none.trials_per_hour", "pruning.0.hyperband.machine.processor"),
        {"trials_per_hour.PRUNING": {"groups": 3, "test_groups": 1, "bars": 4_000}},
        then=PRUNING + "hyperband --save",
        slow=True,
    ),
]
OWN_TESTS = {
    "gate_studies",
    "live_peers",
    "search_live",
    "search_replay",
    "search_transfer",
    "study_table",
}


def is_script(path: Path) -> bool:
    return 'if __name__ == "__main__":' in path.read_text()


def test_every_script_has_a_test() -> None:
    scripts = {path.stem for path in BENCH.glob("*.py") if is_script(path)}
    assert scripts == {case.script for case in CASES} | OWN_TESTS


def test_every_other_module_is_used_by_a_script() -> None:
    modules = {path.stem: ast.parse(path.read_text()) for path in BENCH.glob("*.py")}
    used = {
        node.module
        for tree in modules.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert {name for name in modules if not is_script(BENCH / f"{name}.py")} <= used


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Importer]:
    """Import scripts by name. What they change in this process is put back afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(BENCH))
    monkeypatch.setattr(features, "_RECIPES", features._RECIPES.copy())
    monkeypatch.setenv("SWEEPD_CACHE_DIR", str(tmp_path))
    verbosity = optuna.logging.get_verbosity()
    with torch.random.fork_rng():
        yield importlib.import_module
    optuna.logging.set_verbosity(verbosity)


def run(script: ModuleType, *arguments: str | Path) -> None:
    """Run a script as from the command line. Missed goals are no error; a message is one."""
    try:
        code = script.main([str(argument) for argument in arguments])
    except SystemExit as end:
        code = end.code
    # 2: the arguments are wrong.
    assert code is None or (isinstance(code, int) and code != 2), code


def entry(content: Any, path: str) -> Any:
    """Return the entry of a results file at a path, see `Case.keys`."""
    for name in path.split("."):
        if isinstance(content, list):
            content = content[int(name)]
        else:
            content = content[next(iter(content)) if name == "*" else name]
    return content


def is_picture(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.slow] if case.slow else [])
        for case in CASES
    ],
)
def test_script(
    case: Case, bench: Importer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for package in case.needs:
        pytest.importorskip(package)
    script = bench(case.script)
    for name, value in case.constants.items():
        module, _, constant = name.partition(".")
        monkeypatch.setattr(bench(module), constant, value)
    saved, picture = tmp_path / "results.json", tmp_path / "picture.png"
    drawing = ["--picture", picture] if case.pictures else []
    run(script, *shlex.split(case.arguments), *drawing, "--save", saved)
    if case.then:
        drawing = [picture] if case.then == "draw" else []
        run(script, *shlex.split(case.then), saved, *drawing)
    content = json.loads(saved.read_text())
    for path in case.keys:
        entry(content, path)
    if drawing:
        assert is_picture(picture)


def test_gpu_goes_on_with_what_is_missing_or_failed(
    bench: Importer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script, saved, calls = bench("gpu"), tmp_path / "gpu.json", []

    def part(name: str) -> Any:
        def measure(_: Any) -> list[str]:
            calls.append(name)
            if name == "waits" and calls.count(name) == 1:
                raise RuntimeError("CUDA error: out of memory")
            return [name]

        return measure

    monkeypatch.setattr(script, "PARTS", {name: part(name) for name in script.PARTS})
    arguments = ["--device", "cpu", "--tiny", "--save", saved, "--parts"]
    with pytest.raises(SystemExit, match="these parts failed: waits"):
        script.main([str(argument) for argument in (*arguments, "bits", "waits", "steps")])
    assert "out of memory" in json.loads(saved.read_text())["parts"]["waits"]["found"]["failed"]
    run(script, *arguments, "bits", "waits", "steps", "speed")
    assert calls == ["bits", "waits", "steps", "waits", "speed"]
    content = json.loads(saved.read_text())["parts"]
    assert {name: own["found"] for name, own in content.items()} == {
        name: [name] for name in ("bits", "waits", "steps", "speed")
    }


@pytest.mark.parametrize(
    ("name", "results"), [("hockey_learning", "hockey_curves"), ("poker", "poker_curves")]
)
def test_recorded_curves_can_be_drawn(
    name: str, results: str, bench: Importer, tmp_path: Path
) -> None:
    run(bench(name), "draw", BENCH / "results" / f"{results}.json", tmp_path / "picture.png")
    assert is_picture(tmp_path / "picture.png")


def test_table_of_poker_peers(
    bench: Importer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    point = {"decisions": 1_000_000, "seconds": 2.0, "nash_conv": 0.1}
    peers = {"games": {"kuhn": {"cfr": {"title": "CFR", "curves": [point]}}}}
    (tmp_path / "peers.json").write_text(json.dumps(peers))
    script = bench("poker_peers")
    monkeypatch.setattr(script, "PEERS", tmp_path / "peers.json")
    run(script, "table")
    ours, theirs = capsys.readouterr().out.splitlines()
    assert ours.startswith("| Kuhn | sweepd")
    assert theirs.startswith("| Kuhn | CFR | 1,000,000 | 0.1 |")


def test_skill_of_hockey_players(bench: Importer, tmp_path: Path) -> None:
    trainer, training = bench("first_trial").first_trial(
        "hockey", None, 16_384, seeds=1, parts=1, episodes=2
    )
    saved, members = tmp_path / "results.json", tmp_path / "members.safetensors"
    save_members(members, trainer.actors(training))
    run(bench("hockey_learning"), "skill", members, "--games", "4", "--save", saved)
    content = json.loads(saved.read_text())
    assert entry(content, "machine.processor")
    assert sum(entry(content, "results.seed 0.strong")) == 4


def write_tables(folder: Path) -> None:
    """Write learning curves of 30 configurations × 8 seeds × 5 checkpoints.

    Performance grows with the learning rate up to 1e-2; above, runs fail. Only noisy configurations
    have `noise`.
    """
    rng = np.random.default_rng(0)
    rates = np.geomspace(1e-4, 3e-2, 30)
    configs = pd.DataFrame(
        {
            "learning_rate": rates,
            "minibatch_size": [32, 64] * 15,
            "noisy": [True, False, False] * 10,
            "noise": np.where([True, False, False] * 10, np.linspace(1.0, 2.0, 30), np.nan),
        },
        index=pd.RangeIndex(30, name="run_id"),
    )
    rows = [
        (
            run,
            seed,
            budget,
            np.nan if rate > 1e-2 else budget * (np.log(rate) + 10.0) + rng.normal(),
        )
        for run, rate in enumerate(rates)
        for seed in range(8)
        for budget in (10, 20, 30, 40, 50)
    ]
    columns = ["run_id", "seed", "budget", "performance"]
    folder.mkdir(parents=True)
    configs.to_parquet(folder / "configs.parquet")
    pd.DataFrame(rows, columns=columns).to_parquet(folder / "curves.parquet")


def test_searches_on_tables(
    bench: Importer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    data, saved, again = (tmp_path / name for name in ("tables", "results.json", "again.json"))
    write_tables(data / "task")
    script = bench("search_replay")
    monkeypatch.setattr(script, "COST", 12.0)
    searches = ("oracle-32", "racing", "hyperband", "sweepd", "sweepd-race", "optuna-tpe-asha")
    run(script, "--data", data, "--save", saved, "--repetitions", "1", "--only", "sweepd")
    run(script, "--data", data, "--save", saved, "--repetitions", "3", "--only", *searches)
    content = json.loads(saved.read_text())
    assert entry(content, "machine.processor")
    for name in searches:
        found = entry(content, f"searches.{name}.task")
        assert found["repetitions"] == 3
        assert 0.0 <= found["mean"] <= 1.0
    # The table is smaller than what the oracle draws, so it knows all configurations.
    best = entry(content, "best.task")
    assert entry(content, "means.oracle-32.mean") == pytest.approx(best, abs=0.01)
    assert 11.0 <= entry(content, "means.sweepd.cost") <= 12.0

    # Repetitions in two runs are those of a single one.
    run(script, "--data", data, "--save", again, "--repetitions", "3", "--only", "sweepd")
    single = json.loads(again.read_text())["searches"]["sweepd"]["task"]
    assert single == pytest.approx(entry(content, "searches.sweepd.task"))
    for wrong, message in (
        (("--data", data, "--save", saved, "--seed", "1"), "other settings"),
        (("--data", tmp_path / "nothing"), "nothing has no folder"),
        (("--data", data, "--only", "magic"), "magic is not known"),
        (("--data", data, "--tasks", "chess"), "chess is not in"),
    ):
        assert script.main([str(argument) for argument in wrong]) == 2
        captured = capsys.readouterr()
        assert message in captured.out + captured.err


def test_transfer_between_tables(
    bench: Importer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    data, saved = tmp_path / "tables", tmp_path / "results.json"
    write_tables(data / "a")
    script = bench("search_transfer")
    monkeypatch.setattr(script, "COST", 20.0)
    monkeypatch.setattr(script, "COSTS", (12.0, 16.0))
    assert script.main(["--data", str(data)]) == 2
    assert "no two of the tasks have the same" in capsys.readouterr().err
    write_tables(data / "b")
    run(script, "--data", data, "--save", saved, "--repetitions", "1")
    content = json.loads(saved.read_text())
    assert entry(content, "machine.processor")
    assert set(content["tasks"]) == {"a after b", "b after a"}
    for prior in ("none", "related", "negated", "permuted"):
        assert 0.0 <= entry(content, f"means.16.{prior}.mean") <= 1.0
    assert entry(content, "means.12.none.gain") == 0.0


def test_what_a_run_on_a_table_costs(bench: Importer, tmp_path: Path) -> None:
    write_tables(tmp_path / "task")
    [table] = bench("search_tables").load_tables(tmp_path)
    one = bench("search_studies").Run(table, np.random.default_rng(0), 5.0)
    # Configuration 4 has no noise: the distance to it does not depend on the noise.
    asked = {**table.params[4], "noise": 1.1}
    assert one.stand_in(asked) == 4
    # Each configuration is used once. Here the nearest of the others has another learning rate.
    assert one.stand_in({**asked, "noisy": True}) == 6

    seeds = table.curves[4]
    first, second = one.train(4, 2, 0.3)  # the last checkpoint is at 20 % of the budget
    assert {first, second} <= set(seeds[:, 0])
    assert one.left == pytest.approx(5.0 - 2 * 0.3)
    # What has been trained is not paid for again.
    final = one.train(4, 3)
    assert set(final) <= set(seeds[:, -1])
    assert one.left == pytest.approx(5.0 - 3)
    others = set(seeds[:, -1]) - set(final)
    assert one.fresh(4) == pytest.approx(np.mean(list(others)))
    # A further seed is another one.
    fourth = one.train(4, 1, first=3)
    assert set(fourth) <= others
    assert one.left == pytest.approx(5.0 - 4)
    with pytest.raises(InputError, match="8 seeds"):
        one.train(4, 8)
    with pytest.raises(InputError, match="8 seeds"):
        one.train(4, 1, first=7)


@pytest.mark.slow
def test_studies_of_the_gate_and_their_table(
    bench: Importer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate, markets = bench("gate_studies"), bench("gate_markets")
    tiny = markets.Kind(6_000, 2, 512, 7e-4, (0.3, 0.5), markets.FREE)
    monkeypatch.setitem(markets.KINDS, "oracle", tiny)
    monkeypatch.setattr(gate, "COUNTS", {"oracle": 1})
    folder, saved, again = tmp_path / "studies", tmp_path / "judged.json", tmp_path / "again.json"
    run(gate, "--kinds", "oracle", "--folder", folder, "--save", saved)
    run(gate, "--kinds", "oracle", "--folder", folder, "--judge-only", "--save", again)
    first, second = (json.loads(path.read_text()) for path in (saved, again))
    assert entry(first, "machine.processor")
    values = "results.oracle-000.values"
    assert entry(first, values) == entry(second, values)

    table, deployments = tmp_path / "table.json", tmp_path / "deployments"
    storage = f"sqlite:///{folder / 'oracle-000' / 'sweepd.db'}"
    registry = Registry(deployments)
    registry.refuse("demo-1h", "no candidate passed", {"study": "bench", "looks": 1})
    registry.refuse("demo-1h", "nor did these", {"study": "another"})
    run(
        bench("study_table"),
        *("bench", "--storage", storage, "--deployments", deployments, "--save", table),
    )
    content = json.loads(table.read_text())
    assert content["trials"]["COMPLETE"] == 2
    assert [event["report"]["looks"] for event in content["promotion"]] == [1]
    for path in ("machine.processor", "trials_per_hour", "best.metrics"):
        entry(content, path)


@pytest.mark.parametrize(
    ("name", "arguments", "peer"),
    [
        ("train_vs_peers", "as-pair --threads 1", "cleanrl"),
        ("gradient_steps", "as-pair --threads 1", "elegant"),
        (
            "train_vs_elegantrl",
            "--as-peer --threads 1 --num-envs 4 --horizon 16 --minibatch 64 --epochs 1 --width 16 "
            "--seconds 0.001",
            "",
        ),
    ],
)
def test_processes_that_train_in_pairs(
    name: str,
    arguments: str,
    peer: str,
    bench: Importer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sizes = {
        "cleanrl": bench("trainers").Cell("cartpole", 4, 16, 16, 4, 1, members=2),
        "elegant": bench("gradient_steps").Cell("sac", 16, 8, 1, updates=2, buffer=64),
    }
    cell = dataclasses.asdict(sizes[peer]) if peer else {}
    requests = [{"prepare": peer, "cell": cell}, {"measure": peer, "seconds": 0.001}]
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    run(bench(name), *shlex.split(arguments))
    assert float(capsys.readouterr().out.split()[-1]) > 0.0


@pytest.mark.slow
def test_a_live_search_is_run_and_scored(bench: Importer, tmp_path: Path) -> None:
    script, saved = bench("search_live"), tmp_path / "results.json"
    run(script, "--smoke", "--folder", tmp_path / "live", "--save", saved)
    content = json.loads(saved.read_text())
    found = entry(content, "tasks.cartpole.random-0")
    assert found["trials"] == 4
    assert len(found["scores"]) == 2
    assert found["selections"][-1]["scores"] == found["scores"]
    assert entry(found, "machine.processor")
    # The same command has nothing left to do.
    run(script, "--smoke", "--folder", tmp_path / "live", "--save", saved)
    again = json.loads(saved.read_text())["tasks"]
    assert again == content["tasks"]


def test_when_a_live_search_reaches_a_level(bench: Importer) -> None:
    script = bench("search_live")
    worth = {"a": [1.0, 1.0], "b": [4.0, 8.0], "c": [9.0, 9.0], "d": [2.0, float("nan")]}
    trained: list[str] = []

    class Finished:
        def selections(self) -> list[Any]:
            return [script.Selected(10.0 * at, key, 0.0) for at, key in enumerate("abcad", 1)]

        def scores(self, chosen: Any) -> list[float]:
            trained.append(chosen.key)
            return worth[chosen.key]

    known: dict[str, list[float]] = {}
    reached, scores = script.first_above(Finished(), 6.0, known)
    assert reached == 20.0
    assert scores is worth["d"]
    # What comes after the level was reached is not trained, but the last selection is.
    assert trained == ["a", "b", "d"]
    assert script.mean_of(scores) == -np.inf
    trained.clear()
    assert script.first_above(Finished(), 10.0, {})[0] is None
    assert trained == ["a", "b", "c", "d"]


def test_a_live_search_refuses_wrong_arguments(
    bench: Importer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script, folder = bench("search_live"), ("--folder", tmp_path)
    saved = tmp_path / "results.json"
    saved.write_text(json.dumps({"settings": {"minutes": 1.0}}))
    ours = ("--tasks", "cartpole", "--searches", "race")
    for wrong, message in (
        (ours, "give --folder"),
        ((*folder, *ours), "run random first"),
        ((*folder, *ours, "--save", saved), "other settings"),
        ((*folder, *ours, "--peer-python", "ray=/bin/sh"), "give NAME=PATH"),
        (
            (
                *folder,
                "--tasks",
                "cartpole",
                "--searches",
                "zoo",
                "--peer-python",
                "zoo=/bin/false",
            ),
            "pip install stable-baselines3==",
        ),
    ):
        assert script.main([str(argument) for argument in wrong]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("task", ["planted", "cartpole", "pendulum", "rest_trap"])
def test_the_peers_trainer_on_live_tasks(task: str, bench: Importer) -> None:
    pytest.importorskip("stable_baselines3")
    peers = bench("live_peers")
    params = {
        "n_steps_pow": 5,
        "batch_size_pow": 8,
        "one_minus_gamma": 0.01,
        "one_minus_gae_lambda": 0.05,
        "learning_rate": 1e-3,
        "n_epochs": 1,
        "net_arch": "tiny",
        "activation_fn": "relu",
    }
    trainer = peers.Trainer(task, 4_096, 0)
    trainer.continue_to(0.5, params)
    before = trainer.model
    trainer.continue_to(1.0, params | {"learning_rate": 1e-4})
    # Other parameters continue from the same weights and steps.
    assert trainer.model is not before
    assert trainer.model.num_timesteps >= 4_096
    assert trainer.model.learning_rate == 1e-4
    assert trainer.score(4, 0) == trainer.score(4, 0)
    assert np.isfinite(trainer.value())
