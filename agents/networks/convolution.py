"""Convolutional layers before the networks of all members, for image observations.

Two layers, a smaller relative of the network of Mnih et al. (2015), with filters and strides that
depend on the image's size. A layer is a batched product of patches and filters, one matrix per
member, so no member's numbers depend on another's. (oneDNN's convolutions are not used: on
processors without AVX-512 their bits depend on the number of threads; measured with torch 2.13.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sweepd.agents.networks.part import Part
from sweepd.agents.networks.products import add_product, plus_product, product, rounded
from sweepd.envs.support.errors import InputError

ImageShape = tuple[int, int, int]


class Filters(NamedTuple):
    """The filters of a layer, which cover only places inside the image.

    Attributes:
        channels: that it computes.
        kernel: side of a filter.
        stride: step between patches.
    """

    channels: int
    kernel: int
    stride: int


# By the least length of an image's smaller side.
_SIZES = {
    48: (Filters(16, 8, 4), Filters(32, 4, 2)),
    24: (Filters(16, 4, 2), Filters(32, 3, 2)),
    5: (Filters(16, 3, 1), Filters(32, 3, 2)),
}
_PATCHES = 2**19  # most numbers in the patches extracted together, per member


def filters_for(image: ImageShape) -> tuple[Filters, ...]:
    """Return the layers for images (channels, height, width).

    Raises:
        InputError: the images are too small or have no channel.
    """
    channels, height, width = image
    for least, filters in _SIZES.items():
        if channels >= 1 and min(height, width) >= least:
            return filters
    raise InputError(
        f"images must have a channel and be at least 5 x 5, and image_shape is {image}."
    )


def planes(image: ImageShape, filters: Sequence[Filters]) -> list[ImageShape]:
    """Return the shape of the image and of each layer's output.

    Raises:
        InputError: a layer does not fit.
    """
    found = [image]
    for channels, kernel, stride in filters:
        _, *sides = found[-1]
        height, width = ((side - kernel) // stride + 1 for side in sides)
        if min(channels, kernel, stride, height, width) < 1:
            raise InputError(f"filters {list(filters)} do not fit images of {list(image)}.")
        found.append((channels, height, width))
    return found


def features(image: ImageShape, filters: Sequence[Filters]) -> int:
    """Return the number of outputs of the last layer."""
    channels, height, width = planes(image, filters)[-1]
    return channels * height * width


def parts(image: ImageShape | None, filters: Sequence[Filters]) -> list[Part]:
    """Return the weights of the layers; none for None."""
    found = []
    for index, (channels, kernel, _) in enumerate(filters if image else ()):
        assert image is not None
        below = planes(image, filters)[index][0]
        size, shape = below * kernel**2, (channels, below, kernel, kernel)
        found.append(Part(f"conv.{index}.weight", channels, size, "filters", shape))
        found.append(Part(f"conv.{index}.bias", 1, channels, "filter bias"))
    return found


def convolved(
    weights: Mapping[str, Tensor], image: ImageShape, filters: Sequence[Filters], x: Tensor
) -> Tensor:
    """Return the features (N, rows, features) of normalised images (N, rows, columns)."""
    if x.dtype == torch.float64 and not torch.is_grad_enabled():
        return _of_frozen(weights, image, filters, x)
    plane = x.view(*x.shape[:2], *image).movedim(2, -1)
    for index, (own, below) in enumerate(zip(filters, planes(image, filters), strict=False)):
        weight, bias = weights[f"conv.{index}.weight"], weights[f"conv.{index}.bias"]
        # Filters in the order of patches: channels last.
        size = *weight.shape[:2], below[0], own.kernel, own.kernel
        weight = weight.view(size).movedim(2, -1).flatten(2)
        plane = _Convolution.apply(plane.contiguous(), weight, bias, own)  # type: ignore[no-untyped-call]
    return plane.movedim(-1, 2).flatten(2)


def _of_frozen(
    weights: Mapping[str, Tensor], image: ImageShape, filters: Sequence[Filters], x: Tensor
) -> Tensor:
    """Return what `convolved` does, by torch's convolutions, the networks as groups of one.

    Those of float64 are not oneDNN's, and `torch.export` takes them for any number of rows.
    """
    networks, rows = x.shape[:2]
    plane = x.view(networks, rows, *image).transpose(0, 1).flatten(1, 2)
    for index, own in enumerate(filters):
        below = plane.shape[1] // networks
        weight = weights[f"conv.{index}.weight"].reshape(-1, below, own.kernel, own.kernel)
        bias = weights[f"conv.{index}.bias"].flatten()
        plane = torch.conv2d(plane, weight, bias, own.stride, groups=networks).relu()
    return plane.view(rows, networks, -1).transpose(0, 1)


class _Convolution(torch.autograd.Function):
    """One layer with ReLU: (N, rows, height, width, channels) to the same of its output.

    Patches are extracted for a few rows at a time to bound memory, again in the backward pass; how
    many depends on the image's size alone.

        y = max(X Fᵀ + b, 0);   with Δ through ReLU: dL/dF = Δᵀ X,  dL/db = 1ᵀ Δ,  dL/dX = Δ F

    with patches X (rows * places, filter size); dL/dX is added to the places that the patches were
    read from.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, filters: Filters) -> Tensor:
        count, rows, *sides, _ = x.shape
        height, width = ((side - filters.kernel) // filters.stride + 1 for side in sides)
        out = x.new_empty(count, rows, height, width, filters.channels)
        for part in _parts(out, weight, rows):
            patches = _patches(x[:, part], out, filters)
            places = plus_product(bias, patches, weight.mT)
            out[:, part] = places.view(out[:, part].shape)
        ctx.filters = filters
        ctx.save_for_backward(x, weight, out.relu_())
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, out = ctx.saved_tensors
        d_weight, d_bias = torch.zeros_like(weight), weight.new_zeros(len(x), 1, weight.shape[1])
        d_x = torch.zeros_like(x) if ctx.needs_input_grad[0] else None
        for part in _parts(out, weight, x.shape[1]):
            # Through ReLU: its output is above 0 where its input was.
            d_out = rounded(torch.where(out[:, part] > 0, grads[0][:, part], 0.0).flatten(1, 3))
            add_product(d_weight, d_out.mT, rounded(_patches(x[:, part], out, ctx.filters)))
            # A product with ones, as in `sweepd.agents.networks.layers`.
            add_product(d_bias, d_out.new_ones(len(x), 1, d_out.shape[1]), d_out)
            if d_x is not None:
                _add_patches(product(d_out, rounded(weight)), d_x[:, part], out, ctx.filters)
        return d_x, d_weight, d_bias, None


def _parts(out: Tensor, weight: Tensor, rows: int) -> Iterator[slice]:
    """Yield the rows whose patches are extracted together."""
    size = max(1, _PATCHES // (out.shape[2] * out.shape[3] * weight.shape[2]))
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def _patches(x: Tensor, out: Tensor, filters: Filters) -> Tensor:
    """Return patches (N, rows * places, filter size) of x (N, rows, height, width, channels)."""
    # A view with overlapping windows; `reshape` copies it once, in runs of kernel * channels.
    network, row, line, place, _ = x.stride()
    run = filters.kernel * x.shape[-1]
    windows = x.as_strided(
        (*x.shape[:2], out.shape[2], out.shape[3], filters.kernel, run),
        (network, row, filters.stride * line, filters.stride * place, line, 1),
        x.storage_offset(),
    )
    return windows.reshape(len(x), -1, filters.kernel * run)


def _add_patches(d_patches: Tensor, d_x: Tensor, out: Tensor, filters: Filters) -> None:
    """Add gradients of patches to those of the places that they were read from."""
    kernel, step = filters.kernel, filters.stride
    size = (*d_x.shape[:2], out.shape[2], out.shape[3], kernel, kernel, d_x.shape[-1])
    # One strided addition per place of the filter instead of a scatter with duplicate indices, whose
    # order of additions, and so its last bits, would not be fixed.
    by_place = d_patches.view(size)
    for down in range(kernel):
        lines = slice(down, down + step * (out.shape[2] - 1) + 1, step)
        for right in range(kernel):
            places = slice(right, right + step * (out.shape[3] - 1) + 1, step)
            d_x[:, :, lines, places] += by_place[:, :, :, :, down, right]
