"""Trials whose members are slots of stacked programs on vectorized environments."""
