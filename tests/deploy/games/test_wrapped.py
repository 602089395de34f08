"""A wrapped environment from study to champion: what was scored is what plays."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import sweepd
import sweepd.wrappers
from sweepd.deploy.games.bundle import GameBundle
from sweepd.deploy.gates import load_bundle
from sweepd.envs.support.errors import InputError
from sweepd.optimize.objectives.table import objective_of
from sweepd.optimize.study.record.specs import GameSpec
from tests.envs.external.shown import mission

ENV = "tests.envs.external.shown:mission"
WORDS = 'tokens {"key": "mission", "words": ["go", "to", "the", "key"], "length": 6}'
HOT = 'one-hot {"key": "legs"}'
SPACE = """
name = "tiny"
version = 1
[shape]
net_width = { value = 8 }
net_depth = { value = 1 }
minibatch = { value = 32 }
epochs = { value = 1 }
[ppo]
learning_rate = { low = 1e-4, high = 2e-3, log = true }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("wrapped")
    (found / "tiny.toml").write_text(SPACE)
    return found


@pytest.fixture(scope="module")
def study(folder: Path) -> sweepd.Study:
    made = sweepd.create_study("wrapped", **settings(folder, wrappers=[WORDS, HOT]))
    assert made.run()
    return made


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "env": ENV,
        "n_trials": 1,
        "budget": 64,
        "rungs": 1,
        "n_envs": 4,
        "horizon": 8,
        "seeds": 1,
        "episodes": 3,
        "threads": 1,
        "gpu": "cpu",
        "fresh_seeds": 0,
        "slots": 2,
        "sampler": "random",
        "search_space": str(folder / "tiny.toml"),
        "runs_dir": folder / "runs",
        **changes,
    }


def test_the_study_records_the_wrappers_in_order(study: sweepd.Study) -> None:
    spec = study._handle.spec
    assert isinstance(spec, GameSpec)
    assert spec.env == {"wrappers": [WORDS, HOT]}
    flags = [text for name, text in objective_of(ENV).reproducing_flags(spec) if name == "wrapper"]
    assert flags == [WORDS, HOT]


@pytest.mark.usefixtures("study")
def test_other_wrappers_do_not_join(folder: Path) -> None:
    sweepd.create_study("wrapped", **settings(folder))  # those of the study
    sweepd.create_study("wrapped", **settings(folder, wrappers=[WORDS, HOT]))
    with pytest.raises(InputError, match="wrappers"):
        sweepd.create_study("wrapped", **settings(folder, wrappers=[HOT, WORDS]))


def test_the_policy_acts_on_the_wrapped_observation(study: sweepd.Study) -> None:
    policy = sweepd.load_policy(study)
    env = policy.wrap(mission())
    seen, _ = env.reset(seed=0)
    assert seen["legs"].shape == (4,)
    assert policy.action(seen) in (0, 1)
    with pytest.raises(sweepd.RunError):
        policy.action(mission().reset(seed=0)[0])


def test_the_champion_plays_in_the_wrapped_environment(study: sweepd.Study, folder: Path) -> None:
    place = folder / "deployments"
    loose = ["beats-baselines=-9", "ahead-of-baselines=-1", "training-faults=9"]
    promotion = sweepd.promote(study, deployments=place, games=20, limit=loose)
    assert promotion.champion, promotion.to_dict()
    assert re.fullmatch(
        r"tests\.envs\.external\.shown-mission-wrapped_tokens\+one-hot_[0-9a-f]{8}", promotion.slot
    )
    (path,) = place.glob("bundles/*")
    bundle = load_bundle(path)
    assert isinstance(bundle, GameBundle)
    assert bundle.manifest.game.params == {"wrappers": [WORDS, HOT]}
    # It makes the environment that the study scored, and acts in its spaces without it.
    env = bundle.game.make([bundle.params], 2, together=1, device="cpu")
    assert env.state_dim == sweepd.load_policy(study).state_dim
    seen, _ = sweepd.wrappers.wrap(mission(), bundle.manifest.game.params["wrappers"]).reset(seed=1)
    assert bundle.policy.action(seen) == sweepd.load_policy(study).action(seen)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"env": "cartpole", "wrappers": [HOT]}, "--wrapper .* is for environments of others"),
        ({"wrappers": ["nothing"]}, "--wrapper 'nothing' is not known"),
        ({"env_param": ["wrappers=[]"]}, "wrappers have a flag of their own, --wrapper"),
    ],
)
def test_wrappers_without_effect_are_refused(
    folder: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        sweepd.create_study("refused", **settings(folder, **changes))
