"""Exported scripts and entries of the zoo: their text, and what Stable-Baselines3 makes of them."""

from __future__ import annotations

import dataclasses
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from sweepd.deploy.export import sb3
from sweepd.deploy.export.source import Source
from tests.deploy.export.sources import source_of

SMALL = {"budget": 128, "num_envs": 2, "horizon": 32, "net_width": 16, "minibatch": 32, "epochs": 1}
REPLAY = {**SMALL, "buffer": 512, "updates": 2, "warmup": 64}
REPLAY.pop("epochs")
CASES: dict[str, dict[str, Any]] = {
    "ppo, choices": {**SMALL, "discrete": True, "lr_schedule": "linear", "weight_decay": 0.01},
    "ppo, numbers": {**SMALL, "environment": "gym:Pendulum-v1", "initial_log_std": -1.0},
    "ppo, unscaled": {**SMALL, "discrete": True, "running_scale": False, "popart_beta": 0.0},
    "sac": {
        **REPLAY,
        "algorithm": "sac",
        "environment": "gym:Pendulum-v1",
        "lr_schedule": "cosine",
    },
    "d3qn": {**REPLAY, "algorithm": "d3qn", "activation": "silu"},
    "arguments": {
        **SMALL,
        "environment": "gym:FrozenLake-v1",
        "discrete": True,
        "arguments": (("is_slippery", False),),
    },
}


def made(source: Source, folder: Path) -> dict[str, Any]:
    """Return the names of an exported script, run as a module."""
    path = folder / "exported.py"
    path.write_text(sb3.script(source))
    return runpy.run_path(str(path))


