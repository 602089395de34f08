"""ElegantRL's own agent and loop on sweepd's environments, for comparisons."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from elegantrl.agents.AgentPPO import AgentDiscretePPO, AgentPPO
from elegantrl.train.config import Config
from numpy.typing import NDArray
from torch import Tensor

from sweepd.agents.algorithms.ppo_params import PPOParams
from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.vec_env import VecEnv
from sweepd.envs.support.errors import InputError

Buffer = tuple[Tensor, ...]


class ElegantEnv:
    """A vectorized environment with the interface that ElegantRL's agents expect.

    `step` returns (state, reward, done, info). With one env, states and actions are numpy vectors,
    and `reset` after an episode returns the first state of the episode that the environment has
    already begun.
    """

    def __init__(self, env: VecEnv) -> None:
        if env.spec.privileged_dim:
            raise InputError(
                "ElegantRL's agents do not support privileged columns; turn off time_decay_floor."
            )
        self.env = env
        self.env_name, self.num_envs, self.max_step = env.env_name, env.num_envs, env.max_step
        self.state_dim, self.action_dim, self.if_discrete = (
            env.state_dim,
            env.action_dim,
            env.if_discrete,
        )
        self._state: Tensor | None = None

    def reset(self) -> Any:
        """Return a (num_envs, state_dim) tensor, or a (state_dim,) array for one env."""
        if self._state is None:
            self._state = self.env.reset()
        return self._outward(self._state)

    def step(
        self, action: Tensor | NDArray[np.float32] | int
    ) -> tuple[Any, Any, Any, dict[str, Any]]:
        """Make one step; `done` is terminated or truncated."""
        if self.if_discrete:
            rows = torch.as_tensor(action, dtype=torch.int64, device=self.env.device).view(
                self.num_envs
            )
        else:
            rows = torch.as_tensor(action, dtype=torch.float32, device=self.env.device).view(
                self.num_envs, -1
            )
        self._state, reward, terminated, truncated = self.env.step(rows)
        done = terminated | truncated
        if self.num_envs > 1:
            return self._state, reward, done, {}
        return self._outward(self._state), float(reward[0]), bool(done[0]), {}

    def _outward(self, state: Tensor) -> Any:
        return state if self.num_envs > 1 else state[0].cpu().numpy()


class DiscretePPO(AgentDiscretePPO):  # type: ignore[misc]  # ElegantRL is untyped
    """ElegantRL's discrete agent with a working `explore_vec_env`.

    ElegantRL's own puts (num_envs,) actions where (num_envs, 1) are needed, and fails. Otherwise it
    does the same.
    """

    last_state: Tensor

    def explore_vec_env(self, env: ElegantEnv, horizon_len: int, if_random: bool = False) -> Buffer:  # noqa: ARG002
        """Return states, actions, log-probs, rewards and undones, (horizon_len, num_envs, …)."""
        shape = (horizon_len, self.num_envs)
        states = torch.zeros((*shape, self.state_dim), device=self.device)
        actions = torch.zeros((*shape, 1), device=self.device)
        log_probs, rewards = (
            torch.zeros(shape, device=self.device),
            torch.zeros(shape, device=self.device),
        )
        dones = torch.zeros(shape, dtype=torch.bool, device=self.device)
        state = self.last_state
        for step in range(horizon_len):
            action, log_prob = self.act.get_action(state)
            states[step], actions[step, :, 0], log_probs[step] = state, action, log_prob
            state, rewards[step], dones[step], _ = env.step(self.act.convert_action_for_env(action))
        self.last_state = state
        return states, actions, log_probs, rewards * self.reward_scale, 1.0 - dones.float()


def make_agent(
    env: ElegantEnv, shape: Shape, params: PPOParams, state_avg: Tensor, state_std: Tensor
) -> AgentPPO:
    """Return ElegantRL's `AgentPPO`, or its discrete one, ready to explore `env`.

    It has the network and hyperparameters of a sweepd member; weights come from torch's global
    generator. Its buffer counts steps instead of transitions, so `repeat_times` is epochs x
    num_envs: as many minibatches per rollout. It has no target KL and no schedule; its weight decay
    is AdamW's.
    """
    args = {
        "env_name": env.env_name,
        "num_envs": env.num_envs,
        "max_step": env.max_step,
        "state_dim": env.state_dim,
        "action_dim": env.action_dim,
        "if_discrete": env.if_discrete,
    }
    kind = DiscretePPO if env.if_discrete else AgentPPO
    config = Config(kind, None, args)
    config.net_dims = shape.net_dims
    config.learning_rate = params.learning_rate
    config.gamma = params.gamma
    config.ratio_clip, config.lambda_gae_adv, config.lambda_entropy = (
        params.clip,
        params.gae_lambda,
        params.entropy_coef,
    )
    config.clip_grad_norm = params.max_grad_norm
    config.batch_size, config.horizon_len = shape.minibatch, shape.horizon
    config.repeat_times = float(shape.epochs * env.num_envs)
    agent = kind(
        config.net_dims,
        env.state_dim,
        env.action_dim,
        gpu_id=-1 if env.env.device.type == "cpu" else 0,
        args=config,
    )
    with torch.no_grad():
        if not env.if_discrete:
            agent.act.action_std_log.fill_(params.initial_log_std)
        for network in (agent.act, agent.cri):
            network.state_avg.copy_(state_avg)
            network.state_std.copy_(state_std)
    for optimizer in (agent.act_optimizer, agent.cri_optimizer):
        optimizer.param_groups[0].update(eps=params.adam_eps, weight_decay=params.weight_decay)
    agent.last_state = torch.as_tensor(env.reset(), device=agent.device).view(env.num_envs, -1)
    return agent


def train_rollout(agent: AgentPPO, env: ElegantEnv, horizon: int) -> None:
    """Make one rollout and update.

    Exploration runs under `no_grad`: otherwise autograd would keep the graph of every step.
    """
    with torch.no_grad():
        buffer: Buffer = agent.explore_env(env, horizon)
    agent.update_net(buffer)
