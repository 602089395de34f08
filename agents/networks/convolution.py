"""Two layers of convolutions before the networks of all members, for observations that are images.

A smaller relative of the network of Mnih et al. (2015): filters and strides by the image's size. A layer is a batched
matrix product, one matrix per member, so no member's numbers depend on another's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from envs.support.errors import InputError

ImageShape = tuple[int, int, int]

# (channels, kernel, stride) of both layers, for images whose smaller side is at least this long.
_SIZES = {48: ((16, 8, 4), (32, 4, 2)), 24: ((16, 4, 2), (32, 3, 2)), 5: ((16, 3, 1), (32, 3, 2))}
_PATCHES = 2**19  # numbers in the patches that are made together, per member


class Layer(NamedTuple):
    """One layer: channels it reads and makes, side of its filters and their stride, and the image that it makes."""

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
    """The layers for images of (channels, height, width); none where observations are numbers. Raises InputError."""
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
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        made.append(Layer(channels, channels_out, kernel, stride, height, width))
        channels = channels_out
    return made


def features(image_shape: ImageShape) -> int:
    """Numbers that the last layer makes of an image."""
    last = layers(image_shape)[-1]
    return last.channels * last.height * last.width


def pixels(obs: Tensor, avg: Tensor, std: Tensor) -> Tensor:
    """(G, rows, channels * height * width) uint8 images, as (rows, G, …) float32, normalised; avg, std: (G, 1, …)."""
    out = avg.new_empty(
        obs.shape[1], obs.shape[0], obs.shape[2]
    )  # laid out like that, too, for the convolutions
    return torch.sub(obs.transpose(0, 1), avg.transpose(0, 1), out=out).div_(std.transpose(0, 1))


class Convolutions:
    """The layers of K networks of each of G members: actors, critics, or both. Remembers what `backward` needs.

    Each layer is a batched matrix product of patches and filters. (oneDNN's convolutions give other bits with other
    numbers of threads on processors without AVX-512: measured, torch 2.13.) Patches are made for a few rows at a time,
    to bound memory. The number of rows depends on the image's size alone, so a member's numbers don't depend on slots
    or other members.

    filters[l] (K * G, channels, filter size), biases[l] (K * G, 1, channels), kind by kind.
    """

    def __init__(self, image_shape: ImageShape, slots: int) -> None:
        self._image, self._slots, self._layers = image_shape, slots, layers(image_shape)

    def forward(self, filters: list[Tensor], biases: list[Tensor], images: Tensor) -> Tensor:
        """images as `pixels` gives them. Returns (K * G, rows, features)."""
        slots, networks, rows = self._slots, filters[0].shape[0], images.shape[0]
        # (G or K * G, rows, height, width, channels): whole runs of numbers are copied into a patch.
        self._planes = [images.view(rows, slots, *self._image).permute(1, 0, 3, 4, 2).contiguous()]
        self._filters = []
        for layer, weight, bias in zip(self._layers, filters, biases, strict=True):
            below, last = self._planes[-1], _channels_last(weight, layer)
            plane = images.new_empty(networks, rows, layer.height, layer.width, layer.channels)
            for part in self._parts(layer, rows):
                patches = _patches(below[:, part], layer)
                for kind in range(
                    0, networks, len(below)
                ):  # both kinds read the member's image in the first layer
                    own = slice(kind, kind + len(below))
                    out = torch.baddbmm(bias[own], patches, last[own].mT)
                    plane[own, part] = out.view(len(below), -1, *plane.shape[2:])
            self._planes.append(plane.relu_())
            self._filters.append(last)
        return self._planes[-1].movedim(-1, 2).reshape(networks, rows, -1)

    def backward(self, d_features: Tensor, d_filters: list[Tensor], d_biases: list[Tensor]) -> None:
        """d_features (K * G, rows, features) of what `forward` returned last; writes those of filters and biases."""
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
                d_out = torch.where(above[:, part] > 0, delta[:, part], 0.0).view(
                    networks, -1, layer.channels
                )
                patches, ones = (
                    _patches(below[:, part], layer),
                    d_out.new_ones(networks, 1, d_out.shape[1]),
                )
                d_biases[index].baddbmm_(ones, d_out)
                for kind in range(0, networks, len(below)):
                    own = slice(kind, kind + len(below))
                    d_weight[own].baddbmm_(d_out[own].mT, patches)
                if index:
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
        """The rows whose patches are made together."""
        size = max(1, _PATCHES // (layer.height * layer.width * layer.filter_size))
        return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def _channels_last(weight: Tensor, layer: Layer) -> Tensor:
    """Filters (N, channels, filter size) with their numbers in the order of patches."""
    size = len(weight), layer.channels, layer.channels_in, layer.kernel, layer.kernel
    return weight.view(size).movedim(2, -1).reshape(weight.shape)


def _patches(planes: Tensor, layer: Layer) -> Tensor:
    """What each place of a layer's output reads: (N, rows * places, filter size) of (N, rows, height, width, …)."""
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
    parts, step = d_patches.view(size), layer.stride
    for down in range(layer.kernel):
        lines = slice(down, down + step * (layer.height - 1) + 1, step)
        for right in range(layer.kernel):
            places = slice(right, right + step * (layer.width - 1) + 1, step)
            planes[:, :, lines, places] += parts[:, :, :, :, down, right]
