"""The hyperparameters of PPO, SAC and D3QN as flags of CleanRL's scripts.

CleanRL's scripts consist of one file each; what is no flag is fixed in them (github.com/vwxyzjn/cleanrl,
commit fe8d8a0).
"""

from __future__ import annotations

from sweepd.deploy.export.sb3_terms import (
    BPTT,
    ENTITIES,
    ITEMS,
    PER_SEAT,
    SB3_DQN,
    SB3_PPO,
    SB3_SAC,
)
from sweepd.deploy.export.terms import Lost, Peer, Term, Values, lost, same, whole


def _minibatches(v: Values) -> int:
    return whole(v["num_envs"] * v["horizon"] / v["minibatch"])


def _minibatch_note(v: Values) -> str:
    samples, count = v["num_envs"] * v["horizon"], _minibatches(v)
    if samples == count * v["minibatch"]:
        return ""
    return (
        f"minibatch = {v['minibatch']} does not divide the {samples} steps of a rollout: "
        f"{count} minibatches have {samples // count} each"
    )


def _clean_network(width: int, depth: int, activation: str) -> tuple[Lost, ...]:
    fixed = f"{depth} hidden layers of {width} with {activation} are fixed in the script"
    return (
        lost("net_width", width, fixed),
        lost("net_depth", depth, fixed),
        lost("activation", activation, fixed),
    )


_CLEAN_ANNEAL = Term(
    "anneal-lr",
    ("lr_schedule",),
    lambda v: v["lr_schedule"] != "constant",
    "on unless constant",
    lambda v: "lr_schedule = cosine became a linear decay" if v["lr_schedule"] == "cosine" else "",
)


def _clean_ppo(script: str, *own: Lost) -> Peer:
    return Peer(
        script,
        (
            Term("total-timesteps", ("budget",), lambda v: v["steps"], "whole rollouts"),
            same("learning-rate", "learning_rate"),
            _CLEAN_ANNEAL,
            same("num-envs", "num_envs"),
            same("num-steps", "horizon"),
            same("gamma", "gamma"),
            same("gae-lambda", "gae_lambda"),
            Term(
                "num-minibatches",
                ("minibatch",),
                _minibatches,
                "num_envs × horizon / minibatch",
                _minibatch_note,
            ),
            same("update-epochs", "epochs"),
            same("clip-coef", "clip"),
            Term("clip-vloss", (), lambda _: False, "off"),
            same("ent-coef", "entropy_coef"),
            same("vf-coef", "value_coef"),
            same("max-grad-norm", "max_grad_norm"),
            Term(
                "target-kl",
                ("target_kl",),
                lambda v: v["target_kl"] or None,
                "unless 0; checked after each epoch",
            ),
        ),
        (
            *_clean_network(64, 2, "tanh"),
            lost("adam_eps", 1e-5, "1e-05 is fixed in the script"),
            lost("weight_decay", 0.0, "the script uses Adam"),
            lost("weight_average", 0.0, "the weights of the last update act"),
            *own,
            lost("recurrent", "", "ppo_atari_lstm.py has an LSTM, for images"),
            BPTT,
            ITEMS,
            ENTITIES,
            PER_SEAT,
        ),
        SB3_PPO.differences,
        SB3_PPO.of_numbers,
    )


