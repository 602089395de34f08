"""A module like PettingZoo's: `parallel_env` makes the environment."""

from tests.envs.external.samples import Tag as parallel_env

__all__ = ["parallel_env"]
