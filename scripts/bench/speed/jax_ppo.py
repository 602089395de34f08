"""A PPO in PureJaxRL's style, for comparisons: a population's iteration is one jitted program.

After Lu et al. 2022 (PureJaxRL). Rollout, advantages and all minibatches of an iteration are
compiled by XLA together, for all members, which either share each product (`vmap`) or follow each
other (`lax.map`); which one is faster depends on the sizes. JAX needs its environments in JAX:
CartPole has the real equations; instead of a market it steps `stand_in`, which has a market's
columns and actions and costs next to nothing, so the figures on markets are upper limits of what
JAX could reach. Observations are not normalised here, which saves JAX a pass.

    pip install jax optax
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch

# XLA reads these when it is loaded. One thread: nothing of a product is given to another.
if torch.get_num_threads() == 1:
    os.environ["XLA_FLAGS"] = (
        "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1 "
        + os.environ.get("XLA_FLAGS", "")
    )

import jax
import jax.numpy as jnp
import optax
from jax import Array

from sweepd.agents.algorithms.ppo_params import PPOParams
from sweepd.agents.networks.shape import Shape

Network = list[tuple[Array, Array]]  # (weights, biases) of each layer
Member = tuple[Any, ...]  # parameters, optimizer's state, environments' state, key
SEED = 0


def population(
    members: int, shape: Shape, params: PPOParams, *, together: bool
) -> Callable[[], int]:
    """Compile a population, and return what trains it for one rollout and counts transitions.

    Args:
        members: how many.
        shape: sizes of each; CartPole if actions are discrete, else the stand-in.
        params: hyperparameters, the same for all.
        together: by `vmap`; otherwise one after the other within the program, by `lax.map`.
    """
    start, iterate = _member(shape, params)
    state = jax.vmap(start)(jax.random.split(jax.random.key(SEED), members))
    over = jax.vmap(iterate) if together else lambda one: jax.lax.map(iterate, one)
    train = jax.jit(over, donate_argnums=0)

    def rollout() -> int:
        nonlocal state
        state = jax.block_until_ready(train(state))
        return members * shape.samples

    return rollout


def _member(
    shape: Shape, params: PPOParams
) -> tuple[Callable[[Array], Member], Callable[[Member], Member]]:
    """Return what makes a member of a key, and what trains it for one iteration."""
    first, step, observe = (
        (_first_carts, _step_carts, lambda state: state[:, :4])
        if shape.if_discrete
        else (_first_columns, stand_in, lambda state: state)
    )
    optimizer = optax.chain(
        optax.clip_by_global_norm(params.max_grad_norm),
        optax.adam(params.learning_rate, eps=params.adam_eps),
    )

    def policy(weights: dict[str, Any], obs: Array, action: Array) -> tuple[Array, Array]:
        """Return the log probability of the actions, and the entropy."""
        output = _forward(weights["actor"], obs)
        if shape.if_discrete:
            log_probs = jax.nn.log_softmax(output)
            taken = jnp.take_along_axis(log_probs, action[:, None], 1)[:, 0]
            return taken, -(jnp.exp(log_probs) * log_probs).sum(1)
        log_std = weights["log_std"]
        scaled = (action - output) / jnp.exp(log_std)
        taken = (-0.5 * scaled**2 - log_std - 0.5 * math.log(2 * math.pi)).sum(1)
        return taken, jnp.full(len(obs), (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum())

    def start(key: Array) -> Member:
        key, actor, critic, env = jax.random.split(key, 4)
        weights = {
            "actor": _network(actor, shape, shape.action_dim, 0.01),
            "critic": _network(critic, shape, 1, 1.0),
        }
        if not shape.if_discrete:
            weights["log_std"] = jnp.full(shape.action_dim, params.initial_log_std, jnp.float32)
        return weights, optimizer.init(weights), first(env, shape), key

    def collect(weights: dict[str, Any], carry: Any, _: None) -> tuple[Any, Any]:
        state, key = carry
        key, for_action, for_env = jax.random.split(key, 3)
        obs = observe(state)
        output = _forward(weights["actor"], obs)
        if shape.if_discrete:
            action = taken = jax.random.categorical(for_action, output)
        else:
            noise = jax.random.normal(for_action, output.shape)
            action = output + jnp.exp(weights["log_std"]) * noise
            taken = jnp.clip(action, -1.0, 1.0)
        log_prob, _entropy = policy(weights, obs, action)
        value = _forward(weights["critic"], obs)[:, 0]
        state, reward, done = step(state, taken, for_env)
        return (state, key), (obs, action, log_prob, value, reward, done)

    def advantage(carry: Any, made: Any) -> tuple[Any, Array]:
        carried, following = carry
        value, reward, done = made
        delta = reward + params.gamma * following * (1.0 - done) - value
        carried = delta + params.gamma * params.gae_lambda * (1.0 - done) * carried
        return (carried, value), carried

    def loss(weights: dict[str, Any], batch: Any) -> Array:
        obs, action, old, advantages, returns = batch
        log_prob, entropy = policy(weights, obs, action)
        ratio = jnp.exp(log_prob - old)
        scaled = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        clipped = jnp.clip(ratio, 1.0 - params.clip, 1.0 + params.clip)
        gain = jnp.minimum(scaled * ratio, scaled * clipped).mean()
        error = 0.5 * ((_forward(weights["critic"], obs)[:, 0] - returns) ** 2).mean()
        return params.value_coef * error - gain - params.entropy_coef * entropy.mean()

    def update(carry: Any, batch: Any) -> tuple[Any, None]:
        weights, optimised = carry
        gradients = jax.grad(loss)(weights, batch)
        changes, optimised = optimizer.update(gradients, optimised, weights)
        return (optax.apply_updates(weights, changes), optimised), None

    def iterate(member: Member) -> Member:
        weights, optimised, state, key = member
        (state, key), made = jax.lax.scan(
            lambda carry, _: collect(weights, carry, _), (state, key), None, shape.horizon
        )
        obs, action, log_prob, value, reward, done = made
        last = _forward(weights["critic"], observe(state))[:, 0]
        _, advantages = jax.lax.scan(
            advantage, (jnp.zeros_like(last), last), (value, reward, done), reverse=True
        )
        rows = (obs, action, log_prob, advantages, advantages + value)
        data = [one.reshape(shape.samples, *one.shape[2:]) for one in rows]

        def epoch(carry: Any, key: Array) -> tuple[Any, None]:
            order = jax.random.permutation(key, shape.samples).reshape(-1, shape.minibatch)
            return jax.lax.scan(update, carry, [one[order] for one in data])[0], None

        key, shuffling = jax.random.split(key)
        keys = jax.random.split(shuffling, shape.epochs)
        (weights, optimised), _ = jax.lax.scan(epoch, (weights, optimised), keys)
        return weights, optimised, state, key

    return start, iterate


def _network(key: Array, shape: Shape, outputs: int, gain: float) -> Network:
    sizes = [shape.state_dim, *shape.net_dims, outputs]
    gains = [math.sqrt(2.0)] * len(shape.net_dims) + [gain]
    keys = jax.random.split(key, len(gains))
    return [
        (jax.nn.initializers.orthogonal(gain)(one, (rows, columns)), jnp.zeros(columns))
        for one, gain, rows, columns in zip(keys, gains, sizes, sizes[1:], strict=False)
    ]


def _forward(network: Network, rows: Array) -> Array:
    for weights, biases in network[:-1]:
        rows = jax.nn.relu(rows @ weights + biases)
    weights, biases = network[-1]
    return rows @ weights + biases


def _first_columns(key: Array, shape: Shape) -> Array:
    return jax.random.uniform(key, (shape.num_envs, shape.state_dim), minval=-0.05, maxval=0.05)


def stand_in(state: Array, action: Array, _: Array) -> tuple[Array, Array, Array]:
    """Step an environment of a market's columns that costs next to nothing and never ends."""
    reward = action.mean(1) * state[:, 0]
    return 0.99 * state + 0.01 * action.sum(1, keepdims=True), reward, jnp.zeros_like(reward)


