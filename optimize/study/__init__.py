"""A study and its storage: specification, search space, samplers, recovery, pause."""
