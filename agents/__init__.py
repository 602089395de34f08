"""Populations of policies trained as one batched program, and frozen policies."""

if __name__ != "sweepd.agents":  # a second name would give every class a second identity
    raise ImportError("this folder is the package sweepd.agents: import it by that name")
