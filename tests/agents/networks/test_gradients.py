"""The gradients of a step are those of a plain loss of torch's own modules, member by member.

For combinations of recurrent networks, images, items, several choices, illegal ones, absent
agents and policies per seat.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal
from torch.nn.functional import one_hot, smooth_l1_loss

from sweepd.agents.algorithms.ppo import PPO
from sweepd.agents.networks.net import Net
from sweepd.agents.networks.recurrence import Memory
from sweepd.envs.core.vec_env import VecEnv
from tests.agents.helpers import member_params, start
from tests.agents.networks.plain import Plain
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


def log_prob_and_entropy(
    actor: Plain, given: Tensor, actions: Tensor, masks: Tensor | None
) -> tuple[Tensor, Tensor]:
    spec = actor.spec
    if not spec.discrete:
        normal = Normal(given, actor.action_std_log.exp().expand_as(given))
        return normal.log_prob(actions).sum(-1), normal.entropy().sum(-1)
    pairs = zip(actions.unbind(-1), spec.sizes, strict=True)
    chosen = [one_hot(index.long(), size) for index, size in pairs]
    legal = torch.ones_like(given, dtype=torch.bool) if masks is None else masks
    segments = zip(given.split(spec.sizes, -1), legal.split(spec.sizes, -1), strict=True)
    log_probs, entropies = [], []
    for choice, (segment, mask) in enumerate(segments):
        logits = segment
        if spec.autoregressive and choice:
            earlier = torch.cat(chosen[:choice], -1).to(logits)
            logits = logits + actor.chain[str(choice)](earlier)
        made = Categorical(logits=torch.where(mask, logits, -1e20))
        log_probs.append(made.log_prob(actions[:, choice]))
        entropies.append(made.entropy())
    return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)


def losses(ppo: PPO, slot: int, actor: Plain, critic: Plain) -> tuple[Tensor, Tensor]:
    """Return the loss of a member's actor and critic on the program's current minibatch."""
    batch, params = ppo._batch, member_params(MEMBERS[slot])
    counted = torch.ones(ROWS, dtype=torch.bool) if batch.valid is None else batch.valid[slot]
    memories = batch.memories() if ppo.shape.recurrent else (None, None)
    obs, made = batch.obs[slot], []
    for network, memory in zip((actor, critic), memories, strict=True):
        own = None
        if memory is not None:
            assert memory.starts is not None
            live = None if memory.live is None else memory.live[slot]
            own = Memory(memory.state[slot], memory.starts[slot], live)
        x = network.normalised(obs) if obs.dtype == torch.uint8 else obs
        made.append(network(x, own)[0])
    masks = None if batch.masks is None else batch.masks[slot]
    log_prob, entropy = log_prob_and_entropy(actor, made[0], batch.actions[slot], masks)
    old, advantage, returns = batch.side[slot][:, -3:].unbind(-1)
    ratio = (log_prob - old).exp()
    clipped = ratio.clamp(1.0 - params.clip, 1.0 + params.clip)
    gain = torch.minimum(advantage * ratio, advantage * clipped)
    error = params.value_coef * smooth_l1_loss(made[1][:, 0], returns, reduction="none")
    return -(gain + params.entropy_coef * entropy)[counted].mean(), error[counted].mean()


def check_gradients(ppo: PPO, env: VecEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare the gradients of a minibatch with those of plain networks."""
    ppo.train(env, 2)
    ppo.population.averaged[:] = False  # so that the exported weights are those of the step
    nets = ppo.population.actor, ppo.population.critic
    torch.manual_seed(1)
    with torch.no_grad():
        ppo.rollout.collect(env, ppo.streams)
        ppo.rollout.estimate(ppo.numbers["gamma"], ppo.numbers["gae_lambda"])
        for net in nets:  # so that ratios and errors differ
            for weight in net.weights.values():
                weight += 0.15 * torch.randn_like(weight)
        nets[0].weights.get("action_std_log", torch.zeros(1)).clamp_(max=0.0)
        rows = ppo.rollout.index.batches(ppo.streams.permutations(1, ppo.rollout.index.items))[0]
        monkeypatch.setattr(ppo.optimizer, "apply", lambda *_: None)  # it overwrites gradients
        ppo._minibatch(rows, torch.zeros(len(MEMBERS), dtype=torch.bool), stop_early=True)
    counted = ppo._batch.valid
    assert counted is None or (counted.any(1).all() and not counted.all())
    gradients = [
        Net(net.spec, grad[:, : net.flat.shape[1]])
        for net, grad in zip(nets, ppo.optimizer.grad, strict=True)
    ]
    for slot in range(len(MEMBERS)):
        pairs = zip(nets, ppo.export_member(slot), strict=True)
        plain = [Plain.of(net.spec, tensors) for net, tensors in pairs]
        for network, loss, gradient in zip(
            plain, losses(ppo, slot, *plain), gradients, strict=True
        ):
            names, leaves = zip(*network.named_parameters(), strict=True)
            theirs = torch.autograd.grad(loss, leaves, materialize_grads=True)
            ours = gradient.member(slot)
            for name, other in zip(names, theirs, strict=True):
                torch.testing.assert_close(ours[name], other, rtol=1e-9, atol=1e-12, msg=name)


KINDS = (
    ToyEnv,
    MaskedEnv,
    AbsentChoicesEnv,
    AbsentMaskedEnv,
    ImageEnv,
    AbsentImageEnv,
    ItemsEnv,
    AbsentItemsEnv,
)


@pytest.mark.parametrize(
    ("kind", "recurrent"),
    [(kind, "") for kind in KINDS] + list(zip(KINDS, ("gru", "lstm") * 4, strict=True)),
)
def test_gradients_are_those_of_a_plain_loss(
    kind: type[ToyEnv], recurrent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = kind(len(MEMBERS), 4, cliff=1.2)
    size = {"recurrent": recurrent, "bptt": STEPS, "net_width": 9, "minibatch": ROWS}
    ppo = start(env, dict(enumerate(MEMBERS)), **size, autoregressive=bool(env.spec.action_dims))
    check_gradients(ppo, env, monkeypatch)
