"""Wrappers that turn observations into what networks read, for `--wrapper` and for one's own code.

`sweepd.wrappers.tokens(env, key="mission", words=["go", "to", …])` is what
`--wrapper 'tokens {"key": "mission", "words": ["go", "to", …]}'` makes. This module imports no torch.
"""

from sweepd.envs.external.wrappers import (
    WRAPPERS,
    agents,
    channels_first,
    flatten,
    frame_stack,
    one_hot,
    pad,
    planes,
    select,
    tokens,
    uint8,
)
from sweepd.envs.external.wrapping import wrap

__all__ = [
    "WRAPPERS",
    "agents",
    "channels_first",
    "flatten",
    "frame_stack",
    "one_hot",
    "pad",
    "planes",
    "select",
    "tokens",
    "uint8",
    "wrap",
]
