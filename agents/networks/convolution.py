"""Two convolutional layers before the networks of all members, for image observations.

A smaller relative of the network of Mnih et al. (2015), with filters and strides that depend on the
image's size. A layer is a batched product of patches and filters, one matrix per member, so no
member's numbers depend on another's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from sweepd.envs.support.errors import InputError

ImageShape = tuple[int, int, int]

# (channels, kernel, stride) of both layers, by the least length of an image's smaller side.
_SIZES = {48: ((16, 8, 4), (32, 4, 2)), 24: ((16, 4, 2), (32, 3, 2)), 5: ((16, 3, 1), (32, 3, 2))}
_PATCHES = 2**19  # most numbers in the patches extracted together, per member


class Layer(NamedTuple):
    """One convolutional layer.

    Attributes:
        channels_in: channels that it reads.
        channels: channels that it computes.
        kernel: side of a filter.
        stride: step between patches.
        height: height of its output.
        width: width of its output.
    """

    channels_in: int
    channels: int
    kernel: int
    stride: int
    height: int
    width: int

    @property
    def filter_size(self) -> int:
        """Numbers per filter."""
        return self.channels_in * self.kernel**2


def layers(image_shape: ImageShape | None) -> list[Layer]:
    """Return the layers for images (channels, height, width); none for None.

    Raises:
        InputError: the images are too small or have no channel.
    """
    if image_shape is None:
        return []
    channels, height, width = image_shape
    sizes = next((sizes for least, sizes in _SIZES.items() if min(height, width) >= least), None)
    if channels < 1 or sizes is None:
        raise InputError(
            f"images must have a channel and be at least 5 x 5, and image_shape is {image_shape}."
        )
    made = []
    for channels_out, kernel, stride in sizes:
        # Without padding: a filter covers only places inside the image.
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        made.append(Layer(channels, channels_out, kernel, stride, height, width))
        channels = channels_out
    return made


def features(image_shape: ImageShape) -> int:
    """Return the number of outputs of the last layer."""
    last = layers(image_shape)[-1]
    return last.channels * last.height * last.width


def pixels(obs: Tensor, avg: Tensor, std: Tensor) -> Tensor:
    """Normalise uint8 images: (image - avg) / std.

    Args:
        obs: (G, rows, channels * height * width) uint8.
        avg: (G, 1, …).
        std: (G, 1, …).

    Returns:
        (rows, G, …) float32, contiguous in that order, as the convolutions read it.
    """
    out = avg.new_empty(obs.shape[1], obs.shape[0], obs.shape[2])
    return torch.sub(obs.transpose(0, 1), avg.transpose(0, 1), out=out).div_(std.transpose(0, 1))


class Convolutions:
    """The layers of K networks of each of G members (actors, critics, or both).

    It keeps what `backward` needs. Patches are extracted for a few rows at a time to bound memory;
    how many depends on the image's size alone, so a member's numbers do not depend on slots or
    other members. (oneDNN's convolutions are not used: on processors without AVX-512 their bits
    depend on the number of threads; measured with torch 2.13.)

    Filters are (K * G, channels, filter size) and biases (K * G, 1, channels), network kind by
    kind.
    """

    def __init__(self, image_shape: ImageShape, slots: int) -> None:
        self._image, self._slots, self._layers = image_shape, slots, layers(image_shape)

    def forward(self, filters: list[Tensor], biases: list[Tensor], images: Tensor) -> Tensor:
        """Return the features (K * G, rows, features) of images as `pixels` returns them."""
        slots, networks, rows = self._slots, filters[0].shape[0], images.shape[0]
        # (G or K * G, rows, height, width, channels): a patch is copied in contiguous runs.
        self._planes = [images.view(rows, slots, *self._image).permute(1, 0, 3, 4, 2).contiguous()]
        self._filters = []
        for layer, weight, bias in zip(self._layers, filters, biases, strict=True):
            below, last = self._planes[-1], _channels_last(weight, layer)
            plane = images.new_empty(networks, rows, layer.height, layer.width, layer.channels)
            for part in self._parts(layer, rows):
                patches = _patches(below[:, part], layer)
                # In the first layer, actors and critics read the same images.
                for kind in range(0, networks, len(below)):
                    own = slice(kind, kind + len(below))
                    out = torch.baddbmm(bias[own], patches, last[own].mT)
                    plane[own, part] = out.view(len(below), -1, *plane.shape[2:])
            self._planes.append(plane.relu_())
            self._filters.append(last)
        return self._planes[-1].movedim(-1, 2).reshape(networks, rows, -1)

    def backward(self, d_features: Tensor, d_filters: list[Tensor], d_biases: list[Tensor]) -> None:
        """Write the gradients of filters and biases after `forward`.

        With output gradient Δ (rows * places, channels) through ReLU and patches X (rows * places,
        filter size): dL/dF = Δᵀ X, dL/db = 1ᵀ Δ, and dL/dX = Δ F, added to the places that the
        patches were read from.

        Args:
            d_features: (K * G, rows, features).
            d_filters: written.
            d_biases: written.
        """
        networks, rows = d_features.shape[:2]
        last = self._layers[-1]
        delta = d_features.view(networks, rows, last.channels, last.height, last.width).movedim(
            2, -1
        )
        for index in range(len(self._layers) - 1, -1, -1):
            layer, below, weight = self._layers[index], self._planes[index], self._filters[index]
            above, d_weight = self._planes[index + 1], torch.zeros_like(weight)
            d_below = torch.zeros_like(below)
            d_biases[index].zero_()
            for part in self._parts(layer, rows):
                # Through ReLU: its output is above 0 where its input was.
                d_out = torch.where(above[:, part] > 0, delta[:, part], 0.0).view(
                    networks, -1, layer.channels
                )
                patches, ones = (
                    _patches(below[:, part], layer),
                    d_out.new_ones(networks, 1, d_out.shape[1]),
                )
                # Sums over rows are products with ones, as in
                # `sweepd.agents.networks.mlp.Backward`.
                d_biases[index].baddbmm_(ones, d_out)
                for kind in range(0, networks, len(below)):
                    own = slice(kind, kind + len(below))
                    d_weight[own].baddbmm_(d_out[own].mT, patches)
                if index:  # nothing needs the gradient of the images
                    _add_patches(torch.bmm(d_out, weight), d_below[:, part], layer)
            into = d_filters[index].view(
                networks, layer.channels, layer.channels_in, layer.kernel, layer.kernel
            )
            into.copy_(
                d_weight.view(networks, layer.channels, layer.kernel, layer.kernel, -1).movedim(
                    -1, 2
                )
            )
            delta = d_below

    def _parts(self, layer: Layer, rows: int) -> Iterator[slice]:
        """Yield the rows whose patches are extracted together."""
        size = max(1, _PATCHES // (layer.height * layer.width * layer.filter_size))
        return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def _channels_last(weight: Tensor, layer: Layer) -> Tensor:
    """Reorder filters (N, channels, filter size) to the order of patches."""
    size = len(weight), layer.channels, layer.channels_in, layer.kernel, layer.kernel
    return weight.view(size).movedim(2, -1).reshape(weight.shape)


def _patches(planes: Tensor, layer: Layer) -> Tensor:
    """Return patches (N, rows * places, filter size) of planes (N, rows, height, width, …)."""
    # A view with overlapping windows; `reshape` copies it once, in runs of kernel * channels.
    network, row, line, place, _ = planes.stride()
    windows = planes.as_strided(
        (
            *planes.shape[:2],
            layer.height,
            layer.width,
            layer.kernel,
            layer.kernel * layer.channels_in,
        ),
        (network, row, layer.stride * line, layer.stride * place, line, 1),
        planes.storage_offset(),
    )
    return windows.reshape(len(planes), -1, layer.filter_size)


def _add_patches(d_patches: Tensor, planes: Tensor, layer: Layer) -> None:
    """Add gradients of patches to those of the places that they were read from."""
    size = (
        *planes.shape[:2],
        layer.height,
        layer.width,
        layer.kernel,
        layer.kernel,
        layer.channels_in,
    )
    # One strided addition per place of the filter instead of a scatter with duplicate indices, whose
    # order of additions, and so its last bits, would not be fixed.
    parts, step = d_patches.view(size), layer.stride
    for down in range(layer.kernel):
        lines = slice(down, down + step * (layer.height - 1) + 1, step)
        for right in range(layer.kernel):
            places = slice(right, right + step * (layer.width - 1) + 1, step)
            planes[:, :, lines, places] += parts[:, :, :, :, down, right]
