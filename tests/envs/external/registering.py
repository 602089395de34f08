"""A module that registers environments with Gymnasium when it is imported."""

import gymnasium

gymnasium.register("tests/Counter-v0", entry_point="tests.envs.external.samples:Counter")
gymnasium.register(
    "tests/Drawn-v0", entry_point="tests.envs.external.samples:Drawn", max_episode_steps=3
)
gymnasium.register("tests/Blank-v0", entry_point="tests.envs.external.samples:Blank")
gymnasium.register("tests/Masked-v0", entry_point="tests.envs.external.samples:Masked")
gymnasium.register(
    "tests/Advised-v0",
    entry_point="tests.envs.external.samples:Masked",
    kwargs={"told": False, "strict": False},
)
gymnasium.register("tests/Spoilt-v0", entry_point="tests.envs.external.samples:Spoilt")
