"""Every hyperparameter has a name in other libraries, or is said to have none."""

from __future__ import annotations

import ast
import dataclasses
import itertools
import re
from pathlib import Path
from typing import Any

import pytest

from sweepd.agents.algorithms.table import get_algorithm
from sweepd.agents.networks.normaliser import CLIP
from sweepd.deploy.export import cleanrl, record, sb3
from sweepd.deploy.export.cleanrl_terms import clean_peer
from sweepd.deploy.export.sb3_terms import CLASSES, SB3
from sweepd.deploy.export.source import SHAPE_DEFAULTS, Source
from sweepd.deploy.export.terms import Peer
from sweepd.envs.support.errors import InputError
from tests.deploy.export.sources import source_of

ROOT = Path(__file__).resolve().parents[3]
# Values that differ from the defaults, of what cannot be multiplied by 2.
OTHERS: dict[str, Any] = {
    "gamma": 0.5,
    "gae_lambda": 0.5,
    "lr_schedule": "cosine",
    "activation": "elu",
    "recurrent": "gru",
    "policies": "per-seat",
    "popart_beta": 0.25,
    "weight_average": 0.25,
    "soft_update_tau": 0.5,
    "explore_start": 0.5,
    "initial_log_std": -3.0,
    "target_kl": 0.03,
    "weight_decay": 0.01,
    "running_scale": False,
}
# A kind of actions, with what has no effect on its training.
KINDS = [
    ("ppo", False, ()),
    ("ppo", True, ("initial_log_std",)),
    ("sac", False, ()),
    ("d3qn", True, ()),
]
FLAGS = {  # of CleanRL's scripts, from their class Args
    "ppo.py": "env-id total-timesteps learning-rate num-envs num-steps anneal-lr gamma gae-lambda "
    "num-minibatches update-epochs norm-adv clip-coef clip-vloss ent-coef vf-coef max-grad-norm "
    "target-kl",
    "sac_continuous_action.py": "env-id total-timesteps num-envs buffer-size gamma tau batch-size "
    "learning-starts policy-lr q-lr policy-frequency target-network-frequency alpha autotune",
    "dqn.py": "env-id total-timesteps learning-rate num-envs buffer-size gamma tau "
    "target-network-frequency batch-size start-e end-e exploration-fraction learning-starts "
    "train-frequency",
}
FLAGS["ppo_continuous_action.py"] = FLAGS["ppo.py"]


def names_of(algorithm: str) -> list[str]:
    """Return all hyperparameters and sizes that a trial of an algorithm may have."""
    entry = get_algorithm(algorithm)
    sizes = {**entry.shape, **entry.optional, **entry.extras}
    params = list(entry.params.model_fields)
    return [*params, *sizes, "num_envs", "horizon", "running_scale"]


def exported(source: Source, to: str) -> str:
    """Return everything that an export tells."""
    write = {"sb3": sb3.script, "zoo3": sb3.zoo_entry, "cleanrl": cleanrl.command}
    notes = {"sb3": sb3.notes_of, "zoo3": sb3.zoo_notes, "cleanrl": cleanrl.notes_of}
    return "\n".join([write[to](source), *notes[to](source)])


@pytest.mark.parametrize(("algorithm", "discrete", "without"), KINDS)
@pytest.mark.parametrize("to", ["sb3", "zoo3", "cleanrl"])
def test_every_parameter_is_exported_or_said_to_be_lost(
    to: str, algorithm: str, discrete: bool, without: tuple[str, ...]
) -> None:
    base = source_of(algorithm, discrete=discrete)
    before = exported(base, to)
    for name in names_of(algorithm):
        if name in without or (name == "bptt" and base.values["recurrent"] == ""):
            continue
        value = OTHERS.get(name, base.values[name])
        changed = value if name in OTHERS else value * 2 or 1.0
        assert changed != base.values[name], name
        after = exported(source_of(algorithm, discrete=discrete, **{name: changed}), to)
        assert after != before, f"{name} = {changed} changes nothing"


def test_steps_of_truncated_backpropagation_are_said_of_recurrent_networks() -> None:
    texts = {exported(source_of(recurrent="gru", bptt=steps), "sb3") for steps in (8, 16)}
    assert len(texts) == 2


@pytest.mark.parametrize("peer", [*SB3.values(), *(clean_peer(*k[:2]) for k in KINDS)])
def test_tables_name_parameters_that_exist(peer: Peer) -> None:
    known = set(itertools.chain(*map(names_of, SB3))) | {"budget"}
    named = {name for term in peer.terms for name in term.ours} | {one.ours for one in peer.lost}
    assert named <= known
    theirs = [term.theirs for term in peer.terms]
    assert len(theirs) == len(set(theirs))
    if peer.name in FLAGS:
        assert set(theirs) <= set(FLAGS[peer.name].split())


def test_defaults_of_sizes_are_those_of_the_table() -> None:
    entry = get_algorithm("ppo")
    assert {**entry.optional, **entry.extras} == SHAPE_DEFAULTS
    assert CLIP == 10.0, "VecNormalize's clip_obs, too"


