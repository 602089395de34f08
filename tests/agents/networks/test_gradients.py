"""A gradient step equals autograd's, for every combination of features.

Features: recurrent networks, images, items, several choices, illegal ones, absent agents. Autograd runs
through a plain network with each member's exported weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal
from torch.nn.functional import one_hot, smooth_l1_loss

from sweepd.agents.algorithms.ppo import PPO, LossTerms
from sweepd.agents.engine.population import _named, _turned
from sweepd.agents.networks.convolution import layers
from sweepd.agents.networks.shape import Shape
from tests.agents.helpers import member_params, start
from tests.agents.networks.plain_items import item_columns
from tests.agents.toy_env import AbsentChoicesEnv, AbsentEnv, ImageEnv, ItemsEnv, MaskedEnv, ToyEnv

MEMBERS, ROWS, STEPS = (0, 3), 24, 6


class AbsentMaskedEnv(AbsentEnv, MaskedEnv):
    """Every action of an absent agent is legal."""

    def legal(self, chosen: Tensor) -> Tensor:
        here = self.present() if self._acting is None else self._acting
        return super().legal(chosen) | ~here.unsqueeze(1)


class AbsentImageEnv(AbsentEnv, ImageEnv):
    """Absent agents see a black image."""

    def _observe(self) -> Tensor:
        here = self.present() if self._acting is None else self._acting
        return torch.where(here.unsqueeze(1), ImageEnv._observe(self), 0)


class AbsentItemsEnv(AbsentEnv, ItemsEnv):
    """Absent agents see no items."""

    def _observe(self) -> Tensor:
        here = self.present() if self._acting is None else self._acting
        return torch.where(here.unsqueeze(1), ItemsEnv._observe(self), 0)


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    """Run in float64, where both agree to the last digits."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def outputs(shape: Shape, weights: dict[str, Tensor], obs: Tensor, side: dict[str, Any]) -> Tensor:
    """(rows, outputs) of one network on (rows, columns) observations; in sequences if recurrent."""
    if shape.image_shape is not None:
        hidden = ((obs - weights["state_avg"]) / weights["state_std"]).view(-1, *shape.image_shape)
        for index, layer in enumerate(layers(shape.image_shape)):
            own = weights[f"conv.{index}.weight"], weights[f"conv.{index}.bias"]
            hidden = torch.conv2d(hidden, *own, layer.stride).relu()
        hidden = hidden.flatten(1)
    elif shape.items is not None:
        hidden = item_columns(
            shape.items, weights, (obs - weights["state_avg"]) / weights["state_std"]
        )
    else:
        hidden = obs[:, : weights["net.0.weight"].shape[1]]
    *below, top = sorted({name.rsplit(".", 1)[0] for name in weights if name.startswith("net.")})
    for name in below:
        hidden = (hidden @ weights[f"{name}.weight"].mT + weights[f"{name}.bias"]).relu()
    if shape.recurrent:
        cell = [weights[f"rnn.{name}"] for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
        state, shown = side["memory"], []
        for step, x in enumerate(hidden.chunk(shape.bptt)):
            before = torch.where(side["starts"].view(shape.bptt, -1)[step].unsqueeze(1), 0.0, state)
            if shape.recurrent == "gru":
                after = torch.gru_cell(x, before, *cell)
            else:
                after = torch.cat(torch.lstm_cell(x, before.chunk(2, 1), *cell), 1)
            state = torch.where(
                side["learned"].view(shape.bptt, -1)[step].unsqueeze(1), after, before
            )
            shown.append(state[:, : shape.net_width])
        hidden = torch.cat(shown)
    return hidden @ weights[f"{top}.weight"].mT + weights[f"{top}.bias"]


def log_prob_and_entropy(
    shape: Shape, weights: dict[str, Tensor], given: Tensor, kept: Tensor, masks: Tensor | None
) -> tuple[Tensor, Tensor]:
    if not shape.if_discrete:
        normal = Normal(given, weights["action_std_log"].exp().expand_as(given))
        return normal.log_prob(kept).sum(-1), normal.entropy().sum(-1)
    made, chosen = (
        [],
        [
            one_hot(index.long(), size)
            for index, size in zip(kept.unbind(-1), shape.choices, strict=True)
        ],
    )
    legal = torch.ones_like(given, dtype=torch.bool) if masks is None else masks
    for choice, (logits, mask) in enumerate(
        zip(given.split(shape.choices, -1), legal.split(shape.choices, -1), strict=True)
    ):
        if shape.autoregressive and choice:
            logits = (
                logits
                + torch.cat(chosen[:choice], -1).to(logits) @ weights[f"chain.{choice}.weight"].mT
            )
        made.append(Categorical(logits=torch.where(mask, logits, -1e20)))
    log_probs = [one.log_prob(kept[:, choice]) for choice, one in enumerate(made)]
    return torch.stack(log_probs).sum(0), torch.stack([one.entropy() for one in made]).sum(0)


def losses(
    ppo: PPO, slot: int, actor: dict[str, Tensor], critic: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the loss of a member's actor and critic on the program's current minibatch."""
    shape, batch, params = ppo.shape, ppo._batch, member_params(MEMBERS[slot])
    learned = torch.ones(ROWS, dtype=torch.bool) if batch.valid is None else batch.valid[slot]
    sides: list[dict[str, Any]] = [{"learned": learned}, {"learned": learned}]
    if shape.recurrent:
        for kind, side in enumerate(sides):
            side |= {
                "memory": batch.memory[slot + kind * len(MEMBERS)],
                "starts": batch.starts[slot],
            }
    masks = None if batch.masks is None else batch.masks[slot]
    given = outputs(shape, actor, batch.obs[slot], sides[0])
    log_prob, entropy = log_prob_and_entropy(shape, actor, given, batch.actions[slot], masks)
    old, advantage, returns = batch.side[slot][:, -3:].unbind(-1)
    ratio = (log_prob - old).exp()
    gain = torch.minimum(
        advantage * ratio, advantage * ratio.clamp(1.0 - params.clip, 1.0 + params.clip)
    )
    value = outputs(shape, critic, batch.obs[slot], sides[1])[:, 0]
    error = params.value_coef * smooth_l1_loss(value, returns, reduction="none")
    return -(gain + params.entropy_coef * entropy)[learned].mean(), error[learned].mean()


@pytest.mark.parametrize("recurrent", ["", "gru", "lstm"])
@pytest.mark.parametrize(
    "kind",
    [
        ToyEnv,
        MaskedEnv,
        AbsentChoicesEnv,
        AbsentMaskedEnv,
        ImageEnv,
        AbsentImageEnv,
        ItemsEnv,
        AbsentItemsEnv,
    ],
)
def test_gradient_step_equals_autograd(kind: type[ToyEnv], recurrent: str) -> None:
    env = kind(len(MEMBERS), 4, cliff=1.2)
    size = {"recurrent": recurrent, "bptt": STEPS, "net_width": 9, "minibatch": ROWS}
    ppo = start(env, dict(enumerate(MEMBERS)), **size, autoregressive=bool(env.spec.action_dims))
    ppo.train(env, 2)
    ppo.population.averaged[:] = False  # so that the exported weights are those of the step
    with torch.no_grad():
        ppo.rollout.collect(env, ppo.streams)
        ppo.rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"], ppo._activations)
        torch.manual_seed(1)
        for leaf in ppo.population.weights.every():  # so that ratios and errors differ
            leaf += 0.15 * torch.randn_like(leaf)
        ppo.population.weights.log_std.clamp_(max=0.0)
        rows = ppo.rollout.index.batches(ppo.streams.permutations(1, ppo.rollout.index.items))[0]
        terms = LossTerms.of(ppo.numbers, ppo.population, ROWS)
        ppo._minibatch(rows, torch.zeros(len(MEMBERS), dtype=torch.bool), terms, stop_early=True)
    counted = ppo._batch.valid
    assert counted is None or (counted.any(1).all() and not counted.all())
    for slot in range(len(MEMBERS)):
        networks = ppo.export_member(slot)
        for network in networks:
            for part in network.values():
                part.requires_grad_(part.is_floating_point())
        for network, loss, ours in zip(
            networks,
            losses(ppo, slot, *networks),
            _named(ppo.optimizer.grads, slot, ppo.shape),
            strict=True,
        ):
            theirs = torch.autograd.grad(
                loss, [network[name] for name in ours], materialize_grads=True
            )
            for (name, own), other in zip(ours.items(), theirs, strict=True):
                torch.testing.assert_close(
                    _turned(name, own), other, rtol=1e-9, atol=1e-12, msg=name
                )
