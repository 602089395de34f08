"""Search a vectorized environment in ElegantRL's shape, and explore one of sweepd's with ElegantRL.

Search it with: PYTHONPATH=examples sweepd train --env elegantrl_env:make --n-trials 8
"""

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode

from sweepd.parts import NoParams, TensorGame


class Reach:
    """Reach a point on a line: an environment as `explore_vec_env` of ElegantRL steps it."""

    env_name, max_step, state_dim, action_dim, if_discrete = "reach", 50, 2, 1, False

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.generator = num_envs, torch.Generator()
        self.state, self.age = torch.zeros(num_envs, 2), torch.zeros(num_envs)

    def _starts(self):
        return 2.0 * torch.rand(self.num_envs, 2, generator=self.generator) - 1.0

    def reset(self):
        """Return the states, (num_envs, state_dim)."""
        self.state, self.age = self._starts(), torch.zeros(self.num_envs)
        return self.state

    def step(self, action):
        """Return states, rewards and ends, (num_envs, …). Autoreset in the same step."""
        place, goal = self.state.unbind(1)
        place = place + 0.1 * action[:, 0].clamp(-1.0, 1.0)
        self.age = self.age + 1
        done = ((place - goal).abs() < 0.05) | (self.age >= self.max_step)
        reward = -(place - goal).abs()
        moved = torch.stack((place, goal), 1)
        self.state = torch.where(done.unsqueeze(1), self._starts(), moved)
        self.age = torch.where(done, 0.0, self.age)
        return self.state, reward, done, {}


class AsGymnasium(gymnasium.vector.VectorEnv):
    """An environment in ElegantRL's shape as a vector environment of Gymnasium."""

    metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, env) -> None:
        self.env, self.num_envs = env, env.num_envs
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (env.state_dim,))
        self.single_action_space = (
            gymnasium.spaces.Discrete(env.action_dim)
            if env.if_discrete
            else gymnasium.spaces.Box(-1.0, 1.0, (env.action_dim,))
        )

    def reset(self, *, seed=None, options=None):  # noqa: ARG002
        self.env.generator.manual_seed(seed)  # all random numbers must follow from the seed
        self.before, self.age = self.env.reset().numpy(), np.zeros(self.num_envs, int)
        return self.before, {}

    def step(self, actions):
        state, reward, done, _ = self.env.step(torch.as_tensor(actions))
        done, self.age = done.numpy(), self.age + 1
        truncated = done & (self.age >= self.env.max_step)
        # ElegantRL's shape does not show an episode's last state; the one before stands for it.
        infos = {"final_obs": self.before}
        self.before, self.age = state.numpy(), np.where(done, 0, self.age)
        return self.before, reward.numpy(), done & ~truncated, truncated, infos


def make(num_envs: int = 1):
    """Return what sweepd searches."""
    return AsGymnasium(Reach(num_envs))


class ReachGame(TensorGame):
    """The same rules as a game of sweepd: on the device, exactly resumed, and much faster."""

    state_dim, action_dim, if_discrete = 2, 1, False
    max_step, uniforms_per_start = 50, 2

    def start(self, uniforms):
        """Return the first states, from random numbers in [0, 1)."""
        place, goal = (2.0 * uniforms - 1.0).unbind(1)
        return {"place": place, "goal": goal}

    def move(self, state, action, uniforms):  # noqa: ARG002
        """Return the next states, the rewards, and which episodes are over."""
        place = state["place"] + 0.1 * action[:, 0].clamp(-1.0, 1.0)
        gap = (place - state["goal"]).abs()
        return {"place": place, "goal": state["goal"]}, -gap, gap < 0.05

    def see(self, state):
        """Return the observations."""
        return torch.stack((state["place"], state["goal"]), 1)


REACH = ReachGame.game()


class ForElegantRL:
    """An environment of sweepd as `explore_vec_env` steps it; the attributes have the same names."""

    def __init__(self, env) -> None:
        self.env = env
        for name in ("env_name", "num_envs", "max_step", "state_dim", "action_dim", "if_discrete"):
            setattr(self, name, getattr(env, name))

    def reset(self):
        """Return the states."""
        return self.env.reset(0)

    def step(self, action):
        """Return states, rewards and ends."""
        made = self.env.step(action)
        return made.obs, made.reward, made.terminated | made.truncated, {}


def main() -> None:
    """Let an agent of ElegantRL explore both environments."""
    from elegantrl.agents.AgentPPO import AgentPPO
    from elegantrl.train.config import Config

    for env in (Reach(64), ForElegantRL(ReachGame([NoParams()], envs_per_member=64))):
        names = ("env_name", "num_envs", "max_step", "state_dim", "action_dim", "if_discrete")
        arguments = Config(AgentPPO, None, {name: getattr(env, name) for name in names})
        agent = AgentPPO([16, 16], env.state_dim, env.action_dim, gpu_id=-1, args=arguments)
        agent.last_state = env.reset()
        states, *_, rewards, _ = agent.explore_vec_env(env, 32)
        print(f"{env.env_name}: states {tuple(states.shape)}, rewards {tuple(rewards.shape)}")


if __name__ == "__main__":
    main()
