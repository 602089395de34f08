"""Stacked networks, action distributions and optimizers of all members of a program."""
