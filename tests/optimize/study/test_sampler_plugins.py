"""Samplers and pruners of other packages: searched with, recorded, refused in one sentence."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import optuna
import pytest
import torch

from sweepd.envs.support.errors import InputError
from sweepd.envs.support.plugins import construct, resolve
from sweepd.optimize.objectives.request import Request
from sweepd.optimize.objectives.table import check_request
from sweepd.optimize.study.database.opening import open_storage
from sweepd.optimize.study.database.storage import StudyStorage
from sweepd.optimize.study.record.database import storage_url
from sweepd.optimize.study.sampling.pruners import make_pruner
from sweepd.optimize.study.sampling.samplers import SharedSpaceTPE, make_sampler
from sweepd.optimize.study.study import StudyHandle
from sweepd.optimize.worker.freeze import open_study
from tests.distributions import install
from tests.optimize.study_files import finish

CPU = torch.device("cpu")
HERE = __name__
GP = 'optuna.samplers:GPSampler {"n_startup_trials": 3, "deterministic_objective": true}'
QMC = "optuna.samplers:QMCSampler"
PERCENTILE = 'optuna.pruners:PercentilePruner {"percentile": 50.0, "n_startup_trials": 1}'


class Unseeded(optuna.samplers.RandomSampler):
    """Takes no seed."""

    def __init__(self) -> None:
        super().__init__()


class PruneAll(optuna.pruners.BasePruner):
    """Prunes from a rung on."""

    def __init__(self, rung: int = 1) -> None:
        self.rung = rung

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:  # noqa: ARG002
        return (trial.last_step or 0) >= self.rung


def study_with(
    folder: Path, sampler: str, pruner: str = "none", say: Callable[[str], None] = lambda _: None
) -> StudyHandle:
    storage = open_storage(storage_url(None, folder))
    request = Request(
        env="cartpole",
        search_space="game",
        objective="return",
        sampler=sampler,
        pruner=pruner,
        n_envs=8,
        threads=1,
        episodes=8,
        look_steps=32,
        budget=2048,
        rungs=2,
    )
    return open_study(storage, "s", request, CPU, folder, {}, say)[0]


def finished(handle: StudyHandle, trials: int, at_once: int) -> list[dict[str, object]]:
    """Ask, report and tell trials; return their parameters."""
    while len(handle.trials()) < trials:
        for plan in handle.ask_batch(at_once, "w", trials):
            value = -abs(float(plan.params["clip"]) - 0.2)
            handle.report(plan, 1, value)
            finish(handle, plan.trial_id, value)
        handle = StudyHandle(handle.storage, handle.name)  # as another process
    return [trial.params for trial in handle.trials()]


@pytest.mark.parametrize("sampler", [GP, QMC])
def test_a_seeded_sampler_draws_the_same_in_another_study(sampler: str, tmp_path: Path) -> None:
    drawn = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        drawn.append(finished(study_with(tmp_path / name, sampler), 6, 2))
    assert drawn[0] == drawn[1]
    assert len({params["learning_rate"] for params in drawn[0]}) == 6


def test_a_pruner_with_arguments_judges_the_rungs(tmp_path: Path) -> None:
    handle = study_with(tmp_path, "random", f'{HERE}:PruneAll {{"rung": 2}}')
    plans = handle.ask_batch(2, "w", 2)
    verdicts = []
    for rung in (1, 2):
        for plan in plans:
            handle.report(plan, rung, 0.0)
        verdicts.append(handle.judge(plans))
    assert verdicts == [[False, False], [True, True]]


def test_what_was_used_is_recorded_and_a_change_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    handle = study_with(tmp_path, GP, PERCENTILE, said.append)
    recorded = handle.flags["plugins"]
    assert recorded["sampler"]["name"] == "optuna.samplers:GPSampler"
    assert recorded["sampler"]["version"] == importlib.metadata.version("optuna")
    assert recorded["pruner"]["module"] == "optuna.pruners._percentile"
    assert len(recorded["sampler"]["sha256"]) == 64
    assert not [line for line in said if line.startswith("note:")]
    study_with(tmp_path, GP, PERCENTILE, said.append)
    assert not [line for line in said if line.startswith("note:")]
    monkeypatch.setattr("sweepd.envs.support.plugins.hashlib.sha256", lambda _: Other())
    study_with(tmp_path, GP, PERCENTILE, said.append)
    [first, second] = [line for line in said if line.startswith("note:")]
    assert first.startswith(f"note: --sampler {GP} has changed since study s was created")
    assert second.startswith("note: --pruner ")


class Other:
    """The hash of another file."""

    def hexdigest(self) -> str:
        return "0" * 64


def test_a_sampler_without_a_seed_is_noted(tmp_path: Path) -> None:
    note = f"{HERE}:Unseeded takes no seed, so this study cannot be repeated"
    for _ in ("created", "joined"):
        said: list[str] = []
        handle = study_with(tmp_path, f"{HERE}:Unseeded", say=said.append)
        assert [line for line in said if line.startswith("note: ")] == [f"note: {note}"]
        assert handle.flags["plugins"]["sampler"]["note"] == note
    (tmp_path / "seeded").mkdir()
    handle = study_with(tmp_path / "seeded", GP)
    assert "note" not in handle.flags["plugins"]["sampler"]


HUB = """
import sys
import types
from pathlib import Path

