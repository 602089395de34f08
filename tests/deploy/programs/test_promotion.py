"""Programs are promoted by fresh seeds, with the files that one of these runs wrote."""

from __future__ import annotations

import hashlib
import json
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from sweepd.deploy.gates import bundle_types, load_bundle
from sweepd.deploy.programs.bundle import ProgramBundle, program_name
from sweepd.deploy.programs.candidates import ProgramPromotion, ProgramStudy
from sweepd.deploy.programs.gate import ProgramGate
from sweepd.deploy.promotion.studies import find_study
from sweepd.deploy.registry import bundle_files
from sweepd.deploy.registry.registry import Registry
from sweepd.envs.support.errors import InputError
from tests.deploy.builders import promoter_of
from tests.deploy.programs.studies import SLOT, TEXT, study_of
from tests.printed_commands import parses


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "deployments")


def promote(
    study: ProgramStudy, registry: Registry, trial: int | None = None, **flags: Any
) -> ProgramPromotion:
    return promoter_of(ProgramGate, study, registry, **flags).run(trial)


def verdicts(promotion: ProgramPromotion) -> dict[str, str]:
    assert promotion.chosen is not None
    return {finding.name: finding.verdict for finding in promotion.chosen.findings}


def test_the_files_of_the_best_fresh_run_are_deployed_to_the_byte(
    tmp_path: Path, registry: Registry
) -> None:
    study = study_of(tmp_path / "a")
    promotion = promote(study, registry)
    assert (promotion.outcome, promotion.slot) == ("promoted", SLOT), promotion.reason
    assert verdicts(promotion) == {"fresh-failures": "pass", "fresh-seeds": "pass", "files": "pass"}
    assert promotion.champion is not None
    bundle = registry.bundle(promotion.champion, *bundle_types())
    assert isinstance(bundle, ProgramBundle)
    manifest = bundle.manifest
    best = study.best_trial()
    assert best is not None
    [run] = [
        one for one in study.run_dir.parent.iterdir() if one.name.startswith(f"s-run{best.number}")
    ]
    fresh = manifest.fresh
    assert fresh.chosen == max(range(5), key=lambda index: fresh.values[index])
    out = run / "trial-00000" / f"seed-{fresh.chosen}" / "out"
    assert set(manifest.files) == {"files/model.bin", "files/deep/empty"}
    stored = registry.path(bundle.hash) / "files" / "model.bin"
    assert stored.read_bytes() == (out / "model.bin").read_bytes()
    assert stored.stat().st_mode & 0o777 == 0o444
    assert (
        manifest.files["files/model.bin"].sha256 == hashlib.sha256(stored.read_bytes()).hexdigest()
    )
    # Which run it was, and how it was started.
    assert manifest.program.parameters == best.params
    assert manifest.program.command == study.spec.command
    assert manifest.program.words[-1].endswith("program.py")
    assert repr((best.params["lr"], fresh.seeds[fresh.chosen])).encode() == stored.read_bytes()
    assert (manifest.origin.study, manifest.origin.trial) == ("s", best.number)
    assert manifest.origin.run == f"s-run{best.number}"
    assert manifest.gate["fresh"]["champion"] is None
    assert set(manifest.metrics) >= {"describes", "loss", "mean"}


