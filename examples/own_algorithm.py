"""An algorithm of your own that trains all members as one batch: a hill climber.

PYTHONPATH=examples sweepd train --env own_game:TARGET --algo own_algorithm:CLIMBER --n-trials 8
"""

from collections import namedtuple

import torch

from sweepd.parts import AboveZero, Algorithm, Hyperparameters, Program


class Params(Hyperparameters):
    step: AboveZero = 0.3  # standard deviation of the noise on the best weights


class Climber(Program):  # tries noisy weights of a linear policy, and keeps what earns more
    algorithm, params_type = "climber", Params
    stats_type = namedtuple("Stats", ["reward"])  # of a rollout, (G,) each

    def __init__(self, shape, device):
        super().__init__(shape, device)
        self.best = torch.zeros(shape.slots, shape.state_dim, shape.action_dim, device=device)
        self.score = torch.zeros(shape.slots, device=device)

    def _fresh(self, slot, *_):  # a new member: parameters, seed and scale follow
        self.score[slot] = -torch.inf

    def _clear(self, slot):  # an empty slot
        self.best[slot], self.score[slot] = 0.0, 0.0

    def _save(self, slot):  # what a checkpoint holds of a member
        return {"best": self.best[slot], "score": self.score[slot]}

    def _collect(self, env):
        normal = self.streams.normal(1, self.best[0].numel()).view_as(self.best)
        self.tried = self.best + self.numbers["step"][..., None] * normal
        act, self.total = linear(self.tried), torch.zeros(len(self.obs))
        env.draw(self.shape.horizon)
        for _ in range(self.shape.horizon):
            self.total += env.step(act(self.obs), out=self.obs).reward

    def _learn(self):
        reward = self.total.view(self.shape.slots, -1).mean(1) / self.shape.horizon
        better = reward > self.score
        self.best = torch.where(better[:, None, None], self.tried, self.best)
        self.score = torch.where(better, reward, self.score)
        self._diverged |= self._live & ~reward.isfinite()
        return self.stats_type(reward)

    def act_fn(self):
        return linear(self.best.clone())

    def export_member(self, slot):  # the weights of actor and critic
        return {"weights": self.best[slot].to("cpu", copy=True)}, {}


def linear(weights):  # acts on observations (G * k, obs_dim)
    size = len(weights), -1, weights.shape[1], 1
    return lambda obs: (obs.view(size) * weights[:, None]).sum(2).tanh().nan_to_num().flatten(0, 1)


SPACE = "[climber]\nstep = { low = 0.01, high = 1.0, log = true, start = 0.3 }"
CLIMBER = Algorithm.of(Climber, {}, SPACE, continuous=True, horizon=100)
