"""A run at a tiny size of every benchmark.

The figures mean nothing. Where a size is part of a benchmark's definition and has no option, a
constant of the script is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sweepd.envs.crypto.data.bars import Bars
from sweepd.envs.crypto.data.demo_market import make_demo_market


def tiny_bars() -> tuple[Bars, str]:
    return make_demo_market(0, assets=2, bars=5_000), "the demo market"


@dataclass(frozen=True)
class Case:
    """A run of a script.

    Attributes:
        name: of the script, and after a colon what this run is called.
        arguments: of the command line, without `--save`.
        keys: paths in the results file that documents and pictures are made from: names and
            indices, separated by dots. *: the first name.
        constants: constants to replace, as module.name.
        pictures: whether the script has an option `--picture`.
        needs: packages without which the test is skipped.
        extra: whether the test is marked as extra.
    """

    name: str
    arguments: str
    keys: Sequence[str]
    constants: dict[str, Any] = field(default_factory=dict)
    pictures: bool = False
    needs: Sequence[str] = ()
    extra: bool = False

    @property
    def script(self) -> str:
        return self.name.partition(":")[0]


PYTHON = (sys.executable, "-c", "pass")
THREAD = "--threads 1 "
TINY_PEAK: dict[str, Any] = {"peak.SIZES": ((1, 8, 8, 8), (2, 8, 8, 8)), "peak.ROUNDS": 100}
QUICK = "--threads 1 --repeats 1 --seconds 0.001 "
SHORT = {"budget": 20_480, "n_envs": 8, "horizon": 64}
TINY_STUDY = SHORT | {"rungs": 2, "trials_per_batch": 1, "pruner": "none"}
ONE_LOOK = {"learning_vs_sb3.LOOKS": 1, "learning_vs_sb3.EPISODES": 1}
TINY_LEARNING = "--seeds 2 --steps 256 --only "
GPU_PARTS = {
    "ready": ("programs.sac.gradient_steps_recorded", "fused_kernels"),
    "bits": ("sac.in company.equal", "ppo, gru.again.equal"),
    "env-kernels": ("crypto, shorts.compiled", "cartpole.rows.0.steps_per_second.torch"),
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
TINY_POPULATION = """
name = "tiny"
version = 1
[shape]
net_width = { value = 8 }
net_depth = { value = 1 }
minibatch = { value = 32 }
epochs = { value = 1 }
[ppo]
learning_rate = { low = 1e-3, high = 1e-1, log = true }
"""
CASES = [
    Case(
        "arena",
        "--half-years 2 --runs 2",
        (
            *("machine.processor", "false.independent.rate", "false.independent, ageing.interval"),
            *("power.0.stated", "power.0.days.1", "fading.with_monitor.0"),
            "peers.0%.every week.rate",
        ),
        {"arena.HALF_YEAR": 30, "arena.YEARS": 0.2, "arena.MONITOR_DRAWS": 50},
    ),
    Case(
        "ask_time",
        "--threads 1 --trials 30 --draws 3",
        ("machine.processor", "milliseconds.race-30.median", "milliseconds.tpe-30.worst"),
    ),
    Case(
        "command_trials",
        "--trials 2 --reports 100 --repeat 1",
        ("machine.processor", "milliseconds.trial", "milliseconds.report"),
    ),
    Case(
        "dashboard_pages",
        "--orders 40 --bars 60 --repeat 2",
        ("machine.processor", "orders", "pages.0.p95", "pages.0.kB"),
        needs=("plotly", "werkzeug"),
    ),
    Case(
        "turn_memory",
        "--games kuhn --members 1 --num-envs 8 --repeats 1 --seconds 0.001",
        ("machine.processor", "rows.0.gru.ratio", "rows.0.lstm.arithmetic", "rows.0.runs.none.0"),
        constants={"turn_memory.MINIBATCH": 64},
    ),
    Case(
        "game_steps",
        "--repeats 1 --seconds 0.001 --sizes 8",
        ("machine.processor", "rows.0.rate", "rows.2.rates.0", "rows.2.goal", "rows.1.over_torch"),
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
        "host_work",
        "--runs 1 --trials 2 --budget 4096",
        ("machine.processor", "host_share", "writes_per_trial"),
    ),
    Case(
        "intervals",
        "--replicates 4 --episodes 4 --pendulum 2 --played 4 --budget 1000",
        (
            *("coverage.two-way Student.noise.0.both", "difference.0"),
            "pendulum.0.coverage.two-way Student.0",
        ),
        {"intervals.DRAWS": 20},
    ),
    Case(
        "gate_power",
        "--studies 1 --verdicts 1 --processes 1 --cases 6",
        ("machine.processor", "cases.6.stated", "cases.6.interval"),
    ),
    Case(
        "gate_statistics:selection",
        "--only selection --studies 2 --bars 200 --trials 10",
        ("machine.processor", "results.0.share_dsr_95", "results.0.together_median_pbo"),
        {"gate_statistics.HOURS": 200},
        extra=True,
    ),
    Case(
        "gate_statistics:searches",
        "--only searches --studies 2 --bars 200 --long-bars 200 --search-trials 8 --planted 3",
        (
            *("searches.race 0.machine.processor", "searches.race 0.dsr.interval"),
            *("searches.pbt 3.both.rate", "searches.varies its best trial by score, 0 copies.dsr"),
        ),
    ),
    Case(
        "gate_statistics:records",
        "--only records --series 5 --bars 100",
        ("records_machine.processor", "records.0.rate", "records.0.interval"),
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
            extra=part == "large",
        )
        for part, keys in GPU_PARTS.items()
    ),
    Case(
        "native_steps:images",
        "images --members 2 --widths 16 --envs 2 --minibatch 32 --runs 1 --seconds 0.001",
        ("machine.processor", "results.1.runs.torch.0", "results.0.ours_over_torch"),
    ),
    Case(
        "native_steps:recurrent",
        "recurrent --members 2 --widths 16 --envs 4 --minibatch 32 --runs 1 --seconds 0.001",
        ("machine.processor", "results.3.runs.torch.0", "results.0.ours_over_torch"),
    ),
    Case(
        "gradient_steps",
        "--threads 1 --members 2 --widths 16 --minibatches 8 --updates 2 --buffer 64 --runs 1 "
        "--seconds 0.001",
        ("machine.processor", "results.1.runs.sb3.0", "results.0.ours_over_best"),
        needs=("stable_baselines3",),
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
            f"learning_vs_sb3:{row}",
            f"--side ours {TINY_LEARNING}{row}",
            (
                f"rows.{row}.sides.ours.runs.0.scores.deterministic",
                f"rows.{row}.sides.ours.machine.processor",
            ),
            ONE_LOOK,
            pictures=True,
        )
        for row in ("cartpole-ppo", "pendulum-sac", "acrobot-d3qn")
    ),
    Case(
        "learning_vs_sb3:changed",
        f"--side ours {TINY_LEARNING}cartpole-ppo --with epochs=2 --fixed-scale --n-envs 2",
        ("rows.cartpole-ppo.sides.ours, epochs=2, fixed scale, 2 envs.settings.shape.epochs",),
        ONE_LOOK,
    ),
    *(
        Case(
            f"learning_vs_sb3:{row} of both",
            TINY_LEARNING + row,
            (
                f"rows.{row}.sides.sb3.runs.1.curve.0.1",
                f"rows.{row}.sides.sb3.runs.1.machine.processor",
                f"rows.{row}.comparison.{play}.p",
            ),
            ONE_LOOK,
            needs=("stable_baselines3", *packages),
            extra=True,
        )
        for row, play, packages in (
            ("cartpole-ppo", "deterministic", ()),
            ("mountain-car-continuous-sac", "deterministic", ()),
            ("minigrid-empty-5x5-d3qn", "deterministic", ("minigrid",)),
            ("minigrid-empty-5x5-ppo", "sampled", ("minigrid",)),
            ("simple-spread-ppo", "deterministic", ("mpe2",)),
        )
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
        extra=True,
    ),
    Case(
        "async_envs",
        THREAD + "--envs 2 --rounds 1 --rollouts 1",
        ("machine.processor", "kinds.even.ratio.as ready", "kinds.some slow.ratio.twice as many"),
        {"async_envs.HORIZON": 4, "async_envs.QUICK": 1e-4, "async_envs.SLOW": 1e-3},
    ),
    Case("peak", THREAD + "--seconds 0.01", ("machine.processor", "gflops.torch"), TINY_PEAK),
    Case(
        "pufferlib_sizes",
        QUICK,
        ("machine.processor", "sizes.*.ours_over_pufferlib"),
        {f"pufferlib_sizes.{name}": 8 for name in ("ENVS", "HORIZON", "MINIBATCH")},
    ),
    Case(
        "roofline",
        QUICK + "--members 2 --num-envs 8 --horizon 8 --epochs 1 --widths 64 --minibatches 64",
        ("machine.processor", "setup.lookback", "results.0.share_of_peak", "results.0.split.env"),
        TINY_PEAK,
    ),
    Case(
        "pbt_hockey",
        "--trials 4 --steps 128 --rungs 2 --envs 2 --episodes 2 --games 2",
        (
            *("machine.processor", "seeds.0.pbt.values.3", "seeds.0.pbt.shares.population"),
            *("seeds.0.random.selected", "seeds.0.points.pbt.random"),
        ),
        {"pbt_hockey.SPACE": TINY_POPULATION},
    ),
    Case(
        "search_vs_sb3",
        "--tasks cartpole --searches sb3 tensors --trials 2 --steps 2048 --rungs 2 --episodes 2 "
        "--games 4 --threads 1",
        (
            *("cartpole.searches.sb3, seed 0.trials.1.seconds", "cartpole.task.steps"),
            *("cartpole.searches.tensors, seed 0.machine.processor",),
            "cartpole.searches.tensors, seed 0.selected",
        ),
        needs=("stable_baselines3",),
        extra=True,
    ),
    Case(
        "soak",
        "--trials 6 --every 2",
        ("machine.processor", "mib_per_100_trials", "ask_and_tell_cpu_ms.last"),
        pictures=True,
        extra=True,
    ),
    Case(
        "train_vs_peers:speed",
        "--threads 1 --members 2 --runs 1 --seconds 0.001 --num-envs 12 --minibatch 64 --width 16",
        ("speed.*.ours_over_best", "speed.*.machine.processor", "speed.*.runs.cleanrl.0"),
        {"train_vs_peers.TRANSITIONS": 64},
        needs=("stable_baselines3",),
        extra=True,
    ),
    Case(
        "train_vs_peers:compiled",
        "--threads 1 --cpu-time --members 2 --runs 1 --seconds 0.001 --num-envs 12 --minibatch 64 "
        "--width 16 --tasks cartpole --peers leanrl",
        ("speed.*.ours_over_best", "speed.*.seconds_to_prepare.leanrl"),
        {"train_vs_peers.TRANSITIONS": 64},
        extra=True,
    ),
    Case(
        "study_pages",
        "--trials 24 --runs 1",
        ("pages.0.median", "machine.processor"),
        needs=("plotly", "werkzeug"),
        extra=True,
    ),
    Case(
        "startup",
        "--runs 1 --trials 6 --bars 60",
        ("machine.processor", "commands.python.processor", "commands.status.memory"),
        {"startup.COMMANDS": {"python": PYTHON, "status": (*PYTHON[:1], "-m", "sweepd", "status")}},
    ),
    Case(
        "trials_per_hour",
        THREAD + "--runs 1 --part 0.05 --seconds 0.001",
        ("machine.processor", "ours_over.elegant 1 env", "shares_of_worker.training", "host_share"),
        {"trials_per_hour.standard_bars": tiny_bars, "trials_per_hour.STANDARD": TINY_STUDY},
        extra=True,
    ),
]