def _first_carts(key: Array, shape: Shape) -> Array:
    start = jax.random.uniform(key, (shape.num_envs, 4), minval=-0.05, maxval=0.05)
    return jnp.concatenate([start, jnp.zeros((shape.num_envs, 1))], 1)


def _step_carts(state: Array, action: Array, key: Array) -> tuple[Array, Array, Array]:
    """Step CartPole-v1 (Barto, Sutton and Anderson 1983), 500 steps at most, with autoreset."""
    position, speed, angle, turning, steps = state.T
    force = jnp.where(action == 1, 10.0, -10.0)
    sine, cosine = jnp.sin(angle), jnp.cos(angle)
    pushed = (force + 0.05 * turning**2 * sine) / 1.1
    turned = (9.8 * sine - cosine * pushed) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
    moved = pushed - 0.05 * turned * cosine / 1.1
    position, speed = position + 0.02 * speed, speed + 0.02 * moved
    angle, turning, steps = angle + 0.02 * turning, turning + 0.02 * turned, steps + 1
    fallen = (jnp.abs(position) > 2.4) | (jnp.abs(angle) > 12 * 2 * math.pi / 360)
    done = fallen | (steps >= 500)
    following = jnp.stack([position, speed, angle, turning, steps], 1)
    start = jax.random.uniform(key, (len(state), 4), minval=-0.05, maxval=0.05)
    start = jnp.concatenate([start, jnp.zeros((len(state), 1))], 1)
    return (
        jnp.where(done[:, None], start, following),
        jnp.ones(len(state)),
        done.astype(jnp.float32),
    )
