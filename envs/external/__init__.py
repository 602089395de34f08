"""Environments by others, which run on the CPU: Gymnasium, PettingZoo, PufferLib-style."""
