"""Frozen policies: loading, acting, leagues of them and their equilibria."""
