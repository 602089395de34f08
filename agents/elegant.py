"""ElegantRL's own agent on our environments: for comparisons, and the way in for algorithms that are not stacked."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from elegantrl.agents.AgentPPO import AgentPPO
from elegantrl.train.config import Config
from numpy.typing import NDArray
from torch import Tensor

from agents.networks import Shape
from agents.ppo_params import PPOParams
from envs.errors import InputError
from envs.vec_env import VecEnv

Buffer = tuple[Tensor, ...]


class ElegantEnv:
    """A vectorized environment as ElegantRL's agents step it: `step` returns (state, reward, done, info).

    With one env, states and actions are numpy vectors, and the `reset` that ElegantRL asks for after an episode returns
    the new episode that the environment has begun by itself.
    """

    def __init__(self, env: VecEnv) -> None:
        if env.privileged_dim:
            raise InputError("ElegantRL's agents have no columns for the critic alone; turn off time_decay_floor.")
        self.env = env
        self.env_name, self.num_envs, self.max_step = env.env_name, env.num_envs, env.max_step
        self.state_dim, self.action_dim, self.if_discrete = env.state_dim, env.action_dim, env.if_discrete
        self._state: Tensor | None = None

    def reset(self) -> Any:
        """(num_envs, state_dim) tensor, or (state_dim,) array for one env."""
        if self._state is None:
            self._state = self.env.reset()
        return self._outward(self._state)

    def step(self, action: Tensor | NDArray[np.float32]) -> tuple[Any, Any, Any, dict[str, Any]]:
        """One step; terminated and truncated are one `done` to ElegantRL."""
        rows = torch.as_tensor(action, dtype=torch.float32, device=self.env.device).view(self.num_envs, -1)
        self._state, reward, terminated, truncated = self.env.step(rows)
        done = terminated | truncated
        if self.num_envs > 1:
            return self._state, reward, done, {}
        return self._outward(self._state), float(reward[0]), bool(done[0]), {}

    def _outward(self, state: Tensor) -> Any:
        return state if self.num_envs > 1 else state[0].cpu().numpy()


def make_agent(env: ElegantEnv, shape: Shape, params: PPOParams, state_avg: Tensor, state_std: Tensor) -> AgentPPO:
    """ElegantRL's `AgentPPO` with the network and numbers of a member of ours, ready to explore `env`.

    Its buffer counts steps, not transitions, so `repeat_times` is epochs x num_envs: as many minibatches per rollout as
    ours. Weights come from torch's global generator. It has no target-KL and no schedule; its weight decay is AdamW's.
    """
    args = {
        "env_name": env.env_name,
        "num_envs": env.num_envs,
        "max_step": env.max_step,
        "state_dim": env.state_dim,
        "action_dim": env.action_dim,
        "if_discrete": False,
    }
    config = Config(AgentPPO, None, args)
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
    agent = AgentPPO(
        config.net_dims, env.state_dim, env.action_dim, gpu_id=-1 if env.env.device.type == "cpu" else 0, args=config
    )
    with torch.no_grad():
        agent.act.action_std_log.fill_(params.initial_log_std)
        for network in (agent.act, agent.cri):
            network.state_avg.copy_(state_avg)
            network.state_std.copy_(state_std)
    for optimizer in (agent.act_optimizer, agent.cri_optimizer):
        optimizer.param_groups[0].update(eps=params.adam_eps, weight_decay=params.weight_decay)
    agent.last_state = torch.as_tensor(env.reset(), device=agent.device).view(env.num_envs, -1)
    return agent


def train_rollout(agent: AgentPPO, env: ElegantEnv, horizon: int) -> None:
    """One rollout and update of ElegantRL's, exploring under `no_grad` (without it, autograd keeps every step's
    graph).
    """
    with torch.no_grad():
        buffer: Buffer = agent.explore_env(env, horizon)
    agent.update_net(buffer)