def load_module(package, *, ref="main"):
    if ref == "gone":
        raise OSError("cannot reach the registry\\nmore")
    module = types.ModuleType(f"optunahub_registry.package.{package.replace('/', '.')}")
    module.__file__ = str(Path(__file__).parent / "sampler.py")
    sys.modules[module.__name__] = module
    exec(Path(module.__file__).read_text(), module.__dict__)
    return module
"""
HUB_SAMPLER = "from optuna.samplers import RandomSampler\nclass Drawn(RandomSampler): pass\n"


def test_samplers_of_optunahub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client is not installed here: one of the same form loads a package."""
    with pytest.raises(InputError, match=r"needs OptunaHub's client .* -m pip install optunahub"):
        make_sampler("optunahub:samplers/drawn:Drawn", 1)
    monkeypatch.setitem(sys.modules, "optunahub", None)  # removed at the end
    monkeypatch.delitem(sys.modules, "optunahub")
    files = {"optunahub/__init__.py": HUB, "optunahub/sampler.py": HUB_SAMPLER}
    install(tmp_path / "site", "optunahub", files, {})
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    name = "optunahub:samplers/drawn@v1:Drawn"
    assert type(make_sampler(name, 1)) is type(make_sampler(name, 2))
    identity = resolve("sampler", name, base=optuna.samplers.BaseSampler).identity()
    assert identity["module"] == "optunahub_registry.package.samplers.drawn"
    assert identity["sha256"] == hashlib.sha256(HUB_SAMPLER.encode()).hexdigest()
    study_with(tmp_path, name)
    with pytest.raises(InputError, match=r"cannot be loaded: OSError: cannot reach the registry$"):
        make_sampler("optunahub:samplers/drawn@gone:Drawn", 1)
    with pytest.raises(InputError, match="optunahub:samplers/drawn has nothing called 'Other'"):
        make_sampler("optunahub:samplers/drawn:Other", 1)


def test_a_package_can_register_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"gp": "optuna.samplers:GPSampler", "tpe": "optuna.samplers:GPSampler"}
    install(tmp_path, "kit-of-samplers", {}, {"sweepd.sampler": points})
    monkeypatch.syspath_prepend(str(tmp_path))
    assert isinstance(make_sampler("gp", 1), optuna.samplers.GPSampler)
    assert isinstance(make_sampler("tpe", 1), SharedSpaceTPE)  # what is built in wins
    plugin = resolve("sampler", "gp", base=optuna.samplers.BaseSampler)
    identity = plugin.identity()
    assert (identity["package"], identity["version"]) == ("kit-of-samplers", "1.2.3")
    with pytest.raises(InputError, match="--pruner 'gp' is not known; choose one of hyperband"):
        make_pruner("gp", 4)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"sampler": "nothing"}, "choose one of auto, race, tpe, random, cmaes, or name a class"),
        ({"pruner": "nothing"}, "like optuna.pruners:PercentilePruner"),
        ({"sampler": "optuna.samplers:Nothing"}, "has nothing called 'Nothing'"),
        ({"sampler": "no_such_module:Sampler"}, "No module named 'no_such_module'"),
        ({"sampler": "optuna:Study"}, "is not a subclass of optuna.samplers"),
        ({"sampler": f"{HERE}:PruneAll"}, "is not a subclass of optuna.samplers"),
        ({"sampler": f"{QMC} {{scramble"}, "the arguments are not JSON"),
        ({"sampler": f"{QMC} [1]"}, "must be a JSON object"),
        ({"sampler": f'{QMC} {{"no": 1}}'}, "unexpected keyword argument 'no'"),
        ({"pruner": "optuna.pruners:PercentilePruner"}, "percentile"),
    ],
)
def test_what_cannot_be_used_is_refused(flags: dict[str, str], said: str) -> None:
    request = Request(env="cartpole", search_space="game", objective="return", **flags)
    with pytest.raises(InputError) as raised:
        check_request(request)
    assert said in str(raised.value)
    assert raised.value.flags[0] == f"--{next(iter(flags))}"


def test_arguments_win_over_the_seed() -> None:
    plugin = resolve("sampler", f'{QMC} {{"seed": 7}}', base=optuna.samplers.BaseSampler)
    assert construct("sampler", plugin, seed=3)._seed == 7
    assert isinstance(make_pruner(PERCENTILE, 4), optuna.pruners.PercentilePruner)


def test_the_storage_is_that_of_sweepd(tmp_path: Path) -> None:
    assert isinstance(study_with(tmp_path, QMC).storage, StudyStorage)