@pytest.mark.parametrize("name", CASES)
def test_stable_baselines3_trains_with_an_exported_script(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")
    monkeypatch.chdir(tmp_path)
    source = source_of(**CASES[name])
    script = made(source, tmp_path)
    script["main"]()
    assert (tmp_path / "study-3.zip").exists()
    scaled = source.values["running_scale"] or source.values.get("popart_beta", 0) > 0
    assert (tmp_path / "study-3-normalize.pkl").exists() is scaled
    kind = script[{"ppo": "PPO", "sac": "SAC", "d3qn": "DQN"}[source.algorithm]]
    model = kind.load(tmp_path / "study-3.zip")
    assert model.num_timesteps == script["TOTAL_TIMESTEPS"]
    schedule, values = model.lr_schedule, source.values
    assert schedule(1.0) == pytest.approx(values["learning_rate"])
    half = {"constant": 1.0, "linear": 0.5, "cosine": 0.5}[values["lr_schedule"]]
    assert schedule(0.5) == pytest.approx(half * values["learning_rate"])
    [group] = (model.policy if source.algorithm != "sac" else model.actor).optimizer.param_groups
    assert group["eps"] == values["adam_eps"]
    assert group.get("weight_decay", 0.0) == values["weight_decay"]


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu", "silu"])
def test_weights_in_the_exported_network_give_the_same_means(
    activation: str, tmp_path: Path
) -> None:
    """The exported sizes and activation are those of the trial's actor."""
    pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")
    import torch

    from sweepd.agents.policy.frozen import FrozenPolicy
    from tests.deploy.builders import HIDDEN, random_actor

    actor = random_actor(3, 1, 5, activation=activation)
    member = actor.tensors
    changes = {"net_width": HIDDEN[0], "net_depth": len(HIDDEN), "activation": activation}
    source = source_of(environment="gym:Pendulum-v1", num_envs=1, minibatch=64, **changes)
    script = made(source, tmp_path)
    envs = script["make_vec_env"](**script["ENVIRONMENTS"])
    policy = script["PPO"]("MlpPolicy", envs, **script["PARAMETERS"]).policy
    layers = [
        policy.mlp_extractor.policy_net[0],
        policy.mlp_extractor.policy_net[2],
        policy.action_net,
    ]
    for index, layer in enumerate(layers):
        layer.weight.data.copy_(member[f"net.{2 * index}.weight"])
        layer.bias.data.copy_(member[f"net.{2 * index}.bias"])
    obs = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    seen = (torch.from_numpy(obs) - member["state_avg"]) / member["state_std"]
    mean = policy.get_distribution(seen).distribution.mean
    # Ours is the tanh of the mean, theirs the mean itself.
    ours = FrozenPolicy([actor]).act_batch(obs)
    np.testing.assert_allclose(mean.tanh().detach().numpy(), ours, atol=2e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_script_compiles_and_names_everything_it_uses(name: str) -> None:
    """Without Stable-Baselines3: classes and wrappers are stand-ins that return their arguments."""
    text = sb3.script(source_of(**CASES[name]))
    assert text.startswith("# Trial 3 of study study: ")
    assert all(len(line) <= 100 for line in text.splitlines())
    imports = [line for line in text.splitlines() if line.startswith(("from ", "import "))]
    names = {word for line in imports for word in line.partition("import ")[2].split(", ")}
    body = "\n".join(line for line in text.splitlines() if line not in imports)
    assert all(name in body for name in names), "no import is unused"


@pytest.mark.parametrize("name", CASES)
def test_an_entry_of_the_zoo_is_yaml_whose_numbers_are_numbers(name: str) -> None:
    import torch as th
    from torch import nn

    source = source_of(**CASES[name])
    [(env, entry)] = yaml.safe_load(sb3.zoo_entry(source)).items()
    assert env == source.environment_id
    for key in ("policy_kwargs", "normalize"):
        if key in entry:  # the zoo evaluates them with these names
            assert isinstance(eval(entry[key], {"nn": nn, "th": th}), dict)
    texts = {key for key, value in entry.items() if isinstance(value, str)}
    schedule = {"learning_rate"} if source.values["lr_schedule"] != "constant" else set()
    alpha = {"ent_coef"} if source.algorithm == "sac" else set()
    assert texts - {"normalize", "env_wrapper"} == {"policy", "policy_kwargs"} | schedule | alpha


def test_a_small_number_is_no_text_in_yaml() -> None:
    entry = yaml.safe_load(sb3.zoo_entry(source_of(learning_rate=1e-5, entropy_coef=2.5e-7)))
    values = entry["CartPole-v1"]
    assert (values["learning_rate"], values["ent_coef"]) == (1e-5, 2.5e-7)


def test_what_a_zoo_entry_cannot_have_is_said() -> None:
    source = source_of("d3qn", lr_schedule="cosine", arguments=(("size", 3),))
    notes = " ".join(sb3.zoo_notes(source))
    for words in ("lin_, a linear decay", "env_wrapper", "--env-kwargs size:3"):
        assert words in notes
    comments = [line for line in sb3.zoo_entry(source).splitlines() if line.startswith("#")]
    assert "env_wrapper" in " ".join(comments)


def test_environments_and_schedules_that_need_words_get_them() -> None:
    source = source_of(environment="card-duel", running_scale=False)
    source = dataclasses.replace(source, changed_with="--search pbt")
    notes = " ".join(sb3.notes_of(source))
    for words in ("card-duel is not one of gymnasium.make", "the last ones", "fixed mean"):
        assert words in notes
    image = sb3.script(source_of(image=True, discrete=True))
    assert '"CnnPolicy"' in image


def test_wrappers_are_no_arguments_of_the_environment() -> None:
    arguments = (("size", 3), ("wrappers", ('frame-stack {"frames": 4}',)))
    source = source_of(arguments=arguments)
    assert source.arguments == {"size": 3}
    note = 'the environment is wrapped in frame-stack {"frames": 4}: wrap it there'
    assert any(one.startswith(note) for one in sb3.notes_of(source))
    assert "wrappers" not in sb3.script(source).partition("ENVIRONMENTS")[2]
