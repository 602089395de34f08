"""PPO in one file, whose hyperparameters `sweepd train --env command:…` searches.

    sweepd train --search-space examples/programs/ppo_cartpole.toml --n-trials 30 \
        --env 'command:python examples/programs/ppo_cartpole.py --seed {seed}
        --learning-rate {learning_rate} --clip {clip} --entropy {entropy} --steps {budget}'

It reports the mean return of the latest episodes after every rollout. After a kill it continues from
its checkpoint. By hand it prints its reports, and keeps its checkpoint in the current folder.
"""

import argparse
import os

import gymnasium
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

import sweepd

ENVS, HORIZON, EPOCHS, MINIBATCH = 8, 64, 4, 128
GAMMA, LAMBDA = 0.99, 0.95


def layer(inputs, outputs, gain=2**0.5):
    made = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(made.weight, gain)
    nn.init.zeros_(made.bias)
    return made


class Agent(nn.Module):
    """An actor and a critic."""

    def __init__(self, observations, actions):
        super().__init__()
        hidden = (layer(observations, 64), nn.Tanh(), layer(64, 64), nn.Tanh())
        self.actor = nn.Sequential(*hidden, layer(64, actions, 0.01))
        hidden = (layer(observations, 64), nn.Tanh(), layer(64, 64), nn.Tanh())
        self.critic = nn.Sequential(*hidden, layer(64, 1, 1.0))

    def policy(self, obs):
        return Categorical(logits=self.actor(obs))

    def value(self, obs):
        return self.critic(obs).squeeze(-1)


def rollout(envs, agent, obs, returns):
    """Step the environments HORIZON times; return the steps and the next observations.

    `returns` gets the return of every episode that ends.
    """
    rows = {name: [] for name in ("obs", "action", "log_prob", "value", "reward", "done")}
    for _ in range(HORIZON):
        seen = torch.from_numpy(obs)
        with torch.no_grad():
            policy = agent.policy(seen)
            action = policy.sample()
            values = agent.value(seen)
        obs, reward, terminated, truncated, info = envs.step(action.numpy())
        done = terminated | truncated
        if done.any():
            returns += info["final_info"]["episode"]["r"][done].tolist()
        # A truncated episode is worth the value of its last observation.
        reward = torch.from_numpy(reward).float()
        for row in np.flatnonzero(truncated):
            with torch.no_grad():
                reward[row] += GAMMA * agent.value(torch.from_numpy(info["final_obs"][row]))
        step = (seen, action, policy.log_prob(action), values, reward, torch.from_numpy(done))
        for name, value in zip(rows, step, strict=True):
            rows[name].append(value)
    return {name: torch.stack(values) for name, values in rows.items()}, obs


def advantages(agent, rows, obs):
    """Return the generalised advantage estimates, (HORIZON, ENVS)."""
    with torch.no_grad():
        following = agent.value(torch.from_numpy(obs))
    found, last = torch.zeros(HORIZON, ENVS), torch.zeros(ENVS)
    for step in reversed(range(HORIZON)):
        alive = 1.0 - rows["done"][step].float()
        delta = rows["reward"][step] + GAMMA * following * alive - rows["value"][step]
        last = delta + GAMMA * LAMBDA * alive * last
        found[step], following = last, rows["value"][step]
    return found


def update(agent, optimizer, rows, advantage, clip, entropy):
    """Make the gradient steps of a rollout."""
    flat = {name: values.flatten(0, 1) for name, values in rows.items()}
    advantage = advantage.flatten()
    target = advantage + flat["value"]
    for _ in range(EPOCHS):
        for chosen in torch.randperm(ENVS * HORIZON).split(MINIBATCH):
            policy = agent.policy(flat["obs"][chosen])
            ratio = (policy.log_prob(flat["action"][chosen]) - flat["log_prob"][chosen]).exp()
            own = advantage[chosen]
            own = (own - own.mean()) / (own.std() + 1e-8)
            surrogate = torch.minimum(own * ratio, own * ratio.clamp(1.0 - clip, 1.0 + clip))
            error = (agent.value(flat["obs"][chosen]) - target[chosen]).square()
            loss = 0.25 * error.mean() - surrogate.mean() - entropy * policy.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def save(path, content):
    """Write a checkpoint: whole or not at all, since the program may be killed at any time."""
    new = path.with_suffix(".new")
    torch.save(content, new)
    os.replace(new, path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--entropy", type=float, default=0.01)
    args = parser.parse_args()

    envs = gymnasium.make_vec(
        "CartPole-v1",
        ENVS,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP},
        wrappers=[gymnasium.wrappers.RecordEpisodeStatistics],
    )
    torch.manual_seed(args.seed)
    agent = Agent(envs.single_observation_space.shape[0], int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), args.learning_rate, eps=1e-5)
    kept = sweepd.checkpoint_dir() / "checkpoint.pt"
    done, returns = 0, []
    if kept.exists():
        found = torch.load(kept, weights_only=True)
        agent.load_state_dict(found["agent"])
        optimizer.load_state_dict(found["optimizer"])
        done, returns = found["done"], found["returns"]
    # After a kill, with other episodes and random numbers than before it.
    torch.manual_seed(args.seed + done)
    obs, _ = envs.reset(seed=(args.seed + done) % 2**31)
    while done < args.steps:
        rows, obs = rollout(envs, agent, obs, returns)
        update(agent, optimizer, rows, advantages(agent, rows, obs), args.clip, args.entropy)
        done += ENVS * HORIZON
        returns = returns[-20:]
        sweepd.report(done, float(np.mean(returns)) if returns else 0.0)
        state = {"agent": agent.state_dict(), "optimizer": optimizer.state_dict()}
        save(kept, {**state, "done": done, "returns": returns})
    torch.save(agent.state_dict(), sweepd.out_dir() / "agent.pt")


if __name__ == "__main__":
    main()
