"""A module of PettingZoo's kind with an AEC environment alone."""

from tests.envs.external.samples import TurnTag as env

__all__ = ["env"]
