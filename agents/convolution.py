"""Two layers of convolutions before the networks of all members, for observations that are images.

A smaller relative of the network of Mnih et al. (2015): filters and strides by the image's size. All members' filters
run as one grouped convolution, a group per member, so no member's numbers depend on another's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from envs.errors import InputError

ImageShape = tuple[int, int, int]

# (channels, kernel, stride) of both layers, for images whose smaller side is at least this long.
_SIZES = {
    48: ((16, 8, 4), (32, 4, 2)),
    24: ((16, 4, 2), (32, 3, 2)),
    5: ((16, 3, 1), (32, 3, 2)),
}


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
        raise InputError(f"images must have a channel and be at least 5 x 5, and image_shape is {image_shape}.")
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
    out = avg.new_empty(obs.shape[1], obs.shape[0], obs.shape[2])  # laid out like that, too, for the convolutions
    return torch.sub(obs.transpose(0, 1), avg.transpose(0, 1), out=out).div_(std.transpose(0, 1))


class Convolutions:
    """The layers of K networks of each of G members: actors, critics, or both. Remembers what `backward` needs.

    filters[l] (K * G, channels, filter size), biases[l] (K * G, 1, channels), kind by kind.
    """

    def __init__(self, image_shape: ImageShape, slots: int) -> None:
        self._image, self._slots, self._layers = image_shape, slots, layers(image_shape)

    def forward(self, filters: list[Tensor], biases: list[Tensor], images: Tensor) -> Tensor:
        """images as `pixels` gives them. Returns (K * G, rows, features)."""
        slots, kinds = self._slots, filters[0].shape[0] // self._slots
        plane = images.view(images.shape[0], -1, *self._image[1:])
        self._planes, self._filters, self._groups = [plane], [], [slots, slots * kinds]
        for layer, weight, bias, groups in zip(self._layers, filters, biases, self._groups, strict=True):
            # Member by member, each with its kinds side by side: so both read the member's image in the first layer.
            size = (-1, layer.channels_in, layer.kernel, layer.kernel)
            by_member = [leaf.view(kinds, slots, *leaf.shape[1:]).transpose(0, 1) for leaf in (weight, bias)]
            self._filters.append(by_member[0].reshape(size))
            plane = torch.conv2d(
                plane, self._filters[-1], by_member[1].reshape(-1), layer.stride, groups=groups
            ).relu_()
            self._planes.append(plane)
        rows = plane.shape[0]
        return plane.view(rows, slots, kinds, -1).permute(2, 1, 0, 3).reshape(kinds * slots, rows, -1)

    def backward(self, d_features: Tensor, d_filters: list[Tensor], d_biases: list[Tensor]) -> None:
        """d_features (K * G, rows, features) of what `forward` returned last; writes those of filters and biases."""
        slots, kinds = self._slots, d_features.shape[0] // self._slots
        delta = d_features.view(kinds, slots, *d_features.shape[1:]).permute(2, 1, 0, 3).reshape(self._planes[-1].shape)
        for index in range(len(self._layers) - 1, -1, -1):
            layer, groups, below = self._layers[index], self._groups[index], self._planes[index]
            delta = torch.where(self._planes[index + 1] > 0, delta, 0.0)
            d_below, d_weight, d_bias = torch.ops.aten.convolution_backward(
                delta, below, self._filters[index], [kinds * slots * layer.channels], [layer.stride] * 2, [0, 0],
                [1, 1], False, [0, 0], groups, [index > 0, True, True],
            )  # fmt: skip
            for source, into in ((d_weight, d_filters[index]), (d_bias, d_biases[index])):
                by_member = source.view(slots, kinds, *into.shape[1:])
                into.view(kinds, slots, *into.shape[1:]).copy_(by_member.transpose(0, 1))
            delta = d_below