def test_a_better_program_replaces_the_champion_and_an_equal_one_does_not(
    tmp_path: Path, registry: Registry
) -> None:
    first = study_of(tmp_path / "a", 0.5)
    assert promote(first, registry).outcome == "promoted"
    again = promote(first, registry)
    assert (again.outcome, again.looks) == ("champion already", 1)
    equal = promote(study_of(tmp_path / "b", 0.5, seed=7), registry)
    assert equal.outcome == "none passes"
    assert verdicts(equal)["beats-champion"] == "fail"
    assert verdicts(equal)["comparable"] == "pass"
    assert "champion program@1" in equal.how_far
    # A lead that more seeds would decide: they are measured, and that run is promoted.
    run, again = parses(equal.steps[0].command)
    assert run[:2] == ["run", "--trial"]
    assert again[:3] == ["promote", "--study-name", run[run.index("--study-name") + 1]]
    assert registry.events(SLOT)[-1].kind == "refused"
    better = promote(study_of(tmp_path / "c", 0.9), registry)
    assert better.outcome == "promoted", better.reason
    assert better.looks == 3
    slot = registry.slot(SLOT)
    assert (slot.champion, slot.previous) == (better.champion, better.champion_before)
    assert better.chosen is not None
    assert better.chosen.score is not None
    # The third comparison of the command is stricter than the first.
    assert better.chosen.score.mean.level == pytest.approx(0.9875)
    back = registry.rollback(SLOT, "test", *bundle_types())
    assert back == (better.champion, better.champion_before)


def test_a_dry_run_promotes_nothing_and_counts_its_evaluation(
    tmp_path: Path, registry: Registry
) -> None:
    promotion = promote(study_of(tmp_path / "a"), registry, dry_run=True)
    assert (promotion.outcome, promotion.looks) == ("would promote", 1)
    assert registry.slots() == []
    json.dumps(promotion.to_dict(), allow_nan=False)


def test_what_fresh_seeds_have_not_measured_is_refused_with_the_command_that_does(
    tmp_path: Path, registry: Registry
) -> None:
    study = study_of(tmp_path / "a", fresh_seeds=0)
    promotion = promote(study, registry)
    assert (promotion.outcome, promotion.looks) == ("none passes", 0)
    best = study.best_trial()
    assert best is not None
    assert f"run --trial 's#{best.number}' --seeds 5" in promotion.steps[0].command
    with pytest.raises(InputError, match=r"cannot be deployed: measure it first: .* run --trial"):
        promote(study, registry, limit=["fresh-seeds=0"])
    few = promote(study_of(tmp_path / "b", fresh_seeds=2), registry)
    assert few.outcome == "none passes"
    assert "fresh-seeds is 2, >= 5 is needed: 2 seeds that the selection" in few.how_far
    enough = promote(study_of(tmp_path / "c", fresh_seeds=2), registry, limit=["fresh-seeds=2"])
    assert enough.outcome == "promoted"
    assert "loosened" in enough.reason


def test_a_seed_that_fails_counts_against_the_parameters(
    tmp_path: Path, registry: Registry
) -> None:
    text = TEXT + "\nif '-run' in env['SWEEPD_STUDY'] and '/seed-3/' in out:\n    sys.exit(9)\n"
    promotion = promote(study_of(tmp_path / "a", text=text), registry)
    assert promotion.outcome == "none passes"
    assert verdicts(promotion)["fresh-failures"] == "fail"
    assert "exit code 9" in promotion.how_far


def test_a_file_that_was_changed_after_the_run_is_refused(
    tmp_path: Path, registry: Registry
) -> None:
    study = study_of(tmp_path / "a")
    for path in study.run_dir.parent.glob("s-run*/trial-00000/seed-*/out/model.bin"):
        path.write_bytes(b"other")
    promotion = promote(study, registry)
    assert promotion.outcome == "none passes"
    assert "model.bin has been changed since it was scored" in promotion.how_far
    for path in study.run_dir.parent.glob("s-run*/trial-00000/manifest.json"):
        path.write_text(path.read_text().replace("seed-0", "seed-1"))
    assert "manifest.json has been changed" in promote(study, registry).how_far
    with pytest.raises(InputError, match=r"cannot be deployed: .*manifest.json has been changed"):
        promote(study, registry, limit=["files=9"])
    assert registry.slots() == []


