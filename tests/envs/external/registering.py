"""A module that registers an environment when it is imported, as packages of environments do."""

import gymnasium

gymnasium.register("tests/Counter-v0", entry_point="tests.envs.external.samples:Counter")
