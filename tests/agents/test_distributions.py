"""Each distribution against torch's own: samples, log-probabilities, entropies, gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agents.distributions import Categorical, Distribution, Gaussian
from envs.streams import Streams

SLOTS, ROWS, ACTIONS = 3, 40, 4


def torch_version(kind: type[Distribution], outputs: Tensor, log_std: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """(log-probability, entropy), (SLOTS, ROWS) each."""
    if kind is Gaussian:
        normal = torch.distributions.Normal(outputs, log_std.exp().expand_as(outputs))
        return normal.log_prob(kept).sum(-1), normal.entropy().sum(-1)
    choice = torch.distributions.Categorical(logits=outputs)
    return choice.log_prob(kept[..., 0]), choice.entropy()


@pytest.mark.parametrize("kind", [Gaussian, Categorical])
def test_numbers_and_gradients_are_torchs(kind: type[Distribution]) -> None:
    torch.manual_seed(0)
    outputs = 2.0 * torch.randn(SLOTS, ROWS, ACTIONS, dtype=torch.float64)
    log_std = 0.3 * torch.randn(SLOTS, 1, ACTIONS, dtype=torch.float64)
    if kind is Categorical:
        log_std = log_std[..., :0]
    outputs.requires_grad_()
    log_std.requires_grad_()
    streams = Streams(SLOTS)
    for slot in range(SLOTS):
        streams.seed(slot, slot)
    noise = kind.noise(streams, 2, ROWS, ACTIONS)[1].double()
    kept = torch.empty(SLOTS, ROWS, kind.columns(ACTIONS), dtype=torch.float64)
    d_log_prob = torch.randn(SLOTS, ROWS, dtype=torch.float64)
    d_entropy = torch.randn(SLOTS, 1, dtype=torch.float64)
    d_log_std = torch.empty_like(log_std)
    with torch.no_grad():
        ours = kind(outputs, log_std)
        ours.sample(noise, kept)
        log_prob, entropy = ours.log_prob(kept), ours.entropy().expand(SLOTS, ROWS)
        d_outputs = ours.backward(d_log_prob, d_entropy, d_log_std)
    theirs = torch_version(kind, outputs, log_std, kept)
    torch.testing.assert_close((log_prob, entropy), theirs)
    ((theirs[0] * d_log_prob).sum() + (theirs[1] * d_entropy).sum()).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(d_outputs, outputs.grad)
    if kind is Gaussian:
        torch.testing.assert_close(d_log_std, log_std.grad)


def test_choices_come_as_often_as_they_should() -> None:
    logits = torch.tensor([0.0, -200.0, 1.0, 2.0, -200.0]).expand(1, 20_000, 5)
    streams = Streams(1)
    streams.seed(0, 1)
    kept = torch.empty(1, 20_000, 1)
    Categorical(logits, torch.empty(1, 1, 0)).sample(Categorical.noise(streams, 1, 20_000, 5)[0], kept)
    counts = kept.long().flatten().bincount(minlength=5)
    assert counts[1] == counts[4] == 0
    torch.testing.assert_close(counts / 20_000, logits[0, 0].softmax(0), atol=0.015, rtol=0.0)


def test_no_noise_leads_past_the_ends_or_to_a_choice_without_weight() -> None:
    largest = 1.0 - 2.0**-24  # of what a stream gives
    logits = torch.cat((torch.randn(500, 7), torch.full((500, 1), -300.0)), 1).unsqueeze(0)
    kept = torch.empty(1, 500, 1)
    Categorical(logits, torch.empty(1, 1, 0)).sample(torch.full((1, 500, 1), largest), kept)
    assert kept.eq(6.0).all()
    Categorical(logits.flip(-1), torch.empty(1, 1, 0)).sample(torch.zeros(1, 500, 1), kept)
    assert kept.eq(1.0).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", [Gaussian, Categorical])
def test_actions_stay_legal_whatever_the_outputs(kind: type[Distribution], bad: float) -> None:
    outputs = torch.full((1, 2, 3), bad)
    outputs[0, 1, :2] = 0.0
    distribution = kind(outputs, torch.zeros(1, 1, 3))
    kept = torch.empty(1, 2, kind.columns(3))
    distribution.sample(torch.full((1, 2, kept.shape[-1]), 0.5), kept)
    for action in (kind.to_env(kept), distribution.mode()):
        if kind is Gaussian:
            assert (action.abs() <= 1.0).all()
        else:
            assert ((action >= 0) & (action < 3)).all()
