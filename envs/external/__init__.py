"""Environments that are not ours and step one at a time on the CPU: Gymnasium's, PettingZoo's, PufferLib-style ones."""
