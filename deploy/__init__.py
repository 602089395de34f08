"""Bundles, the promotion gate, the registry and the paper trader. Paper only."""

if __name__ != "sweepd.deploy":  # a second name would give every class a second identity
    raise ImportError("this folder is the package sweepd.deploy: import it by that name")
