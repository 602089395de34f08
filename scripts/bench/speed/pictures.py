"""A stand-in for games that are seen as images: it costs little more than to write an image."""

from __future__ import annotations

import torch
from torch import Tensor

from sweepd.envs.core.env_spec import BYTES
from sweepd.parts import TensorGame

NUMBER = 256  # of different images


class Pictures(TensorGame):
    """Images of noise, which follow each other by the actions; half of the actions are rewarded."""

    action_dim, if_discrete, obs_dtype = 6, True, BYTES
    max_step, uniforms_per_start = 100, 1
    pictures: Tensor

    def start(self, uniforms: Tensor) -> dict[str, Tensor]:
        """Begin with any image."""
        return {"number": (uniforms[:, 0] * NUMBER).long()}

    def move(
        self,
        state: dict[str, Tensor],
        action: Tensor,
        uniforms: Tensor,  # noqa: ARG002
    ) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Return the next image's number, the reward, and that the episode goes on."""
        number = state["number"]
        rewarded = (number + action) % 2 == 0
        after = {"number": (5 * number + action + 1) % NUMBER}
        return after, rewarded.double(), torch.zeros_like(rewarded)

    def see(self, state: dict[str, Tensor]) -> Tensor:
        """Return the images."""
        return self.pictures[state["number"]]


def pictures_of(image: tuple[int, int, int]) -> type[Pictures]:
    """Return the environment with images (channels, height, width)."""
    columns = image[0] * image[1] * image[2]
    noise = torch.randint(
        0, 256, (NUMBER, columns), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    changes = {"image_shape": image, "state_dim": columns, "pictures": noise}
    return type("Pictures", (Pictures,), changes)