def test_a_program_without_files_has_nothing_to_deploy(tmp_path: Path, registry: Registry) -> None:
    promotion = promote(study_of(tmp_path / "a", text="report(1, params['lr'])"), registry)
    assert promotion.outcome == "no candidate"
    assert "wrote no file to SWEEPD_OUT" in promotion.reason
    assert not registry.folder.exists()  # most programs are only searched: nothing is written


def test_a_file_whose_name_is_not_utf8_is_refused(tmp_path: Path, registry: Registry) -> None:
    text = f"{TEXT}\nopen(os.fsencode(out) + b'/\\xff', 'wb').close()\n"
    promotion = promote(study_of(tmp_path / "a", text=text), registry)
    assert promotion.outcome == "none passes"
    assert r"'seed-" in promotion.how_far
    assert "is not UTF-8" in promotion.how_far


def test_a_limit_on_the_value_is_one_on_the_lower_end_of_its_interval(
    tmp_path: Path, registry: Registry
) -> None:
    study = study_of(tmp_path / "a")
    refused = promote(study, registry, limit=["value=0.6"])
    assert verdicts(refused)["value"] == "fail"
    assert ">= 0.6 is needed: mean 0.5" in refused.how_far
    met = promote(study, registry, limit=["value=0.45"])
    assert (met.outcome, verdicts(met)["value"]) == ("promoted", "pass")
    assert "loosened" not in met.reason


def test_another_command_or_budget_is_not_compared_with_the_champion(
    tmp_path: Path, registry: Registry
) -> None:
    promote(study_of(tmp_path / "a"), registry)
    other = study_of(tmp_path / "b", 0.9, budget=3)
    promotion = promote(other, registry)
    assert promotion.outcome == "none passes"
    assert "the champion's budget is 1, the candidate's 3" in promotion.how_far
    assert "--slot program-2" in promotion.steps[0].command
    elsewhere = promote(other, registry, slot="longer")
    assert elsewhere.outcome == "promoted"


def test_a_deterministic_program_is_compared_by_its_values(
    tmp_path: Path, registry: Registry
) -> None:
    text = TEXT.replace(" + (seed % 1000) / 1e5", "").replace('(params["lr"], seed)', '"same"')
    weak = study_of(tmp_path / "a", 0.5, text=text)
    assert promote(weak, registry).outcome == "promoted"
    better = promote(study_of(tmp_path / "b", 0.7, text=text), registry)
    assert better.outcome == "promoted", better.reason
    assert better.chosen is not None
    said = next(one for one in better.chosen.findings if one.name == "beats-champion")
    assert "equal in all seeds" in said.explanation


def test_a_trial_that_the_user_names_is_the_candidate(tmp_path: Path, registry: Registry) -> None:
    study = study_of(tmp_path / "a")
    best = study.best_trial()
    assert best is not None
    promotion = promote(study, registry, 1 - best.number)
    assert promotion.outcome == "none passes"
    assert f"run --trial 's#{1 - best.number}'" in promotion.steps[0].command
    with pytest.raises(InputError, match="--trial 9 is not a COMPLETE trial"):
        promote(study, registry, 9)


def test_a_training_run_is_its_own_evidence(tmp_path: Path, registry: Registry) -> None:
    study = study_of(tmp_path / "a")
    best = study.best_trial()
    assert best is not None
    run = ProgramStudy(find_study(f"s-run{best.number}", study.storage.url))
    promotion = promote(run, registry)
    assert promotion.outcome == "promoted", promotion.reason
    assert promotion.champion is not None
    bundle = registry.bundle(promotion.champion, ProgramBundle)
    assert bundle.origin.run == bundle.origin.study == run.name


def test_a_challenger_can_be_kept_and_withdrawn(tmp_path: Path, registry: Registry) -> None:
    promotion = promote(study_of(tmp_path / "a"), registry, dry_run=True)
    assert promotion.chosen is not None
    bundle = promotion.chosen.bundle
    assert bundle is not None
    registry.challenger(SLOT, bundle, reason="test")
    assert registry.slot(SLOT).challengers == (bundle.hash,)
    registry.withdraw(SLOT, bundle.hash, "test")
    assert registry.slot(SLOT).challengers == ()


