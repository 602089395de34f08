"""Dueling double deep Q-learning (D3QN) for G members at once.

Dueling networks: Wang et al., 2016, arXiv:1511.06581. Double Q-learning: van Hasselt et al., 2016,
arXiv:1509.06461.

It is ElegantRL's `AgentD3QN`, and tests hold its update to that agent's numbers: a `QNetTwinDuel`,
whose two dueling values share their encoder; a smooth-L1 loss of each against r + γ max_a min(Q1',
Q2') of the target network; AdamW and gradient clipping.

It differs in three points. Exploration is decided per row and takes a uniformly random action, with
a probability that decays during training (ElegantRL decides once for all rows and samples from the
softmax of the values); the action is repeated for n steps or more with probability 1 / n (Dabney et
al., 2021, arXiv:2006.01782), without which exploration hardly ever swings Acrobot up. A truncated
episode is bootstrapped with the value of its last observation. And all random numbers come from a
stream per member.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss

from sweepd.agents.algorithms.off_policy import Figures, OffPolicy
from sweepd.agents.algorithms.off_policy_params import D3QNParams
from sweepd.agents.engine.program import Supported
from sweepd.agents.engine.replay import Batch
from sweepd.agents.native.choice import Evaluator
from sweepd.agents.native.off_policy import Trained
from sweepd.agents.networks.initial import new_weights, own_weights, seeded
from sweepd.agents.networks.net import Net, StateDict
from sweepd.agents.networks.shape import Shape
from sweepd.agents.networks.spec import NetSpec
from sweepd.envs.core.seeds import derive_seed
from sweepd.envs.support.upload import upload

__all__ = ["D3QN", "D3QNParams", "D3QNStats"]


class D3QNStats(NamedTuple):
    """Statistics of one rollout per slot, (G,) float32 on the device.

    Values in empty or diverged slots have no meaning. `critic_loss`, `value` and `critic_norm` are
    means over the rollout's gradient steps, and 0 during a member's warm-up.

    Attributes:
        reward: mean per step, as the environment gave it.
        critic_loss: sum over both values.
        value: of the actions in the minibatches.
        critic_norm: gradient norm before clipping.
        explore_rate: probability of starting a random action after the warm-up.
        updates: gradient steps made.
    """

    reward: Tensor
    critic_loss: Tensor
    value: Tensor
    critic_norm: Tensor
    explore_rate: Tensor
    updates: Tensor


class D3QN(OffPolicy):
    """A program of `shape.slots` members, for discrete actions of one choice."""

    algorithm = "d3qn"
    params_type = D3QNParams
    stats_type = D3QNStats
    _learned = "net"
    supports = Supported(running_scale=True, activations=True)
    episode_state = (*OffPolicy.episode_state, "held")

    def __init__(self, shape: Shape, device: torch.device | str = "cpu") -> None:
        self.check_shape(shape)  # before networks, which would be refused in other words
        place = torch.device(device)
        spec = NetSpec.of("QNetTwinDuel", shape)
        self.net = Net.zeros(spec, shape.slots, place)
        self.target = Net.zeros(spec, shape.slots, place)
        # Per row: the random action being repeated, and for how many more steps.
        self._held = torch.zeros(shape.slots, shape.num_envs, 2, device=place)
        networks = {"net": self.net, "target": self.target}
        super().__init__(shape, place, networks, 1, acts="net", discrete=True)

    def export_member(self, slot: int) -> tuple[StateDict, StateDict]:
        """Return (network, target network) as ElegantRL's `QNetTwinDuel` loads them.

        `sweepd.agents.policy.members` saves the first.
        """
        self._member(slot)
        return self.net.member(slot), self.target.member(slot)

    def _update(
        self,
        batch: Batch,
        noise: Tensor | None,  # noqa: ARG002
        running: Tensor,
    ) -> tuple[Tensor, Figures]:
        numbers = self.numbers
        # y = r + γ max_a min(Q1_target(s', a), Q2_target(s', a))
        expected = torch.minimum(*_values(self.target, batch.next_obs)).amax(-1)
        label = batch.reward + batch.alive * numbers["gamma"] * expected
        action = batch.action.to(torch.int64)
        with torch.enable_grad():
            first, second = (
                value.gather(-1, action).squeeze(-1) for value in _values(self.net, batch.obs)
            )
            losses = [
                smooth_l1_loss(value, label, reduction="none").mean(1) for value in (first, second)
            ]
            loss = losses[0] + losses[1]
        norm = self.optimizers["net"].gradients([loss])
        running = self._diverge(running, norm[0])
        self.optimizers["net"].apply(norm, numbers["max_grad_norm"][:, 0], running)
        # The online network bootstraps from a slowly moving copy, for stability.
        self.target.follow(self.net, numbers["soft_update_tau"], running)
        return running, {
            "critic_loss": loss.detach(),
            "value": first.detach().mean(1),
            "critic_norm": norm[0],
        }

    def _trained(self) -> dict[str, Trained]:
        return {
            "critic": Trained.of(self.net, self.optimizers["net"]),
            "target": Trained.of(self.target, None),
        }

    def _noise(self, steps: int) -> Tensor:
        shape = self.shape
        uniform = self.streams.uniform(3 * steps, shape.num_envs)
        return uniform.view(steps, 3, shape.slots, shape.num_envs).permute(0, 2, 3, 1)

    def _update_noise(self) -> None:
        return None

    def _explore(self, obs: Tensor, noise: Tensor, random: Tensor) -> Tensor:
        held, left = self._held.unbind(-1)
        coin, choice, length = noise.unbind(-1)
        # A repeated action runs to its end before another random one may begin.
        begins = (left == 0) & (coin < random[..., 0])
        any_of_them = (choice * self.shape.action_dim).clamp_(max=self.shape.action_dim - 1).floor()
        held = torch.where(begins, any_of_them, held)
        # P(length ≥ n) = P(u ≤ 1/n) = 1/n for uniform u, cut at `explore_hold`.
        left = torch.where(
            begins, torch.minimum((1.0 / length).floor(), self.numbers["explore_hold"]), left
        )
        greedy = self._policy(self._run, obs).view(coin.shape).to(held.dtype)
        self._held = torch.stack((held, (left - 1.0).clamp_(min=0.0)), -1)
        return torch.where(left > 0, held, greedy).unsqueeze(-1)

    def _to_env(self, stored: Tensor) -> Tensor:
        return stored.reshape(-1).to(torch.int64)

    def _policy(self, run: Evaluator, obs: Tensor) -> Tensor:
        # The level and the second value do not affect which option is best.
        options, _ = run(run.net.normalised(obs))
        return options.nan_to_num(nan=0.0).argmax(-1).view(-1)

    def _clear(self, slot: int) -> None:
        super()._clear(slot)
        self._held[slot] = 0

    def _tensors(self, slot: int) -> dict[str, Tensor]:
        return super()._tensors(slot) | {"held": self._held[slot]}

    def _own_figures(self) -> Figures:
        return {"explore_rate": self._explore_rates()}

    def _explore_rates(self) -> Tensor:
        rates = [
            member.params.explore_rate_at(member.rollouts, member.total_rollouts) if member else 0.0
            for member in self.members
        ]
        return upload(torch.tensor(rates, dtype=self.obs.dtype), self.device)

    def _fresh(
        self,
        slot: int,
        params: D3QNParams,  # noqa: ARG002
        seed: int,
        state_avg: Tensor,
        state_std: Tensor,
    ) -> None:
        with seeded(derive_seed(seed, "weights")):
            given = new_weights(self.net.spec) | own_weights(self.net.spec)
        columns = self.shape.state_dim
        given |= {"state_avg": state_avg[:columns], "state_std": state_std[:columns]}
        self.net.put(slot, given)
        self.target.put(slot, given)


def _values(net: Net, obs: Tensor) -> tuple[Tensor, Tensor]:
    """Return both dueling values of every action, (G, rows, action_dim) each."""
    top = net.hidden(net.normalised(obs))

    def dueling(which: int) -> Tensor:
        # Q(s, a) = V(s) + A(s, a) - mean_a A(s, a). (In ElegantRL, "val" and "adv" are swapped.)
        options = net.head(f"net_val{which}.0", top)
        level = net.head(f"net_adv{which}.0", top)
        return net.value(options - options.mean(-1, keepdim=True) + level)

    return dueling(1), dueling(2)
