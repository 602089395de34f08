"""Every benchmark in `scripts/bench/` runs to its end at a tiny size and writes its results."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import re
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from scripts.bench.__main__ import benchmarks, summary
from scripts.bench.__main__ import main as entry_point
from sweepd.envs.crypto.data.demo_market import make_planted_market
from sweepd.envs.support.mkl import current_mode
from sweepd.optimize.study.study import StudyHandle
from tests.bench.cases import CASES, Case
from tests.bench.conftest import BENCH, Importer, entry, import_bench, is_picture, run

OWN_TESTS = {"gate_studies", "search_live", "search_programs", "search_replay"}
PROGRAMS = {"__main__", "live_peers", "optuna_sb3", "table_program"}  # which are started by name


def test_every_benchmark_has_a_test() -> None:
    assert set(benchmarks()) == {case.script for case in CASES} | OWN_TESTS


def test_every_other_module_is_used_by_a_benchmark() -> None:
    paths = list(BENCH.rglob("*.py"))
    used = {
        node.module
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
    }
    modules = {".".join(path.relative_to(BENCH.parents[1]).with_suffix("").parts) for path in paths}
    others = modules - set(benchmarks().values())
    assert {name for name in others if name.rpartition(".")[2] not in PROGRAMS} <= used


def test_the_entry_lists_benchmarks_and_runs_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert entry_point(["list"]) is None
    listed = capsys.readouterr().out
    for name, module in benchmarks().items():
        assert summary(module)
        assert re.search(rf"^  {name} +{re.escape(summary(module))}$", listed, re.MULTILINE)
    ran: list[list[str]] = []

    def main(argv: list[str]) -> int:
        ran.extend((argv, sys.argv))
        return 3

    monkeypatch.setattr(sys, "argv", ["python"])
    monkeypatch.setattr(import_bench("peak"), "main", main)
    assert entry_point(["run", "peak", "--threads", "1", "--help"]) == 3
    # Results record the command without the entry's own words.
    assert ran == [["--threads", "1", "--help"], ["peak", "--threads", "1", "--help"]]
    with pytest.raises(SystemExit, match="2"):
        entry_point(["run", "harness"])
    assert "invalid choice: 'harness'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, id=case.name, marks=[pytest.mark.extra] if case.extra else [])
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


def test_the_soak_times_what_a_worker_asks(bench: Importer, tmp_path: Path) -> None:
    soak = bench("soak")
    bars = make_planted_market(3, assets=2, bars=700)
    handle, _ = bench("studies").study_in(tmp_path, bars, soak.REQUEST, soak.SPACE)
    clock = soak.Clock(handle)
    assert len(StudyHandle.ask_batch(handle, 1, "worker", 1)) == 1
    assert clock.take(1)["ask_ms"] > 0.0


def test_a_peer_is_as_fast_as_in_its_best_single_process(bench: Importer) -> None:
    settings = {", 1 thread": 30.0, ", 2 threads": 20.0, ", two processes": 50.0}
    speeds = {
        name + setting: speed
        for name in ("elegant", "elegant 1 env")
        for setting, speed in settings.items()
    }
    found = bench("trials_per_hour").fastest(speeds | {"elegant 1 env, 1 thread": 3.0})
    assert found == {
        "elegant": 30.0,
        "elegant, two processes": 50.0,
        "elegant 1 env": 20.0,
        "elegant 1 env, two processes": 50.0,
    }


@pytest.mark.extra
def test_studies_of_the_gate(
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


@pytest.mark.parametrize(
    ("name", "arguments", "peer"),
    [
        ("train_vs_peers", "as-peer --threads 1", "cleanrl"),
        ("train_vs_peers", "as-peer --threads 1", "jax-map"),
        ("gradient_steps", "as-peer --threads 1", "elegant"),
    ],
)
def test_processes_of_peers(
    name: str,
    arguments: str,
    peer: str,
    bench: Importer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if peer == "jax-map":
        pytest.importorskip("optax")
    sizes = {
        "jax-map": bench("trainers").Cell("crypto", 4, 16, 16, 4, 1, members=2),
        "cleanrl": bench("trainers").Cell("cartpole", 4, 16, 16, 4, 1, members=2),
        "elegant": bench("gradient_steps").Cell("sac", 16, 8, 1, updates=2, buffer=64),
    }
    requests = [
        {"prepare": peer, "cell": dataclasses.asdict(sizes[peer])},
        {"measure": peer, "seconds": 0.001, "clock": "processor"},
    ]
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    run(bench(name), *shlex.split(arguments))
    assert float(capsys.readouterr().out.split()[-1]) > 0.0


@pytest.mark.skipif(current_mode() is None, reason="torch has no MKL")
def test_peers_compute_in_mkls_default_mode(bench: Importer) -> None:
    peers = bench("peers").PeerProcesses(bench("gradient_steps").__name__, threads=1)
    cell = bench("gradient_steps").Cell("d3qn", 16, 8, 1, updates=2, buffer=64)
    assert peers.prepare("elegant", dataclasses.asdict(cell)) == "off"
    assert peers.measure("elegant", 0.001, "processor") > 0.0
    peers.close()
    assert current_mode() != "off"  # in this process, as in all of sweepd's


def test_no_ratio_of_wall_clock_times_beside_other_processes(
    bench: Importer, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = bench("harness")
    monkeypatch.setattr(harness, "SHARED", 0.25)
    others = iter((100.0, 101.0) * 2)
    monkeypatch.setattr(harness, "_seconds_of_others", lambda: next(others))
    with pytest.raises(SystemExit, match=r"Other processes used .* cores .*--cpu-time"):
        harness.paired_runs({"ours": lambda: 1.0}, 2)
    assert harness.paired_runs({"ours": lambda: 1.0}, 2, "processor") == {"ours": [1.0, 1.0]}


def test_the_load_is_that_of_other_processes(bench: Importer) -> None:
    seconds = bench("harness")._seconds_of_others
    # The parent of the busy process has ended, so it is no child of this one.
    script = (
        "import subprocess, sys; "
        "print(subprocess.Popen([sys.executable, '-c', 'while True: pass']).pid)"
    )
    with tempfile.TemporaryFile() as output:
        subprocess.run([sys.executable, "-c", script], stdout=output, check=True)
        output.seek(0)
        other = psutil.Process(int(output.read()))
    try:
        before, used = seconds(), sum(other.cpu_times()[:2])
        while sum(other.cpu_times()[:2]) < used + 0.5:
            time.sleep(0.01)
        assert seconds() - before > 0.4
    finally:
        other.kill()


def test_results_say_how_they_were_made(bench: Importer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["peak", "--save", "/elsewhere/peak.json"])
    machine = bench("harness").machine()
    assert {"processor", "family", "mkl", "torch"} <= set(machine)
    source = machine["source"]
    assert source["command"] == "peak --save peak.json"
    assert source["version"]
    assert source["peers"]["elegantrl"]
    assert source["commit"] is None or len(source["commit"]) == 40
