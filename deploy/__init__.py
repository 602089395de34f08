"""Bundles, the promotion gate, the registry and the paper trader. Paper only."""
