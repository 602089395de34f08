"""The hyperparameters of PPO, SAC and D3QN under the names of Stable-Baselines3's PPO, SAC and DQN."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sweepd.deploy.export.terms import Lost, Peer, Term, Values, is_one_of, lost, same


class Code(str):
    """A value that is Python code in the exported file."""


@dataclass(frozen=True)
class Schedule:
    """A learning rate that decays: "linear" or "cosine", from `first` to 0."""

    kind: str
    first: float


CLASSES = {"ppo": "PPO", "sac": "SAC", "d3qn": "DQN"}
_MODULES = {"relu": "ReLU", "tanh": "Tanh", "silu": "SiLU", "elu": "ELU"}


def _rate(v: Values) -> float | Schedule:
    kind = v["lr_schedule"]
    return v["learning_rate"] if kind == "constant" else Schedule(kind, v["learning_rate"])


def _layers(v: Values) -> list[int]:
    return [v["net_width"]] * v["net_depth"]


def _optimizer_arguments(v: Values) -> dict[str, float]:
    decay = {"weight_decay": v["weight_decay"]} if v["weight_decay"] else {}
    return {"eps": v["adam_eps"], **decay}


def _sb3_common(networks: Callable[[Values], Any]) -> tuple[Term, ...]:
    """Return the terms of all algorithms. networks: `net_arch`."""
    return (
        same("make_vec_env.n_envs", "num_envs"),
        Term("learn.total_timesteps", ("budget",), lambda v: v["steps"], "whole rollouts"),
        Term(
            "learning_rate",
            ("learning_rate", "lr_schedule"),
            _rate,
            "a function of the remaining progress unless constant",
        ),
        same("gamma", "gamma"),
        same("batch_size", "minibatch"),
        Term("policy_kwargs.net_arch", ("net_width", "net_depth"), networks, "a list of widths"),
        Term(
            "policy_kwargs.activation_fn",
            ("activation",),
            lambda v: Code(f"nn.{_MODULES[v['activation']]}"),
            "a class of torch.nn",
        ),
        Term(
            "policy_kwargs.optimizer_kwargs",
            ("adam_eps", "weight_decay"),
            _optimizer_arguments,
            "eps, weight_decay",
        ),
        Term(
            "policy_kwargs.optimizer_class",
            ("weight_decay",),
            lambda v: Code("optim.AdamW") if v["weight_decay"] else None,
            "AdamW unless 0",
        ),
        Term(
            "VecNormalize.norm_obs",
            ("running_scale",),
            lambda v: v["running_scale"],
            "clip_obs is 10 on both sides",
            lambda v: (
                ""
                if v["running_scale"]
                else "observations were scaled by a fixed mean and deviation, which is not exported: "
                "scale them in the environment, or set norm_obs"
            ),
        ),
    )


def _norm_reward_note(v: Values) -> str:
    if not v["popart_beta"]:
        return ""
    return (
        f"popart_beta = {v['popart_beta']:g} became norm_reward, the nearest: rewards are divided by "
        "the running deviation of returns; here value targets are normalised"
    )


NO_RECURRENCE = Lost(
    "recurrent", is_one_of("recurrent", ""), "sb3-contrib has RecurrentPPO, with LSTM cells only"
)
PER_SEAT = lost("policies", "shared", "a model has one policy")
# Sizes that only recurrent networks and item encoders have.
BPTT = Lost("bptt", lambda v: not v["recurrent"], "see recurrent")
ITEMS = Lost("item_width", is_one_of("item_width", 16), "there is no encoder of items")
ENTITIES = Lost(
    "entity_width", is_one_of("entity_width", 0), "there is no layer that entities share"
)

SB3_PPO = Peer(
    "PPO",
    (
        same("n_steps", "horizon"),
        *_sb3_common(lambda v: {"pi": _layers(v), "vf": _layers(v)}),
        same("n_epochs", "epochs"),
        same("gae_lambda", "gae_lambda"),
        same("clip_range", "clip"),
        same("ent_coef", "entropy_coef"),
        # Their loss is the squared error, ours half of it (up to errors of 1, then linear).
        Term("vf_coef", ("value_coef",), lambda v: v["value_coef"] / 2, "half of it"),
        same("max_grad_norm", "max_grad_norm"),
        # They stop an update at 1.5 times their target.
        Term(
            "target_kl",
            ("target_kl",),
            lambda v: v["target_kl"] / 1.5 if v["target_kl"] else None,
            "divided by 1.5; 0 is None",
        ),
        Term(
            "policy_kwargs.log_std_init",
            ("initial_log_std",),
            lambda v: None if v["discrete"] else v["initial_log_std"],
            "of actions that are numbers",
        ),
        Term(
            "VecNormalize.norm_reward",
            ("popart_beta",),
            lambda v: v["popart_beta"] > 0,
            "on unless 0; similar only",
            _norm_reward_note,
        ),
    ),
    (
        lost("weight_average", 0.0, "the weights of the last update act"),
        NO_RECURRENCE,
        BPTT,
        ITEMS,
        ENTITIES,
        PER_SEAT,
    ),
    (
        "gradient norms are clipped for actor and critic together, here for each",
        "advantages are normalised in each minibatch, here over the whole rollout",
        "the error of values is squared, here linear from 1 on",
    ),
    ("actions are samples of a Gaussian, clipped to the bounds; here its tanh, scaled to them",),
)


def _target_entropy(v: Values) -> float | None:
    # Our estimate of the entropy is half a nat per number low (see `agents.algorithms.sac`).
    return None if v["action_dim"] is None else (v["target_entropy"] + 0.5) * v["action_dim"]


_OFF_POLICY = (
    Term("train_freq", ("horizon",), lambda v: v["horizon"], "steps of every environment"),
    Term("gradient_steps", ("updates",), lambda v: v["updates"]),
    same("buffer_size", "buffer"),
    same("learning_starts", "warmup"),
    Term(
        "make_vec_env.wrapper_class",
        ("reward_scale",),
        lambda v: v["reward_scale"] if v["reward_scale"] != 1 else None,
        "a wrapper unless 1",
    ),
)
SB3_SAC = Peer(
    "SAC",
    (
        *_sb3_common(_layers),
        *_OFF_POLICY,
        same("tau", "soft_update_tau"),
        Term(
            "ent_coef",
            ("initial_alpha",),
            lambda v: f"auto_{v['initial_alpha']!r}",
            'as text, "auto_0.37"',
        ),
        Term(
            "target_entropy",
            ("target_entropy",),
            _target_entropy,
            "half a nat more, times the numbers of an action",
            lambda v: (
                ""
                if v["action_dim"] is not None
                else f"target_entropy = {v['target_entropy']:g} is per number of an action, and how many "
                'there are is not known without the trial\'s weights: it is left at "auto"'
            ),
        ),
    ),
    (lost("max_grad_norm", None, "gradients are not clipped"),),
    (
        "the temperature has the learning rate of the networks, here four times that",
        "the two values have networks of their own, here they share the hidden layers",
        "the error of values is squared, here linear from 1 on",
    ),
)


def _tau_per_step(v: Values) -> float:
    # Their target network follows after every step of the environments, of which a rollout has
    # `horizon`; ours after every gradient step.
    kept = (1.0 - v["soft_update_tau"]) ** (v["updates"] / v["horizon"])
    return float(f"{1.0 - kept:.12g}")


SB3_DQN = Peer(
    "DQN",
    (
        *_sb3_common(_layers),
        *_OFF_POLICY,
        Term(
            "tau",
            ("soft_update_tau", "updates", "horizon"),
            _tau_per_step,
            "1 - (1 - soft_update_tau)^(updates / horizon)",
        ),
        Term("target_update_interval", (), lambda _: 1, "1"),
        same("max_grad_norm", "max_grad_norm"),
        same("exploration_initial_eps", "explore_start"),
        same("exploration_final_eps", "explore_end"),
        same("exploration_fraction", "explore_share"),
    ),
    (lost("explore_hold", 1, "a random action is taken once, not repeated"),),
    (
        "one network of values, neither dueling nor double; here both, with two values",
        "whether to explore is decided for all environments at once, here for each",
    ),
)
SB3 = {"ppo": SB3_PPO, "sac": SB3_SAC, "d3qn": SB3_DQN}