@pytest.mark.parametrize(
    ("changes", "theirs", "value"),
    [
        ({"value_coef": 0.5}, "vf_coef", 0.25),
        ({"target_kl": 0.03}, "target_kl", pytest.approx(0.02)),
        ({"target_kl": 0.0}, "target_kl", None),
        (
            {"net_width": 32, "net_depth": 3},
            "policy_kwargs.net_arch",
            {"pi": [32] * 3, "vf": [32] * 3},
        ),
        (
            {"weight_decay": 0.1},
            "policy_kwargs.optimizer_kwargs",
            {"eps": 1e-5, "weight_decay": 0.1},
        ),
        ({"budget": 1_000, "num_envs": 8, "horizon": 64}, "learn.total_timesteps", 1_024),
        ({"discrete": True}, "policy_kwargs.log_std_init", None),
        ({"algorithm": "sac", "target_entropy": -1.0, "action_dim": 6}, "target_entropy", -3.0),
        ({"algorithm": "sac", "weights": False}, "target_entropy", None),
        (
            {"algorithm": "d3qn", "soft_update_tau": 0.02, "updates": 32, "horizon": 16},
            "tau",
            pytest.approx(1 - 0.98**2),
        ),
    ],
)
def test_numbers_are_converted_for_stable_baselines3(
    changes: dict[str, Any], theirs: str, value: Any
) -> None:
    source = source_of(**changes)
    assert SB3[source.algorithm].given(source.values).get(theirs) == value


def test_cleanrl_counts_minibatches_and_says_what_does_not_divide() -> None:
    source = source_of(minibatch=128, discrete=True)
    assert "--num-minibatches 4" in cleanrl.command(source)
    assert not any("divide" in note for note in cleanrl.notes_of(source))
    source = source_of(minibatch=100, discrete=True)
    assert "--num-minibatches 5" in cleanrl.command(source)
    assert any("5 minibatches have 102 each" in note for note in cleanrl.notes_of(source))


def test_reasons_of_several_parameters_are_said_once() -> None:
    source = source_of(net_width=32, activation="relu", discrete=True)
    [note] = [note for note in cleanrl.notes_of(source) if "hidden layers" in note]
    assert note.startswith(
        "net_width = 32, activation = relu: no counterpart, 2 hidden layers of 64"
    )


@pytest.mark.parametrize("to", ["sb3", "zoo3", "cleanrl"])
def test_other_algorithms_are_refused(to: str) -> None:
    source = source_of("ppo")
    other = dataclasses.replace(
        source, spec=dataclasses.replace(source.spec, algorithm="elegantrl:ppo")
    )
    with pytest.raises(
        InputError, match=r"elegantrl:ppo has no counterpart in .*ppo, sac, d3qn have"
    ):
        exported(other, to)
    assert '"algorithm": "elegantrl:ppo"' in record.described(other)


def test_cleanrl_needs_to_know_the_kind_of_actions() -> None:
    with pytest.raises(InputError, match="--runs-dir"):
        cleanrl.command(source_of(weights=False))
    with pytest.raises(InputError, match="CleanRL has scripts with a network"):
        cleanrl.command(source_of(image=True))
    assert "sac_continuous_action.py" in cleanrl.command(source_of("sac", weights=False))


def test_a_record_of_another_version_is_refused_with_the_name() -> None:
    source = source_of()
    params = {k: v for k, v in source.record.learner_params.items() if k != "clip"}  # type: ignore[union-attr]
    old = dataclasses.replace(
        source, record=dataclasses.replace(source.record, learner_params=params)
    )
    with pytest.raises(InputError, match="not recorded its clip"):
        sb3.script(old)


def test_the_script_by_hand_has_as_many_lines_as_the_page_says() -> None:
    page = (ROOT / "docs" / "tutorials" / "from_sb3.md").read_text()
    [code] = re.findall(r'title="by_hand.py" }\n(.*?)```', page, re.S)
    ast.parse(code)
    lines = sum(1 for line in code.splitlines() if line.strip())
    assert re.findall(r"(\d+)(?: lines|, and the search space grows)", page) == [str(lines)] * 2


def test_the_documented_table_of_names_is_the_mapping() -> None:
    """Each row of docs/reference/export.md: our names, PPO's, SAC's and DQN's, the conversion."""
    page = (ROOT / "docs" / "reference" / "export.md").read_text()
    found = {
        (class_, theirs, ours, how)
        for line in page.splitlines()
        if line.startswith("| `") and line.count("|") == 5
        for theirs, ours, classes, how in [[cell.strip() for cell in line.strip("| ").split(" | ")]]
        for class_ in classes.split(", ")
    }
    expected = {
        (
            peer.name,
            f"`{term.theirs}`",
            ", ".join(f"`{name}`" for name in term.ours),
            term.how or "same",
        )
        for peer in SB3.values()
        for term in peer.terms
        if term.ours
    }
    assert found == expected
    for peer in SB3.values():
        for one in peer.lost:
            assert re.search(rf"`{one.ours}`", page), one.ours
    assert {*CLASSES} == {*SB3}