CLEAN_PPO = _clean_ppo(
    "ppo.py",
    lost("popart_beta", 0.0, "the script does not scale rewards or value targets"),
    lost("running_scale", False, "the script does not scale observations"),
    Lost("initial_log_std", lambda _: True, "actions are choices"),
)
CLEAN_PPO_NUMBERS = _clean_ppo(
    "ppo_continuous_action.py",
    Lost(
        "popart_beta",
        lambda _: False,
        "the script divides rewards by the running deviation of returns",
    ),
    lost("running_scale", True, "the script scales observations by running statistics"),
    lost("initial_log_std", 0.0, "0 is fixed in the script"),
)
_CLEAN_OFF_POLICY = (
    same("buffer-size", "buffer"),
    same("gamma", "gamma"),
    same("batch-size", "minibatch"),
)
_CLEAN_OFF_LOST = (
    lost("reward_scale", 1.0, "the script does not scale rewards"),
    lost("max_grad_norm", None, "gradients are not clipped"),
    lost("adam_eps", 1e-8, "1e-08 is fixed in the script"),
    lost("weight_decay", 0.0, "the script uses Adam"),
    lost("lr_schedule", "constant", "the learning rate is constant"),
    lost("running_scale", False, "the script does not scale observations"),
)
CLEAN_SAC = Peer(
    "sac_continuous_action.py",
    (
        # The script counts steps of all environments together as one.
        Term(
            "total-timesteps",
            ("budget",),
            lambda v: whole(v["steps"] / v["num_envs"]),
            "divided by num_envs",
        ),
        same("num-envs", "num_envs"),
        *_CLEAN_OFF_POLICY,
        same("tau", "soft_update_tau"),
        Term(
            "learning-starts",
            ("warmup",),
            lambda v: round(v["warmup"] / v["num_envs"]),
            "divided by num_envs",
        ),
        same("policy-lr", "learning_rate"),
        same("q-lr", "learning_rate"),
        Term(
            "policy-frequency",
            ("updates", "horizon"),
            lambda _: 1,
            "1",
            lambda v: (
                ""
                if v["updates"] == v["horizon"]
                else f"updates = {v['updates']} in the {v['horizon']} steps of a rollout became one "
                "gradient step per step of the environments, which is fixed in the script"
            ),
        ),
    ),
    (
        lost(
            "target_entropy", -1.5, "-1 per number of an action is fixed in the script (here -1.5)"
        ),
        lost("initial_alpha", 1.0, "1 is fixed in the script"),
        *_clean_network(256, 2, "relu"),
        *_CLEAN_OFF_LOST,
    ),
    SB3_SAC.differences[1:],
)
CLEAN_DQN = Peer(
    "dqn.py",
    (
        Term("total-timesteps", ("budget",), lambda v: v["steps"], "whole rollouts"),
        same("learning-rate", "learning_rate"),
        *_CLEAN_OFF_POLICY,
        same("tau", "soft_update_tau"),
        same("learning-starts", "warmup"),
        Term(
            "train-frequency",
            ("horizon", "num_envs", "updates"),
            lambda v: whole(v["horizon"] * v["num_envs"] / v["updates"]),
            "num_envs × horizon / updates",
            lambda v: (
                ""
                if v["horizon"] * v["num_envs"] % v["updates"] == 0
                else f"updates = {v['updates']} per {v['horizon'] * v['num_envs']} steps became one every "
                f"{whole(v['horizon'] * v['num_envs'] / v['updates'])}"
            ),
        ),
        # The target network follows after every gradient step.
        Term(
            "target-network-frequency",
            ("horizon", "num_envs", "updates"),
            lambda v: whole(v["horizon"] * v["num_envs"] / v["updates"]),
            "as train-frequency",
        ),
        same("start-e", "explore_start"),
        same("end-e", "explore_end"),
        same("exploration-fraction", "explore_share"),
    ),
    (
        lost("num_envs", 1, "the script takes one environment"),
        lost("explore_hold", 1, "a random action is taken once, not repeated"),
        Lost("net_width", lambda _: False, "hidden layers of 120 and 84 are fixed in the script"),
        lost("net_depth", 2, "hidden layers of 120 and 84 are fixed in the script"),
        lost("activation", "relu", "relu is fixed in the script"),
        *_CLEAN_OFF_LOST,
    ),
    SB3_DQN.differences[:1],
)


def clean_peer(algorithm: str, discrete: bool) -> Peer:
    """Return CleanRL's script for an algorithm of `SB3`. discrete: whether actions are choices."""
    if algorithm == "ppo":
        return CLEAN_PPO if discrete else CLEAN_PPO_NUMBERS
    return CLEAN_SAC if algorithm == "sac" else CLEAN_DQN
