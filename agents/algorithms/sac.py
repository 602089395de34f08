"""Soft actor-critic (SAC; Haarnoja et al., 2018, arXiv:1812.05905) for G members at once.

It is ElegantRL's `AgentSAC`, and tests hold its update to that agent's numbers: `ActorSAC` and
`CriticTwin`; a smooth-L1 loss for each of two values that share their hidden layers; a temperature
alpha tuned at four times the learning rate; the actor's gradient through the mean of the *target*
critic's values; AdamW and gradient clipping for each network.

Two peculiarities of ElegantRL are kept. The log-probability is that of the Gaussian's mean instead
of the action (its gradient is the same; its value is half a nat per dimension too high). And weight
decay also applies to log alpha.

It differs in two points: a truncated episode is bootstrapped with the value of its last
observation, and all random numbers come from a stream per member.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from sweepd.agents.algorithms.off_policy import Figures, OffPolicy
from sweepd.agents.algorithms.off_policy_params import SACParams
from sweepd.agents.engine.program import Supported
from sweepd.agents.engine.replay import Batch
from sweepd.agents.native.choice import Evaluator
from sweepd.agents.native.off_policy import Trained
from sweepd.agents.networks.distributions import HALF_LOG_2PI
from sweepd.agents.networks.initial import new_weights, own_weights, seeded
from sweepd.agents.networks.net import Net, StateDict
from sweepd.agents.networks.optimizer import Adam
from sweepd.agents.networks.portable import exp
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.spec import NetSpec
from sweepd.envs.core.seeds import derive_seed

__all__ = ["SAC", "SACParams", "SACStats"]

LOG_STD = (-16.0, 2.0)
LOG_ALPHA = (-16.0, 2.0)
ALPHA_RATE = 4.0  # factor of alpha's learning rate on the networks'


class SACStats(NamedTuple):
    """Statistics of one rollout per slot, (G,) float32 on the device.

    Values in empty or diverged slots have no meaning. All but `reward` and `updates` are means over
    the rollout's gradient steps, and 0 during a member's warm-up.

    Attributes:
        reward: mean per step, as the environment gave it.
        critic_loss: sum over both values.
        value: of the actor's own actions.
        entropy: in nats, by ElegantRL's estimate.
        alpha: temperature.
        critic_norm: gradient norm before clipping.
        actor_norm: likewise.
        updates: gradient steps made.
    """

    reward: Tensor
    critic_loss: Tensor
    value: Tensor
    entropy: Tensor
    alpha: Tensor
    critic_norm: Tensor
    actor_norm: Tensor
    updates: Tensor


class SAC(OffPolicy):
    """A program of `shape.slots` members, for continuous actions."""

    algorithm = "sac"
    params_type = SACParams
    stats_type = SACStats
    _learned = "critic"
    supports = Supported(running_scale=True, activations=True)

    def __init__(self, shape: Shape, device: torch.device | str = "cpu") -> None:
        self.check_shape(shape)  # before networks, which would be refused in other words
        slots, place = shape.slots, torch.device(device)
        actor, critic = _specs(shape)
        self.actor = Net.zeros(actor, slots, place)
        self.critic = Net.zeros(critic, slots, place)
        self.target = Net.zeros(critic, slots, place)
        self.alpha_log = torch.zeros(1, slots, 1, device=place)
        self.alpha_optimizer = Adam(self.alpha_log)
        networks = {"actor": self.actor, "critic": self.critic, "target": self.target}
        super().__init__(shape, place, networks, shape.action_dim, acts="actor", discrete=False)

    def export_member(self, slot: int) -> tuple[StateDict, StateDict]:
        """See `Program.export_member`; the actor is an `ActorSAC`, the critic a `CriticTwin`."""
        self._member(slot)
        return self.actor.member(slot), self.critic.member(slot)

    def _sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Return sampled actions (G, rows, action_dim), and their log-probabilities (G, rows)."""
        mean, log_std = _outputs(self.actor.forward(self.actor.normalised(obs)))
        action = torch.addcmul(mean, log_std.exp(), noise).tanh()
        # log π = Σ_j [ -log σ_j - log(2π)/2 - log(1 - a_j²) ]: the Gaussian at its mean, minus the
        # change of variables a = tanh(x) (Haarnoja et al., 2018, appendix C). 1e-6 keeps the
        # logarithm finite.
        return action, -(log_std + HALF_LOG_2PI + (1.000001 - action.square()).log()).sum(-1)

    def _update(
        self, batch: Batch, noise: Tensor | None, running: Tensor
    ) -> tuple[Tensor, Figures]:
        assert noise is not None
        numbers, max_norm = self.numbers, self.numbers["max_grad_norm"][:, 0]

        # Critics: y = r + γ (min Q_target(s', a') - α log π(a'|s')), a' from the current policy.
        # No gradient passes through y: training runs under `no_grad`.
        next_action, next_log_prob = self._sample(batch.next_obs, noise[0])
        expected = (
            _values(self.target, batch.next_obs, next_action).amin(-1)
            - next_log_prob * self.alpha_log[0].exp()
        )
        label = (
            (batch.reward + batch.alive * numbers["gamma"] * expected)
            .unsqueeze(-1)
            .expand(-1, -1, 2)
        )
        with torch.enable_grad():
            values = _values(self.critic, batch.obs, batch.action)
            critic_loss = smooth_l1_loss(values, label, reduction="none").mean(1).sum(-1)
        critic_norm = self.optimizers["critic"].gradients([critic_loss])
        running = self._diverge(running, critic_norm[0])
        self.optimizers["critic"].apply(critic_norm, max_norm, running)
        self.target.follow(self.critic, numbers["soft_update_tau"], running)

        # Temperature: d/d(log α) of -log α (target entropy + log π(a|s)).
        with torch.enable_grad():
            action, log_prob = self._sample(batch.obs, noise[1])
        # Without autograd: log α is one number, and its derivative a mean over the batch.
        wanted = numbers["target_entropy"] * self.shape.action_dim
        self.alpha_optimizer.grad[0] = -(wanted + log_prob.detach()).mean(1, keepdim=True)
        alpha_norm = self.alpha_optimizer.grad[..., 0].abs()
        running = self._diverge(running, alpha_norm[0])
        self.alpha_optimizer.apply(alpha_norm, max_norm, running)
        # As in ElegantRL, the actor's loss uses alpha before it is clamped.
        alpha = self.alpha_log[0].exp()
        self.alpha_log.clamp_(*LOG_ALPHA)

        # Actor: minimise α log π(a|s) - Q_target(s, a).
        with torch.enable_grad():
            value = _values(self.target, batch.obs, action).mean((1, 2))
            actor_loss = (log_prob * alpha).mean(1) - value
        actor_norm = self.optimizers["actor"].gradients([actor_loss])
        running = self._diverge(running, actor_norm[0])
        self.optimizers["actor"].apply(actor_norm, max_norm, running)
        return running, {
            "critic_loss": critic_loss.detach(),
            "value": value.detach(),
            "entropy": -log_prob.detach().mean(1),
            "alpha": alpha[:, 0],
            "critic_norm": critic_norm[0],
            "actor_norm": actor_norm[0],
        }

    def _trained(self) -> dict[str, Trained]:
        adams = self.optimizers
        return {
            **{name: Trained.of(net, adams.get(name)) for name, net in self.networks.items()},
            "alpha": Trained(self.alpha_log[0], None, self.alpha_optimizer),
        }

    def _noise(self, steps: int) -> Tensor:
        shape = self.shape
        normal = self.streams.normal(steps, shape.num_envs * shape.action_dim)
        return normal.view(steps, shape.slots, shape.num_envs, shape.action_dim)

    def _update_noise(self) -> Tensor:
        shape = self.shape
        normal = self.streams.normal(2 * shape.updates, shape.minibatch * shape.action_dim)
        return normal.view(shape.updates, 2, shape.slots, shape.minibatch, shape.action_dim)

    def _explore(self, obs: Tensor, noise: Tensor, random: Tensor) -> Tensor:
        mean, log_std = _outputs(self._run(self.actor.normalised(obs)))
        # Φ of a normal number is uniform on (0, 1); 2Φ(x) - 1 = erf(x / √2) on (-1, 1). In float64,
        # since the last bits of erf depend on the processor.
        uniform = torch.erf(noise.double() * math.sqrt(0.5)).to(noise.dtype)
        # During the warm-up actions are uniform; afterwards they are samples of the policy.
        return torch.where(random >= 1.0, uniform, torch.addcmul(mean, exp(log_std), noise).tanh())

    def _to_env(self, stored: Tensor) -> Tensor:
        return stored.nan_to_num(nan=0.0).view(-1, self.shape.action_dim)

    def _policy(self, run: Evaluator, obs: Tensor) -> Tensor:
        return self._to_env(_outputs(run(run.net.normalised(obs)))[0].tanh())

    def _optimizers(self) -> list[tuple[Adam, float]]:
        return [*super()._optimizers(), (self.alpha_optimizer, ALPHA_RATE)]

    def _fresh(
        self, slot: int, params: SACParams, seed: int, state_avg: Tensor, state_std: Tensor
    ) -> None:
        with seeded(derive_seed(seed, "weights")):
            specs = _specs(self.shape)
            actor, critic = (new_weights(spec) | own_weights(spec) for spec in specs)
        columns = self.shape.state_dim
        actor |= {"state_avg": state_avg[:columns], "state_std": state_std[:columns]}
        critic |= {"state_avg": state_avg, "state_std": state_std}
        self.actor.put(slot, actor)
        self.critic.put(slot, critic)
        self.target.put(slot, critic)
        self.alpha_log[0, slot] = min(
            max(math.log(params.initial_alpha), LOG_ALPHA[0]), LOG_ALPHA[1]
        )

    def _clear(self, slot: int) -> None:
        super()._clear(slot)
        self.alpha_log[0, slot] = 0

    def _tensors(self, slot: int) -> dict[str, Tensor]:
        own = {"weights": self.alpha_log[0, slot]} | self.alpha_optimizer.tensors(slot)
        return super()._tensors(slot) | {f"alpha.{name}": part for name, part in own.items()}


def _specs(shape: Shape) -> tuple[NetSpec, NetSpec]:
    return NetSpec.of("ActorSAC", shape), NetSpec.of("CriticTwin", shape, shape.obs_dim)


def _outputs(found: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor]:
    """Return means before tanh and log standard deviations, (G, rows, action_dim) each."""
    mean, log_std = found[0].chunk(2, -1)
    return mean, log_std.clamp(*LOG_STD)


def _values(critic: Net, obs: Tensor, action: Tensor) -> Tensor:
    """Return both values, (G, rows, 2)."""
    output, _ = critic.forward(torch.cat((critic.normalised(obs), action), -1))
    return critic.value(output)
