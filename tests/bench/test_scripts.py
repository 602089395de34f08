"""Every benchmark in `scripts/bench/` runs to its end at a tiny size and writes its results."""

from __future__ import annotations

import ast
import dataclasses
import io
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from agents.policy.frozen import save_members
from deploy.registry.registry import Registry
from tests.bench.cases import CASES, Case
from tests.bench.conftest import BENCH, Importer, entry, is_picture, run

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


@pytest.mark.extra
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