def test_files_that_change_while_they_are_copied_leave_no_champion(
    tmp_path: Path, registry: Registry
) -> None:
    promotion = promote(study_of(tmp_path / "a"), registry, dry_run=True)
    assert promotion.chosen is not None
    bundle = promotion.chosen.bundle
    assert bundle is not None
    bundle.files["files/model.bin"].write_bytes(b"other")
    with pytest.raises(InputError, match=r"model.bin has been changed since it was scored"):
        registry.promote(SLOT, bundle, expected=None, reason="")
    assert registry.slots() == []
    assert list(registry.bundles.iterdir()) == []


def test_a_changed_missing_or_added_file_of_a_bundle_is_refused_at_load(
    tmp_path: Path, registry: Registry
) -> None:
    promotion = promote(study_of(tmp_path / "a"), registry)
    assert promotion.champion is not None
    folder = registry.path(promotion.champion)
    load_bundle(folder)
    model, extra = folder / "files" / "model.bin", folder / "files" / "more"
    content = model.read_bytes()
    extra.write_bytes(b"")
    with pytest.raises(InputError, match=r"does not belong to it: files/more"):
        load_bundle(folder)
    extra.unlink()
    model.chmod(0o644)
    model.write_bytes(content[:-1] + b"!")
    with pytest.raises(InputError, match=r"files/model.bin has been changed"):
        load_bundle(folder)
    model.unlink()
    with pytest.raises(InputError, match=r"lacks its file files/model.bin"):
        load_bundle(folder)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python train.py --lr {lr}", "train"),
        ("python -m pkg.train --lr {lr}", "pkg.train"),
        ("python -m runner pkg.agents:train", "train"),
        ("bash -c 'run {lr}'", "bash"),
        ("./build/solver {lr} {out}/a.txt", "solver"),
        ("env A=1 python scripts/ppo.py", "ppo"),
    ],
)
def test_a_slot_is_named_after_the_script(command: str, name: str) -> None:
    assert program_name(command) == name


def test_large_files_are_copied_before_the_transaction(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    promotion = promote(study_of(tmp_path / "a"), registry, dry_run=True)
    assert promotion.chosen is not None
    bundle = promotion.chosen.bundle
    assert bundle is not None
    copy, copied = bundle_files._copy, list[str]()

    def while_another_writes(*arguments: Any) -> None:
        Registry(registry.folder).refuse("other", f"copy {len(copied)}")  # would wait for a lock
        copied.append(arguments[0].name)
        copy(*arguments)

    monkeypatch.setattr(bundle_files, "_copy", while_another_writes)
    registry.promote(SLOT, bundle, expected=None, reason="")
    assert sorted(copied) == ["empty", "model.bin"]
    registry.challenger("another", bundle, reason="")  # it is there already
    assert len(copied) == 2
    # What waits may be removed as garbage; it is written again then.
    folder = tmp_path / "bundles"
    with bundle_files.staged(bundle, folder) as write:
        for path in folder.iterdir():
            shutil.rmtree(path)
        load_bundle(write())
    assert [path.name for path in folder.iterdir()] == [bundle.name]


def test_large_files_are_not_held_in_memory(tmp_path: Path, registry: Registry) -> None:
    size = 2**25
    text = f"{TEXT}\nopen(out + '/large', 'wb').truncate({size})\n"
    study = study_of(tmp_path / "a", text=text)
    tracemalloc.start()
    try:
        promotion = promote(study, registry)
        assert promotion.champion is not None
        bundle = registry.bundle(promotion.champion, ProgramBundle)
        bundle_files.export_bundle(bundle, tmp_path / "copy")
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (tmp_path / "copy" / "files" / "large").stat().st_size == size
    assert most < size / 2
