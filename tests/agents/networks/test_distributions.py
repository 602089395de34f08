"""Each distribution against torch's own: samples, log-probabilities, entropies, gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from sweepd.agents.networks.distributions import Categorical, Choices, Distribution, distribution_of
from sweepd.agents.networks.shape import Shape
from sweepd.envs.core.streams import Streams

SLOTS, ROWS = 3, 40
NUMBERS = Shape(state_dim=1, action_dim=4, slots=SLOTS)
ONE_CHOICE = Shape(state_dim=1, action_dim=4, slots=SLOTS, if_discrete=True)
CHOICES = Shape(state_dim=1, action_dim=9, slots=SLOTS, if_discrete=True, action_dims=(4, 2, 3))
CHAIN = replace(CHOICES, autoregressive=True)
MASKED = replace(CHAIN, masked=True)
ONE_MASKED = replace(ONE_CHOICE, masked=True)
EVERY = {
    "numbers": NUMBERS,
    "choice": ONE_CHOICE,
    "choices": CHOICES,
    "chain": CHAIN,
    "masked": MASKED,
}
EVERY["one masked"] = ONE_MASKED
SHAPES = pytest.mark.parametrize("shape", EVERY.values(), ids=EVERY.keys())


def make(shape: Shape, outputs: Tensor, masks: Tensor | None = None) -> Distribution:
    """Return a distribution with outputs (G, rows, action_dim), and its own parameters if any."""
    slots, dtype = outputs.shape[0], outputs.dtype
    torch.manual_seed(7)
    weights = {"action_std_log": 0.3 * torch.randn(slots, 1, shape.action_dim, dtype=dtype)}
    if shape.autoregressive:
        weights = {
            f"chain.{choice}.weight": torch.randn(
                slots, sum(shape.choices[:choice]), shape.choices[choice], dtype=dtype
            )
            for choice in range(1, len(shape.choices))
        }
    elif shape.if_discrete:
        weights = {}
    return distribution_of(shape)(shape, outputs, weights, masks)


def legal(chosen: Tensor) -> Tensor:
    """Rules for choices of 4, 2 and 3 options that depend on the row and earlier choices."""
    rows, choice = chosen.shape
    size = CHOICES.choices[choice]
    mask = torch.ones(rows, size, dtype=torch.bool)
    if choice:
        mask = torch.arange(size) != chosen[:, -1:] % size
    else:
        mask[1::2, 2] = False
    return mask


def masks_of(shape: Shape, kept: Tensor) -> Tensor | None:
    """(SLOTS, ROWS, action_dim): what was legal as these choices were made."""
    if not shape.masked:
        return None
    chosen = kept.view(-1, kept.shape[-1]).long()
    masks = [legal(chosen[:, :choice]) for choice in range(chosen.shape[1])]
    return torch.cat(masks, 1).view(*kept.shape[:2], shape.action_dim)


def torch_version(ours: Distribution, kept: Tensor) -> tuple[Tensor, Tensor]:
    """(log-probability, entropy), (SLOTS, ROWS) each."""
    shape = ours.shape
    if not shape.if_discrete:
        normal = torch.distributions.Normal(
            ours.outputs, ours.weights["action_std_log"].exp().expand_as(ours.outputs)
        )
        return normal.log_prob(kept).sum(-1), normal.entropy().sum(-1)
    log_probs, entropies, chosen = [], [], kept.long()
    for choice, segment in enumerate(ours.outputs.split(shape.choices, -1)):
        logits = segment
        if shape.autoregressive and choice:
            firsts = [sum(shape.choices[:earlier]) for earlier in range(choice)]
            for slot in range(SLOTS):
                for first, index in zip(firsts, chosen[slot].unbind(-1), strict=False):
                    own = torch.arange(SLOTS).view(-1, 1, 1) == slot
                    logits = (
                        logits + own * ours.weights[f"chain.{choice}.weight"][slot][first + index]
                    )
        if ours.masks is not None:
            mask = ours.masks.split(shape.choices, -1)[choice]
            logits = torch.where(mask, logits, -1e20)
        distribution = torch.distributions.Categorical(logits=logits)
        log_probs.append(distribution.log_prob(chosen[..., choice]))
        entropies.append(distribution.entropy())
    return torch.stack(log_probs).sum(0), torch.stack(entropies).sum(0)


@SHAPES
def test_log_probs_entropies_and_gradients_equal_torch(shape: Shape) -> None:
    torch.manual_seed(0)
    kind = distribution_of(shape)
    outputs = 2.0 * torch.randn(SLOTS, ROWS, shape.action_dim, dtype=torch.float64)
    outputs.requires_grad_()
    streams = Streams(SLOTS)
    for slot in range(SLOTS):
        streams.seed(slot, slot)
    noise = kind.noise(shape, streams, 2, ROWS)[1].double()
    kept = torch.empty(SLOTS, ROWS, kind.columns(shape), dtype=torch.float64)
    with torch.no_grad():
        make(shape, outputs).sample(noise, kept, legal)
    ours = make(shape, outputs, masks_of(shape, kept))
    leaves = [outputs, *(weight.requires_grad_() for weight in ours.weights.values())]
    found = ours.log_prob(kept), ours.entropy().expand(SLOTS, ROWS)
    theirs = torch_version(ours, kept)
    torch.testing.assert_close(found, theirs)
    slopes = torch.randn(2, SLOTS, ROWS, dtype=torch.float64).unbind(0)
    ours_by, theirs_by = (torch.autograd.grad(own, leaves, slopes) for own in (found, theirs))
    torch.testing.assert_close(ours_by, theirs_by)
    if ours.masks is not None:
        assert ours_by[0][~ours.masks].eq(0).all()


@pytest.mark.parametrize("shape", [CHOICES, MASKED], ids=["choices", "masked"])
def test_frequencies_of_sequential_choices_equal_their_probabilities(shape: Shape) -> None:
    """Over all 24 actions, in two kinds of rows; illegal actions never occur."""
    rows = 20_000
    logits = torch.tensor([0.0, 1.0, 0.5, 2.0, 0.0, 0.5, 1.0, 0.0, -1.0]).expand(1, rows, 9)
    shape, streams = replace(shape, slots=1), Streams(1)
    streams.seed(0, 1)
    kept = torch.empty(1, rows, 3)
    make(shape, logits).sample(Choices.noise(shape, streams, 1, rows)[0], kept, legal)
    every = torch.cartesian_prod(*(torch.arange(size) for size in shape.choices)).float()
    every = every.repeat_interleave(2, 0).unsqueeze(0)  # in an even row and in an odd one
    masks = masks_of(shape, every)
    expected = make(shape, logits[:, :48], masks).log_prob(every).exp().view(-1, 2)
    found = torch.zeros(2, 4, 2, 3)
    found.index_put_(
        (torch.arange(rows) % 2, *kept[0].long().unbind(1)), torch.ones(()), accumulate=True
    )
    found = found.flatten(1).mT / (rows / 2)
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.0)
    torch.testing.assert_close(expected.sum(0), torch.ones(2))
    if masks is not None:
        possible = (
            masks.gather(-1, (every + torch.tensor([0.0, 4.0, 6.0])).long()).all(-1).view(-1, 2)
        )
        assert not possible.all()
        assert found[~possible].eq(0).all()
        assert expected[~possible].eq(0).all()  # exactly


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 3e38])
def test_illegal_options_are_never_chosen_for_any_outputs(bad: float) -> None:
    outputs = torch.full((1, 4, 9), bad)
    outputs[0, :2, ::2] = -bad
    for noise in (0.0, 0.5, 1.0 - 2.0**-24):
        kept = torch.empty(1, 4, 3)
        distribution = make(replace(MASKED, slots=1), outputs)
        distribution.sample(torch.full((1, 4, 3), noise), kept, legal)
        for action in (kept[0].long(), distribution.mode(legal)):
            for choice in range(3):
                assert legal(action[:, :choice]).gather(1, action[:, choice : choice + 1]).all()


def test_masked_actors_need_legal() -> None:
    with pytest.raises(ValueError, match="needs `legal`"):
        make(MASKED, torch.zeros(SLOTS, ROWS, 9)).mode()


def test_rows_without_a_legal_option_give_no_nan() -> None:
    masks = torch.zeros(SLOTS, ROWS, 9, dtype=torch.bool)
    distribution, kept = (
        make(MASKED, torch.randn(SLOTS, ROWS, 9), masks),
        torch.empty(SLOTS, ROWS, 3),
    )
    nothing = [torch.zeros(SLOTS * ROWS, size, dtype=torch.bool) for size in MASKED.choices]
    distribution.sample(torch.rand(SLOTS, ROWS, 3), kept, lambda chosen: nothing[chosen.shape[1]])
    leaves = [distribution.outputs, *distribution.weights.values()]
    for leaf in leaves:
        leaf.requires_grad_()
    numbers = distribution.log_prob(kept), distribution.entropy()
    gradients = torch.autograd.grad(numbers, leaves, [torch.ones_like(one) for one in numbers])
    for tensor in (kept, *numbers, *gradients):
        assert tensor.isfinite().all()
    assert (kept < torch.tensor(MASKED.choices)).all()


def test_frequencies_of_choices_equal_their_probabilities() -> None:
    logits = torch.tensor([0.0, -200.0, 1.0, 2.0, -200.0]).expand(1, 20_000, 5)
    streams = Streams(1)
    streams.seed(0, 1)
    kept = torch.empty(1, 20_000, 1)
    shape = Shape(state_dim=1, action_dim=5, if_discrete=True)
    make(shape, logits).sample(Categorical.noise(shape, streams, 1, 20_000)[0], kept)
    counts = kept.long().flatten().bincount(minlength=5)
    assert counts[1] == counts[4] == 0
    torch.testing.assert_close(counts / 20_000, logits[0, 0].softmax(0), atol=0.015, rtol=0.0)


def test_extreme_noise_chooses_a_valid_option_with_weight() -> None:
    largest = 1.0 - 2.0**-24  # that a stream returns
    logits = torch.cat((torch.randn(500, 7), torch.full((500, 1), -300.0)), 1).unsqueeze(0)
    kept, shape = torch.empty(1, 500, 1), Shape(state_dim=1, action_dim=8, if_discrete=True)
    make(shape, logits).sample(torch.full((1, 500, 1), largest), kept)
    assert kept.eq(6.0).all()
    make(shape, logits.flip(-1)).sample(torch.zeros(1, 500, 1), kept)
    assert kept.eq(1.0).all()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@SHAPES
def test_actions_stay_legal_for_any_outputs(shape: Shape, bad: float) -> None:
    outputs = torch.full((1, 2, shape.action_dim), bad)
    outputs[0, 1, :2] = 0.0
    distribution, kind = make(shape, outputs), distribution_of(shape)
    kept = torch.empty(1, 2, kind.columns(shape))
    distribution.sample(torch.full((1, 2, kept.shape[-1]), 0.5), kept, legal)
    for action in (kind.to_env(shape, kept), distribution.mode(legal)):
        if not shape.if_discrete:
            assert (action.abs() <= 1.0).all()
        else:
            assert (
                (action.view(2, -1) >= 0) & (action.view(2, -1) < torch.tensor(shape.choices))
            ).all()
