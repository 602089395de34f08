"""A module like PettingZoo's with an AEC environment only."""

from tests.envs.external.samples import TurnTag as env

__all__ = ["env"]
