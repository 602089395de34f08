"""Frozen policies, leagues of them and equilibria."""
