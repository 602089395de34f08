"""Each distribution against torch's own: samples, log-probabilities, entropies, gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from agents.distributions import Categorical, Choices, Distribution, distribution_of
from agents.networks import Shape, new_gradients
from envs.streams import Streams

SLOTS, ROWS = 3, 40
NUMBERS = Shape(state_dim=1, action_dim=4, slots=SLOTS)
ONE_CHOICE = Shape(state_dim=1, action_dim=4, slots=SLOTS, discrete=True)
CHOICES = Shape(state_dim=1, action_dim=9, slots=SLOTS, discrete=True, action_dims=(4, 2, 3))
SHAPES = pytest.mark.parametrize("shape", [NUMBERS, ONE_CHOICE, CHOICES], ids=["numbers", "choice", "choices"])


def make(shape: Shape, outputs: Tensor, log_std: Tensor | None = None) -> Distribution:
    """A distribution with these outputs (G, rows, action_dim), and the deviations of numbers."""
    weights = new_gradients(replace(shape, slots=outputs.shape[0]), torch.device("cpu"))
    if log_std is not None:
        weights.log_std = log_std
    return distribution_of(shape)(shape, outputs, weights)


def torch_version(shape: Shape, outputs: Tensor, log_std: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """(log-probability, entropy), (SLOTS, ROWS) each."""
    if not shape.discrete:
        normal = torch.distributions.Normal(outputs, log_std.exp().expand_as(outputs))
        return normal.log_prob(kept).sum(-1), normal.entropy().sum(-1)
    choices = [torch.distributions.Categorical(logits=logits) for logits in outputs.split(shape.choices, -1)]
    log_probs = [choice.log_prob(index) for choice, index in zip(choices, kept.unbind(-1), strict=True)]
    return torch.stack(log_probs).sum(0), torch.stack([choice.entropy() for choice in choices]).sum(0)


@SHAPES
def test_numbers_and_gradients_are_torchs(shape: Shape) -> None:
    torch.manual_seed(0)
    kind = distribution_of(shape)
    outputs = 2.0 * torch.randn(SLOTS, ROWS, shape.action_dim, dtype=torch.float64)
    log_std = 0.3 * torch.randn(SLOTS, 1, shape.action_dim, dtype=torch.float64)
    outputs.requires_grad_()
    log_std.requires_grad_()
    streams = Streams(SLOTS)
    for slot in range(SLOTS):
        streams.seed(slot, slot)
    noise = kind.noise(shape, streams, 2, ROWS)[1].double()
    kept = torch.empty(SLOTS, ROWS, kind.columns(shape), dtype=torch.float64)
    d_log_prob = torch.randn(SLOTS, ROWS, dtype=torch.float64)
    d_entropy = torch.randn(SLOTS, 1, dtype=torch.float64)
    into = new_gradients(shape, torch.device("cpu"))
    into.log_std = torch.empty_like(log_std)
    with torch.no_grad():
        ours = make(shape, outputs, log_std)
        ours.sample(noise, kept)
        log_prob, entropy = ours.log_prob(kept), ours.entropy().expand(SLOTS, ROWS)
        d_outputs = ours.backward(d_log_prob, d_entropy, into)
    theirs = torch_version(shape, outputs, log_std, kept)
    torch.testing.assert_close((log_prob, entropy), theirs)
    ((theirs[0] * d_log_prob).sum() + (theirs[1] * d_entropy).sum()).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(d_outputs, outputs.grad)
    if not shape.discrete:
        torch.testing.assert_close(into.log_std, log_std.grad)


def test_several_choices_are_drawn_independently() -> None:
    shape = replace(CHOICES, slots=1)
    logits = torch.tensor([0.0, 1.0, -200.0, 2.0, 0.0, 0.5, 1.0, 0.0, -200.0]).expand(1, 20_000, 9)
    streams = Streams(1)
    streams.seed(0, 1)
    kept = torch.empty(1, 20_000, 3)
    make(shape, logits).sample(Choices.noise(shape, streams, 1, 20_000)[0], kept)
    found = torch.zeros(4, 2, 3).index_put_(tuple(kept[0].long().unbind(1)), torch.ones(()), accumulate=True)
    one, two, three = (part.softmax(0) for part in logits[0, 0].split(shape.choices))
    expected = one.view(4, 1, 1) * two.view(2, 1) * three
    torch.testing.assert_close(found / 20_000, expected, atol=0.015, rtol=0.0)
    assert make(shape, logits).mode()[0].tolist() == [3, 1, 0]


def test_choices_come_as_often_as_they_should() -> None:
    logits = torch.tensor([0.0, -200.0, 1.0, 2.0, -200.0]).expand(1, 20_000, 5)
    streams = Streams(1)
    streams.seed(0, 1)
    kept = torch.empty(1, 20_000, 1)
    shape = Shape(state_dim=1, action_dim=5, discrete=True)
    make(shape, logits).sample(Categorical.noise(shape, streams, 1, 20_000)[0], kept)
    counts = kept.long().flatten().bincount(minlength=5)
    assert counts[1] == counts[4] == 0
    torch.testing.assert_close(counts / 20_000, logits[0, 0].softmax(0), atol=0.015, rtol=0.0)


def test_no_noise_leads_past_the_ends_or_to_a_choice_without_weight() -> None:
    largest = 1.0 - 2.0**-24  # of what a stream gives
    logits = torch.cat((torch.randn(500, 7), torch.full((500, 1), -300.0)), 1).unsqueeze(0)
    kept, shape = torch.empty(1, 500, 1), Shape(state_dim=1, action_dim=8, discrete=True)
    make(shape, logits).sample(torch.full((1, 500, 1), largest), kept)
    assert kept.eq(6.0).all()
    make(shape, logits.flip(-1)).sample(torch.zeros(1, 500, 1), kept)
    assert kept.eq(1.0).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@SHAPES
def test_actions_stay_legal_whatever_the_outputs(shape: Shape, bad: float) -> None:
    outputs = torch.full((1, 2, shape.action_dim), bad)
    outputs[0, 1, :2] = 0.0
    distribution, kind = make(shape, outputs), distribution_of(shape)
    kept = torch.empty(1, 2, kind.columns(shape))
    distribution.sample(torch.full((1, 2, kept.shape[-1]), 0.5), kept)
    for action in (kind.to_env(kept), distribution.mode()):
        if not shape.discrete:
            assert (action.abs() <= 1.0).all()
        else:
            assert ((action.view(2, -1) >= 0) & (action.view(2, -1) < torch.tensor(shape.choices))).all()
